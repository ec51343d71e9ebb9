"""A small HTTP server in threads of its own, for scrapes and for the page: GET only, one answer for each request."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TIMEOUT_S = 10.0
_MOST_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's target, path and query, and its headers with names in lower case."""

    target: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered."""

    body: bytes
    content_type: str
    status: int = 200


def serve(
    host: str, port: int, answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None
) -> Callable[[], None]:
    """Returns what stops it. Raises OSError where the port is taken."""
    turns = threading.BoundedSemaphore(_MOST_AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version, sys_version = "picker", ""

        def do_GET(self) -> None:
            with turns:
                self._answer(answer(Asked(self.path, {name.lower(): value for name, value in self.headers.items()})))

        def _answer(self, told: Answer) -> None:
            self.send_response(told.status)
            for name, value in (
                ("Content-Type", told.content_type),
                ("Content-Length", str(len(told.body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("X-Frame-Options", "DENY"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(told.body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    [(family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    server = type("Server", (_Server,), {"address_family": family})((host, port), Handler)
    if tls:
        # Shakes hands in the connection's own thread, at its first read.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name=f"http-{port}", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
