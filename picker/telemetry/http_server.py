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
    told = {"answer": staticmethod(answer), "turns": threading.BoundedSemaphore(_MOST_AT_ONCE)}
    handler = type("Handler", (_Handler,), told)
    [(family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    server = type("Server", (_Server,), {"address_family": family})((host, port), handler)
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


class _Handler(BaseHTTPRequestHandler):
    """One connection. `answer` and `turns` are those of its server."""

    timeout = _TIMEOUT_S
    server_version, sys_version = "picker", ""
    answer: Callable[[Asked], Answer]
    turns: threading.BoundedSemaphore

    def do_GET(self) -> None:
        with self.turns:
            told = self.answer(Asked(self.path, {name.lower(): value for name, value in self.headers.items()}))
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
