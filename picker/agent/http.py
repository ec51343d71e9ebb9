"""Small answers of one server over HTTP: bounded in bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx


class Server:
    """`url` is its base. Requests raise httpx.HTTPError, also for an answer beyond the bound, and TimeoutError."""

    def __init__(self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str], response_bytes: int) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._headers = headers
        self._response_bytes = response_bytes

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return self._url

    async def get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body."""
        return await self._ask("GET", path, timeout_s)

    async def post(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body, of a request without one."""
        return await self._ask("POST", path, timeout_s)

    async def _ask(self, method: str, path: str, timeout_s: float) -> tuple[int, bytes]:
        async with (
            asyncio.timeout(timeout_s),
            self._client.stream(method, self._url + path, headers=self._headers, timeout=timeout_s) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._response_bytes:
                    raise httpx.HTTPError(f"{path} answers with more than {self._response_bytes} bytes")
            return response.status_code, bytes(body)
