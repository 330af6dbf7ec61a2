"""The logger plugin under the real Snakemake: what a user sees while a sweep runs or fails."""

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry
from support.processes import HANGS_S
from support.slow import few

import snakemake_logger_plugin_mfulab as plugin
from mfulab.core.language import Texts
from mfulab.core.language.quantities import duration
from mfulab.core.terminal_language import terminal_texts
from mfulab.lab.runtime import budget, endings, lifetime
from snakemake_logger_plugin_mfulab import TAIL, Remark, Run, dry_run, row_remark, startup, tail

SNAKEFILE = """
rule all:
    input: expand("out/{run}/row.csv", run=config["runs"].split(","))
rule measure:
    output: "out/{run}/row.csv"
    log: "out/{run}/log"
    shell: "python3 measure.py {wildcards.run} {output} > {log} 2>&1"
"""
MEASURE = """
import sys
run, row = sys.argv[1:]
if run == "bad":
    print("\\n".join(f"line {n}" for n in range(100)))
    sys.exit("the reason of it")
ended_by = '"{""left_out_for_budget"": {""budget_min"": 1, ""command"": ""snakemake""}}"'
status = "out_of_memory,needs 90 GB," if run == "large" else "ok,,"
if run.startswith("late"):
    status = f"not_measured,no time,{ended_by}"
open(row, "w").write(f"status,message,ended_by\\n{status}\\n")
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "measure.py").write_text(MEASURE)
    profile = tmp_path / "profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("logger: mfulab\ncores: 1\nkeep-going: true\nshow-failed-logs: true\n")
    return tmp_path


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANGS_S)
    told, _, done.stderr = done.stderr.partition("\n")
    # Snakemake says so before it has a logger
    assert told.startswith("Using workflow specific profile")
    return done


@pytest.mark.workflow
def test_a_sweep_tells_each_run_in_one_line_and_one_without_runs_says_so(toy: Path) -> None:
    done = snakemake(toy, "--config", "runs=a,b,large,late,later")
    assert done.returncode == 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "5 runs: 5 measure"
    assert len(lines) == 1 + 3 + 1 + 1 + 1, lines  # runs, a remark, what was left out, the end
    first = next(line for line in lines if re.search("measure  [ab]", line))
    assert re.search(r"^[1-5]/5 measure  (a|b) · [\d.]+ s$", first)
    found = lines[lines.index(next(line for line in lines if "measure  large" in line)) + 1]
    assert found == "    out of memory: needs 90 GB"
    left_out = next(line for line in lines if "not measured" in line)
    assert "2 not measured: measure late" in left_out or "2 not measured: measure later" in left_out
    assert left_out.endswith("budget_min=1. To measure it: snakemake")
    seen = snakemake(toy, "--config", "runs=a").stderr.splitlines()
    assert seen == ["Nothing to be done (all requested files are present and up to date)."]


@pytest.mark.slow
@pytest.mark.workflow
def test_silence_is_broken_by_what_runs(toy: Path) -> None:
    (toy / "measure.py").write_text(
        MEASURE.replace("run, row =", "import time; time.sleep(11)\nrun, row =")
    )
    lines = snakemake(toy, "--config", "runs=a").stderr.splitlines()
    assert re.fullmatch(r" +… measure  a · (9\.\d|1\d) s", lines[1])
    assert len([line for line in lines if "…" in line]) == 1


@pytest.mark.workflow
def test_a_failed_job_shows_its_command_and_the_end_of_its_log(toy: Path) -> None:
    done = snakemake(toy, "--config", "runs=a,bad")
    assert done.returncode == 1
    assert "Failed: measure  bad" in done.stderr
    assert "command: python3 measure.py bad out/bad/row.csv" in done.stderr
    assert "    | the reason of it" in done.stderr
    assert "    | line 99" in done.stderr
    assert "    | line 0\n" not in done.stderr
    assert re.search("^1/2 measure  a", done.stderr, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.workflow
def test_a_dry_run_names_some_runs_counts_all_and_writes_nothing(toy: Path) -> None:
    done = snakemake(
        toy, "-n", "--config", f"runs={','.join(f'run{number}' for number in range(100))}"
    )
    assert re.findall(r"^measure +100$", done.stdout, flags=re.MULTILINE)
    assert re.findall(r"run0$", done.stdout, flags=re.MULTILINE)
    assert f"… and {101 - dry_run.LISTED} more" in done.stdout
    assert len(done.stdout.splitlines()) < dry_run.LISTED + 12
    assert not (toy / "out").exists()


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("text", "words"),
    few(
        [
            ("rule all:\n    input: 'nobody-makes-this'\n", "MissingInputException"),
            ("rule all\n    input: 'a'\n", "SyntaxError"),
        ]
    ),
)
def test_errors_of_snakemake_itself_are_shown(toy: Path, text: str, words: str) -> None:
    (toy / "Snakefile").write_text(text)
    done = snakemake(toy)
    assert done.returncode == 1
    assert words in done.stderr


@pytest.mark.workflow
@pytest.mark.slow
def test_a_terminal_gets_colour_and_no_redrawing(toy: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "snakemake", "--config", "runs=a"]
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(command, cwd=toy, stderr=theirs, env=environment | {"TERM": "xterm"})
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the other end was closed
        pass
    assert process.wait(HANGS_S) == 0
    assert b"\033[32m" in shown
    # no cursor is moved, no line erased
    assert set(re.findall(rb"\033\[[0-9;?]*([A-Za-z])", shown)) == {b"m"}
    assert shown.count(b"\r") == shown.count(b"\r\n")


@pytest.mark.parametrize("after_s", [0.0, 0.1, None])
def test_a_run_that_the_terminal_ends_is_no_error_though_said_first(
    monkeypatch, after_s: float | None
) -> None:
    monkeypatch.setattr(lifetime, "interrupted", after_s == 0)
    signal = threading.Timer(after_s or 0, setattr, (lifetime, "interrupted", True))
    if after_s is not None:
        signal.start()
    found = plugin._is_interrupted("Command 'run' died with <Signals.SIGINT: 2>.")
    assert found is (after_s is not None)
    signal.cancel()
    monkeypatch.setattr(lifetime, "interrupted", False)
    assert not plugin._is_interrupted("Command 'run' returned non-zero exit status 1.")


def test_snakemake_finds_the_plugin_by_its_name() -> None:
    assert LoggerPluginRegistry().is_installed("mfulab")


def handler_of(**remaining: int) -> plugin.LogHandler:
    """A handler without Snakemake, to which so many jobs of each rule were announced."""
    handler = plugin.LogHandler.__new__(plugin.LogHandler)
    handler.text = terminal_texts("sweep_log")
    handler.finished, handler.remaining, handler.running, handler.started = (
        Counter(),
        Counter(remaining),
        {},
        0.0,
    )
    handler.is_coloured, handler.budget, handler.figures, handler.skipped = False, None, [], []
    return handler


def test_a_line_tells_what_is_left_by_the_predictions_of_the_estimate(monkeypatch) -> None:
    """The first job waits for the worker's imports, which say nothing of the others."""
    runs_s = {f"cpu/profile_step/{name}": 60.0 for name in "abc"}
    monkeypatch.setattr(
        budget, "rest", budget.Rest(runs_s, dict.fromkeys(runs_s, "profile_step"), 6.0, 20.0)
    )
    handler = handler_of(profile_step=3, page=1)
    handler.started = 100.0
    handler.running[1] = Run("profile_step", "a", 100.0, ("results/cpu/profile_step/a/row.csv",))
    assert handler._finished(1, 166.0).endswith("1 min 06 s of 3 min 26 s, about 2 min 20 s left")
    handler.running[2] = Run("page", "", 166.0, ("reports/report.html",))
    assert "left" not in handler._finished(2, 176.0)


