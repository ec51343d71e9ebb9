"""What is said of settings: types, meanings, origins, differences, the schema, the generated page."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from picker.agent.config import AgentConfig
from picker.cli import app
from picker.config import Config, Tls
from picker.reload import LIVE
from picker.settings.explain import explained
from picker.settings.page import page
from picker.settings.reference import REQUIRED, json_schema, settings_of, summary
from picker.settings.values import Change, changes, flat, lines, shown

DOCS = Path(__file__).parents[2] / "docs"


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    """Of the inside.

    low, high: bounds, which
    belong together.
    """

    low: int = 0
    high: float | None = None


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    name: what it is called: in short.
    inner: the inside.
    many: several.
    """

    name: str
    inner: Inner = Inner()
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    labels: dict[str, str] = {}


def test_settings_are_found_at_every_depth_with_type_default_and_meaning() -> None:
    found = {each.path: each for each in settings_of(Outer)}
    assert list(found)[:4] == ["name", "inner", "inner.low", "inner.high"]
    assert (found["name"].default, found["name"].meaning) == (REQUIRED, "what it is called: in short.")
    assert found["inner.high"].type == "number or nothing"
    assert found["inner.low"].meaning == found["inner.high"].meaning == "bounds, which belong together."
    assert {"maybe.low", "many[].high", "labels"} <= set(found)
    assert summary(Outer) == "All of it."


@pytest.mark.parametrize("struct", [Config, AgentConfig])
def test_every_setting_of_both_commands_has_a_meaning(struct: type[msgspec.Struct]) -> None:
    assert [each.path for each in settings_of(struct) if not each.meaning] == []


def test_the_reference_page_is_what_the_structs_say() -> None:
    written = (DOCS / "configuration.md").read_text()
    assert written == page(Config, AgentConfig, LIVE), "run: picker config reference > docs/configuration.md"


def test_differences_are_named_by_path() -> None:
    before, after = Config(), Config(policy="random", tls=Tls(), rewrites={"a": "b"})
    assert {each.path for each in changes(before, after)} == {"policy", "rewrites", "tls"}
    assert changes(before, before) == []
    assert str(Change("policy", "a", None)) == "policy: a -> none"


def test_a_password_is_never_shown() -> None:
    assert shown("redis://user:se:cr@t@host:1") == "redis://***@host:1"
    assert shown({"urls": ["rediss://:secret@h"]}) == '{"urls":["rediss://***@h"]}'
    assert "secret" not in "\n".join(explained(Config(redis="redis://:secret@h"), "redis: redis://:secret@h", "p.yaml"))


def test_a_long_value_is_cut_and_says_how_long_it_was() -> None:
    assert shown("x" * 500) == "x" * 200 + "... (500 characters)"


def test_lines_are_those_of_the_file() -> None:
    assert lines("a: 1\nb:\n  c: 2\n# no\nd: [1]\n") == {"a": 1, "b": 2, "b.c": 3, "d": 5}
    assert lines("# nothing\n") == {}


def test_each_value_is_explained_with_its_origin() -> None:
    text = "pool: p\nlimits:\n  max_streams: 5\n"
    told = "\n".join(explained(msgspec.convert({"pool": "p", "limits": {"max_streams": 5}}, Config), text, "p.yaml"))
    assert told.startswith("p.yaml is valid: 2 of ")
    assert "\npool: p    (p.yaml:1)\n" in told
    assert "\nlimits.max_streams: 5    (p.yaml:3)\n    concurrent ext_proc streams" in told
    assert "\nlisten: 127.0.0.1:9002    (default)\n" in told
    assert set(flat(Config())) == {line.partition(": ")[0] for line in told.splitlines() if "    (" in line[4:]}


def test_the_schema_knows_every_setting_and_refuses_others() -> None:
    schema = json_schema(Config)
    config = schema["$defs"]["Config"]
    assert set(config["properties"]) == set(Config.__struct_fields__)
    assert config["additionalProperties"] is False
    assert all("description" in each for each in config["properties"].values())
    for command in (["schema"], ["check", "--schema"]):
        assert json.loads(CliRunner().invoke(app, ["config", *command]).stdout) == json.loads(json.dumps(schema))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["config", *arguments])
    return result.exit_code, result.output


def test_check_explains_a_file_that_is_right(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text("policy: random\n")
    code, said = run("check", str(path), "--only-set")
    assert code == 0
    assert said.splitlines()[2] == "policy: random    (picker.yaml:1)"
    assert "listen" not in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("polcy: x", "picker.yaml: polcy is not a setting; did you mean policy?"),
        ("policy: nope", "picker.yaml: policy: there is no policy 'nope'"),
        ("redis: http://x", "picker.yaml: redis: http://x is not a Redis URL"),
        (
            "profiles: [{name: p, weights: {nope: 1}}]",
            "picker.yaml: profiles, 'p', weights: expected-delay has no",
        ),
    ],
)
def test_check_says_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text(text)
    code, said = run("check", str(path))
    assert code == 2
    assert expected in " ".join(said.split())


def test_check_knows_the_agents_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("redis: redis://r\nworkers: [{url: 'http://10.0.0.1:8000'}]\n")
    code, said = run("check", "--agent", str(path))
    assert code == 0
    assert "redis: redis://r    (agent.yaml:1)" in said
