"""What is wrong with a file is a key and its numbers, and so can be said in each language."""

import json
import re

import pytest

from mfulab.core.files import read_csv, write_csv
from mfulab.core.language.verdicts import message, say
from mfulab.core.said import Said, of_cell
from mfulab.lab.tables import build, details, records
from mfulab.measurements.registry import MEASUREMENTS

HANGUL = re.compile("[가-힣]")
RUN = "xeon-4c/environment/all"


def row(**cells: str) -> dict[str, str]:
    """Cells of a row of the environment, as text."""
    made = MEASUREMENTS["environment"].row(run="all", hardware="xeon-4c").model_dump()
    return {name: "" if value is None else str(value) for name, value in (made | cells).items()}


def korean(said: Said) -> str:
    """A sentence in Korean, which is not the English one."""
    words = say(said, "ko")
    assert HANGUL.search(words)
    assert not HANGUL.search(say(said))
    return words


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        (None, "row_absent", None),
        ([], "row_unreadable", "table_empty"),
        ([row(), row()], "row_unreadable", "lines_instead_of_one"),
        ([row(run="another")], "row_unreadable", "row_of_another"),
        ([row(status="")], "row_unreadable", "status_empty"),
        ([row(process_s="-1")], "row_unreadable", "cell_below_zero"),
    ],
)
def test_a_row_that_cannot_be_read_says_so_by_keys(tmp_path, content, key, reason):
    folder = tmp_path / RUN
    path = folder / "row.csv"
    folder.mkdir(parents=True)
    if content == []:
        path.write_text("")
    elif content:
        write_csv(path, content)
    found = records.read_row(folder, "environment")
    said = of_cell(found["message"])
    assert (found["status"], said.key) == ("failed", key)
    if reason:
        named = said.numbers["reason"]
        assert (named.key, named.numbers["source"]) == ("of_source", str(path))
        assert named.numbers["reason"].key == reason
    assert str(path) in korean(said)
    assert message(found["message"], "ko") == korean(said)


def test_samples_and_configs_that_cannot_be_read_are_named_by_keys(tmp_path):
    folder = tmp_path / "published/a"
    cells = MEASUREMENTS["published"].row(run="a").model_dump()
    write_csv(folder / "row.csv", [cells])
    [line] = records.read_rows(folder, "published")
    said = of_cell(line["message"])
    assert said.key == "samples_unreadable"
    korean(said)
    (folder / "config.json").write_text("[")
    problems = []
    assert records.read_config(folder, problems) == {}
    (folder / "operators.csv").write_bytes(b"\xff\n1")
    details.describe(folder, problems)
    assert [problem.key for problem in problems] == ["config_unreadable", "run_shown_without"]
    for problem in problems:
        assert str(folder) in korean(problem)


def test_what_is_wrong_with_a_recording_is_named_by_keys_and_lines(tmp_path):
    reference = tmp_path / "reference"
    folder = reference / "xeon-4c"
    lines = [row(), row(), row(run=""), row(process_s="1e99"), row(process_s="x")]
    write_csv(folder / "environment.csv", lines)
    (folder / "series.csv").write_bytes(b"\xff\n1")
    problems = records.from_recorded(folder).upkeep
    assert [problem.key for problem in problems] == [
        *["line_unreadable"] * 4,
        "recorded_file_unreadable",
    ]
    assert [problem.numbers["line"] for problem in problems[:4]] == [3, 4, 5, 6]
    reasons = [problem.numbers["reason"].key for problem in problems[:4]]
    assert reasons == ["run_there_twice", "run_empty", "cell_out_of_range", "as_told"]
    for problem in problems[:3]:
        korean(problem)
    (reference / "link").symlink_to(tmp_path)
    collected = build.collect(reference=reference, recorded="link")
    assert [problem.key for problem in collected.upkeep] == ["recording_leads_out"]


def test_problems_are_written_as_keys_beside_an_empty_text(tmp_path):
    collected = records.Collected()
    collected.problems.append(Said("run_leads_out", {"path": "a"}))
    collected.upkeep.append("a text that no catalogue has")
    build.write(collected, tmp_path)
    first, second = read_csv(tmp_path / "problems.csv")
    assert list(first) == ["problem", "said", "of_recordings"]
    assert json.loads(first["said"]) == {"run_leads_out": {"path": "a"}}
    assert (first["problem"], first["of_recordings"]) == ("", "False")
    assert (second["problem"], second["said"]) == ("a text that no catalogue has", "")
