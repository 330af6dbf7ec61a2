"""The figures: one module each, found by being here. A module has `TOPIC`, one of TOPICS, its place there, `ORDER`, and
three functions. `rows(tables)` selects what is drawn; without rows there is no figure. `finding(rows, text)` is one
sentence whose numbers come from those rows. `draw(rows, figure, text)` draws them and returns the entries of the
legend, to which one for hollow marks is added. Its words stand in the catalogues under the module's name."""

import gc
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from mfulab.core.files import write_text
from mfulab.core.language import Texts
from mfulab.lab.planning.naming import SNAKEMAKE
from mfulab.lab.report import frames, trust
from mfulab.lab.report.drawing import labels, runs, style
from mfulab.lab.report.frames import DataFrame
from mfulab.lab.runtime.client import SOCKET
from mfulab.lab.runtime.forked import drawing_cores, in_processes

TOPICS = (
    *("headline", "why", "ladder", "batch_size", "training", "precision", "execution", "roofline", "kernels"),
    *("memory", "flops", "energy", "series", "trust", "published"),
)
FEW_CORES = 4  # below which drawing ahead gains nothing
FAILED, LONGEST = "failed", 300  # the mark of a figure that could not be drawn; characters of its reason
# Not `Figure.savefig`, which draws twice what it writes. Dates and versions would make each file a new one.
WRITERS: dict[str, Callable[[Figure, Path], object]] = {
    "svg": lambda figure, path: write_text(path, runs.svg(figure)),
    "png": lambda figure, path: FigureCanvasAgg(figure).print_png(path, metadata={"Software": None}),
    "pdf": lambda figure, path: FigureCanvasPdf(figure).print_pdf(path, metadata={"CreationDate": None}),
}
VALUE = re.compile(r"[<≥≤−+-]?\s*\d")  # how a text in a panel begins that is a value, not a name


@dataclass(frozen=True)
class Drawn:
    """One figure that has data: its name, its words, and the matplotlib figure."""

    name: str
    title: str
    finding: str
    figure: Figure


@cache
def modules() -> dict[str, ModuleType]:
    """Every figure's module by name, in the page's order: by topic, then by its ORDER within it, then by name."""
    loaded = {info.name: import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)}
    order = sorted(loaded, key=lambda name: (TOPICS.index(loaded[name].TOPIC), getattr(loaded[name], "ORDER", 9), name))
    return {name: loaded[name] for name in order}


def render(name: str, tables: frames.Tables, language: str = "en", rows: DataFrame | None = None) -> Drawn | None:
    """Draws one figure; None if the tables hold nothing for it. `rows` are what it draws, if they are known already."""
    module, text = modules()[name], Texts(language, name)
    rows = frames.in_words(module.rows(tables) if rows is None else rows, text)
    if rows.empty:
        return None
    rows = trust.with_doubts(rows)
    with style.theme():
        figure = style.blank(text("title"), style.provenance(rows))
        entries = module.draw(rows, figure, text)
        if not figure.legends:
            style.legend(figure, [*(entries or ()), *runs.key(figure, text)])
        labels.settle(figure)
        figure.set_layout_engine("none")  # the layout is final: saving must not repeat it
        for axes in figure.axes:  # the layout's solver is not exact: the same data would give other last digits
            if axes.get_axes_locator() is None:
                axes.set_position(Bbox(axes.get_position().get_points().round(6)))
            axes.set_gid("panel")
            for words in (child for child in axes.get_children() if isinstance(child, Text)):
                beside = "value" if VALUE.match(words.get_text()) else "text"
                words.set_gid(beside if words in axes.texts else "heading")
    return Drawn(name, text("title"), finding(module, rows, text), figure)


def failed(name: str, error: Exception, language: str = "en") -> Drawn:
    """The figure that stands for one whose drawing raised, and says why; the page takes it for none."""
    traceback.print_exception(error)
    text, says = Texts(language, name), unmade(name, error, language)
    with style.theme():
        figure = style.blank(text("title"), "")
        lines = textwrap.fill(says, 80)
        figure.text(0.5, 0.5, lines, ha="center", va="center", color=style.INK, parse_math=False, gid=FAILED)
    return Drawn(name, text("title"), says, figure)


