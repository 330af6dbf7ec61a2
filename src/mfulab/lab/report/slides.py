"""Draws the figures of one text of the seminar as slides, in a folder for each device. Each is a
16:9 PNG with its answer in at most three lines; a PDF holds all."""

import re
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.transforms import Bbox
from pandas import DataFrame

from mfulab.core.errors import unknown
from mfulab.core.files import write_text
from mfulab.core.parts import leave_out
from mfulab.lab.report import figures, frames, selection, topics, trust
from mfulab.lab.report.drawing import style

PIXELS = 1920
WIDTH, HEIGHT = style.SIZE  # inches of a slide
LETTERS = 98  # Latin letters of a line of the sentence
LINES = 3
FURTHER_LINES = 2  # lines that a sentence may fill together with those before it
SENTENCE = 13  # font size in points
DECK = "slides.pdf"  # all slides of a device, a page each
MISSING = "not_drawn.txt"  # figures without rows or answer, and why
FEWEST = 2  # rows that a figure compares
UNSOUND = ("contradict", "doubtful")  # reasons of `selection` for which slides leave rows out
# Models of each text, which its slides prefer to others.
PLAIN_AND_CHEAPER = ("plain", "pooled", "repeatedly_pooled", "separable", "pruned")
OWN_MODELS = {
    "lab": ["simple_cnn"],
    "optimise": [f"{kind}_cnn" for kind in PLAIN_AND_CHEAPER],
}
WITHOUT_DEVICE = ("flops", "counters", "formats", "published")  # tables


def chosen(listed: Path, which: str) -> dict[str, str]:
    """Returns the figures named by a text's topics, in order. Each value is the reason why it may
    have no rows, from its first topic."""
    items = topics.read(listed)
    texts = dict.fromkeys(item.text.lower() for item in items)
    if which not in texts:
        raise unknown("text", which, texts)
    reasons: dict[str, str] = {}
    for item in items:
        if item.text.lower() == which:
            for name in re.findall(r"`(\w+)`", item.where) + item.shown.split():
                reasons.setdefault(name, item.reason)
    known = figures.modules()
    found = {}
    for name, reason in reasons.items():
        if name in known:
            found[name] = reason
    return found


def save(which: str, topics: Path, tables: Path, out: Path, language: str) -> None:
    """Writes `DEVICE/01_NAME.png` and so on, and `DEVICE/slides.pdf`, to `out`. CPUs get only what
    no GPU has. Raises ConfigurationError for a text that `topics` does not have."""
    names = chosen(topics, which)
    read = trust.judged(frames.read(tables)[0])
    own_models = OWN_MODELS.get(which, [])
    gpus, cpus = shown_devices(read)
    drawn: set[str] = set()
    with_own_models: set[str] = set()
    for device in gpus:
        shown = _draw(
            names,
            only(read, device),
            own_models,
            out / device,
            language,
        )
        drawn.update(shown)
        with_own_models.update(name for name, is_own in shown.items() if is_own)
    remaining = leave_out(names, with_own_models)
    for device in cpus:
        _draw(
            remaining,
            only(read, device),
            own_models,
            out / device,
            language,
            drawn,
        )


def shown_devices(tables: frames.Tables) -> tuple[list[str], list[str]]:
    """Returns the GPUs and the CPUs with steps or matmuls. Each gets a folder."""
    measured: set[str] = set()
    for table in ("profile", "matmul"):
        measured |= set(tables[table]["hardware"])
    machines = tables["environment"].drop_duplicates("hardware")
    machines = machines[machines["hardware"].isin(measured)]
    is_cpu = machines["device"] == "cpu"
    return sorted(machines.loc[~is_cpu, "hardware"]), sorted(machines.loc[is_cpu, "hardware"])


def only(tables: frames.Tables, device: str) -> frames.Tables:
    """Returns the rows of one device, and all rows of tables without devices."""
    kept = {}
    for name, rows in tables.items():
        if "hardware" in rows and name not in WITHOUT_DEVICE:
            rows = rows[rows["hardware"] == device]
        kept[name] = rows
    return kept


