"""Every command's `--json` by one schema, and that no answer never reads as a good one."""

import json
import math
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import jsonschema
import pytest
from support import report_rows
from support.workflow_copy import ROOT

from mfulab.cli import check, watch
from mfulab.cli.check_text import CheckedValue, DeviceCheck
from mfulab.cli.commands import COMMANDS
from mfulab.cli.main import _asks_for_json, main, tree
from mfulab.core.answer import Answer, Basis, answered, of_change, unanswered
from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading
from mfulab.lab.tables import answers, compare
from mfulab.loop.interactive import wanted
from mfulab.timing import node
from mfulab.timing.paired import Compared

SCHEMA = json.loads((ROOT / "docs/answer.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
H100 = "NVIDIA H100 80GB HBM3"
STEP = '{"ns": 5000000000, "spans": {"step": 5000000000}, "step": 1, "flops": 1e12, "peak_tflop_s": 1.0}'


def lines_of(text: str) -> list[dict]:
    """Lines of JSON, each of them valid; NaN and infinity are none."""
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    return lines


def is_good(line: dict) -> bool:
    """The one rule that docs/json.md gives a script."""
    answer = line["answer"]
    return answer["value"] is not None and answer["doubt"] == {}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Two sets of results, which no test changes."""
    root = tmp_path_factory.mktemp("results")
    for name in ("old", "new"):
        report_rows.lay_out(root / name, models=("resnet18",))
    return root


@pytest.fixture
def folder(results, tmp_path, monkeypatch) -> None:
    """A working folder with two sets of results and a journal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        node, "readings_of", lambda device: {"memory_gb_s": Reading(9.0, "GB/s", "triad")}
    )
    for name in ("old", "new"):
        Path(name).symlink_to(results / name)
    Path("job").mkdir()
    head = {"rank": 0, "host": "n1", "unix_ns": 1}
    Path("job/a.jsonl").write_text(f"{json.dumps(head)}\n{STEP}\n")


OLD, NEW = (f"{name}/results/{report_rows.CPU}" for name in ("old", "new"))
TRACE = str(ROOT / "examples/small_cnn.pt.trace.json.gz")
CALLS = {
    "bits": [["0.1"], ["0x7f800000"]],
    "check": [["--device", "cpu"]],
    "compare": [[OLD, NEW], [TRACE, TRACE]],
    "explain": [
        ["model=gpt2", f"device={H100}", "tokens_per_s=1e5"],
        ["model=gpt2", f"device={H100}", "tokens_per_s=1e5", "reported=99"],
        ["model=linear_1024", f"device={H100}"],
    ],
    "fits": [["linear_1024", "--device", H100]],
    "flops": [["linear_1024"], ["gpt2"]],
    "gate": [["--minutes", "0.01", "true", "true"]],
    "goodput": [["job"]],
    "peak": [[H100], ["Apple M4"]],
    "summary": [["--tables", "none"]],
    "topics": [
        [
            *("--topics", str(ROOT / "docs/seminar.yaml"), "--tables", "old/results/tables"),
            *(
                "--config",
                str(ROOT / "config"),
                "--notebook",
                str(ROOT / "notebooks/seminar.ipynb"),
            ),
        ]
    ],
    "trace": [[TRACE], [TRACE, "--jobs", "1"]],
    "watch": [["--device", "cpu", "--interval", "0.01", "--count", "2"]],
}
# Their lines are made of rows below: they measure for minutes, or write a file.
BY_ROW = {"run", "paired", "measure"}


def takes_json(name: str) -> bool:
    command = tree.get_command(None, name)  # type: ignore[arg-type]
    return any("--json" in param.opts for param in command.params)


def test_every_command_that_prints_json_is_tried():
    assert {name for name in COMMANDS if takes_json(name)} == CALLS.keys() | BY_ROW


@pytest.mark.parametrize(
    ("name", "words"),
    [(name, words) for name, calls in CALLS.items() for words in calls],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_line_has_an_answer_by_the_schema(name, words, folder, capsys):
    status = main([name, *words, "--json"])
    lines = lines_of(capsys.readouterr().out)
    assert lines
    if status:
        assert not all(map(is_good, lines))


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_a_line_without_an_answer(name, capsys):
    assert main([name, "--no-such-option", "--json"]) == 2
    (line,) = lines_of(capsys.readouterr().out)
    assert line["answer"]["reason"]["refused"]["because"]
    assert not is_good(line)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["peak", "A --json B"], 0),
        (["peak", "A", "--language", "--json"], 0),  # an option's value
        (["compare", "a --format json", "b"], 0),
        (["compare", "a", "b", "--", "--json"], 0),
        (["peak", "A", "--json"], 1),
        (["compare", "a", "b", "--format=json"], 1),
        (["no_such_command", "--json"], 0),
    ],
)
def test_a_mistake_is_a_line_of_json_only_if_an_option_asks_for_it(words, count, capsys):
    assert main(words) == 2
    assert len(lines_of(capsys.readouterr().out)) == count


def test_a_mistake_is_a_line_of_json_though_the_command_s_packages_are_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mfulab.cli.peak", None)
    assert _asks_for_json(["peak", "A", "--json"])
    assert not _asks_for_json(["peak", "A --json B"])


