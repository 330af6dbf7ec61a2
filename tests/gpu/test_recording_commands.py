"""The one command of a recording, without a GPU: its list, limits, and what it leaves."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict

import psutil
import pytest
from support.processes import HANGS_S
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.cutile import CuTile
from mfulab.kernels.hopper import TILE_M, TILE_N
from mfulab.lab.planning import costs, load
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.keys import choices
from mfulab.lab.planning.runs import plan

FOLDER = ROOT / "validation" / "recording"
SCRIPT = FOLDER / "record.sh"
KERNELS = set(choices(ROOT / "config", "kernel"))
FILE = "test_cuda_kernels_gpu.py"
EXPERIMENTS = {path.stem for path in (ROOT / "config" / "experiment").glob("*.yaml")}


def test_the_command_names_what_exists():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    text = SCRIPT.read_text()
    assert {
        name for names in re.findall(r"experiment=([\w,]+)", text) for name in names.split(",")
    } <= EXPERIMENTS
    assert set(re.findall(r"\bcuda_(?:hopper\w*|grouped)\b", text)) <= KERNELS
    for path in re.findall(r"(?:validation|tests)/[\w/]+\.py", text):
        assert (ROOT / path).exists(), path


def run(tmp_path, body, out="recorded"):
    """The log of a command made of `body`, in a tree of its own."""
    shutil.copytree(FOLDER, tmp_path / "validation" / "recording", dirs_exist_ok=True)
    script = tmp_path / "validation" / "recording" / "9_mine.sh"
    script.write_text(f'. "$(dirname "$0")/common.sh"\n{body}\ntrue\n')
    settings = {"SITE": str(tmp_path / "site"), "LIMIT_S": "300", "OUT": out}
    done = subprocess.run(
        ["bash", script], env=os.environ | settings, capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (tmp_path / out / "9_mine.txt").read_text()


def test_a_step_that_hangs_or_fails_costs_itself_alone(tmp_path):
    late = "KEEP=296 part kept 9 true\nLIMIT_S=0\npart late 9 true"
    wrong = "part fails 9 bash -c 'echo wrong; false'"
    log = run(tmp_path, f"part hangs 1 sleep 60\n{wrong}\npart works 9 true\n{late}")
    found = re.findall(r"^(\w+): (?:status (\d+)|left out)", log, re.MULTILINE)
    assert found == [("hangs", "124"), ("fails", "1"), ("works", "0"), ("kept", ""), ("late", "")]
    assert "=== fails\nwrong\nfails: status 1" in log


def test_nothing_outlives_its_step(tmp_path):
    stubborn = "trap '' TERM; echo $BASHPID > pid; exec sleep 60"
    (tmp_path / "stubborn.sh").write_text(f"({stubborn}) & sleep 60")
    run(tmp_path, "part hangs 1 bash stubborn.sh\npart next 9 true")
    process = int((tmp_path / "pid").read_text())
    assert (
        not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.slow
def test_a_test_whose_kernel_hangs_fails_alone(tmp_path):
    shutil.copy(ROOT / "tests" / "gpu" / "conftest.py", tmp_path)
    (tmp_path / "test_hang.py").write_text(
        "import pytest, time\n\n"
        "@pytest.mark.gpu(limit_s=0.5)\ndef test_hangs():\n    time.sleep(60)\n\n"
        "@pytest.mark.gpu\ndef test_works():\n    pass\n\n"
        "def test_needs_none():\n    pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n",
        "1",
        "-p",
        "xdist.plugin",
        "-p",
        "no:cacheprovider",
    ]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    # xdist may not end by itself after a worker has crashed (seen once in hundreds of runs): by
    # then all is told.
    with (tmp_path / "told").open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [*command, "test_hang.py"], cwd=tmp_path, env=alone, stdout=out, timeout=HANGS_S / 3
        )
    told = (tmp_path / "told").read_text()
    assert "[gw0] node down: Not properly terminated" in told
    ended = re.findall(r"^\[(gw\d)\].* (FAILED|PASSED) test_hang\.py::(\w+)", told, re.MULTILINE)
    assert sorted(ended) == [
        ("gw0", "FAILED", "test_hangs"),
        ("gw1", "PASSED", "test_needs_none"),
        ("gw1", "PASSED", "test_works"),
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("no tiles", name="cuda.tile"), "cuda.tile is not installed"),
        (UnsupportedError("no compiler"), "no bf16 matmul"),
    ],
)
def test_a_language_that_a_machine_lacks_is_skipped(monkeypatch, error, said):
    spec = importlib.util.spec_from_file_location("kernels_on_a_gpu", ROOT / "tests" / "gpu" / FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def lacks(*operands, launch):
        raise error

    made = module.random_operands
    monkeypatch.setattr(
        module, "random_operands", lambda shape, form, device, seed: made(shape, form, "cpu", seed)
    )
    monkeypatch.setattr(CuTile, "require", lambda *asked: None)
    monkeypatch.setattr(CuTile, "run", lacks)
    with pytest.raises(pytest.skip.Exception, match=said):
        module.test_every_implementation_is_right_for_every_shape(CuTile, "bf16", [(1, 8, 8, 8)])


MADE = "mkdir -p results/gpu/profile_step/a && touch results/gpu/profile_step/a/{row.csv,trace.json.gz}"


def test_results_are_packed_without_traces_and_the_next_command_goes_on_from_them(tmp_path):
    body = f'part make 9 bash -c \'{MADE}\'\necho slow > "$OUT/dropped.txt"; touch "$OUT/no_worker.txt"'
    run(tmp_path, body)
    with tarfile.open(tmp_path / "recorded" / "results.tgz.00") as packed:
        seen = [name for name in packed.getnames() if name.endswith((".csv", ".gz"))]
        assert seen == ["results/gpu/profile_step/a/row.csv"]
    shutil.rmtree(tmp_path / "results")
    log = run(
        tmp_path,
        "part look 9 test -e results/gpu/profile_step/a/row.csv\npart worker 9 printenv MFULAB_WORKER",
        "later",
    )
    assert "look: status 0" in log
    assert "=== worker\n\nworker: status 0" in log, "told by an empty name to do without"
    left = {"9_mine.txt", "dropped.txt", "no_worker.txt", "results.tgz.00"}
    found = {path.name for path in (tmp_path / "later").iterdir()}
    assert found == left, "each knows all that the next is to know"
    (tmp_path / "recorded" / "results.tgz.00").write_bytes(b"half")
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(AssertionError, match="not whole"):
        run(tmp_path, "part look 9 true")


def test_a_traceback_s_paths_do_not_leave_the_machine(tmp_path):
    paths = '"$PWD/src/a.py" "$HOME/b.py" "$SITE/c.py" "${TMPDIR:-/tmp}/d" /usr/lib/e.py'
    run(tmp_path, f"part told 9 printf 'File %s\\n' {paths}")
    log = (tmp_path / "recorded" / "9_mine.txt").read_text()
    found = re.findall(r"^File (.*)$", log, re.MULTILINE)
    assert found == ["./src/a.py", "~/b.py", "SITE/c.py", "TMP/d", "/usr/lib/e.py"]
    assert not re.search(r"/(home|root|tmp|work)/", log)


def test_a_command_that_is_ended_from_outside_packs_what_there_is(tmp_path):
    body = f"{MADE}\n(sleep 0.5; kill -TERM $$) &\npart hangs 20 sleep 60"
    with pytest.raises(AssertionError):
        run(tmp_path, body)
    with tarfile.open(tmp_path / "recorded" / "results.tgz.00") as packed:
        assert "results/gpu/profile_step/a/row.csv" in packed.getnames()


DROPPED = "cuda_hopper_cluster"
TOLD = """#!/bin/bash
{ printf '%s\\x1f' "${0##*/}" "$@"; echo; } >> "$CALLS"
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """What the command starts, a list of words each, where everything that it starts ends at
    once."""
    return calls(tmp_path_factory.mktemp("tree"))


