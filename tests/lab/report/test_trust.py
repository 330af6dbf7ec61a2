"""Doubtful rows are named first, sound ones never; readers' questions, by hand."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from support.said import Heard

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.lab.planning import naming
from mfulab.lab.report import claims, figures, frames, selection, summary, trust
from mfulab.lab.report.drawing import curves
from mfulab.lab.report.page import document, why
from mfulab.mfu import three_lines
from mfulab.mfu.account import Loss, read
from mfulab.mfu.causes import CAUSES
from mfulab.mfu.headroom import PARTS

WHY = Path(__file__).parents[3] / "docs/why.md"
CASE = {
    "hardware": "here", "machine": "here", "recorded": False, "is_read": False, "experiment": "mine",
    "status": "ok", "message": "",
    "model": "net", "workload": "training", "mode": "training", "precision": "fp32", "execution": "eager",
    "replicates": 3.0,
    "sequence_length": float("nan"), "effective_precision": "fp32", "steady": True, "verdict_flags": "",
}  # fmt: skip


def profile(*times: float, **more: object) -> pd.DataFrame:
    """Rows of batch sizes 1, 2, 4 … with these step times and narrow intervals."""
    alike = {"mfu_percent": 10.0, "ceiling_tflop_s": 1.0, "processes": 1, "matmul_percent": 90.0}
    rows = []
    for place, time in enumerate(times):
        size = 2**place
        row = {"run": f"model=net,batch_size={size}", "batch_size": float(size), "time_s": time}
        row |= {"time_ci_low_s": 0.99 * time, "time_ci_high_s": 1.01 * time}
        row |= {"samples_per_s": size / time, "predicted_memory_bytes": 1e9 + size * 1e9}
        rows.append(CASE | row | alike | more)
    return pd.DataFrame(rows)


def tables(rows: pd.DataFrame, raised: float = 1.0) -> dict[str, pd.DataFrame]:
    times = dict.fromkeys(("time_s", "time_ci_low_s", "time_ci_high_s"), 1e-3)
    product = CASE | {"run": "product"} | times
    ceiling = CASE | {"run": "ceiling=fp32", "ceiling": "fp32", "raised_by": "product"}
    ceiling |= {"measured_tflop_s": raised, "swept_tflop_s": 1.0}
    return {"profile": rows, "matmul": pd.DataFrame([product]), "ceilings": pd.DataFrame([ceiling])}


def test_two_times_differ_where_their_intervals_do_not_meet():
    rows = profile(0.1, 0.1015, 0.103)  # each ± 1 %
    assert frames.apart(rows, rows.iloc[0]).tolist() == [False, False, True]
    assert not frames.apart(rows.iloc[2], rows.iloc[1])
    assert frames.apart(rows.iloc[2], rows.iloc[0], ratio=2.0)
    assert not frames.apart(rows.iloc[2], rows.iloc[0], ratio=1.0)
    beside = rows.join(rows.shift(-2).add_suffix("_other"))
    # two without a partner
    assert frames.apart(beside, suffix="_other").tolist() == [True, False, False]


def single(*times: float) -> pd.DataFrame:
    """Rows of one process each, so without intervals."""
    nothing = {"time_ci_low_s": math.nan, "time_ci_high_s": math.nan, "replicates": 1.0}
    return profile(*times, **nothing)


def repeated(count: int, half: float) -> pd.DataFrame:
    """Runs of four processes each, with intervals of ± `half` on a log scale."""
    rows = profile(*[1.0] * count, replicates=4.0)
    return rows.assign(time_ci_low_s=math.exp(-half), time_ci_high_s=math.exp(half))


def test_single_processes_differ_beyond_the_usual_spread_of_their_machine():
    usual = math.exp(2 * frames.RECORDED_HALF_WIDTH)  # two times, each as far off as that
    rows = single(0.1, 0.99 * 0.1 * usual, 1.01 * 0.1 * usual)
    assert frames.apart(rows, rows.iloc[0]).tolist() == [False, False, True]
    assert [frames.apart(rows.iloc[place], rows.iloc[0]) for place in (1, 2)] == [False, True]
    measured = tables(pd.concat([single(0.1, 0.105, 0.12), repeated(8, 0.02)], ignore_index=True))
    rows = trust.judged(measured)["profile"]
    assert rows[frames.USUAL].tolist() == pytest.approx([0.04] * len(rows))  # 0.02 × √4
    assert frames.apart(rows, rows.iloc[0]).tolist()[:3] == [False, False, True]
    few = tables(pd.concat([single(0.1), repeated(6, 0.02)], ignore_index=True))
    assert trust.judged(few)["profile"][frames.USUAL].isna().all()
    ends = claims.ends_of(rows, "time_s").iloc[0]
    assert ends.tolist() == pytest.approx([0.1 * math.exp(-0.04), 0.1 * math.exp(0.04)])


def test_sound_rows_raise_no_doubt():
    # above its printed clock, as GeForce cards
    boosted = {"mfu_percent": 104.0, "mfu_max_clock_percent": 96.0}
    assert trust.summary(tables(profile(0.1, 0.19, 0.36, **boosted))) == ("", [], "")
    assert trust.summary(tables(profile(0.1, 0.19, 0.36))) == ("", [], "")


def run_of(batch: str, language: str) -> str:
    """Name of a planted run in a sentence."""
    return f"net · {Texts(language, 'trust')('batch', batch=batch)}"


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"steady": False}, "unsteady"),
        ({"verdict_flags": '{"beside": {"share": 30.0}}'}, "beside"),
        ({"verdict_flags": '{"held_back": {"share": 30.0}}'}, "held_back"),
        ({"verdict_flags": '{"far_ceiling": {"share": 0.12}}'}, "far_ceiling"),
        ({"mfu_percent": 120.0}, "above_peak"),
        ({"mfu_percent": 120.0, "mfu_max_clock_percent": 111.0}, "above_peak"),
        ({"phases_percent": 403.0}, "phases"),
        ({"forward_ms": 2.6, "backward_ms": 9.2, "optimiser_ms": 154.9}, "part"),
        (
            {"utilization_percent": 60.0, "sm_active_percent": 80.0, "tensor_active_percent": 10.0},
            "rungs",
        ),
        ({"hfu_percent": 4.0, "useful_mfu_percent": 9.0}, "rungs"),
    ],
)
def test_each_reason_is_found_and_told(more, key):
    found = tables(profile(0.1, **more))
    assert [doubt.key for doubt in trust.doubts(found)] == [key]
    for language in ("en", "ko"):
        says, lines, again = trust.summary(found, language)
        assert "2" in says  # of two rows
        assert run_of("1", language) in lines[0]
        step = "ceilings" if key == "far_ceiling" else "profile_step"
        assert again == f"{naming.MEASURE} --forcerun {step} --config experiment=mine"


def test_a_ceiling_far_below_the_computed_peak_is_found_with_the_rows_that_divide_by_it():
    flag = '{"far_ceiling": {"share": 0.12}}'
    found = tables(profile(0.1, verdict_flags=flag))
    ceiling = {"computed_tflop_s": 800.0, "swept_tflop_s": math.nan, "emulated": False}
    found["ceilings"] = found["ceilings"].assign(**ceiling)
    assert [doubt.is_far for doubt in trust.doubts(found)] == [True, False]
    rows = trust.with_doubts(found["profile"])
    assert rows["doubtful"].all()
    assert rows[trust.REACH].tolist() == [math.inf]
    assert trust.with_doubts(found["ceilings"])["doubtful"].all()
    for language in ("en", "ko"):
        _, lines, _ = trust.summary(found, language)
        assert "0.12" in lines[0]
    for harmless in ({"computed_tflop_s": 20.0}, {"emulated": True}):
        fine = tables(profile(0.1)) | {"ceilings": found["ceilings"].assign(**harmless)}
        assert trust.doubts(fine) == []
        assert not trust.with_doubts(fine["ceilings"])["doubtful"].any()


@pytest.mark.parametrize("more", [{"time_ci_high_s": 0.9}, {"time_ci_low_s": float("nan")}])
def test_a_wide_interval_or_none_is_precision_and_no_doubt(more):
    assert trust.doubts(tables(profile(0.1, **more))) == []


def test_precision_and_what_the_machine_cost_are_told():
    assert trust.precision(tables(profile(0.1))) == ""
    rows = profile(0.1, 0.2, 0.3).assign(
        precision_percent=[4.0, 21.0, 8.0], machine_cost_percent=[2.0, 23.0, None]
    )
    for language in ("en", "ko"):
        told = trust.precision(tables(rows), language)
        found = re.findall(r"[\d.]+ ?%", told.replace(" %", "%"))
        assert found == ["8.0%", "95%", "21%", "12%", "23%"]
        assert told.count(run_of("2", language)) == 2


@pytest.mark.parametrize(
    ("reached", "numbers"),
    [
        ([4.0, 99.0], {"52%", "95%", "99%"}),
        ([4.0, 150.0], {"77%", "95%", "2.5"}),
        ([808.0, 16458.0], {"95%", "87"}),
        ([300.0], {"95%", "4.0"}),
        ([2.1e15], {"95%", "100"}),
        ([4.0, 2.1e15, 8.0], {"8.0%", "95%", "100"}),
    ],
)
def test_intervals_that_span_factors_are_told_as_factors(reached, numbers):
    rows = profile(*[0.1] * len(reached)).assign(precision_percent=reached)
    for language in ("en", "ko"):
        # Without how many of all times.
        counts = r" ?\(\d+ of [^)]+\)| \d+개\(전체 \d+개\)|The other \d+|나머지 \d+개"
        told = re.sub(counts, "", trust.precision(tables(rows), language))
        told = re.sub(r"(batch|배치) \d+", "", told.replace(" %", "%"))
        assert set(re.findall(r"\b\d+(?:\.\d+)?%?", told)) == numbers


def test_a_step_that_falls_with_the_batch_and_a_low_ceiling_are_told():
    found = trust.doubts(tables(profile(0.1, 0.05, 0.2), raised=1.5))
    assert [(doubt.key, doubt.runs) for doubt in found] == [
        ("fp32", ("product",)),
        ("falling", ("model=net,batch_size=1", "model=net,batch_size=2")),
    ]


def test_a_reason_that_steps_and_matmuls_share_is_one_line_and_counts_as_their_total():
    """Two unsteady steps and one unsteady matmul come before two steps that met a slow state."""
    steps = pd.concat(
        [profile(0.1, 0.2, steady=False), profile(0.3, 0.4, verdict_flags='{"held_back": {}}')]
    )
    found = tables(steps.assign(run=[f"model=net{place}" for place in range(4)]))
    found["matmul"] = found["matmul"].assign(steady=False)
    seen = [(doubt.key, len(doubt.runs)) for doubt in trust.doubts(found)]
    assert seen == [("unsteady", 3), ("held_back", 2)]
    _, lines, again = trust.summary(found)
    assert [line[0] for line in lines] == ["3", "2"]
    assert "--forcerun profile_step bench_matmul" in again


def test_a_ceiling_that_noise_alone_raised_is_not_doubted():
    assert trust.doubts(tables(profile(0.1), raised=1.04)) == []
    for language in ("en", "ko"):
        _, (line,), again = trust.summary(tables(profile(0.1), raised=2.83), language)
        assert "283" in line
        assert "product" in line
        assert "--forcerun ceilings" in again


def test_a_low_ceiling_names_its_machine_where_there_are_several():
    here = tables(profile(0.1), raised=2.83)
    own = here["ceilings"]
    sound = own.assign(hardware="another", measured_tflop_s=1.0)
    for language in ("en", "ko"):
        alone, both = (
            trust.summary(here | {"ceilings": ceilings}, language)[1]
            for ceilings in (own, pd.concat([sound, own], ignore_index=True))
        )
        assert len(alone) == len(both) == 1
        assert f"({CASE['hardware']})" not in alone[0]
        assert f"({CASE['hardware']})" in both[0]


def emulated(time: float, **more: object) -> pd.DataFrame:
    bf16 = {"precision": "bf16", "effective_precision": "bf16", "peak_precision": "fp32"}
    return profile(time, **more | bf16)


def test_the_headline_is_of_sound_rows_in_formats_that_the_device_computes():
    """Of the rows that are left where the others are doubtful or emulated; of all where no row is
    sound."""
    busy = {"utilization_percent": 99.0, "verdict": "slow_matmuls", "peak_precision": "fp32"}
    sound = [profile(0.1, mfu_percent=mfu, **busy) for mfu in (20.0, 40.0)]
    others = [
        emulated(4.0, mfu_percent=0.5, **busy),
        profile(0.1, mfu_percent=90.0, steady=False, **busy),
    ]
    finding = figures.modules()["mfu_versus_utilization"].finding
    told = finding(
        pd.concat([*sound, *others], ignore_index=True), Texts("en", "mfu_versus_utilization")
    )
    assert "20 %" in told
    assert "40 %" in told
    assert "90 %" not in told
    for alone in others:
        mfu = f"{percent(alone['mfu_percent'].iloc[0])} %"
        assert mfu in finding(alone, Texts("en", "mfu_versus_utilization"))


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(("times", "words"), [((4.0,), ["40"]), ((1.2, 4.3), ["12", "43"])])
def test_bf16_says_in_a_sentence_that_it_is_emulated(times, words, language):
    rows = [profile(0.1, model=f"net{place}") for place in range(len(times))]
    rows += [emulated(time, model=f"net{place}") for place, time in enumerate(times)]
    told = why._bf16_says(why.bf16(pd.concat(rows, ignore_index=True)), Texts(language, "why"))
    first = told.splitlines()[0]
    assert "fp32" in first
    assert all(word in first for word in words)
    native = why._bf16_says(
        why.bf16(pd.concat([rows[0], profile(4.0, precision="bf16", model="net0")])),
        Texts(language, "why"),
    )
    assert "fp32" not in native


def test_another_step_of_the_same_or_another_batch_is_not_held_against_it():
    one = profile(0.1)
    for other in (
        one.assign(run="model=net,batch_size=1,loader=4"),
        profile(0.1, 0.2).iloc[1:].assign(run="model=ner"),
    ):
        assert not trust.falling(
            pd.concat([one, other.assign(time_s=0.05)], ignore_index=True)
        ).any()


def test_recorded_rows_are_not_doubted_where_something_was_measured():
    here = profile(0.1)
    there = profile(0.1, steady=False, recorded=True, hardware="there")
    assert trust.doubts(tables(pd.concat([here, there], ignore_index=True))) == []


def test_recorded_rows_say_nothing_of_what_was_measured_here():
    """Each table by itself would fall back on its recorded rows: matmuls that nobody measured
    here."""
    beside = tables(profile(0.1, steady=False, precision_percent=None))
    beside["matmul"] = beside["matmul"].assign(recorded=True, precision_percent=0.5, steady=False)
    assert trust.precision(beside) == ""
    only = {"count": 1, "total": 1}
    assert trust.summary(beside)[0] == Texts("en", "trust")("rows_alone", **only)
    several = tables(profile(0.1, 0.2).assign(precision_percent=[4.0, None]))
    text = Texts("en", "trust")
    known = {
        "several": text("several", count=1, total=3),
        "half": 4.0,
        "worst": 4.0,
        "run": "net · batch 1",
    }
    assert trust.precision(several).startswith(text("precision", **known))


def test_doubtful_recordings_cannot_be_measured_again_here():
    here = tables(profile(0.1, steady=False))
    recorded = {**here, "profile": here["profile"].assign(recorded=True)}
    recorded["matmul"] = recorded["matmul"].assign(recorded=True)
    (says, lines, again), own = trust.summary(recorded), trust.summary(here)
    assert (says, lines) == own[:2]
    assert "--forcerun profile_step" in own[2]
    assert again == ""


def test_sentences_name_a_run_without_its_settings():
    settings = ",loader.prefetch=2,pruned_share=0.5,parallel.wrapper=fsdp2-7fe7b791d80b"
    rows = profile(0.1, steady=False, precision_percent=5.0, machine_cost_percent=2.0)
    rows["run"] += settings
    _, lines, _ = trust.summary(tables(rows))
    for words in (*lines, trust.precision(tables(rows))):
        assert "net · batch 1" in words
        assert "=" not in words
    assert trust._named("timing.windows=2,parallel.processes=2", Texts()) == "processes=2"


def test_a_run_that_failed_is_told_first():
    rows = profile(0.1, 0.2).assign(status=["ok", "failed"], message=["", "no such layer"])
    says, lines, again = trust.summary(tables(rows))
    failed = {"count": 1, "run": "net · batch 2", "message": "no such layer"}
    assert says == Texts("en", "trust")("failed", **failed)
    assert lines == []
    assert "--forcerun profile_step" in again
    rows = rows.assign(status="failed", message="no such layer")
    broken = tables(rows) | {"matmul": tables(rows)["matmul"].head(0)}
    none_measured = broken["profile"].head(0)
    assert "2 runs failed" in document._headline(
        [], broken, none_measured, document.Texts("en", "page")
    )


def test_the_knee_is_the_smallest_batch_near_the_most_samples():
    (known,) = why.batches(profile(0.1, 0.11, 0.2, 0.4))  # 10, 18.2, 20, 20 samples/s
    assert (known.batch_size, known.rising) == (2, False)
    (rising,) = why.batches(profile(0.1, 0.11, 0.12))
    assert (rising.batch_size, rising.rising) == (4, True)
    (single,) = why.batches(profile(0.1))
    assert single.batch_size is None


def within(half: float, *times: float) -> pd.DataFrame:
    """Batch sizes 1, 2, 4 … with intervals of ± `half` around these step times."""
    rows = profile(*times)
    ends = {
        "time_ci_low_s": rows["time_s"] * (1 - half),
        "time_ci_high_s": rows["time_s"] / (1 - half),
    }
    return rows.assign(**ends)


@pytest.mark.parametrize(
    ("half", "found"), [(0.01, (2, 2, False)), (0.08, (2, 4, False)), (0.6, (1, 4, True))]
)
def test_a_batch_is_recommended_only_where_no_interval_allows_another(half, found):
    (batch,) = why.batches(within(half, 0.1, 0.106, 0.2))  # 10, 18.9 and 20 samples/s
    assert (batch.batch_size, batch.up_to, batch.is_open) == found
    [cell] = [line[3] for line in answered(within(half, 0.1, 0.106, 0.2))[0]["lines"]]
    assert cell == "–".join(dict.fromkeys(map(str, found[:2])))


def told_of_batches(rows: pd.DataFrame) -> dict[str, list[dict]]:
    """What is said of recommended batches, by key."""
    text = Heard("why")
    why._batch_says(list(why.batches(rows)), text)
    return dict(text.heard)


def test_a_range_is_announced_only_where_one_is_printed():
    some = told_of_batches(within(0.08, 0.1, 0.106, 0.2))
    assert some["batch_range"] == [{"count": 1, "total": 1}]
    every = told_of_batches(within(0.6, 0.1, 0.106, 0.2))
    assert every["batch_every"] == [{"count": 1, "total": 1}]
    assert ("batch_every" in some, "batch_range" in every) == (False, True)


def test_cases_of_one_size_are_counted_beside_those_of_several():
    single_case = profile(0.1).assign(model="another")
    together = pd.concat([profile(0.1, 0.11, 0.2), single_case], ignore_index=True)
    assert told_of_batches(together)["batch_several"] == [{"swept": 1, "total": 2}]
    assert "batch_several" not in told_of_batches(profile(0.1, 0.11, 0.2))


def test_a_batch_rests_on_doubtful_rows_only_where_too_few_others_are_left():
    rows = profile(0.1, 0.11, 0.2, 0.4)
    doubted = rows.assign(steady=[True, False, True, True])
    (batch,) = why.batches(doubted)  # 10, 20 and 20 samples/s are left
    assert (batch.batch_size, batch.is_doubtful) == (4, False)
    doubted = profile(0.1, 0.15).assign(steady=[True, False])
    (batch,) = why.batches(doubted)
    assert (batch.batch_size, batch.up_to, batch.is_doubtful) == (1, 2, True)
    [answer, *_] = answered(doubted)
    text = Texts("en", "why")
    assert text("doubtful") in answer["lines"][0][3]
    assert text("batch_doubtful", count=1, total=1) in answer["says"]


def test_doubts_rule_out_no_size_only_within_what_they_may_be_off():
    """Of two step times one contradicts the other, so that nothing is known of how far it is off:
    64 samples in less time than one are faster all the same."""
    rows = single(0.0153, 0.0108).assign(batch_size=[1.0, 64.0])
    rows["samples_per_s"] = rows["batch_size"] / rows["time_s"]
    assert trust.with_doubts(rows)["reach"].tolist() == [math.inf, math.inf]
    (batch,) = why.batches(rows)
    assert (batch.batch_size, batch.up_to, batch.is_doubtful) == (64, 64, True)
    assert (batch.is_open, batch.rising) == (False, True)
    close = single(0.0153, 0.0260)  # 65 and 77 samples/s
    (batch,) = why.batches(close.assign(steady=[True, False]))
    assert (batch.batch_size, batch.up_to, batch.is_open) == (1, 2, True)


@pytest.mark.parametrize(("slowest", "found"), [(0.2, (4, 4)), (1.2, (1, 4))])
def test_a_time_may_be_off_as_far_as_it_contradicts_that_of_another_size(slowest, found):
    """40 samples/s at batch 4. Batch 1 takes longer, so that one of both times is off by at least
    their ratio."""
    rows = profile(slowest, 0.1).assign(batch_size=[1.0, 4.0], samples_per_s=[1 / slowest, 40.0])
    (batch,) = why.batches(rows)
    assert (batch.batch_size, batch.up_to, batch.is_doubtful) == (*found, True)


TWO_STATES = {"machine_cost_percent": [3.0, 5.0, 216.0]}


@pytest.mark.parametrize(
    "vague",
    [
        TWO_STATES,
        {"time_ci_low_s": [0.099, 0.099, 0.06], "time_ci_high_s": [0.101, 0.101, 0.17]},
    ],
)
def test_a_size_that_is_known_only_roughly_neither_leads_nor_widens_a_range(vague):
    rows = profile(0.1, 0.1, 0.1)  # 10, 20 and 40 samples/s
    (known,) = why.batches(rows)
    assert (known.batch_size, known.up_to, known.leaves_out) == (4, 4, False)
    (batch,) = why.batches(rows.assign(**vague))
    assert (batch.batch_size, batch.up_to, batch.samples_per_s) == (2, 2, pytest.approx(20.0))
    assert (batch.leaves_out, batch.is_doubtful) == (True, False)
    assert not batch.rising, "a larger one was measured"
    told = told_of_batches(rows.assign(**vague))
    assert told["batch_left_out"] == [{"count": 1, "total": 1}]
    assert "batch_left_out" not in told_of_batches(rows)
    two = rows.assign(**vague).tail(2)
    assert [batch.leaves_out for batch in why.batches(two)] == [False], "too few others"


def test_a_vague_size_is_used_before_a_doubtful_one():
    rows = profile(0.1, 0.1, 0.1).assign(steady=[False, True, True], **TWO_STATES)
    (batch,) = why.batches(rows)
    assert (batch.batch_size, batch.leaves_out, batch.is_doubtful) == (4, True, False)


def test_sizes_of_a_recorded_range_are_not_far_apart(recorded):
    """None of the sizes that a range allows has less than half the highest speed of its case, or
    processes that are usually half as fast as its time says."""
    steps = frames.with_machine(recorded, frames.with_traces(recorded))
    ranges = {}
    for batch in why.batches(steps):
        if batch.batch_size is not None:
            ranges[tuple(map(str, batch.case.values()))] = (batch.batch_size, batch.up_to)
    timed = why._timed(steps)
    judged = 0
    for _, rows in timed.groupby(curves.KEYS, dropna=False):
        case = tuple(map(str, rows[curves.KEYS].iloc[0]))
        if case not in ranges:
            continue
        allowed = rows[rows["batch_size"].between(*ranges[case])]
        assert allowed["samples_per_s"].min() > 0.5 * rows["samples_per_s"].max(), case
        assert not (allowed["machine_cost_percent"] > 100).any(), case
        judged += 1
    assert judged == len(ranges) > 0


def loader_says(**columns: object) -> dict[str, list[dict]]:
    """What is said of loaders, by key, of three rows with these columns."""
    text = Heard("why")
    rows = profile(0.1, 0.2, 0.4).assign(machine="here", **columns)
    why._loader_says(rows, rows.iloc[:0], text)
    return dict(text.heard)


def test_waiting_for_a_loader_is_decided_where_no_interval_or_doubt_turns_it():
    [yes] = loader_says(input_wait_percent=[1.0, 5.2, 20.0])["loader_yes"]
    assert (yes["count"], yes["total"], yes["row"]["input_wait_percent"]) == (2, 3, 20)
    assert loader_says(input_wait_percent=[1.0, 2.0, 4.0])["loader_no"] == [
        {"total": 3, "limit": "5"}
    ]
    close = loader_says(input_wait_percent=[1.0, 5.01, 4.0])  # ± 1 %
    assert close["loader_unclear"][0]["count"] == 1
    beside = {"input_wait_percent": [20.0, 2.0, 2.0], "steady": [False, True, True]}
    assert loader_says(**beside)["loader_no"][0]["total"] == 2
    all_doubtful = loader_says(input_wait_percent=20.0, steady=False)
    assert {"loader_yes", "loader_doubtful"} <= all_doubtful.keys()


def test_a_case_is_told_by_a_trusted_run_or_says_that_it_is_doubtful():
    rows = trust.with_doubts(profile(0.1, 0.11).assign(steady=[True, False]))
    assert why.chosen(rows)["batch_size"].tolist() == [1]
    text = Texts("en", "why")
    [doubted] = why.chosen(rows.tail(1)).to_dict("records")
    assert why._where(doubted, text)[-1] == text("doubtful")


def test_a_batch_out_of_memory_is_beyond_the_largest_that_fits():
    case = profile(0.1, 0.11, 0.12, 0.2)
    lost = case.assign(status=["ok", "ok", "ok", "out_of_memory"])
    (found,) = why.batches(lost)
    assert (found.batch_size, found.rising, found.too_large) == (4, False, 8)
    (other,) = why.batches(
        pd.concat([case.head(3), lost.tail(1).assign(precision="bf16")], ignore_index=True)
    )
    assert (other.rising, other.too_large) == (True, None), "another case's"
    (first, *_) = answered(lost)
    assert "4 (8: out of memory)" in first["lines"][0]
    assert Texts("en", "why")("batch_lost", count=1, total=1) in first["says"]


def test_the_largest_batch_of_a_card_follows_the_line_of_predicted_memory():
    predicted = [(1, 2e9), (2, 3e9)]
    assert why.largest_that_fits(predicted, 16) == 13  # 14.4 of 16 GB
    assert why.largest_that_fits(predicted, 1) == 0
    assert why.largest_that_fits(predicted[:1], 16) == 1
    level = [(1, 2e9), (2, 2e9)]
    assert [why.largest_that_fits(level, size) for size in (16, 1)] == [2, None]
    (known,) = why.batches(profile(0.1, 0.2))
    assert (known.fits[0], known.at_least) == (13, False)
    peaks = profile(0.1, 0.2).assign(memory_bytes=[4e9, 6e9])
    (measured,) = why.batches(peaks)
    assert measured.fits[0] == 6, "14.4 of 16 GB, by the measured peaks"
    (level,) = why.batches(peaks.assign(memory_bytes=4e9))
    assert level.fits[0] == 13, "peaks that do not grow predict nothing"
    uncounted = peaks.assign(memory_bytes=4e9, predicted_memory_bytes=float("nan"))
    (level,) = why.batches(uncounted)
    assert (level.fits[0], level.at_least) == (2, True), "the largest measured one"
    (unknown,) = why.batches(profile(0.1, 0.2).assign(predicted_memory_bytes=float("nan")))
    assert set(unknown.fits) == {None}


def answered(*rows: pd.DataFrame, language: str = "en") -> list[dict]:
    """Answers of the page: batch size, memory, loader, bf16."""
    together = pd.concat(rows, ignore_index=True).assign(input_wait_percent=float("nan"))
    return why._answers(together, together, Texts(language, "why"))


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_card_has_a_largest_batch_only_where_a_line_predicts_it(language):
    sizes, *_ = answered(profile(0.1, 0.2), profile(0.1, precision="bf16"), language=language)
    assert [line[-4:] for line in sizes["lines"]] == [["13", "20", "35", "71"], ["≥ 1"] * 4]
    assert "≥" in sizes["says"]


def test_no_two_lines_of_the_table_of_batch_sizes_read_the_same():
    others = ({"workload": "training_clipped"}, {"execution": "compile"}, {"machine": "there"})
    rows = [
        profile(0.1, **more)
        for more in ({}, *others, {"sequence_length": 64.0}, {"sequence_length": 128.0})
    ]
    named = [line[0] for line in answered(*rows)[0]["lines"]]
    compiled = Texts().name("execution", "compile")
    assert named == [
        "net, here",
        "net, there",
        "net, 64 tokens, here",
        "net, 128 tokens, here",
        "net, training_clipped, here",
        f"net, {compiled}, here",
    ]
    assert answered(*rows[:1])[0]["lines"][0][0] == "net"


def test_a_pruned_model_is_not_mixed_with_the_whole_one():
    whole = profile(0.1, 0.2)
    pruned = profile(0.01, 0.02).assign(pruning="masked", pruned_share=0.5)
    both = pd.concat([pruned, whole], ignore_index=True)
    assert answered(both)[0]["lines"] == answered(whole)[0]["lines"]
    series = curves.series(both)
    assert series["time_s"].tolist() == curves.series(whole)["time_s"].tolist()
    half = profile(0.05, precision="bf16", effective_precision="bf16")
    pairs = why.bf16(pd.concat([pruned, whole, half], ignore_index=True))
    assert pairs["speedup"].tolist() == why.bf16(pd.concat([whole, half]))["speedup"].tolist()
    assert selection.pick(both, "variant")["pruning"].eq("masked").sum() == 0


@pytest.mark.parametrize(
    ("time", "worth"), [(0.05, "bf16_yes"), (0.2, "bf16_no"), (0.096, "bf16_unclear")]
)
def test_bf16_is_worth_what_its_interval_says(time, worth):
    half = profile(time, precision="bf16", effective_precision="bf16")
    assert why.bf16(pd.concat([profile(0.1), half], ignore_index=True))["worth"].tolist() == [worth]


@pytest.mark.parametrize(
    ("time", "reach", "worth"),
    [(0.05, 1.2, "bf16_yes"), (0.05, 3.0, "bf16_doubtful"), (0.2, 3.0, "bf16_doubtful")],
)
def test_bf16_is_worth_no_more_than_its_doubts_leave(time, reach, worth):
    half = profile(time, precision="bf16", effective_precision="bf16")
    rows = trust.with_doubts(pd.concat([profile(0.1), half], ignore_index=True))
    rows[trust.REACH] = [1.0, reach]
    assert why.bf16(rows)["worth"].tolist() == [worth]


@pytest.mark.parametrize(("time", "worth"), [(0.05, "bf16_yes"), (0.09, "bf16_once")])
def test_bf16_without_an_interval_is_called_only_if_the_gain_is_large(time, worth):
    half = single(time).assign(precision="bf16", effective_precision="bf16")
    alone = pd.concat([single(0.1), half], ignore_index=True)
    assert why.bf16(alone)["worth"].tolist() == [worth]


def test_a_run_in_bf16_is_named_with_what_is_not_plain():
    halves = [profile(time, precision=name) for time, name in ((0.05, "bf16"), (0.2, "amp_bf16"))]
    says = answered(profile(0.1), *halves)[-1]["says"]
    autocast = Texts().name("precision", "amp_bf16")
    yes, no = says.splitlines()
    assert re.findall(r": ([\d.]+)×", yes) == ["2.00"]
    assert re.findall(r": ([\d.]+)×", no) == ["0.500"]
    assert (autocast in yes, autocast in no) == (False, True)


def test_real_models_are_told_of_before_synthetic_loads():
    steps = []
    for model, time in (("wide_linear", 0.01), ("simple_cnn", 0.05)):
        steps.append(profile(0.1).assign(model=model))
        steps.append(profile(time, precision="bf16").assign(model=model))
    says = answered(*steps)[-1]["says"]
    assert re.findall(r": ([\d.]+)×", says) == ["2.00", "10.0"]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_allocator_s_states_are_told_where_they_make_a_difference(language):
    text = Texts(language, "why")
    row = {"time_s": 0.010, "default_state_page_faults": 3105.0, "default_state_time_s": 0.0109}
    assert why._allocator(row, text) == why._allocator({"time_s": 0.010}, text) == []
    [told] = why._allocator(row | {"default_state_time_s": 0.025}, text)
    assert all(part in told for part in ("25.0 ms", "3,105"))
    [told] = why._allocator(row | {"kept_memory_time_s": 0.002}, text)
    assert "2.00 ms" in told


def test_every_verdict_has_a_remedy_with_its_cost_and_experiment():
    row = {
        "time_s": 0.1,
        **{f"{part}_ms": 0.0 for part in PARTS},
        "idle_ms": 60.0,
        "useful_ms": 40.0,
    }
    assert read(row).loss("launch_bound") == Loss(60.0, 60.0)
    assert read(row).loss("slow_matmuls") is None
    assert read({"time_s": 0.1}).loss("launch_bound") is None


EAGER = {"verdict": "overhead", "utilization_percent": 90.0, "idle_ms": 50.0}


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(
    ("compiled", "gain"),
    [
        ([0.05], "2.00×"),
        ([0.2], "2.00×"),
        ([0.1005], "gain_unsure"),
        ([], "saves"),
    ],
)
def test_a_gain_is_told_where_rows_of_the_page_show_it(compiled, gain, language):
    eager = profile(0.1, device="cpu", **EAGER).assign(model="resnet18")
    rows = pd.concat([eager, profile(*compiled, execution="compile").assign(model="resnet18")])
    text = Texts(language, "why")
    case = eager.iloc[0].to_dict()
    remedies = why._remedies(case, why.Beside(rows, ceilings()), False, text)
    told = remedies.first
    assert remedies.is_refuted == (compiled in ([0.2], [0.1005]))
    refuted = text.within("advice")("overhead")
    assert told.startswith(refuted) == (not remedies.is_refuted)
    if remedies.is_refuted:
        assert told.startswith(text.within("otherwise")("overhead"))
    if gain == "gain_unsure":
        setting = text.name("execution", "compile")
        assert told.endswith(text(gain, setting=setting))
    else:
        assert gain.replace("×", "") in told or gain == "saves"
    at_stake = three_lines.most_saved(case, language)
    assert at_stake
    assert (at_stake in told) == (gain == "saves")


def test_bf16_is_told_at_the_fastest_batch_of_each_format_where_that_differs():
    fp32 = profile(0.001, 0.004, precision="fp32")  # slower at batch 2
    bf16 = profile(0.001, 0.0016, precision="bf16")
    pairs = why.bf16(pd.concat([fp32, bf16], ignore_index=True))
    [row] = pairs.to_dict("records")
    assert row["speedup"] == pytest.approx(2.5)
    assert row["at_best"] == pytest.approx(1.25)
    assert "1.25" in why._bf16_run(row, pairs, Texts("en", "why"))
    single = why.bf16(pd.concat([fp32.tail(1), bf16.tail(1)], ignore_index=True))
    assert single["at_best"].tolist() == pytest.approx(single["speedup"].tolist())


def test_batches_of_gpus_are_listed_before_those_of_cpus_and_without_loads():
    made = []
    for model, machine, device in (
        ("spinning", "A", "cpu"),
        ("resnet18", "A", "cpu"),
        ("gpt2", "B", "cuda"),
    ):
        made.append(profile(0.1, 0.11).assign(model=model, machine=machine, device=device))
    rows = pd.concat(made, ignore_index=True).assign(input_wait_percent=None)
    lines = why._answers(rows, rows.iloc[:0], Texts("en", "why"))[0]["lines"]
    assert [line[0].partition(",")[0] for line in lines] == ["gpt2", "resnet18"]


SLOW = {"verdict": "slow_matmuls", "utilization_percent": 95.0}


def test_a_larger_batch_that_was_measured_is_told_by_the_best_size():
    small = profile(0.1, batch_size=1, samples_per_s=10.0, **SLOW)
    larger = [
        profile(0.2, batch_size=size, samples_per_s=speed)
        for size, speed in ((2, 40.0), (4, 30.0), (8, 35.0))
    ]
    rows = pd.concat([small, *larger], ignore_index=True).assign(model="resnet18")
    text = Texts("en", "why")
    case = rows.iloc[0].to_dict()
    assert three_lines.tried_axis(case)[0] == "batch_size"
    outcome = why._outcome(case, rows, text)
    assert outcome.helps
    assert "4.00" in outcome.says
    assert text("batch", batch_size=2) in outcome.says
    assert why._outcome(case, rows.head(1), text) is None


def test_a_gain_is_of_runs_that_differ_in_nothing_else():
    eager = profile(0.1, device="cpu", **EAGER).assign(model="resnet18")
    case = eager.iloc[0].to_dict()
    for other in ({"model": "gpt2"}, {"precision": "bf16"}, {"verdict_flags": "", "steady": False}):
        row = {"model": "resnet18", "execution": "compile", **other}
        rows = trust.with_doubts(pd.concat([eager, profile(0.05).assign(**row)], ignore_index=True))
        assert why._outcome(case, rows, Texts("en", "why")) is None


def test_a_gain_is_of_the_run_s_own_execution():
    quantised = profile(0.1, device="cpu", execution="quantised_dynamic_int8", **EAGER)
    others = [profile(0.2), profile(0.05, execution="compile")]
    rows = pd.concat([quantised, *others], ignore_index=True).assign(model="resnet18")
    assert why._outcome(rows.iloc[0].to_dict(), rows, Texts("en", "why")) is None


def test_what_compiling_gained_in_other_runs_of_the_model_is_told_where_this_one_was_not_tried():
    eager = profile(0.1, device="cpu", **EAGER).assign(model="resnet18")
    fp32 = [profile(0.3, precision="fp32"), profile(0.299, precision="fp32", execution="compile")]
    text = Texts("en", "why")
    case = eager.assign(precision="bf16").iloc[0].to_dict()
    alike = pd.concat([eager.assign(precision="bf16"), *fp32], ignore_index=True)
    rows = alike.assign(model="resnet18")
    outcome = why._outcome(case, rows, text)
    assert (outcome.helps, text.name("execution", "compile") in outcome.says) == (False, True)
    faster = [0.1, 0.099, 0.101, 10.0]
    rows.loc[rows["execution"] == "compile", [*frames.INTERVAL, "samples_per_s"]] = faster
    assert why._outcome(case, rows, text) is None, "it gained there, so it may gain here"


def ceilings(**speeds: float | None) -> pd.DataFrame:
    """Ceilings of the planted machine by format; None for one that it emulates."""
    rows = []
    for name, speed in speeds.items():
        row = {"hardware": "here", "status": "ok", "format": name, "emulated": speed is None}
        rows.append(row | {"measured_tflop_s": speed or math.nan, "computed_tflop_s": math.nan})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("speeds", "helps"),
    [
        ({"fp32": 1.0}, True),  # nothing is known of shorter ones
        ({"fp32": 1.0, "bf16": 2.0}, True),
        ({"fp32": 1.0, "bf16": 1.0}, False),
        ({"fp32": 1.0, "bf16": None}, False),
        ({"fp32": 1.0, "bf16": None, "fp16": 2.0}, True),
        ({"fp32": 1.0, "bf16": None, "fp16": None, "int8": 4.0}, False),
    ],
)
def test_a_shorter_format_is_no_remedy_where_the_ceilings_show_no_gain(speeds, helps):
    row = profile(0.1).assign(verdict="other_operators").iloc[0].to_dict()
    beside = why.Beside(profile(0.1), ceilings(**speeds))
    assert why.shorter_helps(row, beside) == helps
    case = why._case(row, beside, set(), Texts("en", "why"))
    others = Texts("en", "otherwise")("other_operators", shorter=int(helps))
    assert case["otherwise"] == Texts("en", "lines")("otherwise", others=others)


@pytest.mark.parametrize(("bf16_s", "helps"), [(0.05, True), (0.1, False), (0.2, False)])
@pytest.mark.parametrize("ceiling", [None, 2.0])
def test_a_shorter_format_that_was_measured_is_judged_by_its_step(bf16_s, helps, ceiling):
    rows = pd.concat([profile(0.1), profile(bf16_s, precision="bf16")])
    row = profile(0.1).assign(verdict="other_operators").iloc[0].to_dict()
    beside = why.Beside(rows, ceilings(fp32=1.0, bf16=ceiling))
    assert why.shorter_helps(row, beside) == helps


def test_padding_costs_what_the_model_s_own_arithmetic_spends_on_it():
    row = {"time_s": 0.1, "useful_ms": 40.0, "mfu_percent": 40.0}
    assert read(row | {"useful_mfu_percent": 10.0}).loss("padded") == Loss(30.0, 30.0)
    assert read(row | {"useful_mfu_percent": 40.0}).loss("padded") is None
    assert read(row).loss("padded") is None


def test_the_table_of_remedies_is_that_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \|.*\| `([^`]+)` \|$", WHY.read_text(), re.MULTILINE)
    assert dict(rows) == {cause.key: cause.remedy for cause in CAUSES}
    for cause in CAUSES:
        assert cause.figure in figures.modules()


@pytest.mark.parametrize("width", [20, 34, 41, 80])
def test_a_number_stays_with_its_unit_in_the_terminal(width):
    says = (
        "3 runs beside other load, which took 15 % of the CPU time or more in 250 ms,"
        " such as gpt2 training 1 512 fp32."
    )
    lines = summary.wrapped(says, width).splitlines()
    assert " ".join(lines) == says
    assert all(len(line) <= width for line in lines)
    assert not any(line[-1].isdigit() for line in lines[:-1])


def test_of_two_batch_sizes_that_contradict_one_another_both_are_doubted():
    """What disturbs a step makes it longer: the smaller batch is the likelier fault."""
    rows = profile(0.4, 0.1, 0.2, 0.39)
    assert list(trust.falling(rows)) == [False, True, True, False]
    assert list(trust.overtaken(rows)) == [True, False, False, False]
    assert list(trust.doubtful(rows)) == [True, True, True, False]
    assert not trust.overtaken(profile(0.1, 0.2, 0.2)).any()


def test_doubt_is_counted_in_the_marks_that_it_touches():
    found = tables(profile(0.1, 0.2, steady=False))
    there = pd.DataFrame({"doubtful": [True] * 3, "recorded": True})
    here = pd.DataFrame({"doubtful": [True, False], "recorded": False})
    turned = trust.marks(found, [here, there])
    assert turned == (1, 2)
    text = Texts("en", "trust")
    counts = {"count": 2, "total": 3}
    said = trust.summary(found, "en", turned)[0]
    assert said == text("marks_turn", hollow=1, marks=2, **counts)
    held = trust.summary(found, "en", trust.Marks(0, 2))[0]
    assert held == text("marks_hold", **counts)
    assert trust.summary(found, "en")[0] == text("rows_alone", **counts)
    recorded = {name: rows.assign(recorded=True) for name, rows in found.items()}
    assert trust.marks(recorded, [here.assign(recorded=True), there]) == (4, 5)


def test_a_case_is_a_model_s_plain_step_and_mfu_of_nothing_is_none():
    plain = profile(0.1, 0.11)
    faster = profile(0.05).assign(workload="training_sgd", run="model=net,workload=training_sgd")
    nothing = profile(0.01, model="adds", mfu_percent=0.0)
    load = profile(0.01, model="spinning")
    rows = pd.concat([plain, faster, nothing, load], ignore_index=True)
    cases = why.chosen(rows)
    assert list(cases["workload"]) == ["training"]
    assert list(cases["batch_size"]) == [2]
    assert list(why.chosen(nothing)["model"]) == ["adds"], "where nothing else is left"


@pytest.mark.parametrize(
    ("finding", "brief"),
    [
        ("One of 1.5 s. Two.", "One of 1.5 s. Two."),
        (f"One. {'T' * 200}. Three.", "One."),
        (f"{'O' * 200}. Two.", f"{'O' * 200}."),
        (f"가장 큽니다. {'나' * 200}.", "가장 큽니다."),
    ],
)
def test_beside_a_folded_topic_stand_the_first_sentences(finding, brief):
    assert document._brief(finding) == brief
