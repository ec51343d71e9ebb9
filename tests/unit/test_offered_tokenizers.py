"""Tokenizers that nobody configured: which are loaded, which are left, and what is said of those that are no good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import picker
from picker.config import Config, Limits
from picker.fleet.view import View
from picker.offered_tokenizers import OfferedTokenizers
from picker.prompts import model_files
from picker.prompts.prefix import Rung
from picker.prompts.reader import PromptReader
from picker.requests.model import ChatPrompt
from tests.unit.fleets import Worker
from tests.unit.test_model_files import cached

TINY = Path(picker.__file__).parent / "simulation/data/tiny-llama"
FILES = model_files.read(TINY)
DIGEST = model_files.digest(FILES)
CHAT = ChatPrompt([{"role": "user", "content": "word " * 400}])


class Store:
    """What Redis holds."""

    def __init__(self, **held: bytes):
        self.held = held
        self.asked: list[str] = []

    async def get(self, digest: str, most_bytes: int) -> bytes | None:
        self.asked.append(digest)
        return self.held.get(digest)


def offered(view: View, store: Store, **config: Any) -> tuple[OfferedTokenizers, PromptReader]:
    reader = PromptReader({})
    return OfferedTokenizers(Config(**config), view, reader, store), reader  # type: ignore[arg-type]


def serving(**digests: str) -> View:
    """A view of one worker for each model."""
    view = View()
    for model, digest in digests.items():
        view.admit(Worker(model, models=(model,), tokenizer=digest), now=0.0)
    return view


def rung(reader: PromptReader, model: str) -> Rung:
    return reader.read(CHAT, model, "", "").rung


async def test_what_a_workers_agent_offers_is_used_as_long_as_the_model_is_served() -> None:
    view = serving(llama=DIGEST, bare="")
    tokenizers, reader = offered(view, Store(**{DIGEST: model_files.pack(FILES)}))
    assert rung(reader, "llama") is Rung.TEXT
    await tokenizers.look()
    assert (rung(reader, "llama"), rung(reader, "bare")) == (Rung.TOKENS, Rung.TEXT)
    view.retire(next(slot for slot in view.slots() if view.facts(slot).worker == "llama"))
    await tokenizers.look()
    assert rung(reader, "llama") is Rung.TEXT


async def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(**{DIGEST: model_files.pack(FILES)})
    tokenizers, _ = offered(serving(llama=DIGEST), store)
    for _ in range(3):
        await tokenizers.look()
    assert store.asked == [DIGEST]


async def test_a_cache_comes_before_offers_and_configured_models_before_both(tmp_path: Path) -> None:
    cached(tmp_path, "llama")
    store = Store(**{DIGEST: model_files.pack(FILES)})
    view = serving(llama=DIGEST, mine=DIGEST)
    tokenizers, reader = offered(view, store, tokenizer_cache=str(tmp_path), tokenizers={"mine": "/somewhere"})
    await tokenizers.look()
    assert not store.asked
    assert (rung(reader, "llama"), rung(reader, "mine")) == (Rung.TOKENS, Rung.TEXT)


async def test_offers_can_be_left_alone() -> None:
    store = Store(**{DIGEST: model_files.pack(FILES)})
    tokenizers, _ = offered(serving(llama=DIGEST), store, worker_tokenizers=False)
    await tokenizers.look()
    assert not store.asked


async def test_while_workers_change_the_tokenizer_in_use_stays() -> None:
    bare = {"tokenizer.json": FILES["tokenizer.json"]}
    other = model_files.digest(bare)
    view = serving(llama=DIGEST)
    store = Store(**{DIGEST: model_files.pack(FILES), other: model_files.pack(bare)})
    tokenizers, reader = offered(view, store)
    await tokenizers.look()
    view.admit(Worker("new", models=("llama",), tokenizer=other), now=0.0)
    await tokenizers.look()
    assert store.asked == [DIGEST]
    view.retire(next(slot for slot in view.slots() if view.facts(slot).worker == "llama"))
    await tokenizers.look()
    assert store.asked == [DIGEST, other]
    assert rung(reader, "llama") is Rung.TEXT, "the other one has no chat template"


@pytest.mark.parametrize("held", [None, b"", b"junk", model_files.pack({"tokenizer.json": b"{}"})])
async def test_what_is_no_good_is_told_once_and_not_asked_for_all_the_time(held: bytes | None) -> None:
    store = Store(**({} if held is None else {DIGEST: held}))
    tokenizers, reader = offered(serving(llama=DIGEST), store)
    with capture_logs() as logs:
        for _ in range(5):
            await tokenizers.look()
    assert [line["event"] for line in logs] == ["tokenizer_unusable"]
    assert store.asked == [DIGEST]
    assert rung(reader, "llama") is Rung.TEXT


@pytest.mark.parametrize("digest", ["../x", "a" * 63, "A" * 64, "*", "0" * 64 + "\n"])
async def test_a_digest_that_is_none_never_stands_in_a_key(digest: str) -> None:
    store = Store()
    tokenizers, _ = offered(serving(llama=digest), store)
    await tokenizers.look()
    assert not store.asked


async def test_a_cache_that_changes_while_it_is_read_is_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, "llama")
    tokenizers, reader = offered(serving(llama=""), Store(), tokenizer_cache=str(tmp_path))

    def changed(folder: Path) -> dict[str, bytes]:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "no text")

    with monkeypatch.context() as changing, capture_logs() as logs:
        changing.setattr(model_files, "read", changed)
        await tokenizers.look()
    assert [line["event"] for line in logs] == ["tokenizer_unusable"]
    assert rung(reader, "llama") is Rung.TEXT


async def test_only_so_many_are_held() -> None:
    store = Store(**{DIGEST: model_files.pack(FILES)})
    view = serving(**{f"m{number}": DIGEST for number in range(5)})
    tokenizers, reader = offered(view, store, limits=Limits(max_offered_tokenizers=2))
    await tokenizers.look()
    assert [rung(reader, f"m{number}") is Rung.TOKENS for number in range(5)] == [True, True, False, False, False]


async def test_a_template_of_the_operators_own_is_used(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ raise_exception('no') }}")
    tokenizers, reader = offered(
        serving(llama=DIGEST), Store(**{DIGEST: model_files.pack(FILES)}), chat_templates={"llama": str(template)}
    )
    await tokenizers.look()
    assert rung(reader, "llama") is Rung.TEXT
