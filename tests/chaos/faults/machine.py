"""What the machine has too little of, or gets wrong: files, descriptors, disk, memory, names, time."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from picker.simulation.process import Process
from tests.chaos.faults.registry import Rig, fault


@asynccontextmanager
async def _limited(processes: Sequence[Process], what: int, to: int) -> AsyncIterator[None]:
    before = [resource.prlimit(process.pid, what) for process in processes]
    for process, (_, hard) in zip(processes, before, strict=True):
        resource.prlimit(process.pid, what, (to, hard))
    yield
    for process, limits in zip(processes, before, strict=True):
        if process.is_running:
            resource.prlimit(process.pid, what, limits)


@fault("picker", "pickers' configuration wrong", "the old one stays", once=True)
async def configuration_wrong(rig: Rig) -> AsyncIterator[None]:
    files = [rig.stack.folder / f"picker-{number}.yaml" for number in range(len(rig.stack.pickers))]
    right = [file.read_text() for file in files]
    for file in files:
        file.write_text("policy: [no, such\nlimits: {max_runing: 1}\n")
    yield
    for file, text in zip(files, right, strict=True):
        file.write_text(text)


@fault("picker", "tokenizer's files gone", "they were read at the start; a reload is refused", once=True)
async def tokenizer_gone(rig: Rig) -> AsyncIterator[None]:
    aside = rig.stack.tokenizer.rename(rig.stack.tokenizer.with_suffix(".gone"))
    for number in range(len(rig.stack.pickers)):
        file = rig.stack.folder / f"picker-{number}.yaml"
        file.write_text(file.read_text() + f"\n# changed {number}\n")
    yield
    aside.rename(rig.stack.tokenizer)


# Fewer than are open: not one more can be had.
_FEW = 8


@fault("picker", "pickers out of descriptors", "what is open goes on", once=True)
async def pickers_without_descriptors(rig: Rig) -> AsyncIterator[None]:
    async with _limited(rig.stack.pickers, resource.RLIMIT_NOFILE, _FEW):
        yield


@fault("agent", "agent out of descriptors", "what is open goes on; then as if it were silent", once=True)
async def agent_without_descriptors(rig: Rig) -> AsyncIterator[None]:
    async with _limited([rig.stack.agent], resource.RLIMIT_NOFILE, _FEW):
        yield


@fault("picker", "pickers' disk full", "decisions and lines of the log are lost, nothing else", once=True)
async def pickers_disk_full(rig: Rig) -> AsyncIterator[None]:
    async with _limited(rig.stack.pickers, resource.RLIMIT_FSIZE, 0):
        yield


@fault("agent", "agent's disk full", "lines of its log are lost, nothing else", once=True)
async def agents_disk_full(rig: Rig) -> AsyncIterator[None]:
    async with _limited([rig.stack.agent], resource.RLIMIT_FSIZE, 0):
        yield


def _address_space(pid: int) -> int:
    """What it has now, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@fault("picker", "one of two pickers out of memory", "if it dies of it, Envoy asks the other", once=True)
async def picker_without_memory(rig: Rig) -> AsyncIterator[None]:
    picker = rig.stack.pickers[0]
    async with _limited([picker], resource.RLIMIT_AS, _address_space(picker.pid)):
        yield
    if not picker.is_running:
        await rig.stack.start_picker(0)


@fault("Redis", "names do not resolve", "picks go by what is known", can=lambda rig: rig.names is not None)
async def names_gone(rig: Rig) -> AsyncIterator[None]:
    """Whoever has a connection would not notice, so they are cut."""
    assert rig.names
    rig.names.forget()
    await (await rig.redis.primary()).ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    rig.names.know()


def _clock(whose: str, files: Sequence[str], by: str, where: str, says: str) -> None:
    def can(rig: Rig) -> bool:
        return rig.clocks is not None and set(files) <= rig.clocks.parts

    @fault("clock", f"{whose} jump {where}", says, can)
    async def on(rig: Rig) -> AsyncIterator[None]:
        assert rig.clocks
        for file in files:
            rig.clocks.jump(file, by)
        yield
        for file in files:
            rig.clocks.jump(file, "+0")


for _by, _where in (("+3600", "an hour ahead"), ("-3600", "an hour back")):
    _clock("clocks of pickers and agent", ("picker", "agent"), _by, _where, "nothing goes by them")
    _clock("clocks of Redis", ("redis",), _by, _where, "leases end or last; agents publish again")