def of_models(tables: frames.Tables, models: Collection[str]) -> frames.Tables:
    """Keeps only rows of the given models in each table that has any; other tables stay whole."""
    kept = {}
    for name, rows in tables.items():
        if has_model(rows, models):
            rows = rows[rows["model"].isin(models)]
        kept[name] = rows
    return kept


def has_model(rows: DataFrame, models: Collection[str]) -> bool:
    """True if a row is of one of the models."""
    return "model" in rows and bool(rows["model"].isin(models).any())


def rows_of(
    module: ModuleType, tables: frames.Tables, own_models: Collection[str] = ()
) -> DataFrame:
    """Returns the rows that a figure shows on a slide. The text's own models are preferred, and
    rows without doubt. Empty if only synthetic loads are left, unless the figure is about them."""
    rows = selection.drawable(module, of_models(tables, own_models))
    if len(rows) < FEWEST:
        rows = selection.drawable(module, tables)
    reasons = selection.reasons_of(module)
    if "synthetic" in reasons and len(rows) and selection.is_synthetic(rows).all():
        return rows.iloc[:0]
    sound = selection.select(rows, [reason for reason in UNSOUND if reason in reasons]).told
    if len(sound) >= FEWEST:
        return sound
    return rows


def _draw(
    names: dict[str, str],
    tables: frames.Tables,
    own_models: Collection[str],
    out: Path,
    language: str,
    known: Collection[str] = (),
) -> dict[str, bool]:
    """Draws the figures for which one device has rows. Figures already `known` from other devices
    are drawn only for the text's own models. Returns the figures drawn, and whether each shows own
    models."""
    out.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, bool] = {}
    missing = []
    with PdfPages(out / DECK, metadata={"CreationDate": None}) as deck:
        for name, reason in names.items():
            rows = rows_of(figures.modules()[name], tables, own_models)
            is_own = has_model(rows, own_models)
            if name in known and not is_own:
                continue
            if len(rows) < FEWEST:
                missing.append(f"{name}: {reason or 'no two rows of this device to compare'}\n")
                continue
            made = figures.render(name, tables, language, rows, for_slide=True)
            answer = sentence(made.finding) if made else ""
            if made is None or not answer:
                missing.append(f"{name}: no answer\n")
                continue
            drawn[name] = is_own
            write(made, answer, out / f"{len(drawn):02}_{name}.png", deck)
    write_text(out / MISSING, "".join(missing))
    return drawn


def sentence(finding: str) -> str:
    """Wraps a finding for a slide: its first sentence, and further ones that fit. A first sentence
    that is too long is cut."""
    if not finding:
        return ""
    kept = ""
    for part in re.split(r"(?<=[.!?。])\s+", finding):
        longer = f"{kept} {part}".strip()
        most = FURTHER_LINES if kept else LINES
        if style.wrapped(longer, LETTERS).count("\n") >= most:
            break
        kept = longer
    if kept:
        return style.wrapped(kept, LETTERS)
    lines = style.wrapped(finding, LETTERS).splitlines()[:LINES]
    return "\n".join(lines).rstrip(" ,;:") + " …"


def write(drawn: figures.Drawn, answer: str, path: Path, deck: PdfPages) -> None:
    """Writes a slide as a PNG of 1920 × 1080 pixels, and as a page of the PDF."""
    figure = drawn.figure
    height = figure.get_figheight()
    provenance = next(text for text in figure.texts if text.get_gid() == "provenance")
    provenance.set_visible(False)
    page = Bbox.from_bounds(0, height - HEIGHT, WIDTH, HEIGHT)
    with style.theme():
        style_of_text = {"ha": "left", "va": "top", "fontsize": SENTENCE, "parse_math": False}
        figure.text(0.015, 0.0, answer, **style_of_text)
        options = {"bbox_inches": page, "dpi": PIXELS / WIDTH}
        figure.savefig(path, **options, metadata={"Software": None})
        deck.savefig(figure, **options)
