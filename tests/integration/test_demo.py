"""The demo as its user runs it: a command that shows its table, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc"),
]
DEADLINE_S = 30.0


class Demo:
    """`picker demo` with two workers, whose folders and processes are all to be found by its TMPDIR."""

    def __init__(self, folder: Path, *options: str):
        self.folder = folder / "tmp"
        self.folder.mkdir()
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "picker", "demo", "--workers", "2", *options],
                env=os.environ | {"TMPDIR": str(self.folder)}, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def wait_until_all_runs(self) -> None:
        # Itself, Valkey, two workers, an agent, a picker, Envoy.
        self.wait_until(lambda: len(self.processes()) == 7)

    def end(self) -> int:
        return self.process.wait(DEADLINE_S)

    def processes(self) -> list[int]:
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_of(self.folder, entry)]

    def folders(self) -> list[Path]:
        return list(self.folder.glob("picker-*"))


def _is_of(folder: Path, entry: Path) -> bool:
    # Valkey writes its title over its environment; it runs in its folder.
    try:
        environment = (entry / "environ").read_bytes().split(b"\0")
        return f"TMPDIR={folder}".encode() in environment or str((entry / "cwd").readlink()).startswith(str(folder))
    except OSError:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []
    # Children inherit that it is ignored, which it is under nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(*options: str) -> Demo:
        demos.append(Demo(tmp_path, *options))
        return demos[-1]

    yield start
    signal.signal(signal.SIGHUP, before)
    for demo in demos:
        for pid in demo.processes():
            os.kill(pid, signal.SIGKILL)
        demo.process.wait()


def test_it_shows_its_table_writes_its_figures_and_leaves_nothing(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start("--once", "--requests", "2", "--json", str(tmp_path / "figures.json"))
    demo.wait_until_all_runs()
    assert demo.end() == 0, demo.output
    assert "The same traffic, twice" in demo.output
    figures = json.loads((tmp_path / "figures.json").read_bytes())
    assert [(one["requests"], one["failures"]) for one in figures.values()] == [(2, 0), (2, 0)]
    assert (demo.processes(), demo.folders()) == ([], [])


def test_both_turns_that_it_offers_go_to_one_worker_and_sigterm_ends_it(start: Callable[..., Demo]) -> None:
    demo = start("--requests", "1")
    demo.wait_until(lambda: "grpcurl" in demo.output)
    commands = [line.split(" | ")[0] for line in demo.output.splitlines() if "curl -si" in line]
    first, second = (_post(command) for command in commands)
    assert first.headers["x-worker"] == second.headers["x-worker"]
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
    demo.process.send_signal(signal.SIGTERM)
    assert demo.end() == 143, demo.output
    assert (demo.processes(), demo.folders()) == ([], [])


def _post(command: str) -> httpx.Response:
    [url] = (word for word in command.split() if word.startswith("http"))
    [file] = (word for word in command.split() if word.startswith("@"))
    headers = {"content-type": "application/json"}
    return httpx.post(url, content=Path(file[1:]).read_bytes(), headers=headers).raise_for_status()


def test_a_second_ctrl_c_does_not_interrupt_the_clean_up(start: Callable[..., Demo]) -> None:
    demo = start()
    demo.wait_until_all_runs()
    time.sleep(2)  # so that it is amid its requests; any moment will do
    demo.process.send_signal(signal.SIGINT)
    demo.wait_until(lambda: "Stopping" in demo.output)
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 130, demo.output
    assert "Traceback" not in demo.output
    assert (demo.processes(), demo.folders()) == ([], [])


def test_a_hang_up_while_it_starts_ends_it(start: Callable[..., Demo]) -> None:
    demo = start()
    demo.wait_until(lambda: list(demo.folder.glob("picker-*/worker-1.log")))
    demo.process.send_signal(signal.SIGHUP)
    assert demo.end() == 129, demo.output
    assert (demo.processes(), demo.folders()) == ([], [])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_its_processes_end_even_when_it_is_killed(start: Callable[..., Demo]) -> None:
    demo = start()
    demo.wait_until_all_runs()
    demo.process.kill()
    demo.end()
    demo.wait_until(lambda: not demo.processes())


def test_figures_that_cannot_be_written_are_refused_before_anything_starts(start: Callable[..., Demo]) -> None:
    demo = start("--json", "/nonexistent/figures.json")
    assert demo.end() == 2
    assert "there is no folder /nonexistent" in demo.output
    assert "Starting" not in demo.output
