"""The page as text: in order, self-contained, escaped, whole where tables are broken."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from markupsafe import escape
from support.report_rows import EVIL, EVIL_NAME
from support.slow import few

from mfulab.core.files import write_csv
from mfulab.core.language import LANGUAGES, Texts
from mfulab.core.language.sentences import sentence
from mfulab.core.said import Said, of_source, packed_all
from mfulab.lab.report import figures, frames, summary, trust
from mfulab.lab.report.drawing import percent
from mfulab.lab.report.page import document, payload
from mfulab.lab.runtime import forked
from mfulab.lab.tables import compare
from mfulab.lab.tables.columns import columns
from mfulab.measurements.registry import TABLES
from mfulab.timing.paired import Compared

MEGABYTE = 1e6
NO_ROWS = Texts("en", "page")("no_rows").partition(";")[0]  # what follows is quoted


@pytest.fixture(scope="module")
def measured(page) -> Path:
    return page / "results/tables"


@pytest.fixture(scope="module")
def drawn(page) -> Path:
    return page / "figures"


@pytest.fixture(scope="module")
def content(page) -> str:
    return (page / "report.html").read_text()


class Sections(HTMLParser):
    """The ids of the page's sections in order, and every address that it would load or lead to."""

    def __init__(self, content: str):
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        if tag == "section":
            self.ids.append(known["id"])
        self.addresses += [
            known[name] for name in ("src", "href", "action", "xlink:href") if name in known
        ]


def test_sections_come_in_the_readers_order(content):
    ids = Sections(content).ids
    expected = [topic for topic in figures.TOPICS if topic in ids]
    assert ids[: len(expected)] == expected
    assert ids[len(expected) :] == ["rows", "unmeasured", "environment", "definitions"]
    assert ids[:3] == ["headline", "why", "ladder"]


def test_sections_without_data_are_absent(content):
    assert "energy" not in Sections(content).ids  # the invented CPU tells no energy


def test_the_finding_comes_first_with_its_numbers(content, measured):
    finding = re.search(r"<h1>(.*?)</h1>", content)[1]
    found = finding.replace("\N{NO-BREAK SPACE}", " ")
    assert found == figures.render("mfu_versus_utilization", frames.read(measured)[0]).finding
    assert " %" not in finding  # no line ends between a number and its sign


def test_nothing_is_loaded_from_anywhere(content):
    assert [
        address for address in Sections(content).addresses if not address.startswith(("#", "data:"))
    ] == []
    assert "@import" not in content
    assert not re.search(r"url\((?!#|data:)", content)
    assert len(content) < 5 * MEGABYTE


def test_every_figure_has_its_sentence_and_command(content):
    for name in re.findall(r'<figure id="figure-(\w+)"', content):
        assert f"reports/figures/{name}.svg --config experiment=invented" in content


def test_runs_without_a_speed_and_those_left_out_are_named(content):
    count = content.count("out of memory. CUDA out of memory: tried to allocate 2 GiB")
    assert count == 1  # in the list; the closed topic's line has the counts
    counted, _, _ = Texts("en", "page")("unmeasured_counts", counts="|").partition("|")
    _, _, counts = content.partition(counted)
    assert re.search(r"\d+ out of memory", counts[:80])
    told = content.replace(",<wbr>", ",")
    assert "2 runs, such as model=gpt2,workload=training,batch_size=16" in told
    assert "a day of pure Python" in content


def test_drawn_figures_are_taken_and_missing_ones_drawn(measured, drawn, tmp_path, monkeypatch):
    two = {name: figures.modules()[name] for name in ("ceilings", "roofline")}
    monkeypatch.setattr(figures, "modules", lambda: two)
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    svg = (tmp_path / "ceilings.svg").read_text()
    (tmp_path / "ceilings.svg").write_text(svg.replace("</svg>", "<title>as drawn</title></svg>"))
    (tmp_path / "roofline.svg").unlink()
    content = document.build(measured, tmp_path)
    assert "<title>as drawn</title>" in content
    assert re.search(r'id="figure-roofline">.*?<svg', content, re.DOTALL)


