"""Plans on paper: the sentence from a counted transformer, and a figure in which no text covers another."""

import json

import pandas as pd
import pytest
from support.drawn import overlaps

from mfulab.core.language import Texts
from mfulab.flops.parallel import plans
from mfulab.report import figures, frames
from mfulab.report.figures import parallel_plans

TEXT = Texts("en", "parallel_plans")


def row(parameters: int = 8_000_000_000, devices=(2, 8, 64, 512), **changes) -> dict:
    given = {"layers": 32, "key_value_heads": 8, "width": 4096, "tokens": 8192, "flops": 512 * 10**12}
    ways = [plan for count in devices for plan in plans(parameters, count, **given)]
    common = {"status": "ok", "recorded": "False", "hardware": "", "batch_size": 4}
    return {**common, "model": "large", "parameters": parameters, "plans": json.dumps(ways), **changes}


def tables(tmp_path, *rows: dict) -> frames.Tables:
    pd.DataFrame(rows).to_csv(tmp_path / "flops.csv", index=False)
    return frames.read(tmp_path, ("flops",))[0]


def said(tmp_path, *rows: dict) -> str:
    return parallel_plans.finding(parallel_plans.rows(tables(tmp_path, *rows)), TEXT)


def test_the_largest_model_is_told_by_hand(tmp_path):
    told = said(tmp_path, row(), row(1_000_000, model="small"))
    assert told.startswith("Training large takes 128 GB on one device. On 512, ")
    assert "250 MB each" in told  # 16 bytes a parameter ÷ 512
    assert "47.9 GB in a step of 512 TFLOP each" in told  # 3·16 GB·511/512, and each device has a batch of its own
    assert "Data parallelism holds all of it on each, and sends 31.9 GB." in told  # 2·16 GB·511/512
    assert "A pipeline of 8 devices waits 18 % of the time with 4 micro-batches each." in told  # 7 ÷ (32 + 7)
    assert "no tensor parallel plan on 64, 512 devices: its key-value heads do not divide" in told
    assert told.endswith("no pipeline parallel plan on 64, 512 devices, which are more than its layers.")


def test_one_number_of_devices_and_a_count_without_flops(tmp_path):
    ways = json.dumps(plans(1000, 2, layers=1, key_value_heads=2, width=8, tokens=4))
    told = said(tmp_path, row(1000, plans=ways))
    assert "On 2, " in told
    assert "? FLOP each" in told
    assert "nan" not in told
    assert told.endswith("There is no pipeline parallel plan on 2 devices, which are more than its layers.")
    unknown = json.dumps(plans(1000, 2, layers=None, key_value_heads=2, width=8, tokens=4))
    assert said(tmp_path, row(1000, plans=unknown)).endswith("pipeline parallel plan: the number of layers is unknown.")


def test_a_model_that_is_no_transformer_has_no_plan(tmp_path):
    assert parallel_plans.rows(tables(tmp_path, row(plans=""))).empty


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_way_fits(tmp_path, language):
    drawn = figures.render("parallel_plans", tables(tmp_path, row()), language)
    assert overlaps(drawn.figure) == []
