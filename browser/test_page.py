"""The page in a real browser: asked, pasted, changed, shared, by mouse, by keyboard, on a phone, in the dark, in Chinese.

Run by ``scripts/see_page.sh``, which installs what it needs; ``SCREENSHOTS=folder`` keeps pictures.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

#: Milliseconds that an answer may take on a busy machine.
_PATIENCE = 60_000
_ASKED = "?ask=fit&model=llama-3.1-8b&gpu=l40s%3A1&isl=1024&osl=128&concurrency=8"


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "trilemma", "web", "--port", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "no Chromium; apt-get install chromium"
    with sync_playwright() as player:
        opened = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    one = context.new_page()
    one.set_default_timeout(_PATIENCE)
    wrong: list[str] = []
    one.on("pageerror", lambda error: wrong.append(str(error)))
    one.on(
        "console",
        lambda said: wrong.append(said.text) if said.type == "error" and "status of 422" not in said.text else None,
    )
    _open(one, address + _ASKED)
    yield one
    context.close()
    assert not wrong


def _open(page: Page, address: str) -> None:
    page.goto(address, wait_until="domcontentloaded")
    _answered(page)


def _answered(page: Page) -> None:
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false", timeout=_PATIENCE)
    expect(page.locator(".verdict")).to_be_visible(timeout=_PATIENCE)


def _until(holds: Callable[[], bool]) -> None:
    """The page's own policy lets no script be compiled in it, so the waiting is here."""
    ends = time.monotonic() + _PATIENCE / 1e3
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


def _asked(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlparse(page.evaluate("location.href")).query).items()}


