"""Settings of the debug port."""

from __future__ import annotations

import ipaddress

import msgspec


class Debug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gRPC debug service, for `picker top`, `explain`, `tail`, `cordon` and grpcurl, and the page.

    listen: host:port; null for none. Whoever reaches it can see decisions and cordon workers: beyond this machine it
    needs `token_file` or `client_ca`.
    page: host:port of the page for browsers, which shows and changes nothing; null for none. The token holds there too.
    token_file: a file with a token, which clients send as `authorization: Bearer TOKEN`; read again for each call.
    cert, key, client_ca: PEM files for TLS on both; with client_ca only clients with a certificate of that authority.
    """

    listen: str | None = "127.0.0.1:9190"
    page: str | None = "127.0.0.1:9290"
    token_file: str | None = None
    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together; set both or neither")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("client_ca needs cert and key")
        for name, address in (("listen", self.listen), ("page", self.page)):
            if address and not is_local(address) and not self.token_file and not self.client_ca:
                raise ValueError(f"{name}: others can reach {address}: set token_file, or client_ca")


def is_local(address: str) -> bool:
    """Whether only this machine reaches host:port."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
