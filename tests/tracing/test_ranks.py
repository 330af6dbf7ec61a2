"""Ranks of one job joined: a straggler is named, whatever the clocks; even ranks are even."""

import errno
import importlib
import json
import os
from dataclasses import replace

import pytest
from made_ranks import Made, write

from mfulab.cli.main import main
from mfulab.core.language import LANGUAGES, verdicts
from mfulab.measurements.read_trace import ranks
from mfulab.tracing.ranks import MOST_CALLS, Calls, RankSummary, calls_of, join, summary_of


def told(tmp_path, capsys, made, *more):
    write(made, tmp_path)
    assert main(["trace", str(tmp_path), "--json", "--jobs", "1", *more]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("idle", [False, True])
def test_a_straggler_among_sixteen_ranks_is_named_with_its_cause(tmp_path, capsys, idle):
    made = Made(ranks=16, slow=(5,), idle=idle, steps=2, layers=10)
    (job,) = told(tmp_path, capsys, made)
    assert (job["ranks_read"], job["world_size"], job["slowest"]) == (16, 16, "5")
    assert job["verdict"] == ("rank_slowest_idle" if idle else "rank_slowest_compute")
    # Ten layers, each 0.5 × 200 µs longer, beside 50 µs of sending each.
    assert job["verdict_numbers"]["waited_ms"] == pytest.approx(1.0, rel=0.03)
    assert job["verdict_numbers"]["more_ms"] == pytest.approx(1.0, rel=0.05)
    assert job["verdict_numbers"]["share"] == pytest.approx(100, abs=0.1)
    for rank in job["ranks"]:
        assert rank["waiting_ms"] == pytest.approx(0 if rank["rank"] == "5" else 1.0, abs=0.03)
        assert rank["sending_ms"] == pytest.approx(0.5, rel=1e-3)
    (skew,) = job["skews"]
    assert (skew["kind"], skew["ranks"], skew["calls"], skew["last"]) == ("allreduce", 16, 10, "5")
    assert skew["waiting_ms"] == pytest.approx(15 / 16, rel=0.03)
    assert skew["longest_wait_ms"] == pytest.approx(0.1, rel=0.03)
    assert {wait["for_rank"] for wait in job["waits"]} == {"5"}
    path = job["critical_path"]
    assert list(path["own_ms"]) == ["5"]
    assert path["length_ms"] == pytest.approx(job["step_ms"], rel=0.01)
    assert path["sending_ms"] == pytest.approx(0.5, rel=0.06)


def test_ranks_are_read_one_after_another_without_shared_memory(tmp_path, capsys, monkeypatch):
    """Where /dev/shm is missing no semaphore can be made, which a pool of processes takes."""

    def no_semaphore(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    importlib.import_module("multiprocessing.synchronize")  # which asks at its import
    monkeypatch.setattr("_multiprocessing.SemLock", no_semaphore)
    (job,) = told(tmp_path, capsys, Made(ranks=4, slow=(2,), steps=1, layers=5), "--jobs", "3")
    assert (job["ranks_read"], job["slowest"]) == (4, "2")


def test_groups_wait_for_a_straggler_of_their_own(tmp_path, capsys):
    """Two groups of four, in one of which a rank is slow: the other group does not wait."""
    made = Made(ranks=8, slow=(6,), group=4, steps=1, layers=5, jitter_us=0)
    (job,) = told(tmp_path, capsys, made)
    waiting = {rank["rank"]: rank["waiting_ms"] for rank in job["ranks"]}
    assert job["slowest"] == "6"
    assert waiting == {str(rank): pytest.approx(0.5 * (rank in (4, 5, 7))) for rank in range(8)}
    assert {skew["group"]: skew["last"] for skew in job["skews"]}["[4, 5, 6, 7]"] == "6"


def test_several_slow_ranks_are_all_named(tmp_path, capsys):
    (job,) = told(tmp_path, capsys, Made(ranks=16, slow=(8, 9, 10, 11), steps=1, layers=40))
    assert (job["verdict"], job["slowest"]) == ("ranks_in_turn", None)
    assert job["verdict_numbers"]["ranks"] == "8, 9, 10, 11"


def test_even_ranks_and_one_alone(tmp_path, capsys):
    even = tmp_path / "even"
    even.mkdir()
    (job,) = told(even, capsys, Made(ranks=4, slow=(), steps=1, layers=5))
    assert (job["verdict"], job["slowest"]) == ("ranks_even", None)
    alone = tmp_path / "alone"
    alone.mkdir()
    (job,) = told(alone, capsys, Made(ranks=1, slow=(), steps=1, layers=5))
    assert (job["verdict"], job["critical_path"]) == ("rank_alone", None)


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_of_many_ranks_shows_those_that_are_waited_for(tmp_path, capsys, language):
    write(Made(ranks=20, slow=(7,), steps=1, layers=3), tmp_path)
    words = ["trace", str(tmp_path), "--jobs", "2", "--language", language]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "7 ←" in shown
    assert sum(line.split()[:1] == ["7"] for line in shown.splitlines()) == 1
    assert not any(line.split()[:1] == ["19"] and "ms" in line for line in shown.splitlines())


def test_a_bad_file_leaves_the_others_and_other_flags_are_refused(tmp_path, capsys):
    write(Made(ranks=2, slow=(1,), steps=1, layers=3), tmp_path)
    (tmp_path / "rank9.json").write_text("no trace")
    assert main(["trace", str(tmp_path), "--json", "--jobs", "2"]) == 1
    shown = capsys.readouterr()
    assert "rank9.json: not JSON" in shown.err
    assert json.loads(shown.out)["ranks_read"] == 2
    assert main(["trace", str(tmp_path), "--jobs", "2", "--html", str(tmp_path / "p.html")]) == 2
    assert "--html" in capsys.readouterr().err


def summary(rank, lengths, *, window=1_000_000, kind="allreduce", count=None):
    begins = [100_000 * (number + 1) - length for number, length in enumerate(lengths)]
    calls = [Calls(kind, "", 0, count or len(lengths), begins, lengths)]
    return RankSummary("t", "job", str(rank), 1, None, None, window, 1e5, 0, 1e5, calls=calls)


def joined(*summaries):
    return join(summaries.__getitem__, len(summaries))


@pytest.mark.parametrize(
    ("lengths", "key"),
    [
        ([[10, 10], [10, 10]], "ranks_even"),
        ([[0, 0], [0, 0]], "ranks_even"),
        ([[90_000, 90_000], [1, 1], [90_000, 90_000]], "rank_slowest_unknown"),
        ([[90_000, 1], [1, 90_000]], "ranks_in_turn"),
        ([[10]], "rank_alone"),
        ([[10], [10, 10]], "ranks_unmatched"),
        ([[], []], "ranks_even"),
    ],
)
def test_sentences_of_extreme_equal_and_single_ranks(lengths, key):
    job = joined(*(summary(rank, own) for rank, own in enumerate(lengths)))
    assert job.verdict.key == key
    for language in LANGUAGES:
        sentence = verdicts.sentence(job.verdict.key, job.verdict.numbers, language)
        assert sentence
        assert "{" not in sentence
        assert "nan" not in sentence


def test_the_critical_path_changes_to_the_rank_that_arrives_last():
    """Rank 0 arrives last at the first call, rank 1 at the second, each after 90 µs of its own."""
    first = summary(0, [10_000, 60_000], window=210_000)
    second = summary(1, [60_000, 10_000], window=210_000)
    path = joined(first, second).path
    # From the end back: 10 µs after the second call, its sending, rank 1's 90 µs, sending, rank 0's.
    assert path.sending_ms == pytest.approx(0.02)
    assert path.own_ms == {"1": pytest.approx(0.09), "0": pytest.approx(0.1)}
    assert path.length_ms == pytest.approx(0.21)


def test_other_collectives_are_held_against_none():
    other = replace(summary(1, [10]), calls=[Calls("allgather", "", 0, 1, [0], [10])])
    assert joined(summary(0, [10]), other).verdict.key == "ranks_unmatched"


def test_a_summary_is_small_whatever_the_trace_holds(tmp_path):
    path = write(Made(ranks=2, slow=(1,), steps=2, layers=2200), tmp_path)[0]
    (found,) = ranks.summaries(path)
    (calls,) = found.calls
    assert (calls.count, len(calls.begins)) == (4400, MOST_CALLS)
    assert len(found.text()) <= ranks.MOST_BYTES
    assert summary_of(found.text()) == found


def test_a_sweep_leaves_summaries_that_are_joined_alike(tmp_path, capsys):
    traces, left = tmp_path / "traces", tmp_path / "results"
    traces.mkdir()
    (whole,) = told(traces, capsys, Made(ranks=4, slow=(2,), steps=1, layers=4))
    for path in traces.iterdir():
        folder = left / path.name
        folder.mkdir(parents=True)
        (folder / ranks.SUMMARY).write_text(ranks.summaries(path)[0].text())
        (folder / "row.json").write_text("{}")
    assert main(["trace", str(left), "--json", "--jobs", "1"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == whole


def test_calls_of_kernels_that_torch_does_not_describe_go_by_name(tmp_path):
    from support.trace_events import event, steps, trace
    from support.trace_events import write as write_trace

    from mfulab.tracing.attribution import attribute
    from mfulab.tracing.formats import read
    from mfulab.tracing.of_window import OfWindow
    from mfulab.tracing.window import windows

    kernel = event("kernel", "ncclDevKernel_AllGather", 110, 20, 9, device=0, stream=9)
    path = write_trace(tmp_path / "t.json", trace(steps((100, 200)), kernel))
    found = read(path)[0]
    (calls,) = calls_of(OfWindow(found, attribute(found), windows(found)[0]), None)
    seen = (calls.kind, calls.begins, calls.lengths)
    assert seen == ("ncclDevKernel_AllGather", [10_000], [20_000])
