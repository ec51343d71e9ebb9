"""The page in a real browser, where one is installed: Chromium from the system, driven by playwright."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from picker.config import host_and_port
from picker.debug.page import Page
from picker.simulation.process import free_ports
from picker.telemetry.http_server import serve
from tests.integration.debug_rig import Rig, debug_rig
from tests.unit.fleets import Load, fleet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.asynccontextmanager
async def served(count: int, token_file: str | None = None) -> AsyncIterator[tuple[Rig, str]]:
    """A rig and the address of its page."""
    view = fleet(count, capacity=1024)
    for number, slot in enumerate(list(view.slots())):
        view.update_load(slot, Load(1, waiting=number % 3, kv_used=(number % 10) / 10), now=1.0)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with debug_rig(view) as rig:
        page = Page(rig.service, token_file, address, asyncio.get_running_loop())
        stop = serve(*host_and_port(address), page.answer)
        try:
            yield rig, f"http://{address}"
        finally:
            await asyncio.to_thread(stop)


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_what_the_page_asks_for_is_json(tmp_path: Path) -> None:
    async with served(2) as (rig, url):
        answer = await rig.pick("mine")
        rig.picker.release(answer.placement)
        status, told = await asyncio.to_thread(get, f"{url}/api/fleet")
        assert (status, [each["worker"] for each in json.loads(told)[0]["workers"]]) == (200, ["w0", "w1"])
        for path in ("/api/decisions?last=5", "/api/decisions?last=-1&verdict=route", "/api/explain?id=mine"):
            status, told = await asyncio.to_thread(get, url + path)
            assert [each["request_id"] for each in json.loads(told)] == ["mine"]
        assert (await asyncio.to_thread(get, f"{url}/etc/passwd"))[0] == 404


async def test_a_page_from_elsewhere_cannot_ask_under_another_name() -> None:
    async with served(1) as (_, url):
        assert (await asyncio.to_thread(get, f"{url}/api/fleet", Host="evil.example:80"))[0] == 403
        assert (await asyncio.to_thread(get, f"{url}/api/fleet", Host="localhost"))[0] == 200


async def test_with_a_token_the_page_is_shown_and_what_it_asks_for_is_not(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    async with served(1, str(file)) as (_, url):
        assert (await asyncio.to_thread(get, url + "/"))[0] == 200
        assert (await asyncio.to_thread(get, f"{url}/api/fleet"))[0] == 401
        assert (await asyncio.to_thread(get, f"{url}/api/fleet", Authorization="Bearer s3cret"))[0] == 200


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with served(1) as (_, url):
        html = (await asyncio.to_thread(get, url + "/"))[1].decode()
    assert "//" not in html.replace("<!doctype", "").replace("://w3", "") and "@import" not in html
    assert "innerHTML" not in html, "names of workers and requests must not become markup"


@contextlib.asynccontextmanager
async def browser(**context: Any) -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api")
    if not CHROMIUM:
        pytest.skip("no Chromium is installed")
    async with playwright.async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield await (await chromium.new_context(**context)).new_page()
        finally:
            await chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_browser_shows_the_fleet_and_why(scheme: str, tmp_path: Path) -> None:
    async with served(3) as (rig, url), browser(color_scheme=scheme) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda told: errors.append(told.text) if told.type == "error" else None)
        rig.view.cordon({"w1"})
        answer = await rig.pick("<b>mine</b>")
        rig.picker.first_byte(answer.placement, 200, answer.endpoints[0])
        rig.picker.release(answer.placement)
        await page.goto(url, timeout=60_000)
        await page.wait_for_selector(".worker >> nth=2", timeout=60_000)
        assert await page.locator(".worker.off").inner_text() == "w1\ncordoned"
        await page.locator("#decisions tr").first.click()
        await page.wait_for_selector("dialog[open] table", timeout=60_000)
        text = await page.locator("#reasons").inner_text()
        assert "ruled out by cordoned: 1 (w1)" in text and "status 200" in text and "decode" in text
        await page.locator("button.close").click()
        await page.fill("#find", "w2")
        await page.wait_for_function("document.querySelectorAll('.worker').length === 1", timeout=60_000)
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(14, 17, 22)"}[scheme]
        assert [error for error in errors if "favicon" not in error and "404" not in error] == []


async def test_a_browser_shows_five_hundred_workers() -> None:
    async with served(500) as (_, url), browser(bypass_csp=True) as page:
        await page.goto(url, timeout=60_000)
        await page.wait_for_function("document.querySelectorAll('.worker').length === 500", timeout=60_000)
        assert await page.locator("#count").inner_text() == "500"
        # Tiles are kept from one look to the next, and not made anew.
        first = await page.evaluate_handle("document.querySelector('.worker')")
        at = await page.evaluate("before.at")
        await page.wait_for_function(f"before.at > {at}", timeout=60_000)
        assert await page.evaluate("tile => tile === document.querySelector('.worker')", first)