def test_text_from_anywhere_is_escaped(content):
    # the reason of a combination that was left out, the operating system
    assert content.count("alert(") > 1
    assert "onerror=" in content
    assert EVIL not in content
    assert EVIL_NAME not in content
    assert not re.search(r"<script>\s*alert", content)


def test_a_comparison_becomes_a_section(one_figure, measured, content, tmp_path):
    assert "comparison" not in Sections(content).ids
    shutil.copy(measured / "environment.csv", tmp_path)
    (tmp_path / "comparison.csv").write_text(
        "step,run,verdict,old_s,new_s,ratio,ratio_low,ratio_high,because\nprofile_step,a,slower,1,2,2,1.9,2.1,\n"
    )
    korean = document.build(tmp_path, language="ko")
    assert "comparison" in Sections(korean).ids
    section = korean[
        korean.index('<section id="comparison">') : korean.index('<section id="environment">')
    ]
    assert "느려짐" in section
    assert ">slower<" not in section
    assert "×2.0" in section
    assert "+90% … ×2.1" in section


INSTALL = Said("other_torch", {"command": "pip uninstall -y torch && pip install torch==2.13.0"})
CODES = {"torch": "2.13.0", "codes": "sm_75, sm_80", "capability": "compute capability 7.0"}
NO_CODE = Said("with_remedy", {"reason": Said("no_code_for_gpu", CODES), "instead": INSTALL})
UNUSED = of_source("Tesla V100", NO_CODE)


def test_a_gpu_that_was_left_is_told_before_the_first_sentence_and_in_the_terminal(
    one_figure, measured, content, tmp_path, capsys
):
    assert 'role="note"' not in content
    rows = pd.read_csv(measured / "environment.csv", dtype=str, keep_default_na=False)
    rows = rows.assign(recorded="True", gpu_unused="another machine's").tail(1)
    rows = pd.concat([rows, rows.assign(recorded="False", gpu_unused=packed_all([UNUSED]))])
    tables = tmp_path / "tables"  # beside which no other test has rows
    tables.mkdir()
    rows.to_csv(tables / "environment.csv", index=False)
    built = {language: document.build(tables, language=language) for language in ("en", "ko")}
    for language, says in (("en", "none for this GPU"), ("ko", "용 코드가 없습니다")):
        note = built[language][built[language].index('role="note"') : built[language].index("<h1>")]
        assert says in re.sub(r"\s", " ", note)
        assert "pip uninstall -y torch &amp;&amp; pip install torch==2.13.0" in note
        assert "another machine" not in note
    summary.show(tables, tmp_path / "report.html")
    first = f"{Texts('en', 'page')('gpu_unused')} {UNUSED}"
    assert " ".join(capsys.readouterr().out.split()).startswith(first)


def test_a_card_without_a_datasheet_heads_its_own_page_and_says_how_to_give_its_peak(measured):
    tables, _ = frames.read(measured)
    rows = tables["profile"].assign(recorded=False)
    own = rows.assign(
        mfu_percent=float("nan"),
        mfu_note="no_peak",
        peak_precision="bf16",
        effective_precision="bf16",
    )

    def first(*rows, language="en") -> tuple[str, list[str]]:
        told = {**tables, "profile": pd.concat(rows)}
        says = document._headline(
            [{"finding": "of recorded machines"}],
            told,
            document._without_both(told),
            Texts(language, "page"),
        )
        lacking = document._without_both(told)
        return says, sorted({*lacking.loc[lacking["mfu_note"] == "no_peak", "peak_precision"]})

    recorded = rows.assign(recorded=True)
    says, peaks = first(recorded, own)
    assert f"{Said('no_peak', {'precision': 'bf16'})}." in says
    assert peaks == ["bf16"]
    found = sentence("no_peak", {"precision": "bf16"}, "ko")
    assert found in first(recorded, own, language="ko")[0]
    with_mfu = rows[rows[["mfu_percent", "utilization_percent"]].notna().all(axis=1)].head(1)
    assert first(recorded, own, with_mfu) == first(recorded) == ("of recorded machines", [])
    # as of a MIG instance
    says, peaks = first(recorded, rows.assign(utilization_percent=float("nan")))
    assert "reports no utilization" in says
    assert f"{percent(rows['mfu_percent'].max())} %" in says
    assert not peaks
    says, peaks = first(recorded, own.assign(mfu_note="uncounted"))
    assert str(Said("uncounted")) in says
    assert not peaks, "no peak helps where FLOPs were not counted"


