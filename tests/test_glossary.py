"""docs/glossary.md: a plain sentence a term, the page's definitions, and places that exist."""

import json
import re
from pathlib import Path

import pytest
from support.words import KOREAN as FILES

from mfulab.cli.commands import COMMANDS
from mfulab.core.language import LANGUAGES, Texts, catalogue
from mfulab.lab.tables.columns import dictionary

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
KOREAN = "## Words in Korean"
LONGEST = 40  # words of a sentence
ASKED = (
    *("MFU", "HFU", "OFU", "MBU", "Utilization", "Kernel-busy", "Rung", "Ladder", "Ceiling"),
    *("Spec peak", "Basis", "Doubtful", "Verdict", "Cause", "Budget", "Headroom", "Window"),
    *("Step", "Run", "Row", "Replicate", "Refine", "Convention"),
)


def lines() -> dict[str, list[str]]:
    """Meaning, unit and places of each term."""
    explained, _, _ = PAGE.partition(KOREAN)
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in explained.splitlines()
    ]
    return {term: rest for term, *rest in cells if len(rest) == 3 and term not in ("term", "---")}


def korean() -> list[tuple[str, str]]:
    """The word of each thing in Korean, with each word that is not used for it."""
    _, _, words = PAGE.partition(KOREAN)
    rows = re.findall(r"^\| [^|:]+ \| ([A-Z가-힣 -]+) \| ([^|]+) \|$", words, re.MULTILINE)
    rows = [row for row in rows if row[0] != "한국어"]
    return [(word, other) for word, others in rows for other in others.split(", ")]


def korean_texts() -> list[str]:
    """All texts of the Korean catalogues, one to a line, and the notebook's."""
    notebook = ROOT / "notebooks/seminar.ko.ipynb"
    said = [line for path in FILES for line in path.read_text(encoding="utf-8").splitlines()]
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [line for cell in cells for line in cell["source"] if cell["cell_type"] == "markdown"]
    return said + texts


TERMS = lines()
WORDS = korean()
SAID = korean_texts()


def test_every_term_is_explained_once():
    assert set(ASKED) <= TERMS.keys()
    assert len(re.findall(r"^\| [A-Z]", PAGE, re.MULTILINE)) == len(TERMS)


@pytest.mark.parametrize("term", TERMS)
def test_a_meaning_is_one_sentence(term):
    meaning = TERMS[term][0]
    assert meaning.endswith(".")
    assert len(re.findall(r"\.(?:\s|$)", meaning)) == 1
    assert len(meaning.split()) <= LONGEST


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_read_where_the_glossary_says(term):
    columns = {each.column for each in dictionary()}
    places = re.findall(r"`([^`]+)`", TERMS[term][2])
    assert places or "](" in TERMS[term][2]
    for place in places:
        if place.startswith("mfulab "):
            assert place.split()[1] in COMMANDS
        elif not place.startswith("mfulab."):
            assert place in columns or (ROOT / f"src/mfulab/lab/report/figures/{place}.py").exists()


def test_the_page_defines_a_term_as_the_glossary_does():
    for term, meaning in catalogue("en")["definitions"].items():
        assert TERMS[term][0] == meaning


def test_the_korean_words_are_read():
    assert len(WORDS) > 30


@pytest.mark.parametrize(("word", "other"), WORDS)
def test_a_thing_has_one_word_in_korean(word, other):
    assert any(word in line for line in SAID)
    assert [line for line in SAID if other in line] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_names_the_glossary(language):
    assert "docs/glossary.md" in Texts(language, "page")("glossary")
    assert "docs/glossary.md" in (ROOT / "src/mfulab/cli/main.py").read_text(encoding="utf-8")
    assert "docs/glossary.md" in (ROOT / "README.md").read_text(encoding="utf-8")
