"""Tokenizers that nobody configured: of models that workers serve, from a Hugging Face cache or their workers' files.

Both are found by the name under which workers cache prompts: the cache by that name, the files by the digest that the
worker's agent publishes beside it. What comes from Redis is bounded, must have its digest, and its chat templates run
in the sandbox as all do. A tokenizer holds up everything for a second while it is loaded (the library does not let go
of the interpreter): before the picker is ready where that is possible, else once for each new one.
"""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import structlog

from picker.config import Config
from picker.fleet.view import View
from picker.prompts import model_files
from picker.prompts.model_files import BadTokenizer
from picker.prompts.reader import PromptReader
from picker.prompts.tokenizer import ModelTokenizer
from picker.redisview.connection import FAILURES
from picker.redisview.tokenizers import TokenizerStore, is_digest

log = structlog.get_logger()

_LOOK_EVERY_S = 2.0
_RETRY_AFTER_S = 30.0

Source = Path | str
"""An entry of the cache, or the digest of files in Redis."""


class OfferedTokenizers:
    """Keeps a reader's tokenizers in step with the models that workers serve."""

    def __init__(self, config: Config, view: View, reader: PromptReader, store: TokenizerStore):
        self._configured = config.tokenizers.keys()
        self._templates = config.chat_templates
        self._cache = Path(config.tokenizer_cache) if config.tokenizer_cache else None
        self._takes_offers = config.worker_tokenizers
        self._most = config.limits.max_offered_tokenizers
        self._view = view
        self._reader = reader
        self._store = store
        self._used: dict[str, Source] = {}
        self._retry_at: dict[Source, float] = {}
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Loads what is new and drops what nobody serves any more. Whatever is wrong with one model is logged."""
        async with self._lock:
            wanted = self._wanted()
            for model in self._used.keys() - wanted.keys():
                self._reader.use(model, None)
                del self._used[model]
            self._retry_at = {source: at for source, at in self._retry_at.items() if source in wanted.values()}
            for model, source in wanted.items():
                if self._used.get(model) != source and time.monotonic() >= self._retry_at.get(source, 0.0):
                    await self._take(model, source)

    def _wanted(self) -> dict[str, Source]:
        offers: dict[str, set[str]] = {}
        for facts in map(self._view.facts, self._view.slots()):
            if facts.models and facts.models[0] not in self._configured:
                offers.setdefault(facts.models[0], set()).add(facts.tokenizer)
        found = ((model, self._source(model, offers[model])) for model in sorted(offers))
        return dict([(model, source) for model, source in found if source is not None][: self._most])

    def _source(self, model: str, offered: set[str]) -> Source | None:
        if self._cache and (entry := model_files.in_cache(self._cache, model)):
            return entry
        digests = sorted(filter(is_digest, offered)) if self._takes_offers else []
        # While workers change from one to another, the one that is in use will do.
        used = self._used.get(model)
        return used if used in digests else next(iter(digests), None)

    async def _take(self, model: str, source: Source) -> None:
        started = time.monotonic()
        try:
            files = await self._files(source)
            tokenizer = await asyncio.to_thread(_load, files, str(source), self._templates.get(model))
        # Also a file that is no text, where a cache is written to just now.
        except (BadTokenizer, UnicodeDecodeError, OSError, *FAILURES) as error:
            self._retry_at[source] = time.monotonic() + _RETRY_AFTER_S
            log.warning("tokenizer_unusable", model=model, source=str(source), reason=str(error))
            return
        self._reader.use(model, tokenizer)
        self._used[model] = source
        # As at the start: it stays, and the collector need not look at it again.
        gc.freeze()
        log.info("tokenizer_loaded", model=model, source=str(source), seconds=round(time.monotonic() - started, 2))

    async def _files(self, source: Source) -> model_files.Files:
        """Raises BadTokenizer, OSError, FAILURES."""
        if isinstance(source, Path):
            return await asyncio.to_thread(model_files.read, source)
        packed = await self._store.get(source, model_files.MOST_PACKED_BYTES)
        if packed is None:
            raise BadTokenizer("an agent offers it, and it is not in Redis")
        return await asyncio.to_thread(model_files.unpack, packed, source)


def _load(files: model_files.Files, where: str, template: str | None) -> ModelTokenizer:
    """Raises BadTokenizer, OSError."""
    if template is not None:
        files = model_files.with_template(files, Path(template).read_bytes())
    return ModelTokenizer.from_files(files, where)