def test_a_recorded_machine_s_failures_are_not_told_beside_runs_of_one_s_own(measured):
    tables, _ = frames.read(measured)
    failed = (
        tables["profile"]
        .head(1)
        .assign(status="out_of_memory", message="GPU 0 has 79 GiB", recorded=True)
    )
    status = ["ok", "unsupported"]
    own = tables["profile"].head(2).assign(status=status, message="no such format", recorded=False)
    nothing = {name: table.iloc[:0] for name, table in tables.items()}

    def told(*rows) -> str:
        return "; ".join(
            document._unmeasured({**nothing, "profile": pd.concat(rows)}, Texts("en", "page"))
        )

    assert "79 GiB" in told(failed)
    assert "79 GiB" not in told(failed, own)
    assert "no such format" in told(failed, own)
    assert told(failed, own.head(1)) == ""

    def counted(*rows, excluded: int = 0) -> str:
        shown = {**nothing, "profile": pd.concat(rows).assign(mfu_note="")}
        return document._unmeasured_counts(shown, excluded, Texts("en", "page"))

    text = Texts("en", "page")
    assert counted(failed, failed) == text("unmeasured_counts", counts="2 out of memory")
    assert counted(failed, own) == text("unmeasured_counts", counts="1 unsupported")
    assert counted(failed, own.head(1)) == ""
    left_out = text("excluded_count", count=48)
    assert counted(failed, own.head(1), excluded=48) == left_out
    assert counted(failed, own, excluded=48) == f"{counted(failed, own)} {left_out}"


def test_runs_left_out_on_purpose_are_told_by_their_reasons(one_figure, tmp_path):
    runs = [f"kernel=torch,size={size},precision=bf16" for size in range(40)]
    lines = [f'quick,bench_matmul,"{run}","the device has no units of this format"' for run in runs]
    lines += ['quick,bench_matmul,"kernel=python,size=4096","a day of pure Python"']
    (tmp_path / "excluded.csv").write_text("\n".join(["experiment,step,run,because", *lines, ""]))
    told = (
        document.build(tmp_path).partition("41 runs left out on purpose")[2].partition("</ul>")[0]
    )
    reasons = [" ".join(reason.split()) for reason in re.findall("<li>(.*?)</li>", told)]
    counted = [re.match(r"(.*): (\d+) .* bench_matmul (.*)", reason).groups() for reason in reasons]
    assert counted == [
        ("a day of pure Python", "1", "kernel=python,size=4096"),
        ("the device has no units of this format", "40", runs[0]),
    ]


def test_a_sweep_before_its_end_says_how_far_it_is_and_what_is_missing(one_figure, tmp_path):
    states = {
        "model=a,batch_size=1": "measured",
        "model=b,batch_size=2": "not_measured",
        "model=c": "to_come",
    }
    lines = [f'profile_step,"{run}",{state}' for run, state in states.items()]
    (tmp_path / "progress.csv").write_text("\n".join(["step,run,state", *lines, ""]))
    content = document.build(tmp_path)
    assert content.count('<progress max="3" value="1"') == 1
    text = Texts("en", "page")
    states = ("progress_measured", "progress_not_measured", "progress_to_come")
    assert ", ".join(text(state, count=1) for state in states) in content
    missing = content.partition('id="missing"')[2].partition("</details>")[0]
    assert re.findall("<li>(.*?)</li>", missing) == ["profile_step b 2", "profile_step c"]
    (tmp_path / "progress.csv").write_text("\n".join(["step,run,state", lines[0], ""]))
    assert 'id="progress"' not in document.build(tmp_path)