def _keep(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def _ask(page: Page, change: Any) -> None:
    """``change`` the form, and wait for the address and the answer to follow."""
    before = page.evaluate("location.href")
    change()
    _until(lambda: page.evaluate("location.href") != before)
    _answered(page)


def test_what_fits_is_said_with_its_ledger_and_picture(page: Page) -> None:
    expect(page.locator(".verdict")).to_contain_text("Fits")
    expect(page.locator("table").first).to_contain_text("weights")
    expect(page.locator("pre").first).to_contain_text("vllm serve meta-llama/Llama-3.1-8B")
    expect(page.locator(".chart svg text", has_text="Roofline of one token").first).to_be_visible(timeout=_PATIENCE)
    _keep(page, "fit")


def test_charts_answer_to_the_pointer(page: Page) -> None:
    """The front of the best plans, drawn in the page under a policy that lets nothing be compiled: a point says what it is."""
    _ask(page, lambda: page.get_by_role("button", name="Best plans").click())
    point = page.locator(".chart svg .mark-symbol path[aria-label]").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    expect(page.locator("#vg-tooltip-element.visible")).to_contain_text("tokens/s for each GPU", timeout=_PATIENCE)
    _keep(page, "plan-pointed-at")


def test_without_the_libraries_charts_are_images(page: Page) -> None:
    page.route("**/assets/vega.js", lambda route: route.fulfill(status=200, content_type="text/javascript", body=""))
    page.reload(wait_until="domcontentloaded")
    _answered(page)
    _until(lambda: page.evaluate("document.querySelector('img.chart')?.naturalWidth > 0"))


def test_a_change_asks_again_and_stands_in_the_address(page: Page) -> None:
    _ask(page, lambda: (page.fill("#model", "llama-3.1-70b"), page.press("#model", "Tab")))
    assert _asked(page)["model"] == "llama-3.1-70b"
    expect(page.locator(".verdict")).to_contain_text("Does not fit")
    page.go_back()
    _answered(page)
    expect(page.locator("#model")).to_have_value("llama-3.1-8b")


def test_a_missed_target_is_no_green_answer(page: Page) -> None:
    _ask(page, lambda: (page.fill("#tpot", "1"), page.press("#tpot", "Tab")))
    expect(page.locator(".verdict.no")).to_contain_text("misses the load or a target")
    _ask(page, lambda: page.get_by_role("button", name="Best plans").click())
    expect(page.locator(".verdict.no")).to_contain_text("No plan meets this")


def test_a_remedy_is_tried_at_a_click(page: Page, address: str) -> None:
    _open(page, address + "?ask=fit&model=llama-3.1-70b&gpu=l40s%3A2&isl=2048&osl=256&concurrency=4")
    _keep(page, "does-not-fit")
    _ask(page, lambda: page.locator(".remedy button").first.click())
    assert _asked(page)["ask"] == "check"
    expect(page.locator("#command")).to_have_value(re.compile("vllm serve"))
    expect(page.locator(".verdict")).to_contain_text("Fits")


def test_a_link_is_the_question(page: Page, browser: Browser) -> None:
    _ask(page, lambda: (page.fill("#ttft", "500"), page.press("#ttft", "Tab")))
    page.locator("#share").click()
    expect(page.locator("#share")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    other = browser.new_page()
    _open(other, link)
    assert other.locator("#ttft").input_value() == "500"
    assert other.locator(".verdict").inner_text() == page.locator(".verdict").inner_text()
    other.close()


def test_the_question_as_a_command(page: Page) -> None:
    page.locator("#copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")
    told = page.evaluate("navigator.clipboard.readText()")
    assert told == "trilemma fit llama-3.1-8b --gpu l40s:1 --isl 1024 --osl 128 --concurrency 8"


def test_a_command_is_pasted(page: Page) -> None:
    _ask(page, lambda: page.get_by_role("button", name="Paste a command").click())
    page.fill("#command", "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2")
    page.fill("#card", "l40s")
    page.fill("#count", "2")
    _ask(page, lambda: page.get_by_role("button", name="Ask", exact=True).click())
    expect(page.locator(".verdict")).to_contain_text("Does not fit")
    _keep(page, "check")


@pytest.mark.parametrize(
    ("name", "ask"), [("Best plans", "plan"), ("Compare GPUs", "compare"), ("Which GPUs", "recommend")]
)
def test_every_question_answers(page: Page, name: str, ask: str) -> None:
    if ask == "recommend":
        page.locator("summary").click()
        page.fill("#extra", "include l40s,rtx-4090")
    _ask(page, lambda: page.get_by_role("button", name=name).click())
    expect(page.locator("table").first).to_be_visible()
    assert _asked(page)["ask"] == ask
    _keep(page, ask)


def test_nonsense_is_refused_in_words(page: Page) -> None:
    _ask(page, lambda: (page.fill("#model", "<img src=x onerror=alert(1)>"), page.press("#model", "Tab")))
    expect(page.locator(".verdict.no")).to_contain_text("unknown model")
    assert page.locator("#answer img[src='x']").count() == 0


def test_by_keyboard_alone(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.dataset.ask || document.activeElement.type"
            )
        )
    assert {"model", "card", "isl", "ttft", "engine", "share", "plan", "theme"} <= seen
    page.focus("#concurrency")
    _ask(page, lambda: page.keyboard.press("ArrowRight"))
    assert int(_asked(page)["concurrency"]) == 11  # half a power of two on from 8
    page.focus("#model")
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_be_focused()


def test_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 375, "height": 720})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    _keep(page, "phone")


def test_in_the_dark_and_in_chinese(page: Page) -> None:
    page.locator("#theme").click()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 22, 26)"
    page.locator("#language").click()
    _answered(page)
    expect(page.locator(".verdict")).to_contain_text("放得下")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    _keep(page, "dark-chinese")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_bars_anybody(page: Page, theme: str) -> None:
    if theme == "dark":
        page.locator("#theme").click()
    found = Axe().run(page).response["violations"]
    assert [
        (one["id"], one["impact"], one["nodes"][0]["html"][:80])
        for one in found
        if one["impact"] in ("serious", "critical")
    ] == []
