"""What a conversation is told and what it wants done, as values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """One event or action. Bodies and headers do not show in its `repr`: they are the client's.

    A dozen of them are made for each request, and none is part of a cycle: the collector need not look at them.
    """

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={value!r}" for name, value in fields if not isinstance(value, bytes | Mapping))
        return f"{type(self).__name__}({', '.join(shown)})"
