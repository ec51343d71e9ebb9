"""Offers the workers' tokenizer files to pickers, through Redis."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from picker.prompts import model_files
from picker.prompts.model_files import BadTokenizer
from picker.redisview.connection import FAILURES, reason
from picker.redisview.tokenizers import TokenizerStore

_log = structlog.get_logger()


class TokenizerOffers:
    """Of all workers of one agent, which mostly serve the same few models.

    A model is where its engine says that it is (`root` in /v1/models): a folder that the agent can read as well, or a
    name in the Hugging Face cache that both see. Elsewhere there is nothing to offer.
    """

    def __init__(self, store: TokenizerStore, cache: Path):
        self._store = store
        self._cache = cache
        self._digests: dict[tuple[Path, int], str] = {}
        self._refused: set[Path] = set()
        self._lock = asyncio.Lock()

    async def offer(self, root: str) -> str:
        """The digest under which they are offered, "" where there are none. Raises `connection.FAILURES`."""
        folder = await asyncio.to_thread(self._locate, root)
        if folder is None:
            return ""
        # One at a time: they are large, and most workers have the same.
        async with self._lock:
            try:
                return await self._offered(folder)
            except (BadTokenizer, OSError) as error:
                self._refuse(folder, error)
                return ""

    async def _offered(self, folder: Path) -> str:
        key = (folder, (folder / model_files.TOKENIZER).stat().st_mtime_ns)
        known = self._digests.get(key)
        if known and await self._store.renew(known):
            return known
        digest, packed = await asyncio.to_thread(_packed, folder)
        await self._store.put(digest, packed)
        self._digests = {each: value for each, value in self._digests.items() if each[0] != folder} | {key: digest}
        _log.info("tokenizer_offered", folder=str(folder), digest=digest, bytes=len(packed))
        return digest

    def _refuse(self, folder: Path, error: Exception) -> None:
        if folder not in self._refused:
            self._refused.add(folder)
            _log.warning("tokenizer_not_offered", folder=str(folder), reason=str(error))

    def _locate(self, root: str) -> Path | None:
        found = Path(root) if root.startswith("/") else model_files.in_cache(self._cache, root)
        return model_files.snapshot(found) if found and model_files.holds_tokenizer(found) else None


class WorkerTokenizer:
    """What one worker tokenizes with, and under which digest that is offered."""

    def __init__(self, worker: str, root: str, look_s: float, renew_s: float):
        """`root`: of its model, "" while unknown. It is looked at each `look_s`, and offered anew each `renew_s`."""
        self.root = root
        self._worker = worker
        self._look_s = look_s
        self._renew_s = renew_s
        self._offered: tuple[str, str] = ("", "")

    @property
    def digest(self) -> str:
        """Empty where it is not offered, or not yet."""
        root, digest = self._offered
        return digest if root == self.root else ""

    async def offer(self, offers: TokenizerOffers) -> None:
        """Again and again: Redis forgets what is not renewed, and the server may come back with another model."""
        renew_at = 0.0
        while True:
            root, now = self.root, time.monotonic()
            if root and (root != self._offered[0] or now >= renew_at):
                try:
                    self._offered = (root, await offers.offer(root))
                    renew_at = now + self._renew_s
                except FAILURES as error:
                    # The publisher tells of Redis; here it is tried again with the next look.
                    _log.debug("tokenizer_not_offered", worker=self._worker, reason=reason(error))
            await asyncio.sleep(self._look_s)


def _packed(folder: Path) -> tuple[str, bytes]:
    files = model_files.read(folder)
    return model_files.digest(files), model_files.pack(files)
