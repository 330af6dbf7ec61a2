"""Steps read from traces on the report's figures, beside measured runs."""

import pandas as pd
import pytest
from support import report_rows
from support.drawn import overlaps

from mfulab.core.language import Texts
from mfulab.report import figures, frames
from mfulab.report.figures import traced_mfu
from mfulab.tables import build
from mfulab.tables.records import Collected


@pytest.fixture(scope="module", params=[1, 3])
def tables(request, tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("tables"), Collected()
    for row in report_rows.traces()[: request.param]:
        found.records["traces"].append({**row.model_dump(), "experiment": "", "recorded": False})
    build.joined(found.records)
    build.write(found, folder)
    return frames.read(folder)[0]


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("name", ["headroom", "mfu_versus_utilization", "roofline", "utilization_ladder"])
def test_traces_are_drawn_as_read(tables, name, language):
    drawn = figures.render(name, tables, language)
    assert drawn is not None
    assert "prefill" in drawn.finding or "tiny_bert" in drawn.finding
    read = {"en": "read from a trace", "ko": "트레이스에서 읽음"}[language]
    assert f"NVIDIA H100 80GB HBM3 · {read}" in drawn.figure.texts[1].get_text()


def test_the_parts_of_a_bar_sum_to_its_step(tables):
    rows = figures.modules()["headroom"].rows(tables)
    parts = rows[list(figures.modules()["headroom"].PARTS)].astype(float).sum(axis=1)
    assert parts.tolist() == pytest.approx([100.0] * len(rows))
    assert rows["useful"].tolist() == pytest.approx(rows["mfu_percent"].tolist())


def beside_public(tables, **changes):
    """The invented traces, those of `changes` made of the first, beside the invented public runs."""
    public = pd.DataFrame([{**row.model_dump(), "recorded": False} for row in report_rows.published()])
    traces = pd.concat(
        [tables["traces"], tables["traces"].head(1).assign(**changes)] if changes else [tables["traces"]]
    )
    return {"traces": traces.reset_index(drop=True), "published": public}


@pytest.mark.parametrize("language", ["en", "ko"])
def test_traces_stand_beside_public_runs_of_their_architecture_and_say_why_they_have_no_mfu(tables, language):
    unnamed = {"model": "unnamed", "device": "", "compute_capability": "", "mfu_percent": float("nan")}
    unnamed |= {"mfu_reason": '{"no_shapes": {}}', "utilization_percent": 2.0}
    given = beside_public(tables, **unnamed)
    given["traces"].loc[given["traces"]["device"] != "", "compute_capability"] = "9.0"
    drawn = figures.render("traced_mfu", given, language)
    assert overlaps(drawn.figure) == []
    said = [each.get_text().replace("\n", " ") for each in drawn.figure.axes[0].texts]
    assert said == [{"en": "no shapes: record with record_shapes=True",
                     "ko": "텐서 형상이 없습니다. record_shapes=True로 기록하십시오"}[language]]  # fmt: skip
    rows = traced_mfu.rows(given)
    hopper = given["published"].loc[given["published"]["architecture"] == "9.0", "mfu_bf16_percent"]
    named = rows[rows["device"] != ""]
    assert set(named["public_least"]) == {hopper.min()}
    assert set(named["public_most"]) == {hopper.max()}
    assert rows.loc[rows["device"] == "", "public_most"].isna().all(), "an unnamed device is like no other"
    if language == "en":
        assert "public training runs on that architecture have 34 to 52 % of the 16-bit peak" in drawn.finding
        assert drawn.finding.endswith(f"1 of {len(rows)} traces has no MFU; the figure says why.")


def test_traces_without_public_runs_of_their_kind_or_without_any_mfu(tables):
    given, text = beside_public(tables), Texts("en", "traced_mfu")
    given["traces"]["compute_capability"] = "7.0"
    words = traced_mfu.finding(traced_mfu.rows(given), text)
    assert "no public run here is on that architecture" in words
    assert words.endswith("an MFU.")
    none = given["traces"].assign(mfu_percent=float("nan"))
    words = traced_mfu.finding(traced_mfu.rows({**given, "traces": none}), text)
    assert words.startswith(f"{len(none)} of {len(none)} traces")
    assert traced_mfu.rows({**given, "published": given["published"].head(0)}).empty
    amd = given["published"].assign(architecture="gfx942").head(1)
    rows = given["traces"].assign(device="AMD Instinct MI300X VF", compute_capability="9.4")
    assert traced_mfu.rows({"traces": rows, "published": amd})["public_most"].notna().all()
