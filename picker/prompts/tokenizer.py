"""A model's tokenizer and chat template, loaded from a local folder in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from picker.prompts.template import ChatTemplate

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class BadTokenizer(ValueError):
    """A folder that holds no usable tokenizer. The message names the file and what to do."""


class ModelTokenizer:
    """Text to token ids, and messages to text, as the model's engine does it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None):
        self._tokenizer = tokenizer
        self.template = template

    @classmethod
    def load(cls, folder: Path) -> ModelTokenizer:
        """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises BadTokenizer."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise BadTokenizer(f"{path} does not exist; name the folder that holds the model's tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        # The Rust library raises plain Exception.
        except Exception as error:
            raise BadTokenizer(f"{path} is not a tokenizer.json: {error}") from None
        config = _read_config(folder / "tokenizer_config.json")
        source = _template_source(folder, config)
        special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None}
        return cls(tokenizer, ChatTemplate(source, special) if source else None)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of one text.

        `encode` would hold the interpreter lock for the whole text (0.7 s for 128k tokens); `encode_batch_fast` lets
        go of it, so this is fit for a thread.
        """
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(tokens))
        return text


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadTokenizer(f"{path} is not JSON: {error}") from None
    return config if isinstance(config, dict) else {}


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    source = config.get("chat_template")
    return source if isinstance(source, str) else None


def _token_text(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
