"""Generation: the sentence from rows of prefill and decoding, and a figure in which no text covers another."""

import pandas as pd
import pytest
from support.drawn import overlaps

from mfulab.core.language import Texts
from mfulab.report import figures, frames
from mfulab.report.figures import generation

TEXT = Texts("en", "generation")
ENVIRONMENT = {"hardware": "here", "recorded": "False", "device": "cpu", "device_name": "Invented Xeon"}


def row(mode: str, batch_size: int = 1, **changes) -> dict:
    """Prefill of 0.5 s at 60 % MFU; decoding of 20 ms at 80 % MBU and 2 % MFU."""
    measured = {
        "prefill": {"time_s": 0.5, "mfu_percent": 60.0, "mbu_percent": 5.0, "tokens_per_s": 128.0},
        "decoding": {"time_s": 0.02, "mfu_percent": 2.0, "mbu_percent": 80.0, "tokens_per_s": 50.0 * batch_size},
    }[mode]
    common = {"status": "ok", "hardware": "here", "recorded": "False", "execution": "eager", "precision": "fp32"}
    step = {"model": "gpt2", "mode": mode, "batch_size": batch_size, "sequence_length": 64}
    return {**common, **step, **measured, "key_value_cache_bytes": 4e6 * batch_size, **changes}


def tables(tmp_path, *rows: dict) -> frames.Tables:
    pd.DataFrame(rows).to_csv(tmp_path / "profile.csv", index=False)
    pd.DataFrame([ENVIRONMENT]).to_csv(tmp_path / "environment.csv", index=False)
    return frames.read(tmp_path, ("profile", "environment"))[0]


def said(tmp_path, *rows: dict) -> str:
    return generation.finding(generation.rows(tables(tmp_path, *rows)), TEXT)


def test_one_sequence_has_its_times_and_no_batches(tmp_path):
    assert said(tmp_path, row("prefill"), row("decoding")) == (
        "gpt2 reads a prompt of 64 tokens in 500 ms (TTFT) at 60 % MFU; each further token takes 20.0 ms (TPOT) at "
        "80 % MBU and 2.0 % MFU (batch 1). "
        "Decoding 1 sequence holds 4.00 MB of keys and values and gives 50.0 tokens/s."
    )


def test_places_that_cost_nothing_make_continuous_batching_win(tmp_path):
    told = said(tmp_path, row("prefill", time_s=0.01), row("decoding"), row("decoding", 16))
    assert "Decoding 16 sequences holds 64.0 MB" in told
    waits = told.rpartition("95 % wait at most ")[2]
    static, continuous = (float(word.split()[0]) for word in waits.rstrip(".").split(" in static batches and "))
    assert continuous < static


def test_the_longest_context_is_told_and_halves_alone_are_not(tmp_path):
    long = [row("prefill", sequence_length=256, time_s=2.0), row("decoding", sequence_length=256)]
    assert "a prompt of 256 tokens in 2.00 s" in said(tmp_path, row("prefill"), row("decoding"), *long)
    assert generation.rows(tables(tmp_path, row("prefill"), row("decoding", sequence_length=128))).empty


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("known", [True, False])
def test_everything_fits(tmp_path, language, known):
    ceilings = {"ceiling_tflop_s": 0.1, "ceiling_gb_s": 20.0} if known else {}
    roofs = {
        mode: {**ceilings, "arithmetic_intensity": intensity, "tflop_s": speed}
        for mode, intensity, speed in (("prefill", 40.0, 0.06), ("decoding", 0.5, 0.004))
    }
    rows = [
        row(mode, batch, sequence_length=length, time_s=0.02 * batch, **roofs[mode])
        for mode in ("prefill", "decoding")
        for batch in (1, 4, 16)
        for length in (64, 256)
    ]
    drawn = figures.render("generation", tables(tmp_path, *rows), language)
    assert overlaps(drawn.figure) == []
    assert len(drawn.figure.axes) == (3 if known else 2)
