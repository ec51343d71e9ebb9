"""A model's tokenizer and chat template, loaded from a local folder in Hugging Face's layout."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from xxhash import xxh3_128_digest

from picker.prompts import model_files
from picker.prompts.model_files import BadTokenizer, Files
from picker.prompts.segments import Segmenter, find_cuts, is_exact
from picker.prompts.template import ChatTemplate

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_PROBE = "a"

__all__ = ["BadTokenizer", "ModelTokenizer"]


class ModelTokenizer:
    """Text to token ids, and messages to text, as the model's engine does it. Thread-safe.

    `template` is the default one and `tool_template` what chats with tools are rendered by, if the model has a second.
    `digest` identifies the tokenizer: models that share one share what is remembered of it. `frame` holds the tokens
    that `add_special_tokens` puts before and behind a text. `segmenter` cuts texts where that changes no token.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, tool_template: ChatTemplate | None = None):
        # Some files carry the lengths of their training; engines do not truncate.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.template = template
        self.tool_template = tool_template or template
        self.digest = xxh3_128_digest(tokenizer.to_str().encode())
        self.frame = _frame(self)
        self.segmenter = _segmenter(self, tokenizer)

    @classmethod
    def load(cls, folder: Path, template: Path | None = None) -> ModelTokenizer:
        """Of a folder or an entry of a Hugging Face cache, with its own template or another. Raises BadTokenizer."""
        files = model_files.read(folder)
        if template is not None:
            try:
                files = model_files.with_template(files, template.read_bytes())
            except OSError as error:
                raise BadTokenizer(f"{template}: the chat template cannot be read: {error.strerror}") from None
        return cls.from_files(files, str(folder))

    @classmethod
    def from_files(cls, files: Files, where: str) -> ModelTokenizer:
        """`where` they come from, for errors. Raises BadTokenizer.

        It holds the interpreter for a second or so, whichever thread does it: the library does not let go of it.
        """
        try:
            tokenizer = Tokenizer.from_buffer(files[model_files.TOKENIZER])
            config = _read_config(files.get(model_files.CONFIG, b"{}"))
            special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None}
            sources = _template_sources(files, config)
            compiled = {name: ChatTemplate(source, special) for name, source in sources.items()}
            return cls(tokenizer, compiled.get("default"), compiled.get("tool_use"))
        # The Rust library raises plain Exception, and templates are programs by others.
        except Exception as error:
            raise BadTokenizer(f"{where}: no usable tokenizer: {type(error).__name__}: {str(error)[:200]}") from None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of one text. Raises UnicodeEncodeError for half a surrogate pair.

        `encode` would hold the interpreter lock for the whole text (0.7 s for 128k tokens); `encode_batch_fast` lets
        go of it, so this is fit for a thread.
        """
        return self.encode_all([text], add_special_tokens=add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text, on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(tokens))
        return text


def _frame(tokenizer: ModelTokenizer) -> tuple[list[int], list[int]]:
    inner = tokenizer.encode(_PROBE, add_special_tokens=False)
    whole = tokenizer.encode(_PROBE, add_special_tokens=True)
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return whole[:start], whole[start + len(inner) :]
    raise BadTokenizer("the tokenizer changes a text's tokens when it adds special ones: no prefix can be known")


def _segmenter(model: ModelTokenizer, tokenizer: Tokenizer) -> Segmenter:
    templates = [template.written for template in (model.template, model.tool_template) if template]
    encode = functools.partial(model.encode, add_special_tokens=False)
    return Segmenter([cut for cut in find_cuts(tokenizer, "".join(templates) or None) if is_exact(encode, cut)])


def _read_config(content: bytes) -> dict[str, Any]:
    config = json.loads(content)
    return config if isinstance(config, dict) else {}


def _template_sources(files: Files, config: dict[str, Any]) -> dict[str, str]:
    """The templates by name, of the newest of the three places that they have been kept in."""
    if model_files.TEMPLATE in files:
        others = {Path(name).stem: text for name, text in files.items() if name.startswith(model_files.TEMPLATES)}
        return {name: text.decode() for name, text in (others | {"default": files[model_files.TEMPLATE]}).items()}
    source = config.get("chat_template")
    if isinstance(source, str):
        return {"default": source}
    named = source if isinstance(source, list) else []
    return {each["name"]: each["template"] for each in named if isinstance(each, dict)}


def _token_text(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