def test_rules_of_a_module_and_those_beside_it_change_no_estimate(monkeypatch) -> None:
    """Of another project's own rules one may write nothing, and a module's may have a prefix."""
    runs_s = {"cpu/profile_step/a": 60.0}
    monkeypatch.setattr(budget, "rest", budget.Rest(runs_s, {"cpu/profile_step/a": ""}, 6.0, 20.0))
    handler = handler_of()
    handler._run_info({"mfulab_profile_step": 1, "mfulab_page": 1, "theirs": 1, "total": 3})
    assert handler.remaining == {"profile_step": 1, "page": 1, "theirs": 1}
    for job, rule in enumerate(("mfulab_page", "theirs")):
        values = {"jobid": job, "rule_name": rule, "rule_msg": "", "wildcards": {}}
        handler._job_info(values | {"output": (), "log": ()}, 0.0)
        assert "left" not in handler._finished(job, 1.0)
    assert handler.place("profile_step") == "1/2 "


@pytest.mark.parametrize(("rule", "read"), [("profile_step", []), ("refine", ["log"])])
def test_only_the_log_that_is_shown_is_read_while_a_run_is_measured(
    monkeypatch, rule: str, read: list[str]
) -> None:
    handler, logs, sleeps = handler_of(), list[str](), iter([None])
    handler.told_at, handler.turn, handler.stream = (
        -2 * plugin.SILENCE_S,
        threading.Lock(),
        io.StringIO(),
    )
    handler.running[1] = Run(rule, "a", 0.0, log=("log",))
    monkeypatch.setattr(plugin, "_lines", lambda path: logs.append(path) or ["the last line"])
    # which ends the loop the second time
    monkeypatch.setattr(plugin.time, "sleep", lambda seconds: next(sleeps))
    with pytest.raises(StopIteration):
        handler._break_silence()
    assert logs == read
    assert ("the last line" in handler.stream.getvalue()) is bool(read)


