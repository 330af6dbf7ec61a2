"""Every text that a page's figures draw lies within its figure and over no other one: on the page of
the recordings, and on that of a first sweep, also in a browser of three widths."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import slow
from support.drawn import overlaps, texts

from mfulab.lab.report import figures, frames, selection, trust
from mfulab.lab.report.page import document

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
WIDTHS = (390, 1280, 1920)
NAMES = list(figures.modules())
# First figures for which the recorded H200 has no rows.
NOT_OF_THE_H200 = {
    *("equal_cards", "flops_by_layer", "computational_graph"),
    *("memory_breakdown", "transfers", "repeatability"),
}
# Of all texts of the drawings in view: how many lie over another one, and how many outside.
MEASURED = """() => {
  const place = (each) => each.getBoundingClientRect();
  const is_letter = (each) => each.tagName === "use" && each.getAttribute("href")?.startsWith("#L");
  const is_text = (each) => [...each.children].some(is_letter); // others are marks
  const is_level = (each) => Math.abs(each.getScreenCTM().b) < 1e-6;
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const inside = (a, b) => a.left > b.left - 1 && a.right < b.right + 1
    && a.top > b.top - 1 && a.bottom < b.bottom + 1;
  const drawn = [...document.querySelectorAll(".drawing svg")].filter((svg) => place(svg).width);
  return drawn.map((svg) => {
    const texts = [...svg.querySelectorAll("g")].filter((each) => is_text(each) && is_level(each));
    const boxes = texts.map(place).filter(({ width }) => width);
    const others = (place) => boxes.slice(place + 1);
    const over = boxes.flatMap((box, place) => others(place).filter((other) => meet(box, other)));
    const outside = boxes.filter((box) => !inside(box, place(svg)));
    const name = svg.closest("figure")?.id ?? "";
    return { name, texts: boxes.length, over: over.length, outside: outside.length };
  });
}"""


@pytest.fixture(scope="module")
def on_gpu(recorded) -> frames.Tables:
    """What the recorded H200 measured, as if measured here: as its stand-in answers."""
    own = {}
    for name, rows in recorded.items():
        if {"recorded", "hardware"} <= set(rows):
            rows = rows[rows["hardware"] == "nvidia-h200"].assign(recorded=False)
        own[name] = rows.head(0) if name == "traces" else rows
    return trust.judged(own)


def check(name: str, tables: frames.Tables, language: str) -> bool:
    """True if the figure was drawn, False if the tables have no rows for it."""
    drawn = figures.render(name, tables, language)
    if drawn is None:
        return False
    placed = texts(drawn.figure)
    assert overlaps(drawn.figure, placed) == []
    width, height = drawn.figure.bbox.size
    for words, box in placed:
        assert -1 <= box.x0 <= box.x1 <= width + 1, words
        assert -1 <= box.y0 <= box.y1 <= height + 1, words
    return True


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("name", slow.few(NAMES))
def test_no_text_of_the_recorded_page_covers_another(recorded, name, language):
    check(name, trust.judged(recorded), language)


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("name", slow.few(list(selection.FIRST_FIGURES), 2))
def test_no_text_of_a_first_page_covers_another(quickstart, name, language):
    check(name, quickstart, language)


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("name", slow.few(list(selection.FIRST_FIGURES), 2))
def test_no_text_of_a_gpu_s_page_covers_another(on_gpu, name, language):
    assert check(name, on_gpu, language) or name in NOT_OF_THE_H200


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def written_page(tables: frames.Tables, folder: Path, language: str) -> str:
    """Address of the page of these tables."""
    for name, rows in tables.items():
        cells = rows.drop(columns=[*frames.JUDGED], errors="ignore")
        cells.to_csv(folder / f"{name}.csv", index=False)
    page = folder / "page.html"
    page.write_text(document.build(folder, None, language), encoding="utf-8")
    return page.as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("which", ["quickstart", "on_gpu", "recorded"])
def test_no_text_of_a_page_covers_another_at_any_width(browser, request, which, language, tmp_path):
    """All figures of a first page, of a GPU's, and of the page of the recordings."""
    page = written_page(request.getfixturevalue(which), tmp_path, language)
    wrong = {}
    for width in WIDTHS:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.goto(page)
        tab.wait_for_selector("#grid tbody tr")
        tab.evaluate(
            "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
        )
        tab.wait_for_timeout(800)  # panels are stacked once they are in view
        measured = tab.evaluate(MEASURED)
        tab.close()
        assert sum(figure["texts"] for figure in measured) > 100
        wrong[width] = [figure for figure in measured if figure["over"] or figure["outside"]]
    assert wrong == {width: [] for width in WIDTHS}
