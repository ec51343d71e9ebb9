"""How many bytes of request bodies this process holds at once."""

from __future__ import annotations


class ByteBudget:
    """A bound shared by all conversations: taken before a piece is kept, given back when it is let go."""

    def __init__(self, limit: int):
        self.limit = limit
        self.taken = 0

    def __repr__(self) -> str:
        return f"<ByteBudget {self.taken} of {self.limit} bytes>"

    def take(self, size: int) -> bool:
        """False, and nothing taken, where that would exceed the limit."""
        if self.taken + size > self.limit:
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        """Returns what `take` took."""
        self.taken -= size
