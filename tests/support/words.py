"""Rules for texts that are read in isolation: descriptions of keys and columns, docstrings."""

import re

QUESTIONS = "What|Whether|Why|Where|How|Which|Who|Whose|When"
POINTERS = "Of|As|It|Its|They|Them|Their|That|This|These|Those|The same|The other one|None of"
FRAGMENT = re.compile(rf"({QUESTIONS}|{POINTERS})\b")
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
