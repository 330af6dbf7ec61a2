"""Longer sequences: the sentence from rows of each backend of attention."""

import pytest
from support.drawn import step, tables
from support.said import heard

from mfulab.lab.report import frames
from mfulab.lab.report.figures import attention_length


def row(attention: str, tokens: int = 512, **changes) -> dict:
    """A step of 1 s at 40 % MFU and 100 MB with flash attention; twice as long and four times as
    large without."""
    times = 2 if attention == "math" else 1
    measured = {"time_s": 1.0 * times, "mfu_percent": 40.0 / times, "memory_bytes": 1e8 * times**2}
    shape = {"model": "small", "batch_size": 1, "sequence_length": tokens}
    names = {
        "attention": attention,
        "execution": f"attention_{attention}",
        "flops_run": f"small,{tokens}",
    }
    return {**step(), **shape, **names, **measured, **changes}


def failed(attention: str, tokens: int, status: str = "out_of_memory") -> dict:
    return row(attention, tokens, status=status, time_s=None, mfu_percent=None, memory_bytes=None)


def known(tmp_path, *rows: dict, shares: dict[int, float] | None = None) -> frames.Tables:
    counted = [
        {"run": f"small,{tokens}", "status": "ok", "attention_flops": share, "forward_flops": 100}
        for tokens, share in (shares or {}).items()
    ]
    return tables(tmp_path, *rows, flops=counted)


def said(tmp_path, *rows: dict, **more) -> dict[str, list[dict]]:
    return heard(attention_length, known(tmp_path, *rows, **more))


def test_the_longest_sequence_is_told(tmp_path):
    every = [row(attention, tokens) for attention in ("math", "flash") for tokens in (128, 2048)]
    told = said(tmp_path, *every, shares={128: 8, 2048: 55})
    assert told.keys() == {"finding", "slower", "peaks"}
    [grows], [slower], [peaks] = told.values()
    ends = grows["short"], grows["long"]
    assert [(end["sequence_length"], end["share"]) for end in ends] == [(128, 8), (2048, 55)]
    backends = slower["math"], slower["flash"]
    assert slower["times"] == pytest.approx(2)
    assert [each.sequence_length for each in backends] == [2048, 2048]
    assert [each.mfu_percent for each in backends] == [20, 40]
    assert (peaks["math"].memory_bytes, peaks["flash"].memory_bytes) == (400e6, 100e6)


def test_one_backend_without_counts_says_what_was_measured(tmp_path):
    told = said(tmp_path, row("flash", 128), row("flash"))
    assert told.keys() == {"finding_without"}
    [ends] = told["finding_without"]
    assert (ends["short"]["sequence_length"], ends["long"]["sequence_length"]) == (128, 512)


def test_equal_backends_are_not_compared(tmp_path):
    same = [row("math", tokens, time_s=1.0, mfu_percent=40.0) for tokens in (128, 512)]
    every = row("flash", 128), row("flash"), *same
    told = said(tmp_path, *every, shares={128: 8, 512: 20})
    assert "equal" in told
    assert {"slower", "faster"}.isdisjoint(told)


def test_runs_out_of_memory_are_counted_and_unsupported_ones_are_not(tmp_path):
    rows = [
        row("flash", 128),
        row("flash"),
        failed("math", 8192),
        failed("cudnn", 512, "unsupported"),
    ]
    assert said(tmp_path, *rows)["failed"] == [{"count": 1}]
    assert len(attention_length.rows(known(tmp_path, *rows))) == 3


def test_one_length_is_no_comparison_of_lengths(tmp_path):
    assert attention_length.rows(known(tmp_path, row("flash"), row("math"))).empty