def test_a_job_that_no_plan_announced_counts_once() -> None:
    handler = handler_of()
    handler.running[1] = Run("measure", "a", started=0.0)
    assert handler._finished(1, 1.0).startswith("1/1 measure")
    assert handler.finished.total() == 1


def test_figures_that_a_checkpoint_adds_are_no_runs() -> None:
    handler = handler_of(measure=2, tables=1, page=1)
    for job, rule in enumerate(("measure", "figure", "figure")):
        handler.running[job] = Run(rule, "a", 0.0)
        handler._finished(job, 1.0)
    assert handler.place("measure") == "1/2 "
    assert handler.place("figure") == "    "
    assert handler._finished(99, 1.0) == ""


def test_runs_that_were_left_out_for_other_reasons_are_told_apart() -> None:
    """One alone says its whole message; several of one reason say it once."""
    handler = handler_of()
    message = "budget_min=1: too little time was left for its 9 s or so. To measure it: snakemake"
    ended_by = endings.ending(endings.LEFT_OUT, budget_min=1, command="snakemake")
    remark = Remark("not_measured", message, ended_by)
    handler.skipped = [(Run("measure", "a", 0.0), remark)]
    assert handler._left_out() == [f"0/0 1 not measured: measure a: {message}"]
    handler.skipped = [(Run("measure", name, 0.0), remark) for name in "abc"]
    assert handler._left_out() == [
        "0/0 3 not measured: measure a, measure b, …: budget_min=1. To measure it: snakemake"
    ]
    assert handler._left_out() == []


def test_each_line_of_a_sweep_is_korean_in_a_korean_terminal(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    monkeypatch.setattr(budget, "rest", budget.Rest({"cpu/s/a": 60.0}, {"cpu/s/a": "s"}, 6.0, 20.0))
    handler = handler_of(s=2)
    words = handler._run_info({"s": 2, "total": 2})
    assert words == Texts("ko", "sweep_log")("runs", count=2, counts="2 s")
    handler.running[1] = Run("s", "a", 0.0, ("results/cpu/s/a/row.csv",))
    lines = [words, handler._finished(1, 60.0)]
    ended_by = endings.ending(endings.LEFT_OUT, budget_min=1, command="snakemake")
    handler.skipped = [(Run("s", name, 0.0), Remark("not_measured", "", ended_by)) for name in "ab"]
    lines += handler._left_out()
    handler.figures = [1.0]
    lines += handler._drawn()
    row = tmp_path / "row.csv"
    message = json.dumps({"row_absent": {"path": "here"}}).replace('"', '""')
    row.write_text(f'status,message\nout_of_memory,"{message}"\n')
    lines.append(row_remark([str(row)]).message)
    for error in (AssertionError, ValueError):
        with pytest.raises(SystemExit) as said:
            startup.config_of(["model=#"], Mock(side_effect=error))
        lines.append(str(said.value))
    for line in lines:
        assert re.search("[가-힣]", line), line
        assert not re.search("left|measured|figure|budget.* of |absent|blank", line), line


def record(event: LogEvent | None, message: str = "", **values: object) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, message, (), None)
    made.__dict__ |= {"event": event, **values}
    return made


