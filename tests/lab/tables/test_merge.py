"""Results of several machines in one folder: new ones come, differences are told."""

import gzip
import io
import json
import shutil
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.said import keys

from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import read_csv, read_json
from mfulab.lab.runtime.run import write_csv
from mfulab.lab.tables import build, merge, records
from mfulab.lab.tables.merge import collect
from mfulab.measurements.registry import MEASUREMENTS

DEVICE = {"name": "cpu", "type": "cpu", "threads": None, "peak_tflop_s": {}}
COUNTED = {
    "model": {"name": "linear", "_target_": "torch.nn.Linear", "input_shape": [4]},
    "batch_size": 1,
    "sequence_length": None,
}
CONFIGS = {
    "environment": {"device": DEVICE},
    "count_flops": COUNTED,
    "compare_counters": {**COUNTED, "counter": "thop"},
    "number_formats": {"precision": {"name": "bf16", "dtype": "bfloat16"}},
    "read_trace": {"trace": {"name": "one", "path": "one.json", "digest": "0"}},
    "published": {"published": "papers"},
}


def make(results: Path, step: str, run: str, hardware: str = "", **row: object) -> Path:
    folder = results / hardware / step / run
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[step]))
    (folder / "samples.csv").write_text("\n")
    filled = MEASUREMENTS[step].row(hardware=hardware, run=run, **row)
    write_csv(folder / "row.csv", [filled.model_dump()], list(type(filled).model_fields))
    return folder


def make_plan(results: Path, hardware: str, *runs: str, digest: str = "0") -> Path:
    path = results / hardware / "plan" / "quickstart.json"
    path.parent.mkdir(parents=True)
    folder = f"results/{hardware}/environment"
    entries = [
        {"step": "environment", "run": run, "folder": f"{folder}/{run}", "config_digest": digest}
        for run in runs
    ]
    plan = {"experiment": "quickstart", "hardware": hardware, "runs": entries, "excluded": []}
    path.write_text(json.dumps(plan))
    return path