def calls(tree, told=TOLD, commands=1, **settings):
    """What `commands` start in an empty tree, a list of words each; every program does what `told`
    says."""
    (tree / "site" / "bin").mkdir(parents=True)
    for program in ("python3", "snakemake", "ncu", "compute-sanitizer", "nvidia-smi", "nvcc"):
        path = tree / "site" / "bin" / program
        path.write_text(told)
        path.chmod(0o755)
    for folder in ("config", "tests"):
        (tree / folder).symlink_to(ROOT / folder)
    shutil.copytree(FOLDER, tree / "validation" / "recording")
    (tree / "recorded").mkdir()
    (tree / "recorded" / "dropped.txt").write_text(f"{DROPPED}\n")
    folders = {
        "SITE": str(tree / "site"),
        "CALLS": str(tree / "calls"),
        "OUT": str(tree / "recorded"),
    }
    environment = os.environ | {"LIMIT_S": "5600"} | folders | settings
    (tree / "calls").touch()
    for _ in range(commands):
        command(tree, environment)
    return [line.split("\x1f")[:-1] for line in (tree / "calls").read_text().splitlines()]


def command(tree, environment, *words):
    script = tree / "validation" / "recording" / "record.sh"
    done = subprocess.run(
        ["bash", script, *words], env=environment, capture_output=True, text=True, timeout=HANGS_S
    )
    return done.stdout


