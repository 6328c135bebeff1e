"""The page in a browser, in the sandbox in which trackers show it."""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from flashback_core.report.html import to_html

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or a skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


def framed(browser: Any, page: str, width: int = 1000) -> tuple[Any, Any, list[str]]:
    """A tab with `page` in a sandboxed frame, the frame, and what went wrong."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 800}, offline=True)
    tab = context.new_page()
    tab.on("console", lambda m: wrong.append(m.text) if m.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda e: wrong.append(str(e)))
    tab.on("request", lambda r: wrong.append(r.url) if not r.url.startswith("about:") else None)
    source = html.escape(page, quote=True)
    look = 'sandbox="allow-scripts" style="width:100%;height:700px"'
    tab.set_content(f'<iframe {look} srcdoc="{source}"></iframe>')
    frame = tab.frames[1]
    frame.wait_for_selector("footer")
    return tab, frame, wrong


@pytest.mark.parametrize("name", ["spiked", "healthy", "with_nan", "loss_only", "hostile"])
def test_no_error_and_no_request(name: str, browser: Any, request: pytest.FixtureRequest) -> None:
    """Every page starts in a sandboxed frame without network, an error or a request."""
    tab, frame, wrong = framed(browser, to_html(request.getfixturevalue(name)))
    assert frame.evaluate("document.documentElement.classList.contains('js')")
    assert wrong == []
    tab.context.close()


def test_hostile_names_run_nothing(browser: Any, hostile: Any) -> None:
    """No script of a name runs, even where the page may reach its parent."""
    tab = browser.new_page()
    tab.set_content(to_html(hostile))
    assert tab.evaluate("window.hit") is None
    assert tab.locator("img").count() == 0
    tab.close()


def test_zoom_read_out_and_keys(browser: Any, spiked: Any) -> None:
    """Buttons, keys and the mouse zoom and read the charts."""
    tab, frame, wrong = framed(browser, to_html(spiked))
    plot = frame.locator("#timeline .plot").first
    frame.locator("#timeline button", has_text="Step 240").click()
    box = plot.locator("svg").first.get_attribute("viewBox")
    assert box is not None
    assert float(box.split()[2]) < 1_000_000
    plot.focus()
    tab.keyboard.press("ArrowRight")
    assert "step" in plot.locator(".tip").inner_text()
    tab.keyboard.press("Escape")
    assert str(plot.locator("svg").first.get_attribute("viewBox")).startswith("0 0 1000000")
    cell = frame.locator("#surprise .plot").first
    cell.hover()
    assert cell.locator(".tip").is_visible()
    assert wrong == []
    tab.context.close()


def ticks(plot: Any) -> list[str]:
    """Labels of a plot's value axis."""
    return plot.evaluate(
        "n => [...n.parentElement.querySelectorAll('.ys span')].map(t => t.textContent)"
    )


def test_values_fill_the_view_after_a_zoom(browser: Any, spiked: Any) -> None:
    """The value axis follows the steps in view, with new ticks and lines, and comes back."""
    tab, frame, wrong = framed(browser, to_html(spiked))
    plot = frame.locator("#timeline .plot").first
    home = ticks(plot)
    plot.focus()
    for _ in range(4):
        tab.keyboard.press("+")
    near = ticks(plot)
    assert near != home
    assert len(near) >= 2
    assert plot.locator("svg .near.line").count() == 1
    assert not plot.locator("svg .line:not(.near)").first.is_visible()
    places = plot.locator(".near.line").get_attribute("d")[1:].split("L")
    inside = [float(p.split()[1]) for p in places[1:-1]]
    assert min(inside) < 150
    assert max(inside) > 850
    tab.keyboard.press("Escape")
    assert ticks(plot) == home
    assert plot.locator("svg .near").count() == 0
    assert wrong == []
    tab.context.close()


def test_zooming_onto_nan(browser: Any, with_nan: Any) -> None:
    """A stretch without a single number zooms without an error."""
    tab, frame, wrong = framed(browser, to_html(with_nan))
    plot = frame.locator("#timeline .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + 20, steps=4)
    tab.mouse.up()
    assert not str(plot.locator("svg").first.get_attribute("viewBox")).startswith("0 0 1000000")
    assert wrong == []
    tab.context.close()


def swipe(tab: Any, begin: tuple[float, float], end: tuple[float, float]) -> None:
    """A finger that goes down at `begin`, moves to `end` and is lifted."""
    client = tab.context.new_cdp_session(tab)
    for i in range(9):
        x, y = (a + (b - a) * i / 8 for a, b in zip(begin, end, strict=True))
        kind = "touchMove" if i else "touchStart"
        points = [{"x": x, "y": y}]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_a_finger_zooms_and_scrolls(browser: Any, spiked: Any) -> None:
    """On a phone a finger across a chart zooms, a tap reads it, and up or down scrolls the page."""
    context = browser.new_context(
        viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True, offline=True
    )
    tab = context.new_page()
    tab.set_content(to_html(spiked))
    plot = tab.locator("#timeline .plot").first
    plot.scroll_into_view_if_needed()
    tab.evaluate("window.scrollBy(0, 200)")
    box = plot.bounding_box()
    left, middle = box["x"], box["y"] + box["height"] / 2
    view = plot.locator("svg").first
    tab.touchscreen.tap(left + 0.5 * box["width"], middle)
    assert "step" in plot.locator(".tip").inner_text()
    swipe(tab, (left + 0.4 * box["width"], middle), (left + 0.8 * box["width"], middle + 3))
    zoomed = str(view.get_attribute("viewBox")).split()
    assert float(zoomed[2]) == pytest.approx(400_000, rel=0.05)
    before = tab.evaluate("window.scrollY")
    swipe(tab, (left + 0.5 * box["width"], middle), (left + 0.52 * box["width"], middle - 300))
    tab.wait_for_timeout(400)
    assert tab.evaluate("window.scrollY") > before + 100
    assert str(view.get_attribute("viewBox")).split() == zoomed
    tab.locator("#timeline button", has_text="Whole run").tap()
    assert str(view.get_attribute("viewBox")).startswith("0 0 1000000")
    context.close()


def test_theme(browser: Any, spiked: Any) -> None:
    """The button turns the page dark and back."""
    tab, frame, _ = framed(browser, to_html(spiked))
    paper = "getComputedStyle(document.body).backgroundColor"
    light = frame.evaluate(paper)
    frame.locator("#theme").click()
    assert frame.evaluate(paper) != light
    frame.locator("#theme").click()
    assert frame.evaluate(paper) == light
    tab.context.close()


@pytest.mark.parametrize("name", ["spiked", "hostile", "healthy"])
def test_a_phone_scrolls_one_way(name: str, browser: Any, request: pytest.FixtureRequest) -> None:
    """At 390 pixels nothing sticks out to the right."""
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.set_content(to_html(request.getfixturevalue(name)))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()


def test_without_script_the_page_is_whole(browser: Any, spiked: Any) -> None:
    """With JavaScript off, charts and words are there and no dead button is."""
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.set_content(to_html(spiked))
    assert tab.locator(".plot svg path").count() > 20
    assert not tab.locator("#theme").is_visible()
    context.close()