def test_machines_come_to_lie_side_by_side(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there" / "results"
    make(here, "environment", "all", "xeon-4c", device="cpu")
    make(there, "environment", "all", "nvidia-a", device="cuda")
    (there / "nvidia-a/environment/all/trace.json.gz").write_bytes(b"kept too")
    make_plan(there, "nvidia-a", "all")
    make(there, "count_flops", "model=linear", forward_flops=8)
    merged = collect([tmp_path / "there"], here)
    assert (len(merged.copied), merged.present, merged.problems) == (2, [], [])
    assert (here / "nvidia-a/environment/all/trace.json.gz").read_bytes() == b"kept too"
    assert (here / "nvidia-a/plan/quickstart+collected.json").exists()
    found = (here / "count_flops/model=linear/row.csv").read_bytes()
    assert found == (there / "count_flops/model=linear/row.csv").read_bytes()
    again = collect([tmp_path / "there"], here)
    assert (again.copied, len(again.present), again.problems) == ([], 2, [])


def test_a_copied_count_is_newer_than_its_config(tmp_path: Path) -> None:
    folder = make(tmp_path / "there", "count_flops", "model=linear", forward_flops=8)
    collect([tmp_path / "there"], tmp_path / "here")
    copy = tmp_path / "here/count_flops/model=linear"
    assert (copy / "config.json").stat().st_mtime == (folder / "config.json").stat().st_mtime
    assert (copy / "row.csv").stat().st_mtime_ns > (copy / "config.json").stat().st_mtime_ns


def test_another_result_of_a_run_is_never_overwritten(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    ours = make(here, "environment", "all", "xeon-4c", cpu_name="ours")
    make(there, "environment", "all", "xeon-4c", cpu_name="theirs")
    before = (ours / "row.csv").read_bytes()
    merged = collect([there], here)
    assert merged.problems[0].key == "another_result"
    assert (ours / "row.csv").read_bytes() == before
    assert main(["collect", str(there), "--into", str(here)]) == 1


def test_a_count_of_another_day_is_the_same_and_a_different_one_not(tmp_path: Path) -> None:
    here, there, wrong = tmp_path / "here", tmp_path / "there", tmp_path / "wrong"
    make(here, "count_flops", "model=linear", forward_flops=8, started_at="2026-01-01")
    make(
        there, "count_flops", "model=linear", forward_flops=8, started_at="2026-01-02", commit="abc"
    )
    make(wrong, "count_flops", "model=linear", forward_flops=9)
    assert len(collect([there], here).present) == 1
    assert len(collect([wrong], here).problems) == 1


@pytest.mark.parametrize("text", ["NaN", "1e999", '[0, {"y": -Infinity}]'])
def test_a_config_that_no_page_can_hold_is_refused_at_the_door_and_costs_its_run(
    tmp_path: Path, text: str
) -> None:
    """Where it lies here already, its row is shown without it, and the page names the file."""
    folder = make(tmp_path / "there", "count_flops", "model=linear", forward_flops=8)
    config = json.dumps({**COUNTED, "model": {**COUNTED["model"], "arguments": {"x": "VALUE"}}})
    (folder / "config.json").write_text(config.replace('"VALUE"', text))
    merged = collect([tmp_path / "there"], tmp_path / "here")
    assert merged.copied == []
    assert "file_not_json" in keys(merged.problems[0])
    collected = build.collect(results=tmp_path / "there")
    build.write(collected, tmp_path / "tables")
    details = read_json(tmp_path / "tables/details.json")
    assert all("config" not in each for each in details.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hardware,run,status\nnvidia-a,all,ok", "incomplete"),
        ("hardware,run,status\nnvidia-b,all,ok\n", "is of run=all on hardware=nvidia-b"),
        ("hardware,run,status\nnvidia-a,all,splendid\n", "status='splendid': Input should be"),
        ("hardware,run,speed\nnvidia-a,all,9\n", "speed='9': Extra inputs"),
    ],
)
def test_a_row_that_is_broken_is_told_and_not_copied(tmp_path: Path, text: str, words: str) -> None:
    folder = make(tmp_path / "there", "environment", "all", "nvidia-a")
    (folder / "row.csv").write_text(text)
    merged = collect([tmp_path / "there"], tmp_path / "here")
    assert words in str(merged.problems[0])
    assert not list((tmp_path / "here").glob("*/*"))


def too_long(run: Path) -> None:
    with (run / "row.csv").open("ab") as file:
        file.truncate((1 << 23) + 1)


def endless(run: Path) -> None:
    with (run / "trace.json").open("wb") as file:
        file.truncate(40 << 30)  # sparse: it takes no space until it is copied


def many(run: Path) -> None:
    for number in range(merge.MOST_FILES):
        (run / f"{number}.csv").touch()


def of_brackets(run: Path) -> None:
    (run / "config.json").write_text("[" * 200_000)


@pytest.mark.parametrize("damage", [too_long, endless, many, of_brackets])
def test_a_run_beyond_the_bounds_costs_itself_and_those_after_it_come(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for who in ("ann", "bob"):
        make(tmp_path / "class" / who, "environment", "all", "cpu-2c")
    damage(tmp_path / "class/ann/cpu-2c/environment/all")
    merged = collect([tmp_path / "class"], tmp_path / "results", in_class=True)
    assert merged.copied == [str(tmp_path / "results/cpu-2c--bob/environment/all")]
    problem = str(*merged.problems)
    assert "class/ann/cpu-2c/environment/all" in problem
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) < 1 << 20


def test_what_one_command_copies_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make(tmp_path / "other", "environment", f"n={n}", "cpu-2c") for n in range(3)]
    size = sum(path.stat().st_size for path in folders[0].iterdir())
    monkeypatch.setattr(merge, "LARGEST", size * 5 // 2)
    merged = collect([tmp_path / "other"], tmp_path / "results")
    assert len(merged.copied) == 2
    assert merged.copied_bytes <= merge.LARGEST
    assert len(merged.problems) == 1


def test_a_half_written_row_here_gives_way(tmp_path: Path) -> None:
    make(tmp_path / "there", "environment", "all", "nvidia-a", device="cuda")
    ours = make(tmp_path / "here", "environment", "all", "nvidia-a")
    (ours / "row.csv").write_text("hardware,run\nnvidia-a")
    assert len(collect([tmp_path / "there"], tmp_path / "here").copied) == 1


def test_two_halves_of_a_plan_become_one(tmp_path: Path) -> None:
    """A file of its own: the next sweep here writes its plan without what was collected."""
    for name, run in (("here", "here"), ("one", "a"), ("two", "b")):
        make(tmp_path / name, "environment", run, "nvidia-a")
        make_plan(tmp_path / name, "nvidia-a", "both", run)
    plans = tmp_path / "here/nvidia-a/plan"
    ours = (plans / "quickstart.json").read_bytes()
    collect([tmp_path / "one", tmp_path / "two"], tmp_path / "here")
    plan = json.loads((plans / "quickstart+collected.json").read_text())
    assert [entry["run"] for entry in plan["runs"]] == ["both", "a", "b"]
    assert (plans / "quickstart.json").read_bytes() == ours


def test_a_plan_whose_excluded_run_has_no_name_is_a_problem(tmp_path: Path) -> None:
    make(tmp_path / "there", "environment", "a", "nvidia-a")
    path = make_plan(tmp_path / "there", "nvidia-a", "a")
    plan = json.loads(path.read_text()) | {"excluded": [{"step": "environment"}]}
    path.write_text(json.dumps(plan))
    merged = collect([tmp_path / "there"], tmp_path / "here")
    assert "excluded.0.run" in str(merged.problems[0])


@pytest.mark.parametrize(
    "step", [step for step, each in MEASUREMENTS.items() if not each.on_device]
)
def test_every_step_that_needs_no_device_is_collected(tmp_path: Path, step: str) -> None:
    make(tmp_path / "there", step, "one")
    collect([tmp_path / "there"], tmp_path / "here")
    assert (tmp_path / "here" / step / "one" / "row.csv").exists()


def test_a_folder_without_results_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", str(tmp_path)]) == 2
    assert "no results here" in capsys.readouterr().err


def test_a_class_hands_in_archives_and_equal_devices_stay_apart(tmp_path: Path, capsys) -> None:
    """One packs, one hands in a folder, one a broken file, one nothing, one a row of another
    machine."""
    work, given, into = tmp_path / "work", tmp_path / "given", tmp_path / "results"
    given.mkdir()
    for number, name in enumerate(("alice", "Bob Ö.", "mallory")):
        folder = work / name / "results"
        make(folder, "environment", "all", "cpu-2c", device="cpu", process_s=number + 1.0)
        make(folder, "count_flops", "model=linear", forward_flops=8)
        make_plan(folder, "cpu-2c", "all")
    (work / "alice/results/cpu-2c/environment/all/log").write_text("x" * 10_000)
    assert main(["collect", str(work / "alice"), "--pack", str(given / "alice.tar.gz")]) == 0
    seen = main(["collect", str(work / "alice"), str(work), "--pack", str(given / "two.tar.gz")])
    assert seen == 2
    with tarfile.open(given / "alice.tar.gz") as file:
        names = file.getnames()
    expected = {"config.json", "row.csv", "samples.csv", "quickstart.json"}
    assert {Path(name).name for name in names} == expected
    (work / "Bob Ö.").rename(given / "Bob Ö.")
    row = work / "mallory/results/cpu-2c/environment/all/row.csv"
    row.write_text(row.read_text().replace("cpu-2c", "cpu-9c"))
    (work / "mallory").rename(given / "mallory")
    (given / "eve.tar.gz").write_bytes(b"\x1f\x8b broken")
    (given / "empty").mkdir()
    assert main(["collect", "--class", str(given), "--into", str(into)]) == 1
    said = capsys.readouterr().out
    assert "4 runs copied" not in said
    assert "eve.tar.gz: cannot be unpacked" in said
    assert "empty: no results here" in said
    assert "its row is of run=all on hardware=cpu-9c; not copied" in said
    machines = {"cpu-2c--alice", "cpu-2c--bob"}
    assert {path.parents[2].name for path in into.glob("*/environment/all/row.csv")} == machines
    for machine in machines:
        assert read_csv(into / machine / "environment/all/row.csv")[0]["hardware"] == machine
        [plan] = (into / machine / "plan").glob("*.json")
        found = json.loads(plan.read_text())
        wanted = (machine, f"results/{machine}/environment/all")
        assert (found["hardware"], found["runs"][0]["folder"]) == wanted
    assert len(list(into.glob("count_flops/*/row.csv"))) == 1, "counts belong to no machine"
    assert main(["collect", "--class", str(given), "--into", str(into)]) == 1
    assert capsys.readouterr().out.startswith("0 runs copied"), "the same again"


def test_a_plan_of_a_participant_changes_its_folders_and_no_other_text(tmp_path: Path) -> None:
    """A reason, an override or the name of a run may hold what looks like a folder."""
    there = tmp_path / "given/ann"
    make(there, "environment", "all", "cpu-2c")
    path = make_plan(there, "cpu-2c", "all")
    plan = json.loads(path.read_text())
    folders = {
        "ceilings": {"compute": "results/cpu-2c/ceilings/a"},
        "flops_folder": "results/count_flops/a",
    }
    plan["runs"][0] |= folders
    told = "results/cpu-2c/ was full"
    plan["excluded"] = [{"step": "environment", "run": "other", "because": told}]
    plan["overrides"] = ["results/cpu-2c/=1"]
    path.write_text(json.dumps(plan))
    collect([tmp_path / "given"], tmp_path / "here", in_class=True)
    [merged] = (tmp_path / "here/cpu-2c--ann/plan").glob("*.json")
    found = json.loads(merged.read_text())
    [run] = found["runs"]
    assert (found["hardware"], run["folder"]) == (
        "cpu-2c--ann",
        "results/cpu-2c--ann/environment/all",
    )
    assert run["ceilings"] == {"compute": "results/cpu-2c--ann/ceilings/a"}
    assert run["flops_folder"] == "results/count_flops/a"
    assert found["excluded"][0]["because"] == told
    assert found["overrides"] == ["results/cpu-2c/=1"]


def test_two_participants_of_one_name_are_refused_first(tmp_path: Path, capsys) -> None:
    for name in ("Ann", "ann.1"):
        make(tmp_path / "given" / name, "environment", "all", "cpu-2c")
    options = ["collect", "--class", str(tmp_path / "given"), "--into", str(tmp_path / "results")]
    assert main(options) == 2
    assert "are both of ann. Rename one." in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def archive_of(path: Path, *members: tarfile.TarInfo | str) -> Path:
    """A tar of members in order; a text is the name of a file with a few bytes."""
    with tarfile.open(path, "w") as file:
        for member in members:
            if isinstance(member, str):
                info = tarfile.TarInfo(member)
                info.size = 4
                file.addfile(info, io.BytesIO(b"evil"))
            else:
                file.addfile(member)
    return path


def special(name: str, kind: bytes, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CONFIG, ROW = (f"cpu-2c/environment/all/{name}" for name in ("config.json", "row.csv"))


def escapes(victim: Path) -> list[tarfile.TarInfo | str]:
    """Links whose target grows beyond what the system resolves, so that a check that resolves it is
    wrong."""
    deep, members, path = "d" * 247, list[tarfile.TarInfo | str](), ""
    for step in "abcdefghijklmnop":
        name = f"{path}{deep}"
        members += [special(name, tarfile.DIRTYPE), special(f"{path}{step}", tarfile.SYMTYPE, deep)]
        path += f"{step}/"
    long = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    members += [special(long, tarfile.SYMTYPE, "../" * 16)]
    members += [special("cpu-2c", tarfile.SYMTYPE, f"{long}/{'../' * 12}{victim.relative_to('/')}")]
    return [*members, CONFIG, ROW]


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([special("cpu-2c", tarfile.SYMTYPE, "{victim}"), CONFIG, ROW], "cpu-2c"),
        ([special(ROW, tarfile.LNKTYPE, "{victim}/kept")], ROW),
        ([special(ROW, tarfile.FIFOTYPE)], ROW),
        ([special(ROW, tarfile.CHRTYPE)], ROW),
        (["{victim}/count_flops/one/row.csv"], "{victim}"),
        (["../../victim/count_flops/one/row.csv"], "../../victim"),
        ([ROW, ROW], ROW),
        ([f"{ROW}\x1b[2J"], "no text"),
    ],
)
def test_an_archive_that_leads_elsewhere_is_refused_with_the_member(
    tmp_path: Path, members, named, capsys
) -> None:
    victim = tmp_path / "victim"
    (victim / "all").mkdir(parents=True)
    (victim / "kept").write_text("ours")
    before = below(victim)
    filled = []
    for member in members:
        if isinstance(member, str):
            filled.append(member.format(victim=victim))
        else:
            member.linkname = member.linkname.format(victim=victim)
            filled.append(member)
    archive = archive_of(tmp_path / "given.tar", *filled)
    assert main(["collect", str(archive), "--into", str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err
    assert named.format(victim=victim) in said
    assert said.count("\n") == 1
    assert below(victim) == before
    assert {path.name for path in below(tmp_path / "results")} == {".lock"}


def test_a_link_beyond_the_longest_path_leads_nowhere(tmp_path: Path) -> None:
    """Python before 3.11.13 takes the target of such a link for one inside (CVE-2025-4517)."""
    victim = tmp_path / "victim"
    victim.mkdir()
    archive = archive_of(tmp_path / "given.tar", *escapes(victim))
    assert main(["collect", str(archive), "--into", str(tmp_path / "results")]) == 2
    assert not below(victim)
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "given.tar", "results"}


def test_a_project_packed_with_its_own_links_is_collected(tmp_path: Path) -> None:
    """Those lie where nothing is wanted."""
    project = tmp_path / "project"
    make(project / "results", "environment", "all", "cpu-2c", device="cpu")
    (project / "profiles").symlink_to("workflow/profiles")
    for ending, mode in (
        (".tar", "w"),
        (".tgz", "w:gz"),
        (".tar.xz", "w:xz"),
        (".tar.bz2", "w:bz2"),
    ):
        archive = tmp_path / f"given{ending}"
        with tarfile.open(archive, mode) as file:
            file.add(project, "project")
        merged = collect([archive], tmp_path / ending)
        assert (len(merged.copied), merged.problems) == (1, [])
    with zipfile.ZipFile(tmp_path / "given.zip", "w") as file:
        for path in below(project):
            file.write(path, path.relative_to(project))
    assert len(collect([tmp_path / "given.zip"], tmp_path / "zip").copied) == 1


def test_a_zip_that_holds_more_than_it_says_and_a_header_of_gigabytes_are_refused(
    tmp_path: Path, monkeypatch
) -> None:
    with zipfile.ZipFile(tmp_path / "given.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(ROW, bytes(5000))
    data = (tmp_path / "given.zip").read_bytes()
    (tmp_path / "given.zip").write_bytes(
        data.replace(struct.pack("<I", 5000), struct.pack("<I", 10))
    )
    with pytest.raises(ConfigurationError, match=r"row\.csv"):
        collect([tmp_path / "given.zip"], tmp_path / "results")
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    with gzip.open(tmp_path / "given.tgz", "wb") as file:
        file.write(header.tobuf() + bytes(1 << 16))
    with pytest.raises(ConfigurationError, match="a header of"):
        collect([tmp_path / "given.tgz"], tmp_path / "results")
    monkeypatch.setattr(merge, "LARGEST", 6)
    path = tmp_path / "given.tar"
    with pytest.raises(ConfigurationError, match=r"row\.csv"):
        collect([archive_of(path, "x/count_flops/a/config.json", ROW)], tmp_path / "results")


def test_a_kill_leaves_nothing_that_the_next_does_not_clean(tmp_path: Path, monkeypatch) -> None:
    """Also no row of another name: it is written once, by its name here."""
    given, into = tmp_path / "given", tmp_path / "results"
    for name in ("ann", "bob"):
        make(tmp_path / name / "results", "environment", "all", "cpu-2c", device="cpu")
        given.mkdir(exist_ok=True)
        assert main(["collect", str(tmp_path / name), "--pack", str(given / f"{name}.tgz")]) == 0
    unpacked = list[list[str]]()

    def killed(*given: object, **options: object) -> None:
        unpacked.append([path.name for path in (into / ".unpacked").iterdir()])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mfulab.lab.tables.merge.files.write_csv", killed)
        patched.setattr("mfulab.lab.tables.merge.remove", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            collect([given], into, in_class=True)
    assert unpacked == [["0"]], "one archive at a time"
    assert not list(into.glob("*/environment/*/row.csv"))
    assert list(into.glob(".unpacked/*"))
    assert len(collect([given], into, in_class=True).copied) == 2
    assert not list(into.glob(".unpacked*"))
    assert not list(into.glob("*/environment/all/.*"))


@pytest.mark.slow
@settings(max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_archive_is_read_or_refused_and_writes_nothing_outside(
    tmp_path: Path, data: st.DataObject
) -> None:
    part = st.sampled_from(
        ["cpu-2c", "environment", "all", "row.csv", "config.json", "..", "/", "plan", "a.json", ""]
    )
    names = st.lists(part, min_size=1, max_size=7).map("/".join) | st.just(ROW)
    kinds = st.sampled_from(
        [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
    )
    members = data.draw(st.lists(st.tuples(names, kinds, names), max_size=8))
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    archive = archive_of(
        root / "given.tar",
        *(special(*member) if member[1] != b"0" else member[0] for member in members),
    )
    content = bytearray(archive.read_bytes())
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=5)
    ):
        if place < len(content):
            content[place] = byte
    packed = data.draw(st.sampled_from([bytes, gzip.compress]))(bytes(content))
    archive.write_bytes(packed[: data.draw(st.none() | st.integers(0, len(packed)))])
    with suppress(ConfigurationError):
        collect([archive], root / "results", in_class=False)
    assert {path.name for path in root.iterdir()} <= {"given.tar", "results"}
    shutil.rmtree(root)


def test_an_archive_of_more_files_than_the_bound_is_refused(tmp_path, monkeypatch):
    make(tmp_path / "results", "environment", "all", "xeon-4c", device="cpu")
    archive = shutil.make_archive(str(tmp_path / "given"), "gztar", tmp_path, "results")
    monkeypatch.setattr(merge, "MOST_MEMBERS", 3)
    with pytest.raises(ConfigurationError, match="3 files"):
        collect([Path(archive)], tmp_path / "here")
    monkeypatch.setattr(merge, "MOST_MEMBERS", 20)
    assert len(collect([Path(archive)], tmp_path / "here").copied) == 1


@pytest.mark.parametrize(("batch_size", "found"), [(1, 1), (-1, 0)])
def test_runs_whose_configs_are_invalid_share_no_count(tmp_path, batch_size, found):
    """Both would have the same key, that of nothing."""
    make(tmp_path, "count_flops", "model=linear", forward_flops=8)
    profiled = tmp_path / "nvidia-a/profile_step/model=linear"
    profiled.mkdir(parents=True)
    for folder in (profiled, tmp_path / "count_flops/model=linear"):
        config = json.dumps({**COUNTED, "batch_size": batch_size})
        (folder / "config.json").write_text(config)
    collected = records.from_folder(tmp_path, "nvidia-a")
    assert len(collected.records["profile"]) == 1
    assert len(collected.records["flops"]) == found