def listed(tree, state, **settings):
    """Items in this state, in order."""
    folders = {"SITE": str(tree / "site"), "OUT": str(tree / "recorded")}
    told = command(tree, os.environ | folders | settings, "--list")
    return [line.split()[0] for line in told.splitlines() if line.endswith(f"  {state}")]


FIRST_NAMES = ["eight_bits", "transfers", "streams", "graphs", "seminar"]
FIRST_NAMES += [
    "main",
    "paired",
    "decoding",
    "guarded",
    "two_of_four",
    "autocast",
    "cutlass",
    "kernels",
]


def seconds_of(listing):
    """(item, seconds) of `--list`, in order."""
    return [(line.split()[0], int(line.split()[1])) for line in listing.splitlines()]


LOAN_S, START_S = 900, 60  # of a loan, and of its start with the carrying there and back


@pytest.mark.parametrize(("new", "fits"), [("", True), ("1", False)])
def test_what_a_known_card_is_lent_for_comes_first_and_fits_a_loan(tmp_path, new, fits):
    calls(tmp_path, commands=0)
    environment = os.environ | {"SITE": str(tmp_path / "site"), "OUT": str(tmp_path / "recorded")}
    found = seconds_of(command(tmp_path, environment | {"NEW": new}, "--list"))
    before = ["preflight", "facts"] if new else []
    count = len(before) + len(FIRST_NAMES)
    assert [name for name, _ in found[:count]] == before + FIRST_NAMES
    total = sum(seconds for _, seconds in found[:count])
    assert (total <= LOAN_S - START_S) == fits
    assert f"{total} s" in (ROOT / "docs/gpu.md").read_text(), "what the document says of it"


@pytest.mark.slow
def test_no_item_of_rows_takes_longer_than_it_says(tmp_path):
    """By planning's own estimate for an H200, with imports from a cold disk for every command."""
    items = [*FIRST_NAMES, "paired_all"]
    commands = calls(tmp_path, ITEMS=" ".join(f"{item}:9" for item in items))
    environment = os.environ | {"SITE": str(tmp_path / "site"), "OUT": str(tmp_path / "recorded")}
    declared = dict(seconds_of(command(tmp_path, environment, "--list")))
    estimated = defaultdict(float)
    for words in commands:
        if "rows" in words:
            estimated[item_of(words)] += estimated_s(words)
    assert estimated.keys() == {*items} - {"main", "kernels"}
    late = {item: (round(s), declared[item]) for item, s in estimated.items() if s > declared[item]}
    assert late == {}


PART_OF = {
    "matmul_precision": "eight_bits",
    "execution": "graphs",
    "seminar_gpu": "seminar",
    "seminar_matmul": "guarded",
    "pruning": "two_of_four",
    "training": "autocast",
}


