"""TLS for the gRPC port: certificates from files that may change or made on the spot, clients' ones if wanted."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import grpc
import structlog

from picker.config import Tls

log = structlog.get_logger()

_SELF_SIGNED_DAYS = 3650


class BadCertificate(ValueError):
    """Certificate files that cannot be used. The message names the file and what to do."""


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """What a server port needs. Raises BadCertificate.

    Files are read again when they have changed, at the next handshake: a rotation needs no restart. Gateways speak
    HTTP/2 by ALPN, which grpcio offers by itself.
    """
    if tls.cert is None or tls.key is None:
        return grpc.ssl_server_credentials([_self_signed()])
    files = _Files(tls)
    # The stubs do not know that the fetcher may return None.
    return grpc.dynamic_ssl_server_credentials(
        files.read(),
        files.fetch,  # type: ignore[arg-type]
        require_client_authentication=tls.client_ca is not None,
    )


class _Files:
    def __init__(self, tls: Tls):
        self._paths = [Path(path) for path in (tls.key, tls.cert, tls.client_ca) if path is not None]
        self._stamp: tuple[int, ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Raises BadCertificate."""
        try:
            stamp = self._stamps()
            key, cert, *client_ca = (path.read_bytes() for path in self._paths)
            config = grpc.ssl_server_certificate_configuration([(key, cert)], client_ca[0] if client_ca else None)
        except OSError as error:
            raise BadCertificate(f"tls: {error.filename} cannot be read: {error.strerror}") from None
        self._stamp = stamp
        return config

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by grpcio at each handshake; None keeps what is in use."""
        try:
            if self._stamps() == self._stamp:
                return None
            config = self.read()
        except (OSError, BadCertificate) as error:
            # In the middle of a rotation a file may be missing; the old pair serves until it is whole.
            log.warning("certificate_not_reloaded", reason=str(error))
            return None
        log.info("certificate_reloaded", files=[str(path) for path in self._paths])
        return config

    def _stamps(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in self._paths)


def _self_signed() -> tuple[bytes, bytes]:
    """A key and certificate of our own, which gateways that do not verify the picker's identity accept."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ModuleNotFoundError:
        raise BadCertificate(
            "tls: without cert and key one is made on the spot, which needs: pip install 'envoy-picker[tls]'"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "picker")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_SELF_SIGNED_DAYS))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, cert.public_bytes(pem)
