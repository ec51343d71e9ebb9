"""TLS for the gRPC port: certificates from files that may change or made on the spot, clients' ones if wanted."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

import grpc
import structlog

from picker.config import Tls

log = structlog.get_logger()

_SELF_SIGNED_DAYS = 3650


class BadCertificate(ValueError):
    """Certificate files that cannot be used. The message names the file and what to do."""


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """What a port of grpcio needs. Raises BadCertificate.

    Files are read again when they have changed, at the next handshake: a rotation needs no restart. Gateways speak
    HTTP/2 by ALPN, which grpcio offers by itself.
    """
    if tls.cert is None or tls.key is None:
        key, cert = _self_signed()
        return grpc.ssl_server_credentials([(key, cert)])
    files = _Files(tls)

    def renew() -> grpc.ServerCertificateConfiguration | None:
        pems = files.changed()
        return _configuration(pems) if pems else None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.read()),
        renew,  # type: ignore[arg-type]  # the stubs do not know that it may return None
        require_client_authentication=tls.client_ca is not None,
    )


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """The same for a port of our own transport. Raises BadCertificate."""
    if tls.cert is None or tls.key is None:
        return _context(Pems(*_self_signed()))
    files = _Files(tls)
    in_use = context = _context(files.read())

    def renew(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        nonlocal in_use
        if pems := files.changed():
            try:
                in_use = _context(pems)
            except BadCertificate as error:
                log.warning("certificate_not_reloaded", reason=str(error))
        connection.context = in_use

    # Called at each handshake, also where the client names no server.
    context.sni_callback = renew
    return context


class Pems(NamedTuple):
    """What the files hold."""

    key: bytes
    cert: bytes
    client_ca: bytes | None = None


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.client_ca)


def _context(pems: Pems) -> ssl.SSLContext:
    """Raises BadCertificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    try:
        # OpenSSL's interface takes a file; this one is ours alone, and gone at once.
        with tempfile.NamedTemporaryFile() as file:
            file.write(pems.key + b"\n" + pems.cert)
            file.flush()
            context.load_cert_chain(file.name)
        if pems.client_ca is not None:
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii", "replace"))
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise BadCertificate(f"tls: cert, key and client_ca are no PEM files that belong together: {error}") from None
    return context


class _Files:
    def __init__(self, tls: Tls):
        self._paths = [Path(path) for path in (tls.key, tls.cert, tls.client_ca) if path is not None]
        self._stamp: tuple[int, ...] = ()

    def read(self) -> Pems:
        """Raises BadCertificate."""
        try:
            stamp = self._stamps()
            pems = Pems(*(path.read_bytes() for path in self._paths))
        except OSError as error:
            raise BadCertificate(f"tls: {error.filename} cannot be read: {error.strerror}") from None
        self._stamp = stamp
        return pems

    def changed(self) -> Pems | None:
        """Asked at each handshake; None keeps what is in use."""
        try:
            if self._stamps() == self._stamp:
                return None
            pems = self.read()
        except (OSError, BadCertificate) as error:
            # In the middle of a rotation a file may be missing; the old pair serves until it is whole.
            log.warning("certificate_not_reloaded", reason=str(error))
            return None
        log.info("certificate_reloaded", files=[str(path) for path in self._paths])
        return pems

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