def item_of(words):
    """The item that a command of rows belongs to."""
    experiment = next(word for word in words if word.startswith("experiment=")).partition("=")[2]
    if experiment == "kernels":
        for kernel, item in {"cutlass": "cutlass", "torch_scaled_fast": "paired_all"}.items():
            if any(kernel in word for word in words):
                return item
        return "paired"
    return PART_OF.get(experiment, experiment)


def estimated_s(words):
    """Seconds of a command of rows on an H200."""
    overrides = []
    for word in words[words.index("--config") + 1 :]:
        overrides += word.removeprefix("overrides=").split()
    [composition] = compose_experiments(overrides, ROOT / "config")
    planned = plan(composition, "nvidia-h200", "cuda", {}, 150.8e9)
    sweep = costs.Sweep([planned], 0.0)
    rest = sweep.rest([run.folder for run in costs.all_runs([planned])], has_page=False)
    return rest.worker_s + sum(rest.runs_s.values())


def test_a_changed_tree_is_not_recorded_on_a_gpu(tmp_path):
    calls(tmp_path, commands=0)
    (tmp_path / "file").write_text("as committed")
    for words in (
        ["init", "-q"],
        ["add", "file"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    environment = os.environ | {"SITE": str(tmp_path / "site"), "OUT": str(tmp_path / "recorded")}
    assert "main" in command(tmp_path, environment, "--list")
    (tmp_path / "file").write_text("changed")
    told = command(tmp_path, environment, "--list")
    assert "Commit, or give DIRTY=1" in told
    assert "main" in command(tmp_path, environment | {"DIRTY": "1"}, "--list")


@pytest.mark.slow
def test_what_is_done_is_not_done_again(started, tmp_path):
    twice = calls(tmp_path, commands=2)
    assert len(twice) == len(started), "the second command finds all done"
    assert listed(tmp_path, "due") == []
    assert len(listed(tmp_path, "done")) == 37


def test_an_item_that_does_not_fit_is_the_next_command_s_and_a_shorter_one_has_its_turn(tmp_path):
    # Seconds far from the limit: what a busy machine loses between two items decides nothing.
    items = "main:1000 second_clock:10 paired:500 loops:10"
    first = calls(tmp_path, LIMIT_S="300", ITEMS=items)
    assert not any("report" in words for words in first), "the main command takes longer"
    assert any("validation/second_clock.py" in words for words in first)
    assert any("validation/plain_loops.py" in words for words in first)
    assert listed(tmp_path, "due", ITEMS=items) == ["main", "paired"]


@pytest.mark.slow
def test_an_item_that_is_cut_off_is_tried_again_and_given_up_after_three_times(tmp_path):
    told = f'{TOLD}case "$*" in *second_clock*) exit 124;; esac\n'
    made = calls(tmp_path, told, commands=4)
    found = len([words for words in made if "validation/second_clock.py" in words])
    assert found == 3
    assert listed(tmp_path, "given up") == ["second_clock"]


def selected(expression):
    """Kernels whose test pytest takes for `-k`, which looks into the names of file and folders,
    too."""
    (test,) = re.findall(r"def (test_every\w+)", (ROOT / "tests" / "gpu" / FILE).read_text())
    on_cpu = ("python", "numpy", "numba_cpu")
    names = {
        name: ("tests", "gpu", FILE, f"{test}[{name}-bf16]")
        for name in KERNELS
        if not name.startswith(on_cpu)
    }

    def chosen(parts):
        def is_in(word):
            return (
                word[0]
                if word[0] in ("and", "or", "not")
                else str(any(word[0] in part for part in parts))
            )

        return eval(re.sub(r"[^\s()]+", is_in, expression))

    return {name for name, parts in names.items() if chosen(parts)}


def test_the_hopper_rungs_are_tested_first_and_every_kernel_later_unless_dropped(started):
    chosen = [selected(words[words.index("-k") + 1]) for words in started if "-k" in words]
    tuned = chosen.pop()
    kept = chosen.pop(0)
    parts = ("", "_stores", "_cluster", "_hilbert", "_fp8", "_deferred", "_fp8_deferred")
    assert chosen == [{f"cuda_hopper{part}"} for part in parts]
    assert not kept & tuned
    assert kept | tuned == selected("every") - {DROPPED}


@pytest.mark.slow
def test_where_nothing_can_be_tested_no_rung_is_dropped(tmp_path):
    fails = calls(tmp_path, f'{TOLD}case "$*" in *xdist*) exit 1;; esac\n')
    assert not any("every_shape" in word for words in fails for word in words)
    assert (tmp_path / "recorded" / "dropped.txt").read_text() == f"{DROPPED}\n"


def endings(tree, status):
    """How often a first look tries a rung whose tests end with `status`, and what it drops."""
    told = f"{TOLD}case \"$*\" in *'[cuda_hopper-'*) exit {status};; esac\n"
    found = [word for line in calls(tree, told) for word in line]
    words = [word for word in found if "every_shape and [cuda_hopper-" in word]
    return len(words), (tree / "recorded" / "dropped.txt").read_text().split()


@pytest.mark.parametrize(
    ("status", "tries", "is_dropped"),
    few([(124, 2, True), (0, 1, False), (1, 1, True), (5, 1, False), (134, 1, True)]),
)
def test_a_rung_is_dropped_that_is_wrong_or_crashes_and_one_that_takes_too_long_is_tried_again(
    tmp_path, status, tries, is_dropped
):
    tried, dropped = endings(tmp_path, status)
    assert (tried, "cuda_hopper" in dropped) == (tries, is_dropped)


@pytest.mark.slow
def test_cuda_that_refuses_a_forked_process_leaves_the_worker_out(tmp_path):
    told = f'{TOLD}case "$*" in *os.fork*) exit 9;; *experiment=*) printenv MFULAB_WORKER > worker;; esac\n'
    calls(tmp_path, told)
    assert (tmp_path / "recorded" / "no_worker.txt").exists()
    assert (tmp_path / "worker").read_text() == "\n", "told by an empty name to do without"


def test_the_toolkit_is_where_its_compiler_lies(tmp_path, monkeypatch):
    compiler = tmp_path / "toolkits" / "13" / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    (tmp_path / "site" / "bin").mkdir(parents=True)
    (tmp_path / "site" / "bin" / "nvcc").symlink_to(compiler)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    log = run(tmp_path, f'part home 9 test "$CUDA_HOME" = "{compiler.parents[1]}"')
    assert "home: status 0" in log


def test_kernels_are_checked_where_each_block_takes_more_than_one_tile(started):
    sides = {
        word
        for words in started
        if words[0] == "compute-sanitizer"
        for word in words
        if re.match(r"\d+x", word)
    }
    assert sides
    for m, n, _ in (map(int, each.split("x")) for each in sides):
        assert -(-m // TILE_M) * -(-n // TILE_N) > 132, "the SMs of an H100 and an H200"


def test_every_file_with_a_test_for_a_gpu_is_run(started):
    run = {word for words in started for word in words if re.fullmatch(r"tests/.*\.py", word)}
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"pytest\.mark\.gpu\b", path.read_text())
    }
    assert run == marked


@pytest.mark.slow
def test_the_rows_that_commands_ask_for_can_be_planned_for_a_gpu(started):
    asked = [words[words.index("--config") + 1 :] for words in started if words[0] == "snakemake"]
    assert len(asked) == 23
    for words in asked:
        config = dict(word.split("=", 1) for word in words)
        assert config["device"] == "cuda"
        plans = load.load({**config, "hardware": "nvidia-h100-80gb-hbm3"}).plans
        runs = [
            run
            for plan in plans
            for run in plan.runs
            if run.step in ("profile_step", "bench_matmul")
        ]
        is_main = "experiment" not in config
        assert (
            all(json.loads(run.text)["timing"]["time_limit_s"] == 90 for run in runs) or is_main
        ), words
        assert runs
        assert not any(f"kernel={DROPPED}," in f"{run.name}," for run in runs)
        named = config.get("kernel", "").partition("glob(")[0]
        for kernel in re.findall(r"[\w]+(?=,|$)", named):
            assert any(f"kernel={kernel}," in f"{run.name}," for run in runs), (words, kernel)
