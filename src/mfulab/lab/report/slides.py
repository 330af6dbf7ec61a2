"""The figures of one text of the seminar as slides: 16:9, PNG and PDF, each with its sentence below it."""

import re
from pathlib import Path

import yaml
from matplotlib.transforms import Bbox

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import read_text, write_text
from mfulab.lab.report import figures, frames, trust
from mfulab.lab.report.drawing import style

PIXELS, RATIO = 1920, 16 / 9  # of a slide: width, and width ÷ height
LETTERS, LINE = 120, 0.2  # of a line of the sentence: Latin letters, and inches
MISSING = "not_drawn.txt"  # figures without rows, and what the topics say of them


def chosen(topics: Path, which: str) -> dict[str, str]:
    """Figures that a text's topics name, in their order, each with the state of its first topic."""
    texts = {name.lower(): items for name, items in yaml.safe_load(read_text(topics)).items()}
    if which not in texts:
        raise ConfigurationError(f"text={which}: unknown. Choices: {', '.join(texts)}.")
    named = [(name, item["state"]) for item in texts[which] for name in re.findall(r"`(\w+)`", item["where"])]
    states: dict[str, str] = {}
    for name, state in named:
        states.setdefault(name, state)
    return {name: state for name, state in states.items() if name in figures.modules()}


def save(which: str, topics: Path, tables: Path, out: Path, language: str) -> None:
    """Writes `01_NAME.png` and `.pdf` and so on into `out`, and the names of figures without rows. Raises
    ConfigurationError for a text that `topics` does not have."""
    names, drawn = chosen(topics, which), 0
    read = trust.judged(frames.read(tables)[0])
    missing = []
    for name, state in names.items():
        if (made := figures.render(name, read, language)) is None:
            missing.append(f"{name}: no rows ({state.partition(': ')[2] or 'another recording has them'})\n")
            continue
        drawn += 1
        write(made, out / f"{drawn:02}_{name}")
    write_text(out / MISSING, "".join(missing))


def write(drawn: figures.Drawn, path: Path) -> None:
    """Writes a slide as PNG, 1920 × 1080, and as PDF; `path` is without its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (width, height) = drawn.figure, drawn.figure.get_size_inches()
    words = style.wrapped(drawn.finding, LETTERS)
    high = max(height + LINE * (2 + words.count("\n")) + 0.15, width / RATIO)
    with style.theme():
        figure.text(0.015, -0.05 / height, words, ha="left", va="top", fontsize=11, parse_math=False)
    next(text for text in figure.texts if text.get_gid() == "provenance").set_y(1 + (0.07 - high) / height)
    page = Bbox.from_bounds((width - high * RATIO) / 2, height - high, high * RATIO, high)
    with style.theme():
        figure.savefig(path.with_suffix(".png"), bbox_inches=page, dpi=PIXELS / page.width, metadata={"Software": None})
        figure.savefig(path.with_suffix(".pdf"), bbox_inches=page, metadata={"CreationDate": None})
