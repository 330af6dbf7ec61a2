"""The ladder: its order, what stands beside it, and one largest drop."""

import itertools
import math
import re
import subprocess
import sys

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workflow_copy import ROOT

from mfulab.core.language import Texts
from mfulab.lab.report.figures import utilization_ladder
from mfulab.mfu import ladder

SHARES = st.one_of(st.none(), st.just(math.nan), st.floats(0, 150))
ROWS = st.fixed_dictionaries(
    {rung.column: SHARES for rung in ladder.RUNGS}
    | {"utilization_percent": st.floats(0, 150), "mfu_percent": st.floats(0, 150)}
    | {"effective_precision": st.sampled_from(["fp32", "fp64", "bf16", "tf32", "fp8", ""])}
)


@given(ROWS)
def test_the_figure_names_the_largest_drop(row):
    drop = ladder.largest_drop(row)
    shown = pd.DataFrame(
        [
            {
                **row,
                "model": "m",
                "mode": "training",
                "precision": "fp32",
                "batch_size": 1,
                "machine": "here",
            }
        ]
    )
    said = utilization_ladder.finding(shown, Texts("en", "utilization_ladder"))
    rungs = Texts("en", "rungs")
    if drop is None:
        assert "no rung lies below" in said
    else:
        names = (rungs(rung.column) for rung in (drop.above, drop.below))
        assert re.search(r"from {} \(.* %\) to {} \(".format(*map(re.escape, names)), said)


@given(ROWS)
def test_no_step_of_the_falling_order_loses_more_than_the_largest(row):
    falling = [rung.percent for rung in ladder.measured(row) if rung.falls]
    losses = [above - below for above, below in itertools.pairwise(falling)]
    drop = ladder.largest_drop(row)
    assert (drop.points if drop else 0) == max(0, *losses, 0)


@given(ROWS)
def test_what_stands_beside_the_order_is_in_no_drop(row):
    beside = {rung.column for rung in ladder.measured(row) if not rung.falls}
    drop = ladder.largest_drop(row)
    assert drop is None or not beside & {drop.above.column, drop.below.column}
    assert not beside & {"utilization_percent", "hfu_percent", "mfu_percent"}


def test_tensor_cores_are_a_rung_of_what_runs_on_them():
    row = {
        "utilization_percent": 99.0,
        "sm_active_percent": 90.0,
        "tensor_active_percent": 0.0,
        "mfu_percent": 60.0,
    }
    drop = ladder.largest_drop({**row, "effective_precision": "fp32"})
    assert (drop.above.column, drop.below.column) == ("sm_active_percent", "mfu_percent")
    drop = ladder.largest_drop({**row, "effective_precision": "bf16"})
    assert (drop.above.column, drop.below.column) == ("sm_active_percent", "tensor_active_percent")


@pytest.mark.parametrize("mfu", [50.0, 50.5])
def test_a_row_that_never_falls_has_no_drop(mfu):
    assert ladder.largest_drop({"utilization_percent": 50.0, "mfu_percent": mfu}) is None


def test_low_occupancy_is_no_drop():
    row = {
        "utilization_percent": 99.0,
        "sm_active_percent": 95.0,
        "occupancy_percent": 10.0,
        "mfu_percent": 60.0,
    }
    assert ladder.largest_drop(row).above.column == "sm_active_percent"


def test_useful_mfu_is_a_rung_where_it_differs():
    row = {"utilization_percent": 99.0, "hfu_percent": 60.0, "mfu_percent": 60.0}
    found = [rung.column for rung in ladder.measured({**row, "useful_mfu_percent": 60.0})][-1]
    assert found == "mfu_percent"
    seen = [rung.column for rung in ladder.measured({**row, "useful_mfu_percent": 20.0})][-1]
    assert seen == "useful_mfu_percent"
    rounded = ladder.measured({**row, "useful_mfu_percent": 60 * (1 - 1e-12)})
    assert rounded[-1].column == "mfu_percent"
    drop = ladder.largest_drop({**row, "useful_mfu_percent": 20.0})
    expected = ("mfu_percent", "useful_mfu_percent", 40.0)
    assert (drop.above.column, drop.below.column, drop.points) == expected


def test_docs_list_the_rungs_in_their_order():
    text = (ROOT / "docs/measuring.md").read_text(encoding="utf-8")
    table = text[text.index("## The ladder") : text.index("## One run")]
    listed = [
        name
        for line in table.splitlines()
        if line.startswith("| ")
        for name in re.findall(r"`(\w+_percent)`", line)
    ]
    assert listed == [rung.column for rung in ladder.RUNGS]


def test_the_ladder_needs_neither_torch_nor_pandas():
    code = "import sys, mfulab.mfu.ladder, mfulab.mfu.utilization, mfulab.mfu.account, mfulab.mfu.join as j\n"
    code += "assert not {'torch', 'pandas', 'yaml'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