def unmade(name: str, error: Exception, language: str) -> str:
    """Sentence on a figure that cannot be drawn, with what its code raised."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    text = Texts(language, "page")
    return text("figure_failed", title=Texts(language, name)("title"), name=name, said=reason)


def has_data(name: str, tables: frames.Tables) -> bool:
    """True if the tables hold something for a figure, or something that its code cannot read, which the page says."""
    try:
        return not modules()[name].rows(tables).empty
    except Exception:
        return True


def finding(module: ModuleType, rows: DataFrame, text: Texts) -> str:
    """Tells a figure's sentence, of rows measured here, if any, that can be right; a recorded machine is named."""
    own = frames.own(rows)
    sentence = module.finding(frames.preferred(own, ~trust.impossible(own)), text)
    machine = own["machine"].iloc[0] if "machine" in own and own["machine"].nunique() == 1 else ""
    return f"{machine}: {sentence}" if own["recorded"].all() and machine and machine not in sentence else sentence


def reading(rows: DataFrame, text: Texts) -> str:
    """Says how to read a figure, and how many of its runs its sentence leaves out."""
    own = trust.impossible(frames.own(rows))
    left_out = text("contradict", count=int(own.sum())) if own.any() and not own.all() else ""
    return f"{text('reading')} {left_out}".rstrip()


def save(drawn: Drawn, path: Path) -> None:
    """Writes the figure in the format that the path's ending names; the same data gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.figure.set_dpi(style.DPI)
    with style.theme():
        WRITERS[path.suffix[1:]](drawn.figure, path)


def command(name: str, experiments: Sequence[str] = (), language: str = "en") -> str:
    """Command that makes the figure anew, in the project's folder."""
    chosen = [f"experiment={','.join(experiments)}"] if experiments else []
    chosen += [f"overrides=report.language={language}"] if language != "en" else []
    return " ".join([f"{SNAKEMAKE} --cores 1 reports/figures/{name}.svg", *(["--config"] if chosen else []), *chosen])


def draw(
    tables: Path, out: Path, only: Sequence[str], formats: Sequence[str], language: str, listed: Path | None
) -> int:
    """Draws the figures of the folder `tables` into `out`, or lists those with data in `listed`, drawn ahead."""
    worker = os.environ.get(SOCKET)
    ahead = Path(worker).parent / f"figures-{language}" if worker else None  # gone with the sweep, and with its code
    due = [] if listed else [name for name in only or modules() if not _place(name, ahead, out, formats)]
    if not listed and not due:
        return 0
    gc.freeze()  # drawing makes much that is collected, which need not look through all imports each time
    read, problems = frames.read(tables)
    judged = trust.judged(read)
    if listed:  # and drawn, for jobs that would draw them one after the other
        draws = ahead if drawing_cores() >= FEW_CORES else None

        def is_shown(name: str) -> bool:
            return has_data(name, read) and (draws is None or _draw(name, judged, draws, formats, language) or True)

        names = [name for name, shown in zip(modules(), in_processes(is_shown, [*modules()]), strict=True) if shown]
        write_text(listed, "".join(f"{name}\n" for name in names))
        return 0
    for name in due:
        if not _draw(name, judged, out, formats, language) and only:
            why = "; ".join(problems) or f"{tables}/ holds nothing to draw"
            again = "Tables are made anew by: snakemake --cores 1 report --forcerun tables"
            print(f"{name}: {why}. {again}", file=sys.stderr)
            return 1
    return 0


def _draw(name: str, tables: frames.Tables, out: Path, formats: Sequence[str], language: str) -> bool:
    """Draws one figure into `out`, of judged tables; false where they hold nothing for it."""
    try:
        drawn = render(name, tables, language)
    except Exception as error:
        drawn = failed(name, error, language)
    for path in (out / f"{name}.{kind}" for kind in formats):
        path.unlink(missing_ok=True)  # a figure whose data are gone must not stay
        if drawn is not None:
            save(drawn, path)
    return drawn is not None


def _place(name: str, ahead: Path | None, out: Path, formats: Sequence[str]) -> bool:
    """Moves a figure that was drawn ahead into `out`; false where it was not."""
    paths = [ahead / f"{name}.{kind}" for kind in formats] if ahead else []
    if not paths or not all(path.exists() for path in paths):
        return False
    out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.move(path, out / path.name)
    return True
