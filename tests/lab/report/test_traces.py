"""Steps read from traces on the report's figures, beside measured runs."""

import pytest
from support import report_rows

from mfulab.lab.report import figures, frames
from mfulab.lab.tables import build
from mfulab.lab.tables.records import Collected


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
