"""Commands that are ended by a signal at several moments: nothing runs on, no lock is left, nothing
stands beside what was there, and the next start is an ordinary one."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import is_running, pid_in, until
from support.slow import few

import mfulab
from mfulab.cli.main import main
from mfulab.core.files import write_csv, write_json
from mfulab.lab.planning import store
from mfulab.lab.runtime import client
from mfulab.lab.tables import merge
from mfulab.measurements.registry import MEASUREMENTS

SOURCES = Path(mfulab.__file__).parents[1]
# A checkout whose planning and whose runs tell that they have begun, and hang at one of them.
HANG = """
import os, sys, time
from pathlib import Path

def reached(moment):
    if moment == os.environ["HANGS_AT"]:
        name = Path(os.environ["TOLD"])
        name.with_suffix(".new").write_text(str(os.getpid()))
        name.with_suffix(".new").rename(name)
        time.sleep(600)
"""
STORE = """
def write(plan, folder):
    place = folder / "here/profile_step" / plan
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
"""
LOAD = """
from pathlib import Path
from types import SimpleNamespace
from hang import reached

def load(given):
    reached("planned old" if Path.cwd().name == "base" else "planned new")
    return SimpleNamespace(plans=["a", "a,replicate=2"])
"""
RUN = """
import sys
sys.path.insert(0, "src")
from hang import reached
reached("measured")
"""
DEVICE = {"name": "cpu", "type": "cpu", "threads": None, "peak_tflop_s": {}}
MOMENTS = ("planned old", "planned new", "measured")


# A command whose function hangs once it has done its work.
AFTER = """
import importlib, os, sys
sys.path.insert(0, os.environ["BESIDE"])
from hang import reached
from mfulab.cli.main import main

def hang_after(module, name):
    function = getattr(module, name)

    def after(*given, **named):
        made = function(*given, **named)
        reached(name)
        return made

    setattr(module, name, after)
"""
COLLECT = """
from mfulab.lab.tables import merge
hang_after(merge, os.environ["HANGS_AT"])
sys.exit(main(["collect", *sys.argv[1:]]))
"""
REFINE = """
from pathlib import Path
from mfulab.cli import refine
from mfulab.lab.planning import again
from mfulab.lab.planning.runs import Run, config_text

text = config_text({"model": {"_target_": "torch.nn.Flatten"}, "replicate": 1})
folder = "here/profile_step/model=a"
row = {"run": "model=a", "precision_percent": 90.0, "process_s": 0.02, "replicates": 2}
config = Path("results", folder, "config.json")
config.parent.mkdir(parents=True, exist_ok=True)
config.write_text(text)

def planned(*_):
    found = again.Again()
    found.add([Run("profile_step", "model=a", folder, text)], Path())
    return found

