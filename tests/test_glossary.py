"""docs/glossary.md: a plain sentence a term, the page's definitions, and places that exist."""

import re
from pathlib import Path

import pytest

from mfulab.cli.commands import COMMANDS
from mfulab.core.language import LANGUAGES, Texts, catalogue
from mfulab.lab.tables.columns import dictionary

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
LONGEST = 40  # words of a sentence
ASKED = (
    *("MFU", "HFU", "OFU", "MBU", "Utilization", "Kernel-busy", "Rung", "Ladder", "Ceiling"),
    *("Spec peak", "Basis", "Doubtful", "Verdict", "Cause", "Budget", "Headroom", "Window"),
    *("Step", "Run", "Row", "Replicate", "Refine", "Convention"),
)


def lines() -> dict[str, list[str]]:
    """Meaning, unit and places of each term."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
    return {term: rest for term, *rest in cells if len(rest) == 3 and term not in ("term", "---")}


TERMS = lines()


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


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_names_the_glossary(language):
    assert "docs/glossary.md" in Texts(language, "page")("glossary")
    assert "docs/glossary.md" in (ROOT / "src/mfulab/cli/main.py").read_text(encoding="utf-8")
    assert "docs/glossary.md" in (ROOT / "README.md").read_text(encoding="utf-8")
