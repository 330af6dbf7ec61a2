"""Rules for texts that are read in isolation: descriptions of keys and columns, docstrings. And the
files of texts in Korean."""

import re
from pathlib import Path

QUESTIONS = "What|Whether|Why|Where|How|Which|Who|Whose|When"
POINTERS = "Of|As|It|Its|They|Them|Their|That|This|These|Those|The same|The other one|None of"
FRAGMENT = re.compile(rf"({QUESTIONS}|{POINTERS})\b")
ROOT = Path(__file__).parents[2]
# Texts of page and terminal, of the commands' help, of the seminar's numbers, and the notebook's.
KOREAN = (
    ROOT / "src/mfulab/core/language/catalogue/ko.yaml",
    ROOT / "src/mfulab/cli/help/ko.yaml",
    ROOT / "src/mfulab/lab/tables/seminar.ko.yaml",
    ROOT / "notebooks/seminar.ko.yaml",
)
LONGEST = 25  # words per sentence, or per part up to a semicolon or colon


def faults(text: str) -> list[str]:
    """Reasons why a text does not stand alone: an opening that refers to other text, or sentences
    that are too long."""
    found = []
    opening = FRAGMENT.match(text)
    if opening:
        found.append(f"begins with {opening[0]!r}")
    for sentence in re.split(r"(?<=[.;:!?])\s+", text):
        words = len(re.findall(r"\S*\w\S*", sentence))
        if words > LONGEST:
            found.append(f"{words} words: {sentence}")
    return found
