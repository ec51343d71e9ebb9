"""Small models in the manner of well-known families, made on the spot: a tokenizer trained on a page, and a template.

They differ where families differ: how the tokenizer treats beginnings, blanks and Unicode, what its added tokens do to
their surroundings, which special tokens frame a text, and how the template walks through messages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from picker.prompts.template import ChatTemplate
from picker.prompts.tokenizer import ModelTokenizer

PAGE = (
    "The quick brown fox jumps over the lazy dog. Der Fuchs läuft über die Straße. 日本語のテキスト。 Привет, мир! "
    "def area(radius):\n    return 3.14159 * radius ** 2\n\nYou are a helpful assistant. What's the weather like? "
    '{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "Zürich"}}} don\'t we\'ll 2024 '
) * 3
"""What they are trained on."""

SPLIT = Regex(
    r"(?i:'s|'t|'re|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(added: list[AddedToken]) -> Tokenizer:
    """GPT-2's grandchildren: Qwen, Llama 3, DeepSeek, Mistral Nemo, GPT-OSS."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(SPLIT, "isolated"), byte_level])
    return _trained(tokenizer, added, pre_tokenizers.ByteLevel.alphabet())


def _sentencepiece(added: list[AddedToken]) -> Tokenizer:
    """SentencePiece's children: Gemma, Llama 2, Mistral. Blanks are letters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    return _trained(tokenizer, [AddedToken("<unk>", special=True), *added], [])


def _trained(tokenizer: Tokenizer, added: list[AddedToken], alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=added, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PAGE], trainer)
    return tokenizer


def _specials(*names: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(name, special=True, normalized=False, **flags) for name in names]


def _with_bos(tokenizer: Tokenizer, bos: str) -> None:
    token = (bos, tokenizer.token_to_id(bos))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[token])


def _chatml() -> Tokenizer:
    tools = [AddedToken(name, special=False, normalized=False) for name in ("<tool_call>", "</tool_call>", "<think>")]
    tokenizer = _byte_level([*_specials("<|im_start|>", "<|im_end|>"), *tools])
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _headers() -> Tokenizer:
    tokenizer = _byte_level(
        _specials("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|unused|>")
    )
    _with_bos(tokenizer, "<|begin_of_text|>")
    return tokenizer


def _turns() -> Tokenizer:
    tokenizer = _sentencepiece([*_specials("<bos>", "<start_of_turn>", "<end_of_turn>"), AddedToken("\n\n")])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    _with_bos(tokenizer, "<bos>")
    return tokenizer


def _instructions() -> Tokenizer:
    tokenizer = _sentencepiece(_specials("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    _with_bos(tokenizer, "<s>")
    return tokenizer


def _bars() -> Tokenizer:
    return _byte_level(_specials("<｜begin｜>", "<｜end｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool｜>"))


def _stripping() -> Tokenizer:
    """Phi's added tokens swallow the blanks behind them; one here those before it too."""
    names = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>")
    return _byte_level([*_specials(*names, rstrip=True), *_specials("<|mask|>", lstrip=True)])


def _parts() -> Tokenizer:
    tokenizer = _byte_level(_specials("<|im_start|>", "<|im_end|>", "<|vision|>", "<|image|>"))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


TEMPLATES = Path(__file__).parent / "data" / "templates"


@dataclass(frozen=True)
class Family:
    """A tokenizer's maker, and the tokens that the template of the same name may name."""

    make: Callable[[], Tokenizer]
    special_tokens: dict[str, str]


FAMILIES = {
    "chatml": Family(_chatml, {"eos_token": "<|im_end|>"}),
    "headers": Family(_headers, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "turns": Family(_turns, {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}),
    "instructions": Family(_instructions, {"bos_token": "<s>", "eos_token": "</s>"}),
    "bars": Family(_bars, {"bos_token": "<｜begin｜>", "eos_token": "<｜end｜>"}),
    "stripping": Family(_stripping, {"eos_token": "<|end|>"}),
    "parts": Family(_parts, {"eos_token": "<|im_end|>"}),
}


def source(name: str) -> str:
    """The family's template."""
    return (TEMPLATES / f"{name}.jinja").read_text()


@functools.cache
def load(name: str) -> ModelTokenizer:
    """The model of that family."""
    family = FAMILIES[name]
    return ModelTokenizer(family.make(), ChatTemplate(source(name), family.special_tokens))