def job(name: str, reason: str) -> logging.LogRecord:
    of_job = {"rule_name": "measure", "rule_msg": name, "reason": reason}
    return record(LogEvent.JOB_INFO, **of_job, wildcards={}, output=[])


def test_a_dry_run_ends_with_the_second_count_whatever_snakemake_says_then() -> None:
    handler = handler_of()
    handler.dry_run = dry_run.DryRun(handler.text)
    stats = {"measure": 3, "total": 3}
    assert handler._of_dry_run(record(LogEvent.RUN_INFO, stats=stats)) == ""
    for process in ("a", "a,replicate=2"):
        assert handler._of_dry_run(job(process, "Missing output files: a")) == ""
    handler._of_dry_run(job("b", "Code has changed"))
    assert handler._of_dry_run(record(None, "a note of a user")) == "a note of a user"
    found = handler._of_dry_run(record(LogEvent.RUN_INFO, stats=stats)).splitlines()
    assert found[:3] == ["a × 2", "b  (Code has changed)", ""]
    assert [line.split() for line in found[3:]] == [["measure", "3"], ["total", "3"]]
    assert handler._of_dry_run(record(None, "This was a dry-run (flag -n).")) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_logs_and_rows_that_are_not_there_are_no_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "row.csv")
    text = Texts("en", "sweep_log")
    assert tail(missing, True, text) == [f"    {text('log_absent', path=missing)}"]
    assert row_remark([missing]) == Remark()
    (tmp_path / "log").write_text("x\n" * (TAIL + 5))
    shown = tail(str(tmp_path / "log"), True, text)
    assert shown[1] == f"    | {text('lines_before', count=5)}"
    assert len(shown) == TAIL + 2
    assert tail(str(tmp_path / "log"), False, text) == shown[:1]
    (tmp_path / "log").write_text("")
    empty = text("log_empty", path=tmp_path / "log")
    assert tail(str(tmp_path / "log"), True, text) == [f"    {empty}"]


@pytest.mark.slow
def test_a_key_with_a_dot_becomes_an_override(toy):
    (toy / "Snakefile").write_text("print(config)")
    done = snakemake(
        toy, "--config", "timing.windows=9", "model=resnet18", "model.arguments.name=a b"
    )
    assert (
        "{'model': 'resnet18', 'overrides': \"timing.windows=9 'model.arguments.name=a b'\"}"
        in done.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize("value", few(["#", " ", "\t", "# none", "\n", " #x", "---\n", "\r"]))
def test_a_word_that_is_blank_is_one_sentence(toy, value):
    """To YAML; Snakemake ends some of these by an assertion without words."""
    (toy / "Snakefile").write_text("print(config)")
    done = snakemake(toy, "-n", "--config", "seed=1", f"model={value}")
    said = done.stdout + done.stderr
    assert "AssertionError" not in said
    assert "Traceback" not in said
    if done.returncode:
        [line] = [line for line in said.splitlines() if line.startswith("mfulab: ")]
        assert "model=VALUE" in line


def test_durations_are_by_a_clock_that_nobody_sets() -> None:
    """Summer time and a corrected clock change no line of a sweep."""
    text = Path(plugin.__file__).read_text()
    assert "time.monotonic()" in text
    assert "time.time()" not in text
    assert "record.created" not in text