def test_without_any_table_there_is_a_page_that_says_so(one_figure, tmp_path):
    content = document.build(tmp_path)
    assert Sections(content).ids == ["problems", "definitions"]
    assert NO_ROWS in content
    for table in TABLES:
        assert f"{table}.csv: the table is missing" in content


@pytest.mark.parametrize("table", few(sorted(document.ON_A_MACHINE, reverse=True), 2))
def test_machines_of_any_measurement_are_named(one_figure, table, measured, tmp_path):
    for name in (*TABLES, "series"):
        lines = (measured / f"{name}.csv").read_text().splitlines(keepends=True)
        kept = lines if name in (table, "environment") else lines[:1]
        (tmp_path / f"{name}.csv").write_text("".join(kept))
    content = document.build(tmp_path, tmp_path)  # no figure is drawn for it
    runs = frames.in_words(document._runs(frames.read(tmp_path)[0]), Texts())
    first_screen = content.partition('<nav id="contents"')[0]
    assert NO_ROWS not in content
    assert len(runs)
    assert all(str(escape(machine)) in first_screen for machine in runs["machine"])


def test_recorded_machines_beyond_the_line_of_provenance_and_those_of_older_code_are_named():
    text = Texts("en", "page")
    runs = pd.DataFrame({"hardware": ["a", "b"], "machine": ["A", "B"], "recorded": True})
    runs = runs.assign(experiment="")
    assert document._rows_shown(runs, "A · 2026", text) == text("shown_recorded", names="B")
    assert document._rows_shown(runs, "A, B", text) == ""
    numbers = {"folder": "results/reference/b", "number": 3, "total": 4}
    said = json.dumps({"recording_aged": numbers})
    aged = [frames.Problem("", said, of_recordings=True), frames.Problem("odd.csv: cannot be read")]
    told = document._aged(aged, runs, text)
    assert "B" in told
    assert text.part(3, 4) in told
    assert document._aged(aged[1:], runs, text) == ""


def test_empty_tables_likewise(one_figure, tmp_path):
    for table in TABLES:
        (tmp_path / f"{table}.csv").write_text(",".join(columns(table)) + "\n")
    content = document.build(tmp_path)
    assert NO_ROWS in content
    assert "is missing" not in content


DAMAGES: list[dict[str, str]] = [
    {"profile": "truncated", "ceilings": "binary", "environment": "truncated"},
    {"profile": "binary", "flops": "columns"},
    {"profile": "columns", "matmul": "binary"},
    {"profile": "words", "matmul": "words"},
]


