"""The page in a real browser: no error, no request, and everything that a reader would click."""

import csv
import itertools
import json
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from support import report_rows
from support.slow import few

from mfulab.cli.main import main
from mfulab.core.language import Texts
from mfulab.core.language.quantities import MINUS
from mfulab.lab.tables import build
from mfulab.lab.tables.records import Collected
from mfulab.mfu import ladder

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
RUNGS = Texts("en", "rungs")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),  # one browser for all of them
]


@pytest.fixture(scope="module")
def report(page) -> Path:
    return page / "report.html"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def of_one_figure(report, tmp_path_factory) -> Path:
    return with_one_drawing(report, tmp_path_factory.mktemp("of_one_figure"))


def with_one_drawing(page: Path, folder: Path) -> Path:
    """The page with the headline's drawing alone: opening forty others takes longer than most
    tests."""
    drawings = re.compile(r'(<svg id="svg-(?!mfu_versus_utilization")[^>]*>).*?</svg>', re.DOTALL)
    emptied = folder / page.name
    emptied.write_text(drawings.sub(r"\1</svg>", page.read_text()))
    return emptied


@dataclass
class Tab:
    """A tab, with what it complained of and asked for since a page was opened in it."""

    page: sync_api.Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, report: Path) -> sync_api.Page:
        """The page as a reader finds it first: nothing is kept of what another test did."""
        self.page.emulate_media(media="null")
        self.page.set_viewport_size({"width": 1280, "height": 900})
        self.page.goto("about:blank")
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(report.as_uri())
        self.page.wait_for_selector("#grid tbody tr[data-row]")
        return self.page


@pytest.fixture(scope="module")
def tab(browser) -> Tab:
    """One tab for all tests: to open another costs as much as the page."""
    opened = Tab(browser.new_page(accept_downloads=True))
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    return opened


@contextmanager
def without_complaints(tab: Tab, report: Path):
    """The page in the tab; at its end there must have been no complaint and no request but for the
    page itself."""
    yield tab.open(report)
    assert tab.complaints == []
    asked = {
        url.partition("#")[0]
        for url in tab.requests
        if not url.startswith(("blob:", "data:", "about:"))
    }
    assert asked == {report.as_uri()}


@pytest.fixture
def opened(tab, of_one_figure):
    with without_complaints(tab, of_one_figure) as page:
        yield page


@pytest.fixture
def drawn(tab, report):
    with without_complaints(tab, report) as page:
        yield page


@pytest.fixture
def korean(tab, page):
    with without_complaints(tab, page / "korean.html") as page_in_korean:
        yield page_in_korean


@pytest.fixture(scope="module")
def functions(browser, of_one_figure):
    """The page for tests that call its functions, and change nothing."""
    page = browser.new_page()
    page.goto(of_one_figure.as_uri())
    page.wait_for_selector("#grid tbody tr[data-row]")
    return page


def column_of(tab, name: str):
    at = tab.locator("#grid thead th button").all_text_contents().index(name) + 1
    return tab.locator(f"#grid tbody tr[data-row] td:nth-child({at})")


def cells(tab, name: str) -> list[str]:
    return column_of(tab, name).all_text_contents()


PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def number(cell: str) -> float:
    """The value of a cell with its unit: `324 ms` is 0.324."""
    digits, _, unit = cell.removeprefix("< ").partition(" ")
    return float(digits) * (1 if unit == "%" else PREFIXES[unit[:1] if len(unit) > 1 else ""])


def test_sorting_by_a_heading_and_back(opened):
    opened.get_by_role("button", name="mfu_percent").click()
    falling = [number(cell) for cell in cells(opened, "mfu_percent") if cell]
    assert falling == sorted(falling, reverse=True)
    opened.get_by_role("button", name="mfu_percent").click()
    rising = [number(cell) for cell in cells(opened, "mfu_percent") if cell]
    assert rising == sorted(rising)
    assert rising[0] < falling[0]
    assert opened.locator("th[aria-sort=ascending]").count() == 1


def test_what_was_not_measured_comes_last_either_way(opened):
    opened.locator("#filter").fill("gpt2 training")
    for _ in range(2):
        opened.get_by_role("button", name="mfu_percent").click()
        shown = cells(opened, "mfu_percent")
        assert "" in shown
        assert "" not in shown[: len(shown) - shown.count("")]


def test_filtering_by_words_and_conditions(opened):
    opened.locator("#filter").fill("resnet18 batch_size=4 mfu_percent>10")
    assert set(cells(opened, "model")) == {"resnet18"}
    assert set(cells(opened, "batch_size")) == {"4"}
    assert all(number(cell) > 10 for cell in cells(opened, "mfu_percent"))
    assert "of 54 rows" in opened.locator("#count").text_content()
    opened.locator("#filter").fill("nothing like this")
    assert opened.locator("#grid tbody tr[data-row]").count() == 0


def test_a_condition_may_be_written_as_one_speaks(opened):
    for words in ("mfu>10", "mfu_percent >10", "MFU > 10%", "mfu_percent>=10.0 batch!=0"):
        opened.locator("#filter").fill(words)
        shown = cells(opened, "mfu_percent")
        assert shown
        assert all(number(cell) >= 10 for cell in shown)
        assert opened.locator("#wrong").text_content() == ""


def test_a_wrong_condition_is_explained(opened):
    everything = opened.locator("#count").text_content()
    opened.locator("#filter").fill("mfu_persent>10")
    assert "no column mfu_persent; near it: mfu_percent" in opened.locator("#wrong").text_content()
    assert opened.locator("#count").text_content() == everything
    for condition in ("mfu>high", "mfu > ten", "time_s <= fast", "batch_size = many"):
        opened.locator("#filter").fill(condition)
        value = re.split("[> =]", condition)[-1]
        assert f"{value} is no number" in opened.locator("#wrong").text_content()
        assert opened.locator("#filter").get_attribute("aria-invalid") == "true"
    opened.locator("#filter").fill("mfu > 1")
    assert opened.locator("#filter").get_attribute("aria-invalid") == "false"
    assert opened.locator("#wrong").text_content() == ""


