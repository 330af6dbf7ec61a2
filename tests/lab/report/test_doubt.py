"""Doubt belongs to a claim: on noisy machines the first sentence stays true, most marks stay full, and
no full mark claims what is not so."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.noise import slower
from support.slow import few

from mfulab.lab.report import claims, figures, frames, selection, trust

NOISY = ("profile", "matmul")
# What a noisy machine of benchmarks/machines.py writes into its rows: the share of them, and how.
MACHINES: dict[str, tuple[float, dict[str, object]]] = {
    "avx2": (0.72, {"steady": False}),
    "neighbour": (0.5, {"verdict_flags": '{"beside": {"share": 30.0}}'}),
    "steal": (0.6, {"verdict_flags": '{"stolen": {"share": 20.0}}'}),
    "one-core": (0.3, {"steady": False}),
}
SEEDS = few(range(5))
MOST_OFF = 1.45  # a factor, below what a doubtful time may be off by
FULL = 0.8  # of a page's marks
FIRST_PAGE = [name for name in selection.FIRST_FIGURES if name in figures.modules()]


def side(column: str, reference: float) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[column] > reference


# What the marks of a figure claim, to be held against the rows without noise.
SAYS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "mfu_versus_utilization": lambda rows: rows["mfu_percent"] < rows["utilization_percent"],
    "headroom": lambda rows: rows[LOSSES].astype(float).idxmax(axis=1),
    "utilization_ladder": lambda rows: rows["mfu_percent"] < rows["utilization_percent"],
    "kernel_ladder": side("share_of_reference_percent", 100.0),
    "precision_speed": side("speedup", 1.0),
    "roofline": side("roof_percent", 100.0),
    "training_phases": side("relative", 100.0),
    "transfers": lambda rows: (
        rows[list(figures.modules()["transfers"].TIMES)].fillna(0).idxmax(axis=1)
    ),
}
LOSSES = [part for part in figures.modules()["headroom"].PARTS if part != "useful"]


@pytest.fixture(scope="module")
def quiet(recorded) -> frames.Tables:
    """What the recorded CPU measured, as if it were this machine's own, on a quiet day."""
    own = {}
    for name, rows in recorded.items():
        if "hardware" in rows and "recorded" in rows:
            rows = rows[rows["hardware"].str.startswith("amd")].assign(recorded=False)
        own[name] = rows
    for name in NOISY:
        rows = own[name]
        steady = {"steady": True} if "steady" in rows else {}
        own[name] = rows.assign(verdict_flags="", **steady).reset_index(drop=True)
    sound = {name: ~trust.doubtful(own[name]) for name in NOISY}
    return own | {name: own[name][sound[name]].reset_index(drop=True) for name in NOISY}


def noisy(tables: frames.Tables, machine: str, seed: int) -> frames.Tables:
    """The tables with a share of rows doubtful, each off by a factor of its own."""
    share, flags = MACHINES[machine]
    chance = np.random.default_rng(seed)
    made = dict(tables)
    for name in NOISY:
        rows = tables[name]
        is_off = chance.random(len(rows)) < share
        off = np.exp(chance.uniform(-1, 1, len(rows)) * np.log(MOST_OFF))
        factor = np.where(is_off, off, 1.0)
        changed = {}
        for column, value in flags.items():
            changed[column] = rows[column].mask(is_off, value) if column in rows else value
        made[name] = slower(rows.assign(**changed), factor)
    return trust.judged(made)


def said(name: str, rows: pd.DataFrame) -> pd.Series:
    """What the full marks of a figure claim, by run; one within the intervals claims nothing."""
    keys = [key for key in ("hardware", "run") if key in rows]
    claiming = rows[~rows["doubtful"]]
    if "apart" in claiming:
        claiming = claiming[claiming["apart"]]
    return claiming.drop_duplicates(keys).set_index(keys).pipe(SAYS[name])


@pytest.fixture(scope="module")
def truth(quiet) -> dict[str, pd.Series]:
    judged = trust.judged(quiet)
    return {name: said(name, figures.modules()[name].rows(judged)) for name in SAYS}


