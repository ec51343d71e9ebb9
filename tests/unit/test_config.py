"""The configuration of `picker serve`, and the messages for a wrong one."""

from pathlib import Path

import msgspec
import pytest

from picker.config import Config, Limits, Tls
from picker.config_files import ConfigError, load, parse
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import POLICIES


def read(text: str) -> Config:
    return parse(text, Config, "picker.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_everything_has_a_default(text: str) -> None:
    assert read(text) == Config()
    assert Config().policy in POLICIES


def test_settings_are_read_at_every_depth() -> None:
    config = read("pool: p\nlimits:\n  max_body_bytes: 10\nworker_model:\n  step_s: 0.02\ntokenizers:\n  llama: /t\n")
    assert (config.pool, config.tokenizers) == ("p", {"llama": "/t"})
    assert config.limits == Limits(max_body_bytes=10)
    assert config.worker_model == WorkerModel(step_s=0.02)


WRONG = {
    "an unknown key": ("redsi: x", "picker.yaml: redsi is not a setting; did you mean redis?"),
    "an unknown key further in": (
        "limits:\n  max_boddy_bytes: 5",
        "picker.yaml: limits.max_boddy_bytes is not a setting; did you mean max_body_bytes?",
    ),
    "a setting of another place": ("limits:\n  policy: x", "picker.yaml: limits.policy is not a setting; there are: "),
    "text for a number": ("drain_s: soon", "picker.yaml: drain_s: expected `float`, got `str`"),
    "a number that YAML takes for text": (
        "worker_model:\n  prefill_s_per_token2: 1e-9",
        "picker.yaml: worker_model.prefill_s_per_token2: expected `float`, got `str`; YAML takes 1e-9 for text",
    ),
    "a number for text": ("pool: 5", "picker.yaml: pool: expected `str`, got `int`"),
    "a number for text in a mapping": (
        "tokenizers:\n  llama: 5",
        "picker.yaml: tokenizers[...]: expected `str`, got `int`",
    ),
    "a list for a mapping": ("limits: []", "picker.yaml: limits: expected `object`, got `array`"),
    "a value that is not among the choices": ("log_format: xml", "picker.yaml: log_format: invalid enum value 'xml'"),
    "half of a certificate": (
        "tls:\n  cert: a.pem",
        "picker.yaml: tls: cert and key belong together; set both or neither",
    ),
    "a client's authority alone": ("tls:\n  client_ca: a.pem", "picker.yaml: tls: client_ca needs cert and key"),
    "a file that is a list": ("- a", "picker.yaml: the file: expected `object`, got `array`"),
    "what is not YAML": ("pool: a\nredis: [", "picker.yaml:2: is not YAML: "),
}


@pytest.mark.parametrize(("text", "error"), WRONG.values(), ids=list(WRONG))
def test_an_error_names_the_file_the_place_and_the_remedy(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(error)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"picker\.yaml: cannot be read: No such file"):
        load(tmp_path / "picker.yaml", Config)


def test_every_setting_is_explained() -> None:
    for struct in (Config, Tls, Limits):
        for field in msgspec.structs.fields(struct):
            if field.name not in ("limits", "log_format"):  # speak for themselves
                assert field.name in (struct.__doc__ or ""), f"{struct.__name__}.{field.name}"
