"""A model's files: found, packed, and known by their digest."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import picker
from picker.prompts import model_files
from picker.prompts.model_files import BadTokenizer
from picker.prompts.tokenizer import ModelTokenizer

TINY = Path(picker.__file__).parent / "simulation/data/tiny-llama"
CHAT = [{"role": "user", "content": "hi"}]


def cached(cache: Path, name: str, revision: str = "abc", is_main: bool = True) -> Path:
    """A cache entry as huggingface_hub lays it out: snapshots of links into blobs."""
    entry = cache / f"models--{name.replace('/', '--')}"
    snapshot = entry / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for path in TINY.iterdir():
        (snapshot / path.name).symlink_to(path)
    if is_main:
        (entry / "refs").mkdir(exist_ok=True)
        (entry / "refs" / "main").write_text(revision)
    return entry


def test_a_cache_entry_is_as_good_as_a_folder(tmp_path: Path) -> None:
    entry = cached(tmp_path, "org/tiny")
    assert model_files.in_cache(tmp_path, "org/tiny") == entry
    assert model_files.digest(model_files.read(entry)) == model_files.digest(model_files.read(TINY))
    assert ModelTokenizer.load(entry).digest == ModelTokenizer.load(TINY).digest


def test_of_several_revisions_main_counts_and_without_it_none(tmp_path: Path) -> None:
    cached(tmp_path, "tiny", "old", is_main=False)
    assert model_files.in_cache(tmp_path, "tiny")
    entry = cached(tmp_path, "tiny", "new")
    assert model_files.snapshot(entry).name == "new"
    (entry / "refs" / "main").write_text("gone")
    assert model_files.in_cache(tmp_path, "tiny") is None


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b/c", "/etc", "a/../b", "..", ".", "a\0b", "a b", "x" * 10_000, "org/"]
)
def test_no_name_leads_out_of_the_cache(tmp_path: Path, name: str) -> None:
    assert model_files.in_cache(tmp_path / "hub", name) is None


def test_an_entry_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    entry = cached(tmp_path, "tiny")
    (entry / "refs" / "main").write_bytes(b"\xff\xfe")
    assert model_files.in_cache(tmp_path, "tiny") is None
    assert not model_files.holds_tokenizer(Path("/" + "x" * 10_000))
    assert not model_files.holds_tokenizer(Path("/a\0b"))


def test_packed_files_come_back_and_make_the_same_prompts() -> None:
    files = model_files.read(TINY)
    digest, packed = model_files.digest(files), model_files.pack(files)
    assert model_files.unpack(packed, digest) == files
    ours, theirs = ModelTokenizer.load(TINY), ModelTokenizer.from_files(model_files.unpack(packed, digest), "Redis")
    assert ours.template and theirs.template
    assert ours.template.render(CHAT) == theirs.template.render(CHAT)


def test_other_files_than_promised_are_refused() -> None:
    files = model_files.read(TINY)
    with pytest.raises(BadTokenizer, match="promised"):
        model_files.unpack(model_files.pack(files | {"tokenizer_config.json": b"{}"}), model_files.digest(files))


def test_a_bomb_is_refused() -> None:
    bomb = zlib.compress(msgspec.msgpack.encode({"tokenizer.json": bytes(model_files.MOST_BYTES * 2)}))
    with pytest.raises(BadTokenizer):
        model_files.unpack(bomb, "0" * 64)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused(data: bytes, is_packed: bool) -> None:
    with pytest.raises(BadTokenizer):
        model_files.unpack(zlib.compress(data) if is_packed else data, "0" * 64)


def test_names_and_contents_cannot_be_mistaken_for_each_other() -> None:
    digests = {model_files.digest(files) for files in ({"a": b"bc"}, {"ab": b"c"}, {"a": b"", "b": b"c"}, {"a": b"c"})}
    assert len(digests) == 4


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}" * 100)
    monkeypatch.setattr(model_files, "MOST_BYTES", 100)
    with pytest.raises(BadTokenizer, match="more than"):
        model_files.read(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": b"no JSON"},
        {"tokenizer.json": b"{}"},
        {"tokenizer_config.json": b"[" * 100_000},
        {"tokenizer_config.json": b'{"chat_template": "{% if"}'},
        {"chat_template.jinja": b"\xff\xfe"},
        {"tokenizer_config.json": json.dumps({"chat_template": [{"name": 1}]}).encode()},
    ],
)
def test_files_that_make_no_tokenizer_are_named(files: dict[str, bytes]) -> None:
    whole = {"tokenizer.json": (TINY / "tokenizer.json").read_bytes()} if "tokenizer.json" not in files else {}
    with pytest.raises(BadTokenizer, match="from there"):
        ModelTokenizer.from_files((whole if files else {}) | files, "from there")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer, match=r"tokenizer.json does not exist; name the folder"):
        ModelTokenizer.load(tmp_path)


def test_a_template_that_engines_are_started_with_takes_the_place_of_all_others(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}!")
    model = ModelTokenizer.load(TINY, template)
    assert model.template and model.tool_template
    assert model.template.render(CHAT) == model.tool_template.render(CHAT) == "hi!"
    with pytest.raises(BadTokenizer, match="chat template cannot be read"):
        ModelTokenizer.load(TINY, tmp_path / "missing.jinja")
