"""The journal and the ladder of a job: sums, kills, clocks, and journals that are cut or mixed."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mfulab
from mfulab.cli.export import Latest
from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.loop.goodput import journal as journals
from mfulab.loop.goodput.ladder import job_of, read

SECOND = 10**9
SPANS = ("import", "setup", "restore", "first_step", "step")
SPANS += ("loader", "evaluation", "checkpoint", "other")


def head(rank=0, world=1, host="a", boot="one", boot_s=0.0, unix_s=0.0):
    """A first line, times in seconds."""
    found = {"format": 1, "rank": rank, "world": world, "host": host, "pid": 1, "boot": boot}
    return {**found, "unix_ns": round(unix_s * SECOND), "boot_ns": round(boot_s * SECOND)}


def lines_of(*spans):
    """Lines of (span, seconds, steps done, facts), each right after the one before."""
    now, found = 0, []
    for span, seconds, step, *facts in spans:
        now += round(seconds * SECOND)
        line = {"ns": now, "spans": {span: round(seconds * SECOND)}, "step": step}
        found.append(line | (facts[0] if facts else {}))
    return found


def write(folder, name, first, lines):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [first, *lines])
    )


attempts = st.lists(
    st.tuples(
        st.integers(0, 10**10),  # the gap before it
        st.integers(0, 50),  # the step that it begins from
        st.lists(
            st.tuples(
                st.dictionaries(st.sampled_from(SPANS), st.integers(0, 10**9)),
                st.integers(0, 9),
                st.integers(0, 99),
            )
        ),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(attempts, min_size=1, max_size=3))
def test_shares_sum_to_the_wall_time_exactly(tmp_path_factory, ranks):
    folder = tmp_path_factory.mktemp("job")
    for rank, own in enumerate(ranks):
        began = 0
        for place, (gap, first, made) in enumerate(own):
            began, now, step, lines = began + gap, 0, first, [{"ns": 0, "spans": {}, "step": first}]
            for spans, more, hidden in made:
                now, step = now + sum(spans.values()) + hidden, step + more
                lines.append({"ns": now, "spans": spans, "step": step})
            write(folder, f"{rank}-{place}", {**head(rank, len(ranks)), "boot_ns": began}, lines)
            began += now
    job = job_of(folder)
    assert sum(job.spans.values()) == job.wall * len(ranks)
    assert min(job.spans.values(), default=0) >= 0
    row = job.row()
    if job.wall:
        assert row["held_percent"] >= row["in_steps_percent"] >= row["kept_percent"]
        assert sum(row[f"{name}_s"] for name in job.spans) == pytest.approx(row["wall_s"])


def test_steps_that_a_later_attempt_runs_again_are_lost(tmp_path):
    facts = {"flops": 2e12, "peak_tflop_s": 10.0, "useful": 0.5, "steps": 1}
    first = lines_of(
        ("import", 2, 0), ("step", 10, 10), ("checkpoint", 1, 10), ("step", 5, 15, facts)
    )
    write(tmp_path, "a", head(boot_s=0), first)
    lines = lines_of(("import", 2, 0), ("restore", 1, 10), ("step", 10, 20))
    write(tmp_path, "b", head(boot_s=20), lines)
    row = job_of(tmp_path).row()
    assert (row["wall_s"], row["attempts"], row["kept_steps"], row["lost_steps"]) == (33, 2, 20, 5)
    parts = {"down": 2, "import": 4, "checkpoint": 1, "restore": 1, "step": 20, "lost": 5}
    assert {name: row[f"{name}_s"] for name in parts} == parts
    assert row["held_percent"] == pytest.approx(100 * 31 / 33)
    assert row["in_steps_percent"] == pytest.approx(100 * 25 / 33)
    assert row["kept_percent"] == pytest.approx(100 * 20 / 33)
    assert row["mfu_of_steps_percent"] == pytest.approx(100 * 2 / 10)
    assert row["mfu_percent"] == pytest.approx(20 * 20 / 33)
    assert row["useful_mfu_percent"] == pytest.approx(10 * 20 / 33)


def test_the_clock_of_another_machine_is_set_by_the_steps_that_both_ended(tmp_path):
    steps = [("step", 1, number) for number in range(1, 9)]
    write(tmp_path, "a", head(0, 2, "a", "x", 0, unix_s=1000), lines_of(("import", 2, 0), *steps))
    twice = [("step", 2, number) for number in (2, 4, 6, 8)]
    write(tmp_path, "b", head(1, 2, "b", "y", 77, unix_s=1030), lines_of(("import", 2, 0), *twice))
    job = job_of(tmp_path)
    assert (job.wall, job.spans["down"]) == (10 * SECOND, 0), "the second clock is 30 s ahead"


def test_a_clock_that_is_set_meanwhile_changes_nothing_within_a_boot(tmp_path):
    one = lines_of(("step", 5, 5))
    write(tmp_path, "a", head(boot_s=10, unix_s=1000), one)
    write(
        tmp_path, "b", head(boot_s=20, unix_s=-5000), lines_of(("restore", 1, 5), ("step", 5, 10))
    )
    assert job_of(tmp_path).row()["wall_s"] == 16
    for name, unix_s in (("a", 1000), ("b", 1002)):
        first = {**head(boot=None, unix_s=unix_s)}
        write(
            tmp_path,
            name,
            first,
            one if name == "a" else lines_of(("restore", 1, 5), ("step", 5, 10)),
        )
    job = job_of(tmp_path)
    assert job.row()["wall_s"] == 11, "without a boot's clock attempts follow each other"
    assert job.notes == [("clock", {"rank": 0, "seconds": 3.0})]


def test_two_jobs_in_one_folder_are_one_sentence(tmp_path, capsys):
    write(tmp_path, "a", head(boot_s=0), lines_of(("step", 5, 5)))
    write(tmp_path, "b", head(boot_s=3), lines_of(("step", 5, 5)))
    assert main(["goodput", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "rank 0 ran twice at once, in a.jsonl and b.jsonl: two jobs wrote here" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "half",
    [
        b'{"ns": 9000000000, "spa',
        b'{"ns": 1, "spans": {"step": 5}}\n',
        b'{"ns": "x"}\n[]\n\x00\xff\n',
        b"[" * 200_000 + b"\n",
        b'{"ns": ' + b"9" * 5000 + b"}\n",
    ],
)
def test_a_line_that_is_torn_costs_itself(tmp_path, half, capsys):
    write(tmp_path, "a", head(), lines_of(("import", 2, 0), ("step", 5, 5)))
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(half)
    job = job_of(tmp_path)
    assert (job.wall, job.kept_steps) == (7 * SECOND, 5)
    [(key, values)] = job.notes
    assert key == "torn"
    assert main(["goodput", str(tmp_path)]) == 0
    assert f"{values['count']} line" in capsys.readouterr().out


def test_a_line_in_the_middle_costs_its_time_alone(tmp_path):
    write(tmp_path, "a", head(), lines_of(("import", 2, 0), ("evaluation", 3, 0), ("step", 5, 5)))
    file = tmp_path / "a.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1], lines[2][:20], lines[3], ""]))
    found = dict(+job_of(tmp_path).spans)
    assert found == {"import": 2 * SECOND, "step": 5 * SECOND, "unknown": 3 * SECOND}


@pytest.mark.parametrize("text", [None, "", "no journal\n"])
def test_a_folder_without_a_journal_is_one_sentence(tmp_path, text, capsys):
    if text is not None:
        (tmp_path / "a.jsonl").write_text(text)
    assert main(["goodput", str(tmp_path)]) == 2
    assert "holds no journal" in capsys.readouterr().err


def test_a_process_that_is_killed_leaves_all_but_the_last_moment(tmp_path):
    code = f"""
