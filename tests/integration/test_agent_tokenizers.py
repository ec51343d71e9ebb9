"""A worker's tokenizer on its way to pickers: agent, a real Redis, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

import picker
from picker.agent.config import tokenizer_cache
from picker.agent.tokenizers import TokenizerOffers
from picker.config import Config
from picker.fleet.view import View
from picker.offered_tokenizers import OfferedTokenizers
from picker.prompts import model_files
from picker.prompts.prefix import Rung
from picker.prompts.reader import PromptReader
from picker.redisview.keys import Keys
from picker.redisview.tokenizers import TTL_S, TokenizerStore
from picker.requests.model import ChatPrompt
from picker.simulation.valkey import ValkeyServer
from picker.simulation.worker import SimulatedWorker
from tests.integration.test_agent import KEYS, MODEL, agent, config_of, worker
from tests.unit.test_model_files import cached
from tests.waiting import until

__all__ = ["worker"]

TINY = Path(picker.__file__).parent / "simulation/data/tiny-llama"
DIGEST = model_files.digest(model_files.read(TINY))
CHAT = ChatPrompt([{"role": "user", "content": "word " * 400}])


async def test_pickers_read_prompts_with_the_tokenizer_of_the_workers(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    async with agent(redis_server, config_of(worker)) as rig:

        async def is_offered() -> bool:
            return (await rig.record("w0")).tokenizer == DIGEST

        await until(is_offered)
        view, reader = View(), PromptReader({})
        view.admit(await rig.record("w0"), now=0.0)
        await OfferedTokenizers(Config(), view, reader, TokenizerStore(rig.redis, KEYS)).look()
        assert reader.read(CHAT, MODEL, "", "").rung is Rung.TOKENS


@pytest.mark.parametrize("settings", [{"offer_tokenizers": False}, {}])
async def test_where_the_agent_cannot_read_the_files_or_must_not_nothing_is_offered(
    redis_server: ValkeyServer, worker: SimulatedWorker, settings: dict[str, bool]
) -> None:
    folder = "" if settings else "/nowhere"
    async with agent(redis_server, config_of(worker, tokenizer=folder), **settings) as rig:

        async def is_ready() -> bool:
            return bool((await rig.record("w0")).models)

        await until(is_ready)
        assert not (await rig.record("w0")).tokenizer
        assert not await rig.redis.keys("*:tok:*")


class TestOffers:
    @pytest.fixture
    def store(self, redis_server: ValkeyServer) -> TokenizerStore:
        self.redis = Redis.from_url(redis_server.url)
        return TokenizerStore(self.redis, Keys("offers"))

    async def test_what_redis_has_lost_is_offered_again(self, store: TokenizerStore, tmp_path: Path) -> None:
        offers = TokenizerOffers(store, tmp_path)
        assert await offers.offer(str(TINY)) == DIGEST
        key = Keys("offers").tokenizer(DIGEST)
        await self.redis.expire(key, 5)
        assert await offers.offer(str(TINY)) == DIGEST
        assert await self.redis.ttl(key) > TTL_S - 60
        await self.redis.delete(key)
        assert await offers.offer(str(TINY)) == DIGEST
        packed = await store.get(DIGEST, model_files.MOST_PACKED_BYTES)
        assert packed and model_files.unpack(packed, DIGEST)
        await self.redis.aclose()

    async def test_a_model_that_is_called_by_a_name_is_found_in_the_cache(
        self, store: TokenizerStore, tmp_path: Path
    ) -> None:
        cached(tmp_path, "org/tiny")
        offers = TokenizerOffers(store, tmp_path)
        assert await offers.offer("org/tiny") == DIGEST
        for root in ("", "org/other", "../tiny", "/nowhere", str(tmp_path)):
            assert await offers.offer(root) == ""
        await self.redis.aclose()

    async def test_a_folder_that_is_no_good_is_told_once_and_tried_again(
        self, store: TokenizerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        offers = TokenizerOffers(store, tmp_path)
        with capture_logs() as logs, monkeypatch.context() as smaller:
            smaller.setattr(model_files, "MOST_BYTES", 10)
            for _ in range(3):
                assert await offers.offer(str(TINY)) == ""
        assert [line["event"] for line in logs] == ["tokenizer_not_offered"]
        assert await offers.offer(str(TINY)) == DIGEST
        await self.redis.aclose()

    async def test_a_value_of_another_type_is_no_tokenizer(self, store: TokenizerStore) -> None:
        await self.redis.hset(Keys("offers").tokenizer("0" * 64), "a", "b")  # type: ignore[misc]
        assert await store.get("0" * 64, 100) is None
        await self.redis.aclose()


def test_the_cache_is_where_hugging_face_keeps_it() -> None:
    assert tokenizer_cache("", {"HF_HOME": "/models"}) == Path("/models/hub")
    assert tokenizer_cache("", {"HF_HOME": "/models", "HF_HUB_CACHE": "/cache"}) == Path("/cache")
    assert tokenizer_cache("/own", {"HF_HUB_CACHE": "/cache"}) == Path("/own")
    assert tokenizer_cache("", {}) == Path.home() / ".cache/huggingface/hub"