@pytest.mark.parametrize("machine", few(MACHINES))
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_leaves_most_marks_full_and_no_full_one_wrong(quiet, truth, machine, seed):
    tables = noisy(quiet, machine, seed)
    assert trust.doubtful(tables["profile"]).mean() > 0.2
    marks = full = 0
    for name in FIRST_PAGE:
        rows = selection.drawable(figures.modules()[name], tables)
        marks += len(rows)
        full += int((~rows["doubtful"]).sum()) if len(rows) else 0
        if len(rows) and name in SAYS:
            told = said(name, rows)
            common = told.index.intersection(truth[name].index)
            wrong = told[common] != truth[name][common]
            assert not wrong.any(), (name, list(common[wrong]))
    assert full >= FULL * marks, f"{full} of {marks}"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_sentence_is_true_however_noisy_the_machine(quiet, machine, seed):
    module = figures.modules()["mfu_versus_utilization"]
    true = quiet["profile"].drop_duplicates("run").set_index("run")
    rows = selection.drawable(module, noisy(quiet, machine, seed))
    first = selection.first_run(rows)
    best = selection.best_runs(rows, first)
    is_busy = true.loc[first["run"], "utilization_percent"] >= selection.BUSY
    assert is_busy
    assert true.loc[first["run"], "mfu_percent"] < true.loc[first["run"], "utilization_percent"]
    told = claims.ends_of(rows, "mfu_percent").loc[first.name]
    assert told["low"] <= true.loc[first["run"], "mfu_percent"] <= told["high"]
    trusted = rows[~trust.unsure(rows) & ~selection.is_synthetic(rows) & ~frames.emulated(rows)]
    highest = true.loc[trusted["run"], "mfu_percent"].idxmax()
    assert highest in set(best["run"])


@given(
    low=st.floats(0.1, 10), high=st.floats(0.1, 10), reach=st.sampled_from([1.0, trust.OFF, np.inf])
)
def test_an_order_holds_only_where_no_end_turns_it(low, high, reach):
    known = dict.fromkeys(frames.INTERVAL, 1.0)
    rows = [known | {"mfu_percent": number, trust.REACH: reach} for number in (low, high)]
    held = claims.is_below(*rows, "mfu_percent")
    assert held == (low < high and (reach == 1.0 or low * reach < high / reach))


def test_busy_at_little_mfu_survives_a_doubt_that_a_close_pair_does_not():
    rows = pd.DataFrame({"mfu": [0.3, 60.0], "busy": 100.0, trust.REACH: 1.5, "doubtful": True})
    assert claims.below("mfu", "busy").held(rows).tolist() == [True, False]


@given(
    values=st.lists(st.tuples(st.floats(0.1, 10), st.sampled_from("ab")), min_size=1, max_size=6),
    reach=st.sampled_from([1.0, 1.2, trust.OFF, np.inf]),
)
def test_a_place_is_kept_where_no_neighbour_of_its_group_could_take_it(values, reach):
    rows = pd.DataFrame(values, columns=["time_s", "machine"]).assign(**{trust.REACH: reach})
    held = claims.ordered("time_s", ["machine"]).held(rows)
    kept = pd.Series(True, rows.index)
    for _, here in rows.sort_values("time_s").groupby("machine"):
        for fast, slow in pairwise(here.index):
            if not claims.is_below(rows.loc[fast], rows.loc[slow], "time_s"):
                kept[[fast, slow]] = False
    assert held.equals(kept)


def test_runs_whose_order_could_turn_are_measured_again_first():
    rows = [
        {"time_s": time, "time_ci_low_s": 0.9 * time, "time_ci_high_s": 1.1 * time}
        for time in (1.0, 1.1, 5.0, 1.05)
    ]
    names = [
        "model=net,precision=fp32,batch_size=1",
        "model=net,precision=bf16,batch_size=1",
        "model=net,precision=fp16,batch_size=1",
        "model=net,precision=fp32,batch_size=2",  # of other work
    ]
    assert claims.contested(pd.DataFrame(rows).assign(run=names)) == {names[0], names[1]}


def test_duplicates_in_doubt_leave_the_trusted_one():
    rows = pd.DataFrame(
        {"run": "a", "time_s": [1.0, 9.0], trust.REACH: [1.0, trust.OFF], "doubtful": [False, True]}
    )
    [row] = frames.one_each(rows, ["run"]).to_dict("records")
    assert (row["time_s"], row["doubtful"]) == (1.0, False)


def test_what_counts_for_an_unknown_machine_is_what_the_recorded_cpu_shows(recorded):
    rows = trust.judged(recorded)["profile"]
    usual = rows.groupby("hardware")[frames.USUAL].first()
    assert usual["amd-epyc-2c"] == pytest.approx(frames.RECORDED_HALF_WIDTH, rel=0.1)
    assert usual.filter(like="nvidia").isna().all(), "single processes alone were recorded there"
