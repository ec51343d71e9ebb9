"""What an operator can do about an error of Redis'."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

from picker.redisview.locate import NoPrimary

_ADVICE: tuple[tuple[type[BaseException], str], ...] = (
    (AuthenticationError, "check user and password: in the URL, or username and password_file"),
    (NoPermissionError, "give the user the rights that docs/redis.md lists"),
    (BusyLoadingError, "it reads its data after a start and is waited for"),
    (OutOfMemoryError, "raise maxmemory, or give the view a Redis of its own"),
    (ReadOnlyError, "it is a replica: give the primary's address, or redis+sentinel:// to follow it"),
    (MovedError, "it is a node of a cluster: begin the URL with redis+cluster://"),
    (ClusterDownError, "the cluster does not serve this slot: a node is down or not joined yet; it is waited for"),
    (TryAgainError, "the pool's slot is being moved; it is waited for"),
    (NoPrimary, "see whether they run, and whether they call the primary by this name"),
)
_UNWRITABLE = ("MISCONF", "NOREPLICAS")


def advice(error: BaseException) -> str:
    """One sentence. Most errors are of connections: then it is the address and the server that are to be looked at."""
    return next(
        (text for kind, text in _ADVICE if isinstance(error, kind)),
        "see whether it runs and is reached at this address; it is tried again",
    )


def takes_no_writes(error: BaseException) -> bool:
    """Whether nobody can write to this Redis at present: it is full, or cannot save, or lacks its replicas.

    Not so for a replica or for a user without rights: others may well be able to.
    """
    return isinstance(error, OutOfMemoryError) or str(error).startswith(_UNWRITABLE)