def test_figures_are_saved_as_picture_and_rows(opened, tmp_path):
    opened.locator("#figure-mfu_versus_utilization .about summary").click()
    for kind, begins in (("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"hardware,")):
        with opened.expect_download() as download:
            opened.locator(f"#figure-mfu_versus_utilization [data-download={kind}]").click()
        assert download.value.suggested_filename == f"mfu_versus_utilization.{kind}"
        download.value.save_as(tmp_path / kind)
        content = (tmp_path / kind).read_bytes()
        assert content.startswith(begins)
        assert b"var(--" not in content
    opened.evaluate("async () => { (await data).figures.mfu_versus_utilization.all = 1000; }")
    with opened.expect_download() as download:
        opened.locator("#figure-mfu_versus_utilization [data-download=csv]").click()
    assert re.fullmatch(
        r"mfu_versus_utilization\.first-\d+-rows\.csv", download.value.suggested_filename
    )


PLANTED = {
    '<svg onload="document.title = 1"></svg>': "script-src",
    "<style>body { display: none }</style>": "style-src-elem",
    '<base href="https://example.org/">': "base-uri",
    '<img src="https://example.org/x.png">': "img-src",
    "<script>document.title = 'ran'</script>": "script-src",
    '<img src="data:," onerror="document.title = 1">': "script-src",
}


def test_what_a_stranger_plants_in_the_page_does_not_run(tab, of_one_figure, tmp_path):
    """Were one to get past all that escapes texts, the policy would still stop it."""
    page = tmp_path / "page.html"
    content = of_one_figure.read_text()
    page.write_text(content.replace("<main>", f"<main>{''.join(PLANTED)}", 1))
    opened = tab.open(page)
    assert opened.title() == "MFU versus utilization"
    assert opened.evaluate("getComputedStyle(document.body).display") == "block"
    for refused, times in Counter(PLANTED.values()).items():
        assert sum(refused in complaint for complaint in tab.complaints) >= times, refused


@pytest.mark.parametrize("onto", few(["svg", "g"]))
def test_a_stranger_s_drawing_runs_no_script(tab, report, tmp_path, one_figure, onto):
    """Single quotes around double ones: an edit of its text would end an attribute."""
    drawn = tmp_path / "figures"
    shutil.copytree(report.parent / "figures", drawn)
    across = f"<{onto} x=' id=\"x' y=\"' onload=document.title='ran' onclick=document.title='ran' c='\"/>"
    headline = drawn / "mfu_versus_utilization.svg"
    head, end, _ = headline.read_text().rpartition("</svg>")
    headline.write_text(f'{head}{across}<g id="\'"/>{end}')
    out = tmp_path / "report.html"
    tables = str(report.parent / "results/tables")
    main(["page", "--tables", tables, "--figures", str(drawn), "--out", str(out)])
    with without_complaints(tab, out) as opened:
        assert opened.title() == "MFU versus utilization"
        assert opened.locator("[onload], [onclick]").count() == 0
        assert marks(opened).count() > 0, "drawn again"


def test_a_dialog_closes_by_its_button(opened):
    opened.locator("#grid tbody tr[data-row]").first.click()
    dialog = opened.locator("dialog#run")
    dialog.locator("form button").click()
    sync_api.expect(dialog).to_be_hidden()


def test_a_spreadsheet_runs_no_cell_of_an_export(functions):
    cells = ["=1", "+a", "-a", "@x", "＝1", "＋a", "－a", "＠x", "﹦1", "'＝1", "plain", "한=1"]
    line = functions.evaluate("(cells) => csv([cells])", cells)
    kept = [f"'{cell}" for cell in cells[:-2]] + cells[-2:]
    assert line.strip().split(",") == kept
    assert functions.evaluate("(cells) => pasted([cells])", cells).split("\t") == kept
    assert functions.evaluate("pasted([['a\\n=1', '\\t=1', null]])") == "a =1\t' =1\t"


AXE = find_spec("axe_playwright_python")


@pytest.mark.skipif(
    AXE is None, reason="axe-playwright-python, which brings axe-core, is not installed"
)
@pytest.mark.parametrize("name", few(["report", "korean"]))
def test_accessible_at_three_widths(tab, report, tmp_path, name):
    opened = tab.open(with_one_drawing(report.with_name(f"{name}.html"), tmp_path))
    opened.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    opened.evaluate(next(Path(AXE.submodule_search_locations[0]).rglob("axe.min.js")).read_text())
    for width in (375, 768, 1280):
        opened.set_viewport_size({"width": width, "height": 900})
        # slow, and no matter of width
        rules = f"{{ 'color-contrast': {{ enabled: {str(width == 1280).lower()} }} }}"
        options = f"{{ rules: {rules}, resultTypes: ['violations'] }}"
        found = opened.evaluate(
            f"axe.run({{ exclude: ['svg'] }}, {options}).then((all) => all.violations)"
        )
        seen = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found]
        assert seen == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_a_korean_table_has_korean_titles_and_sorts_by_them(korean):
    title = korean.get_by_role("button", name="시간", exact=True)
    assert title.get_attribute("title").startswith("time_s: ")
    title.click()
    times = [number(cell) for cell in column_of(korean, "시간").all_text_contents() if cell]
    assert times == sorted(times, reverse=True)
    assert len(times) > 1


def test_a_korean_table_has_korean_values_that_the_filter_finds(korean):
    told = {"학습", "추론"}
    found = {*column_of(korean, "모드").all_text_contents()}
    assert found & told
    assert not found & {"training", "inference"}
    for asked in ("training", "학습", "mode=training"):
        korean.locator("#filter").fill(asked)
        assert {*column_of(korean, "모드").all_text_contents()} == {"학습"}


def test_export_holds_the_filtered_rows_with_the_columns_that_are_shown(opened, tmp_path):
    opened.locator("#filter").fill("resnet18")
    opened.locator("#columns summary").click()
    opened.get_by_label("arithmetic_intensity", exact=True).check()
    opened.get_by_label("flops", exact=True).check()
    opened.get_by_label("energy_j", exact=True).uncheck()
    with opened.expect_download() as download:
        opened.locator("#export").click()
    download.value.save_as(tmp_path / "profile.csv")
    with (tmp_path / "profile.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["model"] for row in rows} == {"resnet18"}
    assert len(rows) == 12
    assert float(rows[0]["flops"]) > 1e9
    assert "arithmetic_intensity" in rows[0]
    assert "energy_j" not in rows[0]


def test_other_tables_and_all_columns(opened):
    opened.locator("#table").select_option("matmul")
    assert "kernel" in opened.locator("#grid thead").text_content()
    few = opened.locator("#grid thead th").count()
    opened.locator("#columns summary").click()
    opened.locator("#all").check()
    assert opened.locator("#grid thead th").count() > few


def test_a_run_opens_with_its_config_samples_and_log(opened):
    opened.locator("#filter").fill("gpt2 inference batch_size=4")
    opened.locator("#grid tbody tr[data-row]").first.click()
    dialog = opened.locator("dialog#run")
    sync_api.expect(dialog).to_be_visible()
    text = dialog.text_content()
    assert "model=gpt2" in text
    found = dialog.locator("dt", has_text=re.compile("^batch_size$")).count()
    assert found == 2, "of config and row"
    assert "{" not in " ".join(dialog.locator("dl").all_text_contents())
    assert "Samples: time_s" in text
    assert dialog.locator("canvas").count() >= 2
    assert dialog.evaluate("each => each.scrollWidth <= each.clientWidth")
    opened.keyboard.press("Escape")
    sync_api.expect(dialog).to_be_hidden()


def test_text_from_models_and_logs_is_shown_and_never_run(opened):
    assert opened.title() == "MFU versus utilization"
    opened.locator("#filter").fill("onerror")
    assert report_rows.EVIL_NAME in cells(opened, "model")
    opened.locator("#filter").fill("gpt2")
    for line in opened.locator("#grid tbody tr[data-row]").all()[:12]:
        line.click()
        opened.keyboard.press("Escape")
    assert opened.title() == "MFU versus utilization"


def test_the_keyboard_opens_a_run(opened):
    opened.locator("#grid tbody tr[data-row]").first.focus()
    opened.keyboard.press("Enter")
    sync_api.expect(opened.locator("dialog#run")).to_be_visible()


def test_an_operator_is_one_part_over_all_of_its_shapes(functions):
    records = [("aten::mm", 10.0, 2), ("aten::add", 20.0, 1), ("aten::mm", 20.0, 3)]
    operators = [
        {"operator": name, "share_percent": share, "calls": calls, "time_s": share / 1e3}
        | {"input_shapes": f"[{place}]"}
        for place, (name, share, calls) in enumerate(records)
    ]
    drawn = functions.evaluate(
        """(operators) => {
            const bars = icicle({ time_s: 0.1 }, { operators }).filter((each) => each.className === "icicle");
            return [bars.at(-1).ariaLabel, list(operators).innerText ?? list(operators).textContent];
        }""",
        operators,
    )
    found = re.findall(r"(\S+) ([\d.]+) ms, ([\d.]+) %", drawn[0])[:2]
    assert found == [("aten::mm", "30", "30"), ("aten::add", "20", "20")]
    assert drawn[1].startswith("aten::mm × 530 ms, 30 %")
    assert drawn[1].count("aten::mm") == 1


LAST_BAR = '(drawn) => drawn.filter((each) => each.className === "icicle").at(-1).ariaLabel'
# Label of the last bar that a run's dialog draws, and all texts there.
ICICLE = f"""(row) => {{
    const drawn = icicle(row, {{}});
    return [({LAST_BAR})(drawn), drawn.map((each) => each.textContent)];
}}"""


# The steps beside which phases were timed may be longer than the row's time of a step.
@pytest.mark.parametrize(
    ("optimiser_ms", "marked", "is_told"),
    [(72.0, 104.0, False), (97.0, 131.0, True), (97.0, 101.0, True), (72.0, 131.0, True)],
)
def test_phases_split_the_step_and_what_their_own_steps_took_is_told(
    functions, optimiser_ms, marked, is_told
):
    row = {"time_s": 0.1, "forward_ms": 10, "backward_ms": 18, "optimiser_ms": optimiser_ms}
    row["phases_percent"] = marked
    label, texts = functions.evaluate(ICICLE, row)
    total = 28 + optimiser_ms
    expected = [100 * ms / total for ms in (10, 18, optimiser_ms)]
    parts = re.findall(r"([\d.]+) ms, ([\d.]+) %", label)
    assert [float(share) for _, share in parts] == pytest.approx(expected, rel=6e-3)
    assert [float(ms) for ms, _ in parts] == pytest.approx(expected, rel=6e-3), "of 100 ms"
    note = Texts("en", "page")("phases_scaled")
    note = note.replace("{time}", f"{total:g} ms").replace("{share}", f"{marked:g} %")
    assert (note in texts) == is_told


def test_operators_stand_beside_the_time_between_them(functions):
    operators = [("aten::addmm", "30"), ("aten::mkldnn_convolution", "20")]
    detail = {
        "operators": [{"operator": name, "share_percent": share} for name, share in operators],
        "outside_operators": {"idle": 35, "input_wait": 5},
    }
    row = {"time_s": 0.1, "matmul_percent": 50.0}
    label = functions.evaluate(
        f"([row, detail]) => ({LAST_BAR})(icicle(row, detail))", [row, detail]
    )
    between = Texts("en", "trace")("idle_of_cpu")
    found = re.findall(r"([^;]+?) ([\d.]+) ms, ([\d.]+) %", label)
    assert [(name.strip(), ms, share) for name, ms, share in found] == [
        ("aten::addmm", "30", "30"),
        ("aten::mkldnn_convolution", "20", "20"),
        (between, "35", "35"),
        (Texts("en", "trace")("input_wait"), "5", "5"),
        (Texts("en", "page")("rest"), "10", "10"),
    ]


def test_operators_without_a_share_are_in_the_list_alone(functions):
    operators = [{"operator": "aten::mm", "time_s": "0.003", "share_percent": ""}]
    drawn = "(operators) => [icicle({ time_s: 0.1 }, { operators }).length, list(operators).textContent]"
    lines, text = functions.evaluate(drawn, operators)
    assert lines == 0
    assert text == "aten::mm3 ms"


def test_kernels_are_shares_of_the_time_in_which_one_ran(functions):
    row = {"time_s": 0.1, "idle_percent": 60.0, "kernel_busy_percent": 40.0}
    row["top_kernels"] = '{"gemm": 75.0}'
    label = functions.evaluate(ICICLE, row)[0]
    assert re.findall(r"([\d.]+) ms, ([\d.]+) %", label) == [
        ("30", "30"),
        ("60", "60"),
        ("10", "10"),
    ]


# Of each bar in a row's dialog: the growth of its parts, and the numbers of its label.
BARS = """(rows) => rows.map((row) => icicle(row, {})
    .filter((each) => each.className === "icicle")
    .map((bar) => [[...bar.children].map((part) => Number(part.style.flexGrow)), bar.ariaLabel]))"""


@pytest.mark.parametrize("table", ["profile", "traces"])
def test_every_line_of_a_recorded_row_s_dialog_sums_to_its_step(functions, recorded, table):
    rows = []
    for row in recorded[table].to_dict("records"):
        if row["time_s"] > 0:
            rows.append({name: value for name, value in row.items() if is_filled(value)})
    drawn = functions.evaluate(BARS, rows)
    assert sum(map(len, drawn)) > len(rows) / 2
    for row, bars in zip(rows, drawn, strict=True):
        for widths, label in bars:
            shares = [float(share) for share in re.findall(r"([\d.]+) %(?:;|$)", label)]
            said = (row["run"], label[:300])
            assert sum(widths) == pytest.approx(100, abs=0.3), said
            assert sum(shares) == pytest.approx(100, abs=0.6), said


def is_filled(cell: object) -> bool:
    """False for the cell of a row that has no value there."""
    return isinstance(cell, (str, bool)) or bool(pd.notna(cell))


def test_a_row_s_other_operators_stand_beside_its_matmuls(functions):
    row = {"time_s": 0.1, "matmul_percent": 60.0, "top_other_operators": '{"aten::mul": 15.0}'}
    found = functions.evaluate(ICICLE, row)
    text = Texts("en", "page")
    shares = re.findall(r"([^;]+?) [\d.]+ ms, ([\d.]+) %", found[0])
    names = [text("matmuls"), "aten::mul", text("rest")]
    assert [(name.strip(), share) for name, share in shares] == list(
        zip(names, ["60", "15", "25"], strict=True)
    )
    assert text("other_operators") in found[1]
    assert text("operators") not in found[1]


def test_what_is_faster_than_its_ceiling_is_marked_and_told(functions):
    found = functions.evaluate(
        """(modules_of) => modules_of.map((found) => modules(found, 100).map((each) => each.textContent))""",
        [
            [{"depth": 1, "name": "conv", "calls": 1, "ms": 50, "flops": 1e9, "mfu_percent": share}]
            for share in (115.5, 99.0)
        ],
    )
    note = Texts("en", "page")("beyond")
    assert [any(note in text for text in texts) for texts in found] == [True, False]
    assert ["115.5 *" in "".join(texts) for texts in found] == [True, False]


def test_what_never_changed_in_a_run_is_told_by_its_number(functions):
    samples = {"steal_percent": [0, 0, None], "replicate": [1, 2, 2], "unknown": [None]}
    drawn = functions.evaluate(
        """(samples) => {
            const parts = describe({ samples });
            const plots = parts.filter((each) => each.querySelector("canvas")).length;
            return [plots, parts.map((each) => each.textContent)];
        }""",
        samples,
    )
    assert drawn[0] == 1
    assert "steal_percent0 %" in drawn[1]
    assert not any("unknown" in text for text in drawn[1])


@pytest.mark.parametrize(("busy", "key"), [(None, "idle_of_cpu"), (61.0, "idle")])
def test_the_time_between_operators_is_between_kernels_on_a_gpu_alone(functions, busy, key):
    row = {"time_s": 0.1, "idle_ms": 40.0, "useful_ms": 60.0, "kernel_busy_percent": busy}
    roofs = [{"kind": kind, "time_ms": 50.0} for kind in ("idle", "others")]
    row |= {"timeline": '[["idle", 1], ["others", 2]]', "operator_roofline": json.dumps(roofs)}
    bars = functions.evaluate(
        """(row) => icicle(row, {}).filter((each) => each.className === "icicle").map((each) => each.ariaLabel)""",
        row,
    )
    names = Texts("en", "trace")
    of_idle = [bar for bar in bars if names("idle") in bar or names("idle_of_cpu") in bar]
    assert len(of_idle) == 3, "the timeline, the budget and the operators"
    assert all(names(key) in bar for bar in of_idle)


def test_a_kernel_is_named_without_its_templates_and_whole_in_its_title(functions):
    apply = (
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>(int)"
    )
    norm = "void at::native::batch_norm_kernel<float>(torch::Accessor<c10::ArrayRef<long>, 3ul>)"
    copied = "void at::native::unrolled_kernel<at::native::copy_cuda(at::TensorIteratorBase&)::{lambda()}>"
    multiplied = "void cutlass::Kernel2<cutlass_s1688gemm_tn>(cutlass_s1688gemm_tn::Params)"
    named = {
        apply: "vectorized_elementwise_kernel · CUDAFunctor_add",
        norm: "batch_norm_kernel",
        copied: "unrolled_kernel · copy_cuda",
        multiplied: "Kernel2 · cutlass_s1688gemm_tn",
        "Memset (Device)": "Memset (Device)",
    }
    for name, said in named.items():
        assert functions.evaluate("(name) => brief(name)", name) == said
    says, title = functions.evaluate(
        """(name) => {
            const row = { time_s: 0.1, top_kernels: JSON.stringify({ [name]: 41.23456 }) };
            const bar = icicle(row, {}).filter((each) => each.className === "icicle").at(-1);
            return [bar.ariaLabel, bar.firstChild.title];
        }""",
        norm,
    )
    assert says.startswith("batch_norm_kernel 41.2 ms, 41.2 %;")
    assert title == f"batch_norm_kernel 41.2 ms, 41.2 %: {norm}"


def test_a_rate_is_no_time(functions):
    for column in ("tokens_per_s", "page_faults_per_s", "samples_per_j"):
        assert functions.evaluate("(column) => shown(1500, column)", column) == "1.5 k"
    assert functions.evaluate("shown(1500, 'time_s')") == "1.5 ks"
    assert functions.evaluate("(column) => shown(0.6449, column)", column) == "0.6449"
    assert functions.evaluate("shown(0.6449, 'time_s')") == "644.9 ms"


def test_percents_differ_by_points(functions):
    for one, two, said in ((50.0, 9.22, "−40.78 pp"), (0, 1, "1 pp")):
        rows = [
            {"run": "model=a", "hardware": "x", "time_s": 1.0, "mfu_percent": value}
            for value in (one, two)
        ]
        table = functions.evaluate("(rows) => besides(...rows)[0].textContent", rows)
        assert said in table
        assert "×" not in table.partition(RUNGS("mfu_percent"))[2]
        assert RUNGS("mfu_percent") in table


def test_two_times_are_apart_only_beyond_what_doubt_leaves(functions):
    rows = [
        {"run": name, "time_s": time, "time_ci_low_s": 0.95 * time, "time_ci_high_s": 1.05 * time}
        for name, time in (("a", 1.0), ("b", 1.4))
    ]
    rates = {"samples_per_s": 8.0}, {"samples_per_s": 5.7}
    one, two = (row | rate for row, rate in zip(rows, rates, strict=True))
    for reach, said in ((None, "apart"), (1.5, "meet")):
        pair = [one | {"reach": reach}, two]
        lines = functions.evaluate("([one, two]) => besides(one, two)[0].textContent", pair)
        assert functions.evaluate("(key) => words[key]", said) in lines
        # A difference within the intervals has no number.
        assert ("×" in lines) == (said == "apart")


def test_after_enter_on_a_mark_the_next_stop_opens_its_run(opened):
    opened.locator(f"{HEADLINE} .drawing").focus()
    for key in ("ArrowRight", "Enter", "Tab", "Enter"):
        opened.keyboard.press(key)
    sync_api.expect(opened.locator("dialog#run")).to_be_visible()


def test_paper_keeps_the_bars_of_a_budget(opened):
    opened.emulate_media(media="print")
    kept = "all => all.map((each) => getComputedStyle(each).printColorAdjust)"
    assert {*opened.locator(".budget span").evaluate_all(kept)} == {"exact"}


def test_what_is_copied_holds_no_joiner(korean):
    copied = korean.evaluate(
        """() => {
            const given = new DataTransfer();
            getSelection().selectAllChildren(document.querySelector("main"));
            document.dispatchEvent(new ClipboardEvent("copy", { clipboardData: given, bubbles: true }));
            return [String(getSelection()), given.getData("text/plain")];
        }"""
    )
    assert "\N{WORD JOINER}" in copied[0]
    assert "%" in copied[1]
    assert not re.search("[\N{WORD JOINER}\N{NO-BREAK SPACE}]", copied[1])


def test_commands_of_a_korean_page_keep_its_language(page):
    commands = re.findall(
        r'<p class="command"><code>([^<]+)</code>', (page / "korean.html").read_text()
    )
    assert len(commands) > 3
    assert all("report.language=ko" in command for command in commands), commands


def test_dark_mode_reaches_the_figures(opened):
    def paper() -> str:
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    def ink() -> str:
        marked = "document.querySelector('.drawing [style*=\"--ink\"]')"
        return opened.evaluate(f"getComputedStyle({marked}).fill")

    light = paper(), ink()
    opened.locator("#theme").click()
    assert paper() != light[0]
    assert ink() != light[1]
    opened.locator("#theme").click()
    assert (paper(), ink()) == light


def test_nothing_is_wider_than_the_screen(drawn):
    for width in (1920, 375):
        drawn.set_viewport_size({"width": width, "height": 900})
        assert drawn.evaluate("document.documentElement.scrollWidth") <= width


def test_tables_of_facts_need_no_sideways_scrolling_on_a_phone(opened):
    opened.set_viewport_size({"width": 375, "height": 900})
    tables = opened.locator(".wide")
    assert tables.count() >= 1
    assert tables.evaluate_all("all => all.every((each) => each.scrollWidth <= each.clientWidth)")


def test_a_phone_shows_figures_legibly_and_whole_at_a_touch(opened):
    opened.set_viewport_size({"width": 375, "height": 700})
    drawing = opened.locator(".drawing").first
    # which a list replaces
    drawing.evaluate("each => each.style.setProperty('display', 'block', 'important')")
    hidden = "drawing => drawing.scrollWidth - drawing.clientWidth"
    assert drawing.evaluate(hidden) > 300
    drawing.click(position={"x": 200, "y": 60})
    assert drawing.evaluate(hidden) == 0
    drawing.press("Enter")
    assert drawing.evaluate(hidden) > 300


def test_the_name_of_a_row_stays_in_view(opened):
    opened.set_viewport_size({"width": 375, "height": 700})
    # asked for anew: rows are repainted
    first = "document.querySelector('#grid tbody tr[data-row] td')"
    sides = f"(({{ left, right }}) => [left, right])({first}.getBoundingClientRect())"
    before = opened.evaluate(sides)
    opened.locator("#scroll").evaluate("scroll => { scroll.scrollLeft = 400; }")
    assert opened.evaluate(sides) == before
    assert before[1] < 375 / 2
    assert opened.evaluate(f"{first}.textContent") in report_rows.MODELS


def test_figures_say_their_finding_to_those_who_do_not_see_them_and_ids_are_unique(drawn):
    drawings = drawn.locator(".drawing")
    assert drawings.count() >= 10
    for label in drawings.evaluate_all("all => all.map((each) => each.ariaLabel)"):
        assert any(character.isdigit() for character in label)
    ids = drawn.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


HEADLINE = "#figure-mfu_versus_utilization"


def marks(tab):
    return tab.locator(f"{HEADLINE} [data-run]")


def chosen_in_view(tab) -> int:
    return tab.locator("#grid tbody tr.on").count()


def test_a_mark_chooses_its_row_and_a_row_its_marks(opened):
    mark = marks(opened).first
    mark.dispatch_event("click")
    sync_api.expect(opened.locator("#selected span")).to_have_text("1 selected")
    assert chosen_in_view(opened) == 1
    title = mark.locator("title").text_content()
    assert all(
        cell in title for cell in opened.locator("#grid tbody tr.on td").all_text_contents()[:2]
    )
    opened.locator("#clear").click()
    assert chosen_in_view(opened) == 0
    opened.locator("#filter").fill(" ".join(title.partition(":")[0].split()[:4]))
    lines = opened.locator("#grid tbody tr[data-row]")
    for place in range(lines.count()):
        lines.nth(place).locator("input").check()
    assert title in opened.locator(f"{HEADLINE} [data-run].on title").all_text_contents()


def test_the_keyboard_chooses_marks_and_rows(opened):
    drawing = opened.locator(f"{HEADLINE} .drawing")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        drawing.press(key)
    assert "mfu_percent" in opened.locator(f"{HEADLINE} .tools [role=status]").text_content()
    sync_api.expect(opened.locator("#selected span")).to_have_text("1 selected")
    # The table has scrolled to the row; the focus on another scrolls it back, and is kept as it is
    # drawn anew.
    opened.evaluate(
        "() => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 200))"
    )
    line = opened.locator("#grid tbody tr[data-row]:not(.on)").first
    line.press(" ")
    sync_api.expect(opened.locator("#selected span")).to_have_text("2 selected")


def drag(tab, share: float = 0.6) -> int:
    """Draws a box from the figure's left edge over so much of it; returns how many marks it
    chose."""
    box = tab.locator(f"{HEADLINE} svg").bounding_box()
    tab.mouse.move(box["x"] + 5, box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] - 5, box["y"] + share * box["height"], steps=4)
    tab.mouse.up()
    return tab.locator(f"{HEADLINE} [data-run].on").count()


def test_a_box_chooses_marks_and_leaves_the_axes(opened):
    every = marks(opened).count()
    places = "all => all.map((each) => each.getBoundingClientRect().y)"
    before = marks(opened).evaluate_all(places)
    assert 0 < drag(opened) < every
    assert marks(opened).evaluate_all(places) == before


def test_a_click_says_a_mark_s_values_beside_it_and_opens_its_run(opened):
    mark = marks(opened).first
    mark.dispatch_event("click")
    tip = opened.locator("#tip")
    name = mark.locator("title").text_content().partition(":")[0]
    assert tip.locator("strong").text_content() == name
    assert re.search(r"mfu: [\d.]+ %", tip.inner_text())
    beside, at = tip.bounding_box(), mark.bounding_box()
    assert max(at["x"] - beside["x"] - beside["width"], beside["y"] - at["y"] - at["height"]) < 60
    tip.get_by_role("button", name="Open this run").click()
    sync_api.expect(opened.locator("dialog#run")).to_be_visible()
    assert opened.locator("#run-title").text_content().startswith(f"model={name.split()[0]}")
    opened.keyboard.press("Escape")
    opened.keyboard.press("Escape")
    sync_api.expect(tip).to_be_hidden()


def test_a_legend_s_entry_hides_what_has_its_colour_and_shows_it_again(opened):
    hidden = opened.locator(f"{HEADLINE} .hidden")
    entries = opened.locator(f"{HEADLINE} .legend > g")
    counts = []
    for place in range(entries.count()):
        entries.nth(place).dispatch_event("click")
        counts.append(hidden.count())
        rows = opened.locator(f"{HEADLINE} [data-run] .hidden").count()
        assert opened.locator(f"{HEADLINE} .value.hidden").count() == rows
        assert opened.locator(f"{HEADLINE} .axis .text.hidden").count() == rows
        entries.nth(place).dispatch_event("click")
        assert hidden.count() == 0
    assert max(counts) > 0


def test_contents_lead_to_each_topic_and_all_unfold(opened):
    topics = opened.locator("section > details.topic")
    assert opened.locator("#contents a").count() == topics.count() > 5
    opened.locator("#unfold").click()
    assert opened.locator("section > details.topic[open]").count() == topics.count()
    opened.locator("#unfold").click()
    assert opened.locator("section > details.topic[open]").count() == 0


def test_a_phone_reads_the_first_figure_as_a_list(opened):
    opened.set_viewport_size({"width": 390, "height": 900})
    lanes = opened.locator(".lanes")
    sync_api.expect(lanes).to_be_visible()
    assert lanes.locator(".lane").count() == opened.locator(f"{HEADLINE} [data-run]").count()
    inks = lanes.locator(".lane").evaluate_all(
        "all => all.map((each) => each.getAttribute('style'))"
    )
    assert lanes.locator(".causes .swatch").count() == len(set(inks)) > 1
    assert lanes.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert not opened.locator(f"{HEADLINE} .drawing").is_visible()


@pytest.mark.parametrize("way", ["tap", "keyboard"])
def test_a_line_of_a_phone_s_list_opens_its_run(opened, way):
    opened.set_viewport_size({"width": 390, "height": 900})
    line = opened.locator(".lanes [data-key]").nth(1)
    run = line.get_attribute("data-key").rpartition("/")[2]
    if way == "tap":
        line.click()
    else:
        line.focus()
        opened.keyboard.press("Enter")
    sync_api.expect(opened.locator("dialog#run")).to_be_visible()
    assert opened.locator("#run-title").text_content() == run


def test_rows_that_look_alike_show_the_key_that_differs(drawn):
    titles = drawn.locator("#grid thead th button").all_text_contents()
    rows = drawn.locator("#grid tbody tr[data-row]").all()
    place = titles.index("hardware") if "settings" not in titles else titles.index("settings")
    named = [tuple(row.locator("td").all_text_contents()[: place + 1]) for row in rows]
    assert len(set(named)) == len(named)


def test_the_address_holds_filter_order_and_selection(opened):
    opened.locator("#filter").fill("resnet18 mfu>10")
    opened.get_by_role("button", name="mfu_percent").click()
    for line in (0, 1):
        opened.locator("#grid tbody tr[data-row] input").nth(line).check()
    opened.locator("#only").check()
    shown = cells(opened, "mfu_percent")
    assert len(shown) == 2
    address = opened.url
    assert "filter=" in address
    opened.goto("about:blank")
    opened.goto(address)
    opened.wait_for_selector("#grid tbody tr.on")
    assert cells(opened, "mfu_percent") == shown
    assert opened.locator("#filter").input_value() == "resnet18 mfu>10"
    assert opened.locator("th[aria-sort=descending]").text_content() == "mfu_percent"


def test_rows_by_any_two_columns_follow_the_filter_and_the_address(opened):
    opened.locator("#filter").fill("resnet18 batch_size=4")
    opened.locator("#axes > summary").click()
    marks = opened.locator("#axes-plot circle")
    places = [(each.get_attribute("cx"), each.get_attribute("cy")) for each in marks.all()]
    both = zip(cells(opened, "mfu_percent"), cells(opened, "utilization_percent"), strict=True)
    assert len(places) == sum(all(pair) for pair in both) > 3
    opened.locator("#axis-x").select_option("batch_size")
    opened.locator("#axis-y").select_option("time_s")
    assert places != [(each.get_attribute("cx"), each.get_attribute("cy")) for each in marks.all()]
    name = marks.first.locator("title").text_content()
    marks.first.dispatch_event("click")
    assert opened.locator("#run-title").text_content() == name.partition(": ")[0]
    opened.keyboard.press("Escape")
    address = opened.url
    opened.goto("about:blank")
    opened.goto(address)
    opened.wait_for_selector("#axes-plot circle")
    assert opened.locator("#axis-x").input_value() == "batch_size"
    assert opened.locator("#axis-y").input_value() == "time_s"
    opened.locator("#filter").fill("")
    opened.locator("#table").select_option("matmul")
    assert opened.locator("#axis-y").input_value() == "time_s", "what another table has too stays"
    assert marks.count() > 3


def test_a_run_shows_its_earlier_results_by_commit(tab, one_figure, tmp_path):
    """Times of a run's code of before, and MFU by them: the same step's FLOPs and peak."""
    manifest = report_rows.lay_out(tmp_path)
    row = next((tmp_path / "results").glob("*/profile_step/model=resnet18*batch_size=4*/row.csv"))
    [now] = csv.DictReader(row.open())
    before = now | {
        "commit": "0123456789abcdef",
        "started_at": "2026-01-01",
        "time_s": str(2 * float(now["time_s"])),
    }
    earlier = (
        tmp_path / "results/superseded" / row.parent.relative_to(tmp_path / "results") / "1/row.csv"
    )
    earlier.parent.mkdir(parents=True)
    with earlier.open("w") as file:
        writer = csv.DictWriter(file, before)
        writer.writeheader()
        writer.writerow(before)
    page = tmp_path / "page.html"
    main(["page", "--tables", str(report_rows.tabled(tmp_path, manifest)), "--out", str(page)])
    with without_complaints(tab, page) as opened:
        opened.locator("#filter").fill(f"run={now['run']}")
        opened.locator("#grid tbody tr[data-row]").first.click()
        table = opened.locator("dialog#run table.parts", has=opened.get_by_text("01234567"))
        (_, _, slow, low), (_, _, fast, high) = [
            line.locator("td").all_inner_texts() for line in table.locator("tr").all()[1:]
        ]
    assert float(slow) == pytest.approx(2 * float(fast), rel=1e-3)
    assert float(high) == pytest.approx(2 * float(low), rel=1e-3)


def test_two_runs_side_by_side_and_linked(opened):
    for words in ("resnet18 inference batch_size=4 fp32", "resnet18 inference batch_size=1 fp32"):
        opened.locator("#filter").fill(words)
        opened.locator("#grid tbody tr[data-row] input").first.check()
    opened.locator("#beside").click()
    lines = {}
    for line in opened.locator("dialog#run tr").all():
        name, *values = line.locator("th, td").all_text_contents()
        lines[name] = values
    assert lines["batch_size"] == ["4", "1", ""]
    assert "model" not in lines
    assert " … " in lines["time_s"][0]
    assert number(lines["samples_per_s"][0]) > 0
    names = [RUNGS(rung.column) for rung in ladder.RUNGS]
    rungs = [name for name in lines if name in names]
    assert rungs == [name for name in names if name in rungs], "in the ladder's order"
    mfu = lines[RUNGS("mfu_percent")]
    one, two = (number(value) for value in mfu[:2])
    difference = mfu[2].split()[0].replace(MINUS, "-")
    assert float(difference) == pytest.approx(two - one, rel=0.01)
    assert "beside=1" in opened.url
    address = opened.url
    opened.goto("about:blank")
    opened.goto(address)
    sync_api.expect(opened.locator("dialog#run")).to_be_visible()


def test_a_run_shows_where_its_step_goes_with_the_numbers_of_the_table(opened):
    opened.locator("#filter").fill("gpt2 training batch_size=4 status=ok")
    time = number(column_of(opened, "time_s").first.text_content())
    opened.locator("#grid tbody tr[data-row]").first.click()
    levels = opened.locator("dialog#run .icicle").evaluate_all(
        "all => all.map((each) => each.ariaLabel)"
    )
    assert len(levels) >= 2
    for level in levels:
        parts = [number(found) for found in re.findall(r"([\d.]+ [mµn]?s),", level)]
        assert sum(parts) == pytest.approx(time, rel=0.02)


def test_a_trace_shows_its_operators_by_what_is_to_gain(tab, one_figure, tmp_path):
    found = Collected()
    found.records["traces"] = [
        {**report_rows.traces()[0].model_dump(), "experiment": "", "recorded": False}
    ]
    build.joined(found.records)
    build.write(found, tmp_path)
    main(["page", "--tables", str(tmp_path), "--out", str(tmp_path / "traces.html")])
    opened = tab.open(tmp_path / "traces.html")
    opened.locator("#grid tbody tr[data-row]").first.click()
    level = opened.locator("dialog#run .icicle").evaluate_all(
        "all => all.map((each) => each.ariaLabel)"
    )[-1]
    seen = sum(number(found) for found in re.findall(r"([\d.]+ [mµn]?s),", level))
    assert seen == pytest.approx(0.1, rel=1e-3)
    lines = opened.locator("dialog#run table.beside tr").all_inner_texts()
    expected = ["operator", "aten::gelu", "aten::mm", "not launched in time"]
    assert [line.split("\t")[0] for line in lines] == expected
    bound, *numbers = lines[2].split("\t")[2:]
    assert bound == "compute"
    time, best, gain = map(float, numbers)
    assert time == pytest.approx(46, rel=1e-3)
    assert best + gain == pytest.approx(time, rel=1e-3)


def test_a_phone_stacks_panels_and_wraps_the_legend(drawn):
    drawn.locator("#batch_size summary").first.click()
    drawing = drawn.locator("#figure-time_by_batch_size .drawing")
    panels = "all => all.map((each) => each.querySelector('path').getBoundingClientRect()).map(({x, y}) => [x, y])"
    wide = drawing.locator(".panel").evaluate_all(panels)
    assert len({round(y) for _, y in wide}) == 1
    drawn.set_viewport_size({"width": 390, "height": 900})
    drawn.wait_for_selector("#figure-time_by_batch_size svg.stack")
    stacked = drawing.locator(".panel").evaluate_all(panels)
    assert len({round(y) for _, y in stacked}) == len(stacked) > 1
    assert drawing.evaluate("each => each.scrollWidth <= each.clientWidth")
    named = "all => all.every((each) => each.querySelectorAll('.axis use').length)"
    assert drawing.locator(".panel").evaluate_all(named)
    drawn.set_viewport_size({"width": 1280, "height": 900})
    drawn.wait_for_selector("#figure-time_by_batch_size svg:not(.stack)")
    assert drawing.locator(".panel").evaluate_all(panels) == wide


# Of each drawing its name, how wide it is beside its box, and its visible texts with their boxes.
SEEN = """() => [...document.querySelectorAll(".drawing")].filter((each) => each.clientWidth).map((each) => ({
    name: each.closest("figure").id, isStacked: each.querySelector("svg").classList.contains("stack"),
    beyond: each.scrollWidth - each.clientWidth,
    hidden: each.querySelectorAll(".panel .spare").length,
    texts: [...each.querySelectorAll(".panel .text, .panel .value")].filter((text) => text.checkVisibility()).map(
        (text) => text.getBoundingClientRect()).map(({ left, top, right, bottom }) => [left, top, right, bottom]),
    right: each.getBoundingClientRect().right}))"""


def overlaps(boxes: list[list[float]]) -> int:
    """Pairs of boxes that share more than a pixel either way."""
    found = 0
    for one, other in itertools.combinations(boxes, 2):
        across = min(one[2], other[2]) - max(one[0], other[0])
        down = min(one[3], other[3]) - max(one[1], other[1])
        found += across > 1 and down > 1
    return found


def test_a_phone_shows_every_figure_with_its_names_and_values(drawn):
    """Narrow panels keep all texts; wide ones are squeezed to the screen, or read sideways whole."""
    drawn.locator("#unfold").click()
    drawn.wait_for_timeout(300)
    wide = {each["name"]: each for each in drawn.evaluate(SEEN)}
    marks = drawn.locator(".panel [data-run]").evaluate_all("all => all.length")
    drawn.set_viewport_size({"width": 390, "height": 900})
    drawn.wait_for_timeout(500)
    narrow = drawn.evaluate(SEEN)
    stacked = [each for each in narrow if each["isStacked"]]
    assert len(stacked) > 0.8 * len(narrow)
    for each in stacked:
        assert each["beyond"] <= 0, each["name"]
        assert all(right <= each["right"] + 1 for _, _, right, _ in each["texts"]), each["name"]
        assert overlaps(each["texts"]) <= overlaps(wide[each["name"]]["texts"]), each["name"]
        assert 2 * each["hidden"] <= len(wide[each["name"]]["texts"]), each["name"]
    for each in narrow:
        if not each["isStacked"]:
            assert each["hidden"] == 0, each["name"]
    assert drawn.locator(".panel [data-run]").evaluate_all("all => all.length") == marks
    drawn.set_viewport_size({"width": 1280, "height": 900})
    drawn.wait_for_timeout(500)
    again = {each["name"]: each for each in drawn.evaluate(SEEN)}
    for name, each in again.items():
        assert each["texts"] == wide[name]["texts"], name


def test_a_command_is_above_what_copies_it_where_both_are_no_line(opened):
    """On any screen a link is one line, and no button lies on the list of runs."""
    link = opened.locator("#headline > .command a")
    for width in (1280, 390):
        opened.set_viewport_size({"width": width, "height": 844})
        if link.count():
            line = float(opened.evaluate("parseFloat(getComputedStyle(document.body).lineHeight)"))
            assert link.bounding_box()["height"] <= 1.5 * line
    assert opened.locator("#up").evaluate("each => getComputedStyle(each).position") == "static"


def test_a_link_into_a_closed_topic_opens_it(drawn, report):
    drawn.goto(f"{report.as_uri()}#figure-roofline")
    sync_api.expect(drawn.locator("#figure-roofline .drawing")).to_be_visible()


def test_the_first_screen_has_sentence_figure_because_and_advice(opened):
    for what in ("h1", f"{HEADLINE} svg", "#headline .because >> nth=1"):
        box = opened.locator(what).bounding_box()
        assert box["y"] + box["height"] <= 900, what
    assert opened.locator("details.topic[open]").count() == 0
    doubts = opened.locator("#doubts summary").bounding_box()
    assert doubts["y"] > opened.locator(f"{HEADLINE} svg").bounding_box()["y"]
    assert doubts["height"] < 40


def test_paper_shows_the_rows_without_controls(drawn):
    drawn.emulate_media(media="print")
    assert not drawn.locator("#rows > .controls").is_visible()
    assert drawn.locator("#grid").is_visible()
    drawn.set_viewport_size({"width": 718, "height": 1047})  # A4 at 96 dpi less its margins
    assert drawn.evaluate("document.documentElement.scrollWidth") <= 718


@pytest.mark.slow
def test_as_many_rows_as_a_page_shows_whole_are_still_usable(browser, report, tmp_path):
    """Within 2 GB, three figures drawn of all rows; of more, a page shows some."""
    report_rows.multiply(report.parent / "results/tables", tmp_path / "tables", 20_000)
    shutil.copytree(report.parent / "figures", tmp_path / "figures")
    for name in ("mfu_versus_utilization", "time_by_batch_size", "utilization_ladder"):
        (tmp_path / "figures" / f"{name}.svg").unlink()
    command = [sys.executable, "-c", "from mfulab.cli.main import main; main()", "page"]
    page_file = tmp_path / "report.html"
    folders = ["--tables", str(tmp_path / "tables"), "--figures", str(tmp_path / "figures")]
    subprocess.run([*command, *folders, "--out", str(page_file)], check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2e6  # KiB
    assert page_file.stat().st_size < 12e6
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(page_file.as_uri())
    tab.wait_for_selector("#grid tbody tr[data-row]")
    assert "20,000 of 20,000 rows" in tab.locator("#count").text_content()
    assert tab.locator("#grid tbody tr").count() < 100
    tab.locator("#filter").fill("seed=19999")
    sync_api.expect(tab.locator("#count")).to_have_text("1 of 20,000 rows")
    tab.locator("#filter").fill("")
    tab.get_by_role("button", name="time_s", exact=True).click()
    tab.locator("#scroll").evaluate("all => { all.scrollTop = all.scrollHeight; }")
    sync_api.expect(column_of(tab, "time_s").last).to_have_text("")
    tab.close()
