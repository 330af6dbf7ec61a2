"""Korean has one word for a thing: terms that are not used, each with the word in its place."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.words import KOREAN

from mfulab.core.language import Texts, catalogue, verdicts
from mfulab.lab.tables import seminar_texts

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "notebooks/seminar.ko.ipynb"
TERMS = {
    "의심스": "믿기 어려",
    "판정": "진단 (원인), 비교 결과 (두 실행)",
    r"줄\(J\)|[0-9]줄|줄당": "J",
    "바쁘게 읽|로 읽히|게 읽히|게 읽힙|로 읽힙|얼마로 읽": "나옵니다",
    "값을 치른": "지불한",
    "을 삽니다|를 삽니다": "정합니다, 얻습니다",
    "FLOP을 합니다": "연산량은 … FLOP입니다",
    "속도 옆": "속도와 함께",
    "다른 장치의 실행|기록된 장치": "머신",
}
# A particle follows the sound before it, which a name or a number of any kind does not tell. These
# values end alike: units, and words of the catalogue.
PARTICLE = re.compile(r"\{(\w+)([^{}]*)\}(?:이|가|은|는|을|를|과|와|으로|로)(?=[ ,.:]|$)")
OF_ONE_SOUND = {"cpu", "sides", "kind", "sent", "needed", "size", "part", "Part", "unit"}
UNIT = ":quantity "
# Sentences of a table or a column that a page in Korean shows.
COLUMNS = ("message", "note")
FOREIGN = re.compile(r"[A-Z]\w*Error: ")  # what a library raised is its own


def texts() -> Iterator[str]:
    """Every Korean text of the catalogue, the help and the seminar's numbers, and what the notebook
    says."""

    def leaves(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for each in value.values():
                yield from leaves(each)
        else:
            yield str(value)

    for path in KOREAN:
        yield from leaves(yaml.safe_load(path.read_text(encoding="utf-8")))
    yield from catalogue("ko")["definitions"]
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])


def test_no_particle_follows_a_name_or_number_of_any_sound():
    found = []
    for text in texts():
        for name, spec in PARTICLE.findall(text):
            if name not in OF_ONE_SOUND and UNIT not in spec:
                found.append(text)
    assert found == []


@pytest.mark.parametrize("term", TERMS)
def test_a_thing_has_one_word(term):
    found = [text for text in texts() if re.search(term, text)]
    assert found == [], f"write: {TERMS[term]}"


def test_no_sentence_counts_both_in_flop_and_in_flops():
    both = []
    for text in texts():
        for sentence in re.split(r"(?<=[.\n]) ", re.sub(r"\{[^}]*\}", "", text)):
            if "FLOPs" in sentence and re.search(r"FLOP(?=[은는이가을를])", sentence):
                both.append(sentence)
    assert both == []


def test_the_texts_of_all_files_are_read():
    found = set(texts())
    for path in KOREAN:
        first = yaml.safe_load(path.read_text(encoding="utf-8"))
        while isinstance(first, dict):
            first = next(iter(first.values()))
        assert first in found


def test_the_catalogue_speaks_in_one_politeness():
    sentences = [str(text) for words in catalogue("ko").values() for text in words.values()]
    assert [text for text in sentences if re.search(r"세요[.\"]?$|[가-힣]한다\.$", text)] == []


def test_what_recorded_rows_say_is_korean_in_korean():
    said = set()
    for path in (ROOT / "results/reference").glob("*/*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                said |= {verdicts.message(row[name], "ko") for name in COLUMNS if row.get(name)}
                for why in json.loads(row.get("reasons") or "{}").values():
                    said.add(verdicts.reason(why, "ko"))
    own = {text for text in said if not FOREIGN.match(text)}
    assert len(own) > 20
    assert [text for text in own if not re.search("[가-힣]", text)] == []


def test_no_recorded_row_holds_a_sentence_as_its_reason():
    for path in (ROOT / "results/reference").glob("*/*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                told = json.loads(row.get("reasons") or "{}")
                assert [why for why in told.values() if isinstance(why, str)] == []


def test_what_a_recorded_kernel_adds_is_korean_in_korean():
    said = {}
    for path in (ROOT / "results/reference").glob("*/matmul.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            said |= {row["kernel"]: row["adds"] for row in csv.DictReader(file) if row["adds"]}
    korean = Texts("ko").words("adds")
    assert len(said) > 20
    assert [kernel for kernel in said if not re.search("[가-힣]", korean.get(kernel, ""))] == []


def reasons_to_exclude() -> set[str]:
    """What the shipped experiments say of the combinations that they leave out."""
    found = set()
    for path in (ROOT / "src/mfulab/config/experiment").glob("*.yaml"):
        for rule in yaml.safe_load(path.read_text(encoding="utf-8")).get("exclude", []):
            found.add(rule["because"])
    return found


def test_each_reason_of_a_shipped_experiment_to_exclude_is_korean_in_korean():
    korean = Texts("ko").words("excluded")
    assert len(korean) > 100
    assert {*korean} == reasons_to_exclude()
    assert Texts("ko").name("excluded", "a reason of my own") == "a reason of my own"


def test_the_seminars_numbers_take_the_same_values_in_korean():
    korean = seminar_texts.translated("ko")
    for line in seminar_texts.lines():
        for name, text in korean.get(line["key"], {}).items():
            found = {*seminar_texts.names(text)}
            assert found == {*seminar_texts.names(str(line[name]))}, (line["key"], name)
    assert {*korean} - {line["key"] for line in seminar_texts.lines()} == {"words"}
