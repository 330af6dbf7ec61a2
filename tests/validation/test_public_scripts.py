"""Public scripts under `mfulab measure`: the list, and each against its FLOPs by hand where the
repositories are cloned."""

import os
from pathlib import Path

import public_scripts
import pytest
from support.workflow_copy import ROOT

CLONES = os.environ.get("MFULAB_CLONES")


def test_the_docs_list_every_script_with_its_command_and_flops():
    told = (ROOT / "docs/loops.md").read_text(encoding="utf-8")
    assert public_scripts.table() in told
    assert len(public_scripts.SCRIPTS) >= 25
    assert {script.repository for script in public_scripts.SCRIPTS} == set(public_scripts.COMMITS)


def test_gpt_by_hand_is_six_flops_a_weight_and_token_and_twelve_of_attention():
    tokens, width, layers, words = 4 * 32, 64, 2, 50304
    weights = layers * 12 * width**2 + width * words
    by_hand = tokens * (6 * weights + 12 * layers * width * 32)  # arXiv:2204.02311, appendix B
    assert public_scripts.gpt(4, 32, width, layers, words) == by_hand


@pytest.mark.slow
@pytest.mark.skipif(not CLONES, reason="MFULAB_CLONES names no folder of clones")
@pytest.mark.parametrize("script", public_scripts.SCRIPTS, ids=lambda script: script.name)
def test_a_public_script_has_the_flops_by_hand(script, tmp_path):
    public_scripts.write_data(tmp_path / "data")
    row = public_scripts.measured(script, Path(CLONES), tmp_path / "data")
    assert row.get("flops") == script.flops, row["said"]
