"""The image's parts that can be looked at without a container engine."""

from __future__ import annotations

import re
import tomllib

from tests.deploy.render import ROOT

LOCK = (ROOT / "deploy" / "container" / "requirements.lock").read_text()
DOCKERFILE = (ROOT / "deploy" / "container" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_the_lock_holds_every_dependency_of_picker_and_agent() -> None:
    locked = {name(line) for line in LOCK.splitlines() if "==" in line}
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["agent"], *extras["tls"], *extras["kubernetes"]]
    assert {name(each) for each in wanted} - locked == {PROJECT["name"]}, "make the lock anew: its head says how"


def test_every_locked_package_has_hashes_and_nothing_comes_from_elsewhere() -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK)
    packages = [block for block in blocks if "==" in block.partition("\n")[0]]
    assert len(packages) > 20
    assert [block.partition("\n")[0] for block in packages if "--hash=sha256:" not in block] == []
    assert "://" not in re.sub(r"(?m)^#.*", "", LOCK)


def test_the_image_runs_as_nobody_in_particular_and_can_say_how_it_is() -> None:
    build, final = re.split(r"(?m)^FROM ", DOCKERFILE)[1:]
    assert re.search(r"(?m)^USER 65532", final)
    assert '"picker", "health"' in final
    assert "--require-hashes" in build


def test_what_the_image_copies_is_sent_to_the_builder() -> None:
    ignored = (ROOT / "deploy" / "container" / "Dockerfile.dockerignore").read_text()
    sources = [source for line in re.findall(r"(?m)^COPY (?!--from)(.*)", DOCKERFILE) for source in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"\n!{source.removeprefix('./')}\n" in ignored
