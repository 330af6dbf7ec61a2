"""The journal and the ladder of a job: sums, kills, clocks, and journals that are cut or mixed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mfulab
from mfulab.core.errors import ConfigurationError
from mfulab.goodput import journal as journals
from mfulab.goodput.ladder import job_of

SECOND = 10**9
SPANS = ("import", "setup", "restore", "first_step", "step", "loader", "evaluation", "checkpoint", "other")


def head(rank=0, world=1, host="a", boot="one", boot_s=0.0, unix_s=0.0):
    """A first line, times in seconds."""
    found = {"format": 1, "rank": rank, "world": world, "host": host, "pid": 1, "boot": boot}
    return {**found, "unix_ns": round(unix_s * SECOND), "boot_ns": round(boot_s * SECOND)}


def lines_of(*spans):
    """Lines of (span, seconds, steps done, facts), each right after the one before."""
    now, found = 0, []
    for span, seconds, step, *facts in spans:
        now += round(seconds * SECOND)
        found.append({"ns": now, "spans": {span: round(seconds * SECOND)}, "step": step, **(facts[0] if facts else {})})
    return found


def write(folder, name, first, lines):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [first, *lines]))


attempts = st.lists(
    st.tuples(
        st.integers(0, 10**10),  # the gap before it
        st.integers(0, 50),  # the step that it begins from
        st.lists(
            st.tuples(st.dictionaries(st.sampled_from(SPANS), st.integers(0, 10**9)), st.integers(0, 9), st.integers(0, 99))
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
    first = lines_of(("import", 2, 0), ("step", 10, 10), ("checkpoint", 1, 10), ("step", 5, 15, facts))
    write(tmp_path, "a", head(boot_s=0), first)
    write(tmp_path, "b", head(boot_s=20), lines_of(("import", 2, 0), ("restore", 1, 10), ("step", 10, 20)))
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
    write(tmp_path, "b", head(1, 2, "b", "y", 77, unix_s=1031), lines_of(("import", 1, 0), *steps[1::2]))
    late = [{**line, "ns": line["ns"] + (0 if place == 0 else SECOND)} for place, line in enumerate(lines_of(("import", 1, 0), *((s, 2, n) for s, _, n in steps[1::2])))]
    (tmp_path / "b.jsonl").unlink()
    write(tmp_path, "b", head(1, 2, "b", "y", 77, unix_s=1031), late)
    job = job_of(tmp_path)
    assert job.wall == 10 * SECOND, "a begins 2 s before its first step, b with it"
    assert job.spans["down"] == 0
    assert job.spans["unknown"] == SECOND
