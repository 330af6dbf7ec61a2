"""The real workflow in miniature: it measures this CPU, writes the page, and what re-runs."""

import csv
import json
import re
import shutil
import socket

import pytest
from support.slow import few
from support.workflow_copy import MINIATURE, ROOT

from mfulab.core.language import verdicts
from mfulab.core.replicates import replicate_of
from mfulab.lab.runtime import endings
from mfulab.measurements.published import PUBLISHED

pytestmark = pytest.mark.workflow


def changed(project, *arguments):
    """Rows that a further run of the workflow measures anew."""
    before = project.rows()
    project.snakemake("rows", *(arguments or MINIATURE))
    after = project.rows()
    return sorted(path for path, time in after.items() if before.get(path) != time)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def table(project, name):
    with (project.folder / "results" / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_planned_run_is_a_row_and_the_page_shows_them(project):
    profile, matmul = table(project, "profile"), table(project, "matmul")
    assert len(profile) == 2 * 2 * 2
    assert len(matmul) == 2 * 2
    assert {row["status"] for row in profile + matmul} == {"ok"}
    assert all(float(row["time_s"]) > 0 and float(row["mfu_percent"]) > 0 for row in profile)
    assert all(float(row["utilization_percent"]) > 0 for row in profile)
    assert all(float(row["relative_error"]) < 1e-5 for row in matmul)
    assert {row["experiment"] for row in profile} == {"miniature"}
    assert {row["host"] for row in profile + matmul} == {socket.gethostname()}
    page = (project.folder / "reports" / "report.html").read_text()
    assert "<svg" in page
    assert "linear_1024" in page


def test_mfu_is_the_quotient_of_what_stands_beside_it(project):
    for row in table(project, "profile"):
        expected = (
            100 * float(row["flops"]) / float(row["time_s"]) / 1e12 / float(row["ceiling_tflop_s"])
        )
        assert float(row["mfu_measured_percent"]) == pytest.approx(expected, rel=1e-6)


def test_each_run_leaves_its_config_samples_and_log(project):
    for path in project.rows():
        folder = (project.folder / path).parent
        json.loads((folder / "config.json").read_text())
        assert (folder / "samples.csv").exists()
        assert (folder / "log").exists()


@pytest.mark.slow
def test_a_second_report_does_nothing(measured):
    done = measured.snakemake("report", *MINIATURE)
    assert "Nothing to be done" in done.stdout


@pytest.mark.slow
def test_without_a_target_snakemake_makes_the_report(measured):
    (measured.folder / "reports/report.html").unlink()
    measured.snakemake(*MINIATURE)
    assert (measured.folder / "reports/report.html").exists()


@pytest.mark.slow
def test_a_comment_in_the_config_re_runs_nothing(measured):
    edit(measured.folder / "config/model/linear_1024.yaml", "name:", "# a remark\nname:")
    assert changed(measured) == []


@pytest.mark.slow
def test_a_report_in_another_language_measures_nothing(measured):
    before = measured.rows()
    measured.snakemake("report", *MINIATURE, "overrides=report.language=ko")
    assert measured.rows() == before
    assert '<html lang="ko"' in (measured.folder / "reports/report.html").read_text()
    assert "figure" in measured.snakemake("report", *MINIATURE, "-n").stdout


@pytest.mark.slow
def test_a_changed_value_re_runs_exactly_its_runs_and_reverting_it_none(measured):
    config = measured.folder / "config/model/linear_1024.yaml"
    edit(config, "in_features: 1024", "in_features: 512")
    edit(config, "input_shape: [1024]", "input_shape: [512]")
    first = changed(measured)
    assert len(first) == 2 + 4  # FLOP counts of two batch sizes, profiles of two workloads at each
    assert all("model=linear_1024" in path for path in first)
    edit(config, "in_features: 512", "in_features: 1024")
    edit(config, "input_shape: [512]", "input_shape: [1024]")
    assert changed_by_measuring(measured) == []


def changed_by_measuring(project):
    """Runs whose script was started again, by their logs; a result that came back has the row it
    had."""
    logs = {path: path.stat().st_mtime_ns for path in (project.folder / "results").rglob("log")}
    project.snakemake("rows", *MINIATURE)
    return [
        path
        for path in (project.folder / "results").rglob("row.csv")
        if "superseded" not in path.parts
        and (path.with_name("log")).stat().st_mtime_ns not in logs.values()
    ]


@pytest.mark.slow
def test_an_edited_kernel_re_runs_exactly_the_runs_that_use_it(measured):
    kernel = measured.folder / "src/mfulab/kernels/cpu_numpy.py"
    edit(kernel, '"""', '"""Edited. ')
    assert changed(measured) == []  # words measure nothing
    edit(kernel, "a, b, c = operands", "a, b, c, *_ = operands")
    paths = changed(measured)
    assert len(paths) == 2
    assert all("kernel=numpy" in path for path in paths)


@pytest.mark.parametrize(
    ("file", "again"),
    few(
        [
            ("peaks/datasheets.csv", {"ceilings", "seminar", "tables", "page", "report"}),
            # tables hold keys, no sentence
            ("core/language/catalogue/ko.yaml", {"figure", "page", "report"}),
            ("lab/report/page/templates/report.css", {"page", "report"}),
            # drawn whatever else a machine was busy with
            ("lab/report/figures/mfu_versus_utilization.py", {"figure", "page", "report"}),
        ],
        1,
    ),
)
def test_an_edited_file_of_the_package_re_runs_exactly_what_reads_it(measured, file, again):
    with (measured.folder / "src/mfulab" / file).open("a") as text:
        text.write("\n")
    done = measured.snakemake("report", *MINIATURE, "--dry-run")
    assert set(re.findall(r"^(\w+) +\d+$", done.stdout, flags=re.MULTILINE)) - {"total"} == again


# What a sweep writes before its first run; a dry run writes nothing.
BEGIN = """
import sys
from types import SimpleNamespace
from mfulab.lab.planning.workflow import Workflow

lab = Workflow(dict(word.split("=", 1) for word in sys.argv[1:]))
lab.begin()
for step in ("bench_matmul", "ceilings", "environment"):
    for path in lab.inputs.rows():
        if f"/{step}/" in path:
            _, hardware, _, run, _ = path.split("/")
            lab.inputs.sources(step)(SimpleNamespace(get={"hardware": hardware, "run": run}.get))
"""


@pytest.mark.slow
def test_edited_cuda_c_re_runs_exactly_the_kernels_that_include_it(make_project):
    project = make_project(with_source=True)
    sweep = ["experiment=kernels", "hardware=nvidia-invented", "size=4096", "precision=fp32,bf16"]
    sweep.append("kernel=cuda_naive,cuda_vectorised,cuda_warp_tile,cuda_hopper")

    def kernels():
        """Those of which a run would be measured."""
        done = project.snakemake("rows", "--dry-run", "--config", *sweep)
        return set(re.findall(r"Multiplying kernel=(\w+)", done.stdout))

    assert kernels() == {"cuda_naive", "cuda_vectorised", "cuda_warp_tile", "cuda_hopper"}
    project.run("python", "-c", BEGIN, *sweep)
    configs = project.folder.glob("results/**/config.json")
    rows = sorted(
        (path.with_name("row.csv") for path in configs),
        key=lambda row: replicate_of(row.parent.name),
    )
    for row in rows:  # a process follows the one before
        row.write_text("status\nok\n")
    assert kernels() == set()
    for file, users in (
        ("hopper.cuh", {"cuda_hopper"}),
        ("quads.cuh", {"cuda_vectorised", "cuda_warp_tile"}),
    ):
        edit(project.folder / "src/mfulab/kernels/cuda" / file, "//", "// Edited.")
        assert kernels() == users
        project.run("python", "-c", BEGIN, *sweep)
        for row in rows:
            row.touch()


@pytest.mark.slow
def test_a_new_batch_size_adds_only_its_runs(measured):
    paths = changed(measured, *MINIATURE, "batch_size=2,4,8")
    assert len(paths) == 2 + 4
    assert all("batch_size=8" in path for path in paths)


@pytest.mark.slow
def test_a_lost_and_a_truncated_row_are_measured_again(measured):
    lost, cut = sorted(path for path in measured.rows() if "bench_matmul" in path)[:2]
    (measured.folder / lost).unlink()
    text = (measured.folder / cut).read_text()
    (measured.folder / cut).write_text(text[: len(text) // 2])
    assert changed(measured) == [lost, cut]


@pytest.mark.slow
def test_a_run_that_cannot_be_done_is_a_row_and_the_others_go_on(measured):
    measured.snakemake(
        "results/tables/profile.csv",
        *MINIATURE,
        "precision=fp32,int8",
        "model=digit_cnn",
        "batch_size=2",
        "size=64",
    )
    rows = table(measured, "profile")
    found = {row["precision"]: row["status"] for row in rows}
    assert found == {"fp32": "ok", "int8": "unsupported"}
    refused = next(row for row in rows if row["precision"] == "int8")
    assert verdicts.message(refused["message"])
    assert refused["time_s"] == ""


@pytest.mark.slow
def test_the_same_sweep_runs_by_hand_in_hydras_words(measured):
    before = set(measured.rows())
    arguments = ("-m", "experiment=miniature", "device=cpu", "kernel=numpy", "size=32,48")
    measured.run("python", "-m", "mfulab", "run", "bench_matmul", *arguments)
    new = set(measured.rows()) - before
    timing = (
        "timing.windows=2,timing.window_time_s=0.02,timing.warm_up_time_s=0.1,timing.patience_s=0.1"
    )
    expected = [f"kernel=numpy,size={size},precision=fp32,{timing}" for size in (32, 48)]
    assert sorted(path.split("/")[-2] for path in new) == expected


@pytest.mark.slow
def test_a_collection_by_hand_is_a_row_for_each_of_its_lines(make_project):
    project = make_project()
    lines = (
        (ROOT / PUBLISHED / "papers.csv").read_text(encoding="utf-8").splitlines(keepends=True)[:6]
    )
    (project.folder / PUBLISHED).mkdir(parents=True)
    (project.folder / PUBLISHED / "papers.csv").write_text("".join(lines), encoding="utf-8")
    done = project.run("python", "-m", "mfulab", "run", "published", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(lines) - 1
    assert len({row["run"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_an_own_model_in_the_users_folder_is_measured(measured):
    (measured.folder / "my_module.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))\n"
    )
    overrides = "overrides=model._target_=my_module.build model.input_shape=[3,4,4]"
    own = (*MINIATURE, overrides, "workload=inference", "batch_size=2")
    paths = changed(measured, *own)
    assert {path.split("model=")[1].split(",")[0] for path in paths} == {"my_module.build"}
    edit(measured.folder / "my_module.py", "48, 5", "48, 6")
    assert changed(measured, *own) == paths


BAD = [  # the last ones are mistakes of test_planning.py too, and take the way of the first
    ("overrides=timing.window=3", "key=timing.window: unknown. Did you mean timing.windows?"),
    ("overrides=model._target_=my_modul.build model.input_shape=[3]", "no module my_modul "),
    ("device=cuda", "device=cuda: "),
    ("size=1k", "size=1k: give `N` for N×N×N"),
    ("experiment=quikstart", "Did you mean quickstart"),
    ("precision=fp12", "precision=fp12: unknown"),
    ("batch_size=0", "batch_size=0"),
    ("model=resnet19", "Did you mean resnet18"),
    ("batchsize=4", "Did you mean batch_size"),
]


@pytest.mark.parametrize(("override", "words"), few(BAD))
def test_bad_input_gets_one_message_before_any_measuring(measured, override, words):
    before = measured.rows()
    config = (
        ["experiment=miniature", override] if not override.startswith("experiment") else [override]
    )
    done = measured.snakemake("report", "--config", *config, check=False, CUDA_VISIBLE_DEVICES="")
    messages = [line for line in done.stdout.splitlines() if line.startswith("mfulab: ")]
    assert done.returncode != 0
    assert len(messages) == 1
    assert words in messages[0]
    assert "Traceback" not in done.stdout
    assert measured.rows() == before


@pytest.mark.slow
def test_results_that_cannot_be_written_are_refused(make_project):
    project = make_project()
    (project.folder / "results").write_text("not a folder")
    done = project.snakemake("report", *MINIATURE, check=False)
    assert done.returncode != 0
    assert "mfulab: results/: cannot be written" in done.stdout


def test_planning_imports_neither_torch_nor_pandas(measured):
    code = (
        "import sys; from mfulab.lab.planning.workflow import Workflow; from mfulab.lab.runtime import lifetime;"
        "Workflow({'experiment': 'miniature', 'device': 'cpu'});"
        "print('imported:', sorted({'torch', 'pandas', 'numba', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    assert "imported: []" in measured.run("python", "-c", code).stdout


@pytest.mark.slow
def test_a_recording_alone_gives_the_tables_that_were_measured(measured):
    before = {name: table(measured, name) for name in ("ceilings", "flops", "profile", "matmul")}
    figures = (measured.folder / "results/tables/figures.txt").read_text()
    measured.run("python", "-m", "mfulab", "record", "--commit", "0123abc", "--allow-unfit")
    reference = measured.folder / "results" / "reference"
    for folder in (measured.folder / "results").iterdir():
        if folder != reference and folder.is_dir():
            shutil.rmtree(folder)
    measured.snakemake("report", "--config", "experiment=recorded")
    for name, rows in before.items():
        # A recording names no node.
        kept = {"recorded": "True", "commit": "0123abc", "host": ""}
        expected = [row | {key: kept[key] for key in kept.keys() & row.keys()} for row in rows]
        found = sorted(table(measured, name), key=by_run)
        for here, there in zip(found, sorted(expected, key=by_run), strict=True):
            seen = {key: (here[key], there[key]) for key in there if here[key] != there[key]}
            assert seen == {}, (name, here["run"])
    assert (measured.folder / "results/tables/figures.txt").read_text() == figures
    assert "(recorded)" in (measured.folder / "reports" / "report.html").read_text()


def by_run(row):
    return row["run"]


@pytest.mark.slow
def test_a_larger_budget_measures_what_did_not_fit_and_nothing_else(measured):
    """A warm-up of 90 s is more than is left: both runs are rows that say so, on the page as
    well."""
    narrow = [
        "steps=[profile_step]",
        "model=digit_cnn",
        "batch_size=2",
        "overrides=timing.warm_up_time_s=90",
    ]
    sweep = [*MINIATURE, *narrow]
    before = measured.rows()
    done = measured.snakemake("report", *sweep, "budget_min=1")
    new = sorted(set(measured.rows()) - set(before))
    assert len(new) == 2, done.stdout
    assert all("timing.warm_up_time_s=90" in path for path in new)
    rows = [row for row in table(measured, "profile") if row["recorded"] == "False"]
    assert {row["status"] for row in rows} == {"not_measured"}
    assert {endings.key_of(row["message"]) for row in rows} == {endings.LEFT_OUT}
    command = "snakemake --cores 1 report --config experiment=miniature"
    assert all(
        command in verdicts.message(row["message"])
        and "budget_min=null" in verdicts.message(row["message"])
        for row in rows
    )
    page = (measured.folder / "reports/report.html").read_text()
    assert "2 not measured for lack of time (budget_min)" in page
    assert re.search(r"first_page  results/plan/\w+\.page · ", done.stdout)

    def would(*options):
        return re.findall(
            r"^Profiling (.*?)(?: × .*)?$",
            measured.snakemake("-n", *sweep, *options).stdout,
            re.MULTILINE,
        )

    assert would("budget_min=1") == []
    assert len(would("budget_min=1.5")) == 2
    before = measured.rows()
    measured.snakemake("rows", *sweep)
    after = measured.rows()
    assert sorted(path for path in after if before[path] != after[path]) == new
    assert {
        line["status"] for path in new for line in csv.DictReader((measured.folder / path).open())
    } == {"ok"}
