"""What a platform orders: quotas, weights of tenants, cordons, which model is served where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from picker.admission.settings import PositiveFloat, Quota
from picker.config_files import ConfigError, converted

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Note = Annotated[str, msgspec.Meta(max_length=512)]


class Orders(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Orders of a platform. What is left out stays as picker.yaml has it.

    revision: of these orders, in the platform's own words; the state tells which one is followed.
    quotas: instead of `admission.quotas`.
    tenants: weights by name, instead of `admission.tenants`.
    cordons: workers, by name or endpoint, that get nothing new, each with a note; besides those of operators.
    placement: for a model or an adapter, the names of the workers that its requests may go to; instead of `placement`.
    """

    revision: Note = ""
    quotas: Annotated[tuple[Quota, ...], msgspec.Meta(max_length=1000)] | None = None
    tenants: Annotated[dict[Name, PositiveFloat], msgspec.Meta(max_length=10_000)] | None = None
    cordons: Annotated[dict[Name, Note], msgspec.Meta(max_length=10_000)] | None = None
    placement: (
        Annotated[dict[Name, Annotated[tuple[Name, ...], msgspec.Meta(max_length=1000)]], msgspec.Meta(max_length=1000)]
        | None
    ) = None


SECTIONS: tuple[str, ...] = Orders.__struct_fields__
"""The fields of the HASH; each holds JSON, but for `revision`, which is text."""


def of_fields(fields: Mapping[str, bytes], name: str) -> Orders:
    """The orders in a HASH called `name`. Raises ConfigError."""
    return converted({field: _value(field, data, name) for field, data in fields.items()}, Orders, name)


def _value(field: str, data: bytes, name: str) -> Any:
    try:
        return data.decode() if field == "revision" else msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name}: {field}: is not {'text' if field == 'revision' else 'JSON'}: {error}") from None
