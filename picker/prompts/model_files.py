"""The files of a model that make its prompts: from a folder, or packed, for those who have no such folder.

A folder is in Hugging Face's layout, or is a model's entry in its cache (`models--Qwen--Qwen3-8B`, with `snapshots` and
`refs`). Files are known by their digest: equal files make equal prompts, wherever they come from.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
TEMPLATES = "additional_chat_templates"

MOST_BYTES = 64 << 20
"""Of all files together. Gemma 3's have 35 MB, most others 10."""

MOST_PACKED_BYTES = 32 << 20
MOST_FILES = 32

Files = Mapping[str, bytes]
"""Name, relative to the model's folder -> content."""

_NAME = re.compile(r"[\w-][\w.-]{0,95}(?:/[\w-][\w.-]{0,95})?", re.ASCII)
_unpack = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class BadTokenizer(ValueError):
    """Files that make no usable tokenizer. The message names what is wrong and what to do."""


def read(folder: Path) -> dict[str, bytes]:
    """The files in a folder or cache entry. Raises BadTokenizer."""
    folder = snapshot(folder)
    path = folder / TOKENIZER
    if not path.is_file():
        raise BadTokenizer(f"{path} does not exist; name the folder that holds the model's tokenizer.json")
    paths = list(_present(folder))
    if sum(each.stat().st_size for each in paths) > MOST_BYTES or len(paths) > MOST_FILES:
        raise BadTokenizer(f"{folder} holds more than {MOST_BYTES >> 20} MB of tokenizer and templates")
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in paths}


def in_cache(cache: Path, name: str) -> Path | None:
    """The entry of a model, such as `Qwen/Qwen3-8B`, in a Hugging Face cache; None where it has no tokenizer there.

    The name may be anybody's: none leads out of the cache.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        return None
    entry = cache / f"models--{name.replace('/', '--')}"
    return entry if holds_tokenizer(entry) else None


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is one, that can be seen, in a folder or cache entry of any name."""
    try:
        return (snapshot(folder) / TOKENIZER).is_file()
    except (OSError, UnicodeDecodeError):
        return False


def digest(files: Files) -> str:
    """64 hexadecimal digits."""
    hashed = hashlib.sha256()
    for name, content in sorted(files.items()):
        hashed.update(f"{len(name)} {name} {len(content)} ".encode())
        hashed.update(content)
    return hashed.hexdigest()


def pack(files: Files) -> bytes:
    """To be handed on. Raises BadTokenizer where that is too much."""
    packed = zlib.compress(msgspec.msgpack.encode(dict(files)), 6)
    if len(packed) > MOST_PACKED_BYTES:
        raise BadTokenizer(f"tokenizer files of {len(packed) >> 20} MB packed; {MOST_PACKED_BYTES >> 20} are the most")
    return packed


def unpack(packed: bytes, wanted: str) -> Files:
    """The files with this digest. Raises BadTokenizer, for whatever else these bytes are."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MOST_BYTES + (1 << 20))
        files = _unpack(data) if stream.eof else {}
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadTokenizer(f"not packed tokenizer files: {type(error).__name__}") from None
    if digest(files) != wanted:
        raise BadTokenizer("tokenizer files that are not those that were promised")
    return files


def snapshot(folder: Path) -> Path:
    """Where a cache entry keeps the revision that it calls main, or the only one; any other folder is itself."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return folder
    main = folder / "refs" / "main"
    if main.is_file() and (chosen := snapshots / main.read_text().strip()).is_dir():
        return chosen
    held = sorted(each for each in snapshots.iterdir() if each.is_dir())
    return held[0] if len(held) == 1 else folder


def with_template(files: Files, template: bytes) -> dict[str, bytes]:
    """The files with this chat template instead of all others, as engines take one that they are started with."""
    others = {name: content for name, content in files.items() if not name.startswith(TEMPLATES)}
    return others | {TEMPLATE: template}


def _present(folder: Path) -> Iterator[Path]:
    yield from (path for name in (TOKENIZER, CONFIG, TEMPLATE) if (path := folder / name).is_file())
    yield from sorted((folder / TEMPLATES).glob("*.jinja"))
