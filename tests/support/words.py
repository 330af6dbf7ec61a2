"""Rules for texts that are read in isolation: descriptions of keys and columns, docstrings."""

import re

QUESTIONS = "What|Whether|Why|Where|How|Which|Who|Whose|When"
POINTERS = "Of|As|It|Its|They|Them|Their|That|This|These|Those|The same|The other one|None of"
FRAGMENT = re.compile(rf"({QUESTIONS}|{POINTERS})\b")
LONGEST = 25  # words of a sentence, or of its part up to a semicolon or colon


def faults(text: str) -> list[str]:
    """Reasons why a text does not stand alone: an opening that refers to other text, or sentences
    that are too long."""
    said = [f"begins with {opening[0]!r}" for opening in [FRAGMENT.match(text)] if opening]
    for sentence in re.split(r"(?<=[.;:!?])\s+", text):
        words = len(re.findall(r"\S*\w\S*", sentence))
        if words > LONGEST:
            said.append(f"{words} words: {sentence}")
    return said