refine.again.planned = planned
refine.script = lambda name: f"scripts/{name}.py"
refine._least_known = lambda *_: [refine.Known("profile_step", row)]
hang_after(refine.again, "planned")
hang_after(refine, "_least_known")
sys.exit(main(["refine", "here"]))
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of a checkout that stands for both sides, and a temporary folder."""
    for key in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(key, raising=False)
    folder = tmp_path / "code"
    planning = folder / "src/mfulab/lab/planning"
    planning.mkdir(parents=True)
    (folder / "scripts").mkdir()
    (tmp_path / "tmp").mkdir()
    for package in (planning, planning.parent, planning.parents[1]):
        (package / "__init__.py").touch()
    (planning / "store.py").write_text(STORE)
    (planning / "load.py").write_text(LOAD)
    (folder / "src/hang.py").write_text(HANG)
    (folder / "scripts/run.py").write_text(RUN)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=folder, check=True)
    return folder


def paired(folder, moment):
    """`mfulab paired` of the checkout with its own commit, and the process that hangs."""
    place = folder.parent
    told = place / "told"
    told.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "TMPDIR": str(place / "tmp")}
    environment |= {"HANGS_AT": moment, "TOLD": str(told), client.SOCKET: ""}
    command = [sys.executable, "-m", "mfulab", "paired", "--base", "HEAD", "--rounds", "2"]
    errors = (place / "errors").open("w")
    begun = subprocess.Popen(command, cwd=folder, env=environment, stderr=errors)
    until(lambda: told.exists() or begun.poll() is not None, failure="nothing hangs")
    assert begun.poll() is None, (place / "errors").read_text()
    return begun, pid_in(told)


@pytest.mark.parametrize("moment", few(MOMENTS[::-1]))
@pytest.mark.parametrize("number", few([signal.SIGTERM, signal.SIGKILL]))
def test_a_paired_that_is_ended_leaves_no_process_and_no_lock(
    number, moment, checkout, monkeypatch
):
    process, child = paired(checkout, moment)
    process.send_signal(number)
    status = process.wait()
    until(lambda: not is_running(child), failure="what it began goes on")
    place = checkout.parent
    if number == signal.SIGTERM:
        assert status == 128 + number
        said = (place / "errors").read_text()
        assert said.endswith("mfulab: ended by SIGTERM.\n")
        assert "Traceback" not in said
        assert list((place / "tmp").iterdir()) == []
        listed = subprocess.run(["git", "worktree", "list"], cwd=checkout, capture_output=True)
        assert listed.stdout.count(b"\n") == 1
    monkeypatch.setattr(store, "_held", {})
    store.take(checkout / "results/paired")  # which raises where another holds it


def begun(place, code, moment, *words):
    """A script that hangs at a moment, and the process that does so: itself, or what it began."""
    (place / "hang.py").write_text(HANG)
    (place / "script.py").write_text(AFTER + code)
    told = place / "told"
    told.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "BESIDE": str(place)}
    environment |= {"HANGS_AT": moment, "TOLD": str(told), client.SOCKET: ""}
    environment |= {"MFULAB_LOCKS": str(place)}
    command = [sys.executable, str(place / "script.py"), *words]
    with (place / "errors").open("w") as errors:
        process = subprocess.Popen(command, cwd=place, env=environment, stderr=errors)
    until(lambda: told.exists() or process.poll() is not None, failure="nothing hangs")
    assert process.poll() is None, (place / "errors").read_text()
    return process, pid_in(told)


def end(process, child, number, place):
    """Ends a command; what it began ends too, and it says by what it was ended, where it can."""
    process.send_signal(number)
    status = process.wait()
    until(lambda: not is_running(child), failure="what it began goes on")
    if number == signal.SIGTERM:
        assert status == 128 + number
        assert (place / "errors").read_text().endswith("mfulab: ended by SIGTERM.\n")


@pytest.mark.parametrize("moment", few(["_write", "_copy", "_merge_plan"]))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_collect_that_is_ended_goes_on_with_the_same_command(
    number, moment, tmp_path, monkeypatch
):
    given = tmp_path / "given"
    for name in ("all", "some"):
        row = MEASUREMENTS["environment"].row(hardware="nvidia-a", run=name, device="cpu")
        run = given / "results/nvidia-a/environment" / name
        write_json(run / "config.json", {"device": DEVICE})
        write_csv(run / "row.csv", [row.model_dump()])
    plan = {"experiment": "quickstart", "hardware": "nvidia-a", "runs": [], "excluded": []}
    write_json(given / "results/nvidia-a/plan/quickstart.json", plan)
    archive = shutil.make_archive(str(tmp_path / "given"), "gztar", given)
    results = tmp_path / "results"
    process, child = begun(tmp_path, COLLECT, moment, archive, "--into", str(results))
    end(process, child, number, tmp_path)
    if number == signal.SIGTERM:
        assert not (results / merge.UNPACKED).exists()
    monkeypatch.setattr(store, "_held", {})
    assert main(["collect", archive, "--into", str(results)]) == 0
    assert not (results / merge.UNPACKED).exists()
    for row in (given / "results").rglob("row.csv"):
        ours = results / row.relative_to(given / "results")
        assert ours.read_bytes() == row.read_bytes()
        assert not list(ours.parent.glob(".*"))


@pytest.mark.parametrize("moment", few(["measured", "planned", "_least_known"]))
@pytest.mark.parametrize("number", few([signal.SIGKILL, signal.SIGTERM]))
def test_a_refine_that_is_ended_leaves_no_process_and_no_lock(
    number, moment, tmp_path, monkeypatch
):
    (tmp_path / "scripts").mkdir()
    run = RUN.replace('"src"', repr(str(tmp_path)))
    (tmp_path / "scripts/run.py").write_text(run)
    process, child = begun(tmp_path, REFINE, moment)
    end(process, child, number, tmp_path)
    assert not list((tmp_path / "results").rglob("row.csv"))
    monkeypatch.setattr(store, "_held", {})
    store.take(tmp_path / "results")  # which raises where another holds it


@pytest.mark.parametrize("call", few([3, 1, 2]))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_gate_that_is_ended_leaves_no_command(number, call, tmp_path):
    """In the first command, the second, and the first pair."""
    code = 'sys.exit(main(["gate", "--minutes", "9", sys.argv[1], sys.argv[1]]))'
    count = f"echo . >> {tmp_path}/calls; [ $(wc -l < {tmp_path}/calls) -lt {call} ]"
    command = (
        f"{count} || {{ echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/told; sleep 60; }}"
    )
    process, child = begun(tmp_path, code, "", command)
    end(process, child, number, tmp_path)
