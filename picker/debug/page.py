"""The page for browsers: one HTML file without outside assets, and what it asks for, as JSON. It changes nothing.

Runs in the threads of an HTTP server; what it tells is worked out in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.protobuf import json_format
from google.protobuf.message import Message

from picker.debug.service import DebugService, is_token
from picker.debug.settings import is_local
from picker.debug.v1 import debug_pb2 as pb
from picker.telemetry.http_server import Answer, Asked

_ANSWER_S = 5.0
_JSON = "application/json"
_MOST_TAILED = 200


class Page:
    """Answers of one debug service. `token_file` as for the debug port; `address` is what the page listens on."""

    def __init__(self, service: DebugService, token_file: str | None, address: str, loop: asyncio.AbstractEventLoop):
        self._service = service
        self._token_file = Path(token_file) if token_file else None
        self._is_local = is_local(address)
        self._loop = loop
        self._html = files("picker.debug").joinpath("page.html").read_bytes()

    def answer(self, asked: Asked) -> Answer:
        """For one request, in its thread."""
        target = urlsplit(asked.target)
        if self._is_local and not is_local(_with_port(asked.headers.get("host", ""))):
            # A page from elsewhere whose name suddenly means this machine (DNS rebinding).
            return Answer(b"this page is for this machine: open it as http://127.0.0.1\n", "text/plain", 403)
        if target.path == "/":
            return Answer(self._html, "text/html; charset=utf-8")
        if self._token_file and not is_token(asked.headers.get("authorization", ""), self._token_file):
            return Answer(b'{"error": "send the token that is in debug.token_file"}', _JSON, 401)
        call = self._calls().get(target.path)
        if call is None:
            return Answer(b'{"error": "there is no such path"}', _JSON, 404)
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        try:
            told = asyncio.run_coroutine_threadsafe(call(query), self._loop).result(_ANSWER_S)
        except (TimeoutError, asyncio.CancelledError):
            return Answer(b'{"error": "the picker is too busy to tell"}', _JSON, 503)
        return Answer(b"[" + b",".join(map(_json, told)) + b"]", _JSON)

    def _calls(self) -> dict[str, Callable[[dict[str, str]], Coroutine[Any, Any, list[Message]]]]:
        return {"/api/fleet": self._fleet, "/api/decisions": self._decisions, "/api/explain": self._explain}

    async def _fleet(self, query: dict[str, str]) -> list[Message]:
        return [self._service.fleet()]

    async def _decisions(self, query: dict[str, str]) -> list[Message]:
        last = query.get("last", "")
        count = min(_MOST_TAILED, int(last)) if last.isdecimal() else 50
        return list(self._service.last(pb.TailRequest(last=count, verdict=query.get("verdict", ""))))

    async def _explain(self, query: dict[str, str]) -> list[Message]:
        return list(self._service.find(query.get("id", "")))


def _with_port(host: str) -> str:
    return host if ":" in host.rpartition("]")[2] else f"{host}:80"


def _json(message: Message) -> bytes:
    text: str = json_format.MessageToJson(
        message, indent=None, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return text.encode()