import time
from mfulab.loop.goodput.journal import Journal, _age_ns
journal = Journal({str(tmp_path)!r})
journal.mark("restore", step=7)
for _ in range(20):
    time.sleep(0.01)
    journal.mark("loader")
    time.sleep(0.01)
    journal.step()
time.sleep(0.05)
before = _age_ns()
journal.mark("checkpoint")
journal.beside("checkpoint", 1.5)
print(before, _age_ns(), flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    least_ns, most_ns = map(int, process.stdout.readline().split())
    process.send_signal(signal.SIGKILL)
    process.wait()
    job = job_of(tmp_path)
    row = job.row()
    assert (row["kept_steps"], row["beside_checkpoint_s"]) == (20, 1.5)
    tick_s = 0.02  # of the age of a process, asked twice
    assert least_ns / 1e9 - tick_s <= row["wall_s"] <= most_ns / 1e9 + tick_s
    assert row["step_s"] >= 0.19
    assert row["loader_s"] >= 0.2
    assert row["checkpoint_s"] >= 0.05
    assert row["mfu_percent"] is None


def test_few_lines_hold_many_steps(tmp_path, monkeypatch):
    now = [0]
    monkeypatch.setattr(journals, "now_ns", lambda: now[0])
    monkeypatch.setattr(journals, "_age_ns", lambda: 0)
    journal = journals.Journal(tmp_path)
    day, step = 24 * 3600 * SECOND, 2 * SECOND
    while now[0] < day:
        now[0] += step
        journal.step()
    hidden = now[0] - journal._written
    journal.close()
    [file] = tmp_path.iterdir()
    assert len(file.read_bytes().splitlines()) < 3500
    assert hidden <= journals.LONGEST_NS
    assert job_of(tmp_path).kept_steps == day // step


def test_a_full_disk_stops_nothing_and_loses_nothing(tmp_path, monkeypatch):
    journal, write_, full = journals.Journal(tmp_path), os.write, [True]

    def limited(file, data):
        if full[0]:
            write_(file, data[:10])
            raise OSError(28, "No space left on device")
        return write_(file, data)

    monkeypatch.setattr(journals.os, "write", limited)
    with pytest.warns(UserWarning, match="the journal waits: No space left on device"):
        journal.mark("setup")
    journal.step()
    full[0] = False
    journal.mark("evaluation")
    journal.close()
    job = job_of(tmp_path)
    assert job.kept_steps == 1
    assert job.spans["unknown"] == 0
    assert {"import", "setup", "first_step", "evaluation", "end"} >= set(+job.spans)


def test_a_folder_that_cannot_be_written_is_said_before_the_loop(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        mfulab.measure(job=tmp_path / "file" / "job")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 8)),
        ({"LOCAL_RANK": "1"}, (1, 1)),
    ],
)
def test_the_launcher_says_the_rank_until_the_job_does(given, found, tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    journal = journals.Journal(tmp_path)
    [file] = tmp_path.iterdir()
    assert (read(file).rank, read(file).world) == found
    journal.mark("setup", rank=5, world=9)
    assert (read(file).rank, read(file).world) == (5, 9)
    journal.close()


def test_a_measured_loop_writes_its_journal(tmp_path, capsys):
    model = torch.nn.Linear(64, 64)
    with mfulab.measure(
        model, job=tmp_path, quiet=True, ceiling_s=0, peak_tflop_s={"fp32": 10.0}
    ) as window:
        for _ in range(6):
            model(torch.randn(8, 64)).sum().backward()
            window.step()
        window.skip("evaluation")
    lines = [
        json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()
    ]
    facts = [line for line in lines if line.get("flops")]
    assert facts[-1]["flops"] == 2 * 2 * 8 * 64 * 64
    job = job_of(tmp_path)
    assert job.kept_steps == 6
    assert {"import", "setup", "first_step", "step", "evaluation", "measuring"} <= set(+job.spans)
    assert mfulab.measure(model, job=tmp_path).journal is window.journal, "one journal a process"
    window.journal.close()


def test_the_ladder_as_text_json_figure_and_page(tmp_path, capsys):
    facts = {"flops": 2e12, "peak_tflop_s": 10.0, "useful": 0.5}
    write(tmp_path / "job", "a", head(world=4), lines_of(("import", 2, 0), ("step", 8, 8, facts)))
    for language, word in (("en", "in steps that were kept"), ("ko", "유지된 스텝의 시간")):
        assert main(["goodput", str(tmp_path / "job"), "--language", language]) == 0
        out = capsys.readouterr().out
        assert word in out
        assert "80.0" in out
        assert "16.0" in out
    assert "1 of 4" not in out
    found = main(
        ["goodput", str(tmp_path / "job"), "--json", "--figure", str(tmp_path / "a" / "b.svg")]
    )
    assert found == 0
    sample = json.loads(capsys.readouterr().out)
    assert sample["goodput_useful_mfu_percent"] == pytest.approx(8.0)
    assert "1 of 4 ranks" in sample["notes"][0]
    latest = Latest()
    latest.sample = sample
    [kept] = [
        gauge.samples[0]
        for gauge in latest.collect()
        if gauge.name == "mfulab_goodput_kept_percent"
    ]
    assert (kept.labels, kept.value) == ({"name": "job"}, pytest.approx(80.0))
    assert "steps kept" in (tmp_path / "a/b.svg").read_text()
    assert main(["goodput", str(tmp_path / "job"), "--figure", "a.gif"]) == 2
    assert "--figure a.gif: ends in none of .svg" in capsys.readouterr().err


HEAD = '{"rank": 0, "host": "a", "unix_ns": 1, "boot": "b", "boot_ns": 1}\n'


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("nowhere"),
    ],
    ids=["a pipe", "a folder", "an endless device", "a link to nothing"],
)
def test_what_is_no_regular_file_is_named_and_the_rest_is_shown(tmp_path, make, capsys):
    make(tmp_path / "b.jsonl")
    assert main(["goodput", str(tmp_path)]) == 2
    assert "b.jsonl: " in capsys.readouterr().err
    (tmp_path / "a.jsonl").write_text(
        HEAD + '{"ns": 5000000000, "spans": {"step": 5000000000}, "step": 1}\n'
    )
    assert main(["goodput", str(tmp_path)]) == 0
    assert "not read: " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "line",
    [
        '{"ns": 9, "flops": -Infinity, "peak_tflop_s": 1}',
        '{"ns": 9, "flops": NaN}',
        '{"ns": 9, "flops": 1e999, "step": 1, "spans": {"step": 9}}',
        f'{{"ns": {10**400}}}',
        f'{{"ns": {"9" * 5000}}}',
        '{"ns": 9, "world": -3}',
        '{"ns": 9, "spans": "step"}',
        '{"ns": 9, "spans": {"\\ud800": 3}}',
    ],
)
def test_a_line_of_no_quantity_costs_itself(tmp_path, line, capsys):
    good = '{"ns": 5000000000, "spans": {"step": 5000000000}, "step": 1, "flops": 1e12, "peak_tflop_s": 1.0}\n'
    (tmp_path / "a.jsonl").write_text(f"{HEAD}{line}\n{good}")
    assert main(["goodput", str(tmp_path), "--json"]) == 0
    assert "NaN" not in capsys.readouterr().out


def test_names_of_a_journal_reach_the_terminal_as_text(tmp_path, capsys):
    """Escapes that clear the screen or change its title, rich's markup, and a new line in a
    name."""
    name = "\x1b]0;title\x07\x1b[2J\x9b2J[bold][/][link=x]here\u202e"
    line = {"ns": 5 * 10**9, "spans": {name: 5 * 10**9}, "step": 1}
    (tmp_path / "a.jsonl").write_text(f"{HEAD}{json.dumps(line)}\n")
    assert main(["goodput", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "[bold][/][link=x]here" in said
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said)


WORDS = st.sampled_from(
    ["ns", "spans", "step", "beside", "rank", "world", "flops", "peak_tflop_s", "useful", "steps"]
)
CELLS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 10**6)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=2000)
@given(
    lines=st.lists(
        st.dictionaries(WORDS, CELLS, max_size=5).map(json.dumps) | st.text(max_size=20), max_size=6
    )
)
def test_any_journal_is_a_ladder_or_one_sentence(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("job")
    (folder / "a.jsonl").write_text("\n".join([HEAD.strip(), *lines]), errors="replace")
    assert main(["goodput", str(folder)]) in (0, 2)
