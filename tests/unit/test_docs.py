"""The documentation: links lead somewhere, files and commands that it names exist, every page is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from picker.cli import app
from picker.config import Config
from picker.config_files import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "envoy" / "README.md"])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:tests|deploy|docs|envoy|benchmarks|picker|protos)/[\w./-]+)`")
COMMAND = re.compile(r"(?:^|`|\s{4}|-- |&& )picker ((?:[a-z][a-z-]+)(?: [a-z]+)?)", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"(?m)^#+ (.*)", page.read_text())
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        file = page if not target else (page.parent / target).resolve()
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    named = {name.rstrip("/.") for name in PATH.findall(page.read_text())}
    assert {name for name in named if not (ROOT / name).exists() and not list(ROOT.glob(name + "*"))} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_named_exist(page: Path) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for found in COMMAND.findall(page.read_text()):
        name, _, sub = found.partition(" ")
        if name in commands:
            inner = getattr(commands[name], "commands", None)
            assert inner is None or not sub or sub in inner, f"picker {found}"


def test_every_page_is_in_the_index() -> None:
    index = set(LINK.findall((ROOT / "docs" / "README.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - index == {"README.md"}


def test_settings_in_the_pages_are_settings() -> None:
    text = (ROOT / "docs" / "your-own-workers.md").read_text()
    [block] = re.findall(r"(?m)^ {7}redis: .*\n(?: {7}.*\n)+", text)
    config = parse(re.sub(r"(?m)^ {7}", "", block), Config, "page")
    assert config.tokenizers == {"MODEL": "/models/MODEL"}


@pytest.mark.parametrize("arguments", [["config", "schema"], ["envoy", "--list"], ["simulate", "policies"]])
def test_commands_of_the_pages_run(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 0
