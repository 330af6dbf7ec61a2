"""Public runs recomputed: speeds of each kind, printed figures, and what is not known."""

import csv
from pathlib import Path

import pytest
from support.said import keys

from mfulab.core.language import verdicts
from mfulab.core.rows import Row
from mfulab.lab.tables.records import from_recorded, read_rows
from mfulab.measurements import published as declared
from mfulab.measurements.published import PublishedConfig, PublishedRow
from mfulab.measurements.published import measure as published
from mfulab.measurements.published.measure import measure

KEPT = Path(__file__).parents[2] / "results/reference/public"
SHAPES = (
    '{"architecture": "GPT2LMHeadModel", "n_embd": 6144, "n_layer": 48, "n_head": 64, "vocab_size": 51200, '
    '"n_positions": 2048}'
)
MEGATRON = {  # Korthikanti et al. 2022, arXiv:2205.05198, table 5: 41.5 %
    "system": "GPT 22B, sequence parallel",
    "model": "gpt2",
    "model_arguments": SHAPES,
    "sequence_length": 2048,
    "accelerator": "NVIDIA A100-SXM4-80GB",
    "accelerators": 8,
    "precision": "fp16",
    "batch_size": 4,
    "time_s": 1.1,
    "printed_mfu_percent": 41.5,
    "convention": "ours",
    "source": "arXiv:2205.05198",
}


@pytest.fixture
def recomputed(tmp_path, monkeypatch):
    def rows(*lines: dict) -> list[PublishedRow]:
        names = list(dict.fromkeys(name for line in lines for name in line))
        with (tmp_path / "some.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(lines)
        for module in (declared, published):
            monkeypatch.setattr(module, "PUBLISHED", tmp_path)
        measured = measure(PublishedConfig(published="some"), tmp_path)
        return [PublishedRow.model_validate(sample) for sample in measured.samples]

    return rows


def test_megatrons_22b_is_met(recomputed):
    (row,) = recomputed(MEGATRON)
    assert row.model == "GPT 22B", "no file in config/model/ has its shapes"
    assert row.mfu_percent == pytest.approx(41.5, abs=0.3)
    assert abs(row.difference_points) < 0.3
    found = (row.accelerator, row.architecture, row.slowest_format)
    assert found == ("A100 SXM4 80GB", "8.0", "bf16")


def test_every_kind_of_speed_is_the_same_run(recomputed):
    (by_time,) = recomputed(MEGATRON)
    plain = {key: value for key, value in MEGATRON.items() if key not in ("time_s", "batch_size")}
    others = recomputed(
        {**plain, "samples_per_s": 4 / 1.1},
        {**plain, "tokens_per_s_per_device": 4 / 1.1 * 2048 / 8},
        {**plain, "tflop_s_per_device": by_time.tflop_s_per_device},
    )
    assert [row.mfu_percent for row in others] == pytest.approx([by_time.mfu_percent] * 3)


def test_more_than_a_formats_peak_needs_a_faster_one(recomputed):
    (row,) = recomputed({**MEGATRON, "accelerator": "NVIDIA B200", "time_s": 0.05, "precision": ""})
    assert row.mfu_bf16_percent > 100
    assert row.mfu_fp8_percent == pytest.approx(row.mfu_bf16_percent / 2, rel=1e-3)
    assert row.slowest_format == "fp8"
    (unsaid,) = recomputed(
        {**MEGATRON, "accelerator": "RTX PRO 6000 Blackwell Server", "precision": ""}
    )
    assert (unsaid.mfu_bf16_percent, unsaid.slowest_format) == (None, None)
    assert unsaid.mfu_fp4_percent > 0


def test_what_is_not_known_is_empty_and_said(recomputed):
    unknown_model, unknown_device, no_speed = recomputed(
        {**MEGATRON, "model": "mosaic_bert", "model_arguments": ""},
        {**MEGATRON, "accelerator": "NVIDIA H100"},
        {**MEGATRON, "time_s": ""},
    )
    assert unknown_model.mfu_percent is None
    assert "no_model_of_shapes" in keys(unknown_model.message)
    assert unknown_device.mfu_percent is None
    assert "did you mean H100 NVL" in verdicts.message(unknown_device.message)
    assert no_speed.mfu_percent is None
    assert keys(no_speed.message) == {"no_published_speed"}


def test_a_collection_that_is_not_there_lists_the_others():
    with pytest.raises(
        ValueError, match=r"published=none: unknown\. Choices: llm_foundry, mlperf_training_v5_1"
    ):
        PublishedConfig(published="none")


def test_every_line_of_the_shipped_collections_is_a_row_with_a_source_and_a_device():
    for file in declared.PUBLISHED.glob("*.csv"):
        with file.open(newline="") as lines:
            for number, line in enumerate(csv.DictReader(lines), 2):
                assert line["source"], (file.name, number)
                assert published.find(line["accelerator"]).vendor, (file.name, number)
                assert line["convention"] in ("", *published.BY_KEY), (file.name, number)


def test_the_lines_of_a_run_become_rows_of_the_table(recomputed, tmp_path):
    from mfulab.core.files import write_csv

    folder = tmp_path / "published=some"
    folder.mkdir()
    samples = [
        row.model_dump(exclude={"hardware", "run"}) for row in recomputed(MEGATRON, MEGATRON)
    ]
    write_csv(folder / "samples.csv", samples, list(samples[0]))
    write_csv(
        folder / "row.csv",
        [PublishedRow(run=folder.name, commit="abc").model_dump()],
        list(PublishedRow.model_fields),
    )
    rows = read_rows(folder, "published")
    assert [row["run"] for row in rows] == ["published=some,line=1", "published=some,line=2"]
    assert all(row["commit"] == "abc" and row["mfu_percent"] for row in rows)
    failed = PublishedRow(run=folder.name, status="failed", message="why")
    write_csv(folder / "row.csv", [failed.model_dump()], list(PublishedRow.model_fields))
    assert [
        (row["run"], verdicts.message(row["message"])) for row in read_rows(folder, "published")
    ] == [("published=some", "why")]
    write_csv(
        folder / "row.csv",
        [PublishedRow(run=folder.name).model_dump()],
        list(PublishedRow.model_fields),
    )
    (folder / "samples.csv").write_text("model,accelerators\nx,many\n")
    (broken,) = read_rows(folder, "published")
    assert broken["status"] == "failed"
    assert "accelerators='many'" in verdicts.message(broken["message"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "collection",
    ["mlperf_training_v6_0", "torchtitan", "papers", "llm_foundry", "mlperf_training_v5_1"],
)
def test_the_rows_that_are_kept_are_those_counted_anew(collection, tmp_path):
    kept = [
        row for row in from_recorded(KEPT).records["published"] if row["published"] == collection
    ]
    counted = measure(PublishedConfig(published=collection), tmp_path).samples
    names = PublishedRow.model_fields.keys() - Row.model_fields.keys()
    assert len(kept) == len(counted) > 0
    for row, again in zip(kept, counted, strict=True):
        anew = {name: again[name] or None for name in names}
        # What differs in its last digit was only computed in another order.
        assert {name: row[name] or None for name in names} == pytest.approx(anew, rel=1e-12)
