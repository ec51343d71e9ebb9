"""Which Redis, and how to be let in: from the configuration files of pickers and agents."""

from __future__ import annotations

import msgspec


class RedisConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL, and what does not belong into one.

    url: redis://host:port/db, rediss:// with TLS, unix:///path,
    redis+sentinel://sentinel1:26379,sentinel2:26379/name-of-the-primary/db, or redis+cluster://node1:6379,node2:6379;
    rediss+sentinel:// and rediss+cluster:// are those with TLS.
    username, password_file: of an ACL user; the file is read for each new connection, so that passwords can change.
    sentinel_username, sentinel_password_file: for the sentinels, where they want one of their own.
    ca, cert, key: PEM files for TLS: whom to trust instead of the system's authorities, and who we are.
    verify_host: whether the certificate must name the host. Sentinels and clusters name their servers by address.
    """

    url: str
    username: str | None = None
    password_file: str | None = None
    sentinel_username: str | None = None
    sentinel_password_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify_host: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.username is not None and self.password_file is None:
            raise ValueError("username needs password_file; a password can also stand in url, with its user")
        if self.sentinel_username is not None and self.sentinel_password_file is None:
            raise ValueError("sentinel_username needs sentinel_password_file")
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together; set both or neither")