def _damage(path: Path, kind: str) -> None:
    text = path.read_text()
    header, *lines = text.splitlines()
    if kind == "truncated":
        path.write_text(text[: len(text) // 2].rpartition("\n")[0] + '\n"cut')
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 20)
    elif kind == "columns":
        keep = header.split(",").index("status") + 1
        path.write_text("\n".join(",".join(line.split(",")[:keep]) for line in (header, *lines)))
    else:
        path.write_text(text.replace("0.0", "much").replace("1.", "more"))


@pytest.mark.parametrize("damages", few(DAMAGES))
def test_a_broken_table_leaves_a_page_that_names_it(measured, one_figure, tmp_path, damages):
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    for table, kind in damages.items():
        _damage(tmp_path / f"{table}.csv", kind)
    content = document.build(tmp_path)
    assert "definitions" in Sections(content).ids
    for table, kind in damages.items():
        assert kind not in ("binary", "columns") or f"{table}.csv" in content


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("from 1.6e-05 % (spinning)", "from 1.6 × 10⁻⁵\N{NO-BREAK SPACE}% (spinning)"),
        ("an error of 1e-12.", "an error of 1 × 10⁻¹²."),
        ("FLOPs: 3.00e+12, and more", "FLOPs: 3.00 × 10¹², and more"),
        ("snakemake --config timing.ci=1e-05", "snakemake --config timing.ci=1e-05"),
        ("rate:2e-3", "rate:2e-3"),
        ("2.5 ms per step", "2.5\N{NO-BREAK SPACE}ms per step"),
        ("commit 3e-7f", "commit 3e-7f"),
    ],
)
def test_a_number_reads_as_a_reader_writes_it_and_breaks_nowhere(words, shown):
    found = document._unbroken(words)
    assert found == shown.replace(" × ", "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}")


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux forks safely with the libraries loaded"
)
def test_figures_are_made_in_processes_and_those_of_a_killed_one_here(monkeypatch):
    monkeypatch.setattr(forked, "usable_cores", lambda: 3)
    here = os.getpid()
    names = list("abcdefgh")

    def work(name: str) -> tuple[str, int]:
        if name == "e" and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return name, os.getpid()

    made = forked.in_processes(work, names)
    assert [name for name, _ in made] == names
    assert ("e", here) in made
    assert any(process != here for _, process in made), "the others' work is not done twice"
    monkeypatch.setattr(forked, "usable_cores", lambda: 1)
    assert forked.in_processes(work, names) == [(name, here) for name in names]


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux forks safely with the libraries loaded"
)
@pytest.mark.parametrize("lacking", ["semaphores", "memory", "threads"])
def test_figures_are_made_here_where_no_processes_can_be_begun(monkeypatch, lacking):
    """Without /dev/shm, at the limit of memory, and of threads, there is no pool of processes."""
    forks = []

    def fork() -> int:
        if forks:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        forks.append(real())
        return forks[-1]

    def no_semaphore(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    real, here, names = os.fork, os.getpid(), list("abc")
    monkeypatch.setattr(forked, "usable_cores", lambda: 3)
    if lacking == "semaphores":
        monkeypatch.setattr("_multiprocessing.SemLock", no_semaphore)
    elif lacking == "memory":
        monkeypatch.setattr(os, "fork", fork)
    else:
        monkeypatch.setattr("concurrent.futures.process._ExecutorManagerThread.start", no_thread)
    found = forked.in_processes(lambda name: (name, os.getpid()), names)
    assert found == [(name, here) for name in names]
    assert len(forks) == (lacking == "memory")
    assert not multiprocessing.active_children()


def test_what_only_keepers_of_recordings_mend_is_no_first_box(measured, one_figure, tmp_path):
    tables = tmp_path / "tables"
    shutil.copytree(measured, tables)
    mine = "odd.csv: cannot be read"
    theirs = "results/reference/x: code has changed. `mfulab record --replace` renews it."
    lines = [
        {"problem": mine, "said": "", "of_recordings": False},
        {"problem": theirs, "said": "", "of_recordings": True},
    ]
    write_csv(tables / "problems.csv", lines)
    page = document.build(tables)
    assert page.index(mine) < page.index('<section id="why"') < page.index("code has changed")
    assert "<code>mfulab record --replace</code>" in page


def test_the_command_stands_between_the_remedy_that_it_tries_and_the_others(content):
    _, _, headline = content.partition('<section id="headline"')
    words = Texts("en", "lines")
    places = (
        headline.index(f"<strong>{Texts('en', 'page')('why_try')}</strong>"),
        headline.index('<p class="command"><code>'),
        headline.index(f'<p class="because">{words("otherwise", others="")}'),
        headline.index("<svg"),
    )
    assert list(places) == sorted(places)


def test_a_sweep_ends_in_the_terminal_with_the_page_s_first_lines(measured, tmp_path, capsys):
    """Finding, because, try, the command and other remedies, in this order, of one run."""
    summary.show(measured, tmp_path / "report.html")
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    finding, because, advice, command, others = lines[-5:]
    model = finding.split()[0]
    assert " busy " in finding
    assert because.startswith(Texts("en", "lines")("because", reason=f"in {model} "))
    assert advice.startswith("Try: ")
    assert f"model={model} " in command or "experiment=" in command
    assert others.startswith(Texts("en", "lines")("otherwise", others=""))


def test_the_terminals_table_has_the_words_of_its_sentences(tmp_path):
    rows = pd.DataFrame(
        {
            "run": ["model=a,workload=training,batch_size=1", "model=a,workload=inference"],
            "recorded": [False, False],
            "status": ["ok", "unsupported"],
            "time_s": [1.0, None],
            "tflop_s": [1.0, None],
            "mfu_percent": [1.0, None],
        }
    )
    none = pd.DataFrame({"run": [], "recorded": pd.Series([], dtype=bool)})
    shown = summary.table(rows, none, language="ko")
    names, times = (list(map(str, column.cells)) for column in shown.columns[:2])
    assert names == ["a 학습 1", "a 추론"]
    assert times[1] == Texts("ko").name("status", "unsupported")


def test_why_a_run_is_not_comparable_is_told_in_the_pages_language(tmp_path):
    lost = Compared("profile_step", "a", "not comparable", because=Said("only_in_old"))
    compare.write([lost], tmp_path / "comparison.csv", Path("before"), Path("after"))
    for language in LANGUAGES:
        told = document._comparison(tmp_path, Texts(language, "page"))["others"]
        assert sentence("only_in_old", {}, language) in told[0]


def test_each_link_to_a_figure_leads_to_one(content):
    linked = re.findall(r'href="#(figure-\w+)"', content)
    assert linked
    for name in linked:
        assert content.count(f'<figure id="{name}"') == 1


@pytest.mark.parametrize(
    ("is_made", "command", "is_told"),
    [
        (True, "snakemake", True),
        (True, None, False),  # the page's commands name the environment
        (False, "snakemake", False),  # conda's, or one of the user's own
    ],
)
def test_commands_of_a_first_page_say_which_environment_they_assume(
    monkeypatch, tmp_path, is_made, command, is_told
):
    program = tmp_path / "snakemake"
    if is_made:
        program.touch()
    monkeypatch.setattr(document, "OF_MAKE", program)
    monkeypatch.setattr(document, "SNAKEMAKE", command or str(program))
    own = {name: pd.DataFrame({"recorded": [False, True]}) for name in ("profile", "matmul")}
    assert document._needs_environment(own) is is_told
    recorded = {name: rows[rows["recorded"]] for name, rows in own.items()}
    assert not document._needs_environment(recorded)


def test_mfu_and_utilization_follow_the_precision_in_the_table():
    main = payload.ordered(TABLES["profile"].shown.split())
    assert sorted(main) == sorted(TABLES["profile"].shown.split())
    after = main.index("precision") + 1
    assert main[after : after + 2] == ["mfu_percent", "utilization_percent"]
    assert payload.ordered(["model", "mfu_percent"]) == ["model", "mfu_percent"]
    table = {"precision": ["fp32"], "status": ["ok"], "mfu_percent": [1.0]}
    rows = pd.DataFrame(table).reindex(columns=payload.ordered(list(table)))
    assert list(rows) == ["precision", "mfu_percent", "status"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_status_of_a_doubtful_row_says_so(recorded, language):
    judged = trust.judged(recorded)
    text = Texts(language, "page")
    marked = document._with_doubt_in_status(recorded, judged, text)
    for name in trust.STEPS:
        is_unsure = trust.unsure(judged[name]) & (judged[name]["status"] == "ok")
        assert is_unsure.any()
        assert (marked[name]["status"] != recorded[name]["status"]).equals(is_unsure)
        told = marked[name].loc[is_unsure, "status"].unique()
        assert [*told] == [f"ok, {text.within('why')('doubtful')}"]