def test_the_line_of_a_mistake_is_english_in_any_terminal(monkeypatch, capsys):
    said = []
    for language in ("en_US.UTF-8", "ko_KR.UTF-8"):
        monkeypatch.setenv("LC_ALL", language)
        assert main(["flops", "no_such_model", "--json"]) == 2
        said.append(capsys.readouterr())
    english, korean = said
    assert korean.out == english.out
    assert korean.err != english.err


def test_a_script_without_torch_leaves_a_line_without_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.py").write_text("print(1)\n")
    answer = unanswered("%", Said("not_measured", {"because": "it ended"}))
    VALIDATOR.validate(answer.line({"script": "empty.py"}))
    assert main(["measure", "--json", "row.json", "nowhere.py"]) == 2
    assert capsys.readouterr().out == ""  # the script's own


ROWS = [
    ({"status": "ok", "mfu_percent": 41.0, "mfu_spec_percent": 41.0, "time_s": 0.1}, True),
    ({"status": "ok", "mfu_spec_percent": None, "mfu_percent": None, "time_s": 0.1}, False),
    ({"status": "failed", "message": "out of memory", "mfu_percent": None}, False),
    ({"status": "ok", "tflop_s": 0.2}, True),
    ({"status": "ok", "tflop_s": math.nan}, False),
    ({"status": "ok", "hardware": "cpu"}, False),
    ({"status": "ok", "forward_flops": 12}, True),
]


@pytest.mark.parametrize(("row", "good"), ROWS)
def test_a_row_answers_by_the_number_that_it_is_for(row, good):
    line = answers.answer_of(row).line({})
    VALIDATOR.validate(line)
    assert (line["answer"]["value"] is not None) == good


@pytest.mark.parametrize(
    ("verdict", "ratio", "good"),
    [
        ("same", 1.0, True),
        ("faster", 0.5, True),
        ("slower", 1.5, False),
        ("ambiguous", 1.01, False),
        ("not comparable", None, False),
    ],
)
def test_a_comparison_is_good_where_it_is_decided_and_not_slower(verdict, ratio, good, capsys):
    compared = Compared("profile_step", "a", verdict, 1.0, ratio, ratio)
    compare.tell([compared], "title", "basis", None, "json", "ko")
    (line,) = lines_of(capsys.readouterr().out)
    assert is_good(line) == good
    VALIDATOR.validate(of_change(ratio, verdict, {}).line({}))


@pytest.mark.parametrize(
    ("value", "reference", "state"), [(9.0, 9.0, True), (1.0, 9.0, False), (9.0, None, False)]
)
def test_a_check_is_good_where_it_was_compared_and_nothing_is_low(value, reference, state):
    line = DeviceCheck("n", "d", "cpu", {"memory_gb_s": CheckedValue(value, "GB/s")}, "unknown")
    judged = check.judged(line, {"memory_gb_s": check.Reference(reference, "baseline")})
    told = check.answer(judged).line(asdict(judged))
    VALIDATOR.validate(told)
    assert is_good(told) == state == (check.STATUS[judged.state] == 0)


@pytest.mark.parametrize(
    ("sample", "good"),
    [
        ({"engines": [{"mfu_percent": 20.0, "missing": []}]}, [True]),
        ({"engines": [{"mfu_percent": None, "missing": ["no_peak"]}]}, [False]),
        ({"engines": [{"gone": "refused"}, {"mfu_percent": 1.0}]}, [False, True]),
        ({"jobs": [{"ofu_percent": None}, {"ofu_percent": 3.0}]}, [False, True]),
    ],
)
def test_each_engine_and_job_is_a_line(sample, good):
    lines = list(watch.lines_of(sample | {"unix_s": 0.0}))
    for line in lines:
        VALIDATOR.validate(line)
    assert list(map(is_good, lines)) == good


def test_the_schema_names_what_the_code_has():
    schema = SCHEMA["$defs"]["answer"]["properties"]
    assert list(schema) == [field.name for field in fields(Answer)]
    assert schema["basis"]["enum"] == [*get_args(Basis), None]


@pytest.mark.parametrize(
    "broken",
    [
        {"value": None, "reason": None},
        {"value": 1.0, "reason": {"no_peak": {}}},
        {"value": None, "reason": {}},
        {"value": "inf"},
        {"basis": "guessed"},
        {"healthy": True},
    ],
)
def test_the_schema_refuses_an_answer_that_could_be_read_both_ways(broken):
    good = answered(1.0, "%", "spec").line({})
    assert VALIDATOR.is_valid(good)
    assert not VALIDATOR.is_valid({"answer": good["answer"] | broken})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_no_answer(value):
    assert answered(value, "%", "spec").value is None


def test_a_script_that_was_not_measured_is_told_by_both_ways():
    line = wanted.not_measured_row(Said("ended_without_torch"))
    assert not is_good(line)
    told = SimpleNamespace(**line["answer"])
    because = str(Said("ended_without_torch"))
    assert told.reason == {"not_measured": {"because": because}}
    assert line["reason"] == because
