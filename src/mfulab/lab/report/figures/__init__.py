"""The figures: one module each in this folder, found without a list.

A module has `TOPIC`, one of TOPICS, its position there, `ORDER`, and three functions.
`rows(tables)` selects what is drawn; without rows there is no figure. `finding(rows, text)` returns
sentences whose numbers come from those rows. `draw(rows, figure, text)` draws them and returns the
legend entries, to which one for hollow marks is added. Texts are in the catalogues, in a section
named after the module.
"""

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

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from mfulab.core.files import write_text
from mfulab.core.language import Texts
from mfulab.core.parts import pick_all
from mfulab.core.printing import say
from mfulab.core.terminal_language import terminal_texts
from mfulab.core.terminal_language import usual_language as usual_language
from mfulab.lab.planning.naming import SNAKEMAKE, in_language
from mfulab.lab.report import claims, frames, selection, trust
from mfulab.lab.report.drawing import labels, runs, style
from mfulab.lab.report.frames import DataFrame
from mfulab.lab.runtime.client import SOCKET
from mfulab.lab.runtime.forked import in_processes

TOPICS = (
    *(
        "headline",
        "why",
        "ladder",
        "batch_size",
        "training",
        "precision",
        "execution",
        "roofline",
        "kernels",
    ),
    *("memory", "flops", "energy", "series", "trust", "published"),
)
FEW_CORES = 4  # below which a process for each drawn figure of the page gains nothing
FAILED = "failed"
LONGEST = 300  # the mark of a figure that could not be drawn; characters of its reason
# Not `Figure.savefig`, which draws twice what it writes. Dates and versions would make each file a
# new one.
WRITERS: dict[str, Callable[[Figure, Path], object]] = {
    "svg": lambda figure, path: write_text(path, runs.svg(figure)),
    "png": lambda figure, path: FigureCanvasAgg(figure).print_png(
        path, metadata={"Software": None}
    ),
    "pdf": lambda figure, path: FigureCanvasPdf(figure).print_pdf(
        path, metadata={"CreationDate": None}
    ),
}
ENDS = {"left": "-start", "right": "-end"}  # of a text: what stands at its place, else its middle
VALUE = re.compile(r"[<≥≤−+-]?\s*\d")  # how a text in a panel begins that is a value, not a name


@dataclass(frozen=True)
class Drawn:
    """A drawn figure with its name, title and finding."""

    name: str
    title: str
    finding: str
    figure: Figure


@cache
def modules() -> dict[str, ModuleType]:
    """All figures' modules by name, in the page's order: by topic, then ORDER, then name."""
    loaded = {
        info.name: import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)
    }
    order = sorted(
        loaded,
        key=lambda name: (
            TOPICS.index(loaded[name].TOPIC),
            getattr(loaded[name], "ORDER", 9),
            name,
        ),
    )
    return pick_all(loaded, order)


def render(
    name: str,
    tables: frames.Tables,
    language: str = "en",
    rows: DataFrame | None = None,
    for_slide: bool = False,
) -> Drawn | None:
    """Draws one figure; None if the tables have nothing for it. `rows` are selected from the tables
    unless given. If `for_slide`, the figure leaves room for its sentence and uses large letters."""
    module = modules()[name]
    text = Texts(language, name)
    if rows is None:
        rows = selection.drawable(module, tables)
    rows = claims.turns(module, frames.in_words(rows, text))
    sentence = ""
    if not rows.empty:
        sentence = finding(module, rows, text)
    if not sentence:
        return None
    with style.theme():
        figure = style.blank(text("title"), style.provenance(rows, text))
        entries = module.draw(rows, figure, text)
        if not figure.legends:
            style.legend(figure, [*(entries or ()), *runs.key(figure, text)])
        if for_slide:
            style.for_slide(figure)
        labels.settle(figure)
        figure.set_layout_engine("none")  # the layout is final: saving must not repeat it
        for axes in figure.axes:
            _finish(axes)
    return Drawn(name, text("title"), sentence, figure)


def _finish(axes: Axes) -> None:
    """Rounds a panel's position, and marks it and its texts for the page's script."""
    # The layout's solver is not exact: the same data would give other last digits.
    if axes.get_axes_locator() is None:
        axes.set_position(Bbox(axes.get_position().get_points().round(6)))
    axes.set_gid("panel")
    for words in axes.get_children():
        if not isinstance(words, Text):
            continue
        if words not in axes.texts:
            words.set_gid("heading")
            continue
        kind = "text"
        if VALUE.match(words.get_text()):
            kind = "value"
        words.set_gid(kind + ENDS.get(words.get_ha(), ""))


def failed(name: str, error: Exception, language: str = "en") -> Drawn:
    """Returns a figure with an error message, in place of one whose drawing raised, and prints the
    traceback. The page ignores it."""
    say(
        "".join(traceback.format_exception(error)),
        end="",
        file=sys.stderr,
    )
    text = Texts(language, name)
    says = unmade(name, error, language)
    with style.theme():
        figure = style.blank(text("title"), "")
        lines = textwrap.fill(says, 80)
        figure.text(
            0.5, 0.5, lines, ha="center", va="center", color=style.INK, parse_math=False, gid=FAILED
        )
    return Drawn(name, text("title"), says, figure)


def unmade(name: str, error: Exception, language: str) -> str:
    """Sentence that a figure cannot be drawn, with the exception that its code raised."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    text = Texts(language, "page")
    return text(
        "figure_failed",
        title=Texts(language, name)("title"),
        name=name,
        said=reason,
    )


def page_rows(tables: frames.Tables) -> dict[str, DataFrame | None]:
    """Rows of the page's figures by name. None for MANY rows, to save memory, and if the figure's
    code raised. Such rows are selected again when the figure is drawn."""
    rows = {}
    broken = set()
    for name, module in modules().items():
        try:
            drawn = selection.drawable(module, tables)
            if len(drawn) and finding(module, drawn, Texts(section=name)):
                rows[name] = drawn
        except Exception:
            broken.add(name)
    shown = broken.union(selection.of_page(rows, tables))
    kept = {name: drawn for name, drawn in rows.items() if len(drawn) < frames.MANY}
    found = {}
    for name in modules():
        if name in shown:
            found[name] = kept.get(name)
    return found


def reading(module: ModuleType, rows: DataFrame, text: Texts) -> str:
    """Explains how to read a figure of these rows."""
    if hasattr(module, "reading"):
        return str(module.reading(rows, text))
    return text("reading")


def finding(module: ModuleType, rows: DataFrame, text: Texts) -> str:
    """Returns a figure's sentence about the selected rows. It has no numbers if it compares rows of
    which none is trusted. The machine is named if it is recorded or one of several."""
    chosen = selection.of_module(module, rows)
    selected = chosen.told
    if claims.compares(module) and len(selected) and trust.unsure(selected).all():
        return text("only_unsure")
    sentence = module.finding(selected, text)
    if sentence:
        sentence = " ".join([sentence, *selection.synthetic_words(chosen, text)])
    if not sentence or "machine" not in selected or selected["machine"].nunique() != 1:
        return sentence
    machine = selected["machine"].iloc[0]
    is_one_of_several = rows["machine"].nunique() > 1
    if (selected["recorded"].all() or is_one_of_several) and machine not in sentence:
        return f"{machine}: {sentence}"
    return sentence


def left_out(name: str, rows: DataFrame, text: Texts) -> str:
    """Text on the drawn runs that a figure's sentence leaves out; empty if it is about all."""
    module = modules()[name]
    chosen = selection.of_module(module, rows)
    named = 0
    if hasattr(module, "named_in_doubt"):
        named = module.named_in_doubt(chosen.told)
    return selection.left_out_words(chosen, text, named)


def selected(name: str, rows: DataFrame, text: Texts) -> str:
    """Sentence under a figure, such as the rule by which its rows are drawn; empty if it has none."""
    module = modules()[name]
    if hasattr(module, "selected"):
        return str(module.selected(rows, text))
    return ""


def save(drawn: Drawn, path: Path) -> None:
    """Writes the figure in the format of the path's suffix. The same data give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.figure.set_dpi(style.DPI)
    with style.theme():
        WRITERS[path.suffix[1:]](drawn.figure, path)


def command(name: str, experiments: Sequence[str] = (), language: str = "en") -> str:
    """Command that draws the figure anew, in the project's folder."""
    chosen = ""
    if experiments:
        chosen = f" --config experiment={','.join(experiments)}"
    return in_language(f"{SNAKEMAKE} --cores 1 reports/figures/{name}.svg{chosen}", language)


def draw(
    tables: Path,
    out: Path,
    only: Sequence[str],
    formats: Sequence[str],
    language: str,
    listed: Path | None,
) -> int:
    """Draws figures of the tables in `tables` into `out`. If `listed` is given, lists the figures
    with data there instead, and draws them ahead. Returns the exit status: 1 if a requested figure
    has no data."""
    worker = os.environ.get(SOCKET)
    # gone with the sweep, and with its code
    ahead = None
    if worker:
        ahead = Path(worker).parent / f"figures-{language}"
    due: list[str] = []
    if not listed:
        due = []
        for name in only or modules():
            if not _place(name, ahead, out, formats):
                due.append(name)
        if not due:
            return 0
    # drawing makes much that is collected, which need not look through all imports each time
    gc.freeze()
    read, problems = frames.read(tables)
    judged = trust.judged(read)
    if listed:
        _list(listed, judged, ahead, formats, language)
    for name in due:
        if not _draw(name, judged, out, formats, language) and only:
            text = terminal_texts("sweep")
            why = "; ".join(problem.in_words() for problem in problems)
            why = why or text("nothing_to_draw", folder=tables)
            words = text("not_drawn", figure=name, why=why)
            say(words, file=sys.stderr)
            return 1
    return 0


def _list(
    listed: Path, judged: frames.Tables, ahead: Path | None, formats: Sequence[str], language: str
) -> None:
    """Lists the figures with data, and draws them ahead, so that jobs need not each read all
    tables."""
    rows = page_rows(judged)
    if ahead:

        def draw_ahead(name: str) -> None:
            _draw(name, judged, ahead, formats, language, rows[name])

        in_processes(draw_ahead, list(rows))
    write_text(listed, "".join(f"{name}\n" for name in rows))


def _draw(
    name: str,
    tables: frames.Tables,
    out: Path,
    formats: Sequence[str],
    language: str,
    rows: DataFrame | None = None,
) -> bool:
    """Draws one figure into `out`, from judged tables or given `rows`. Returns False if there is
    nothing to draw."""
    try:
        drawn = render(name, tables, language, rows)
    except Exception as error:
        drawn = failed(name, error, language)
    for path in (out / f"{name}.{kind}" for kind in formats):
        path.unlink(missing_ok=True)  # a figure whose data are gone must not stay
        if drawn is not None:
            save(drawn, path)
    return drawn is not None


def _place(name: str, ahead: Path | None, out: Path, formats: Sequence[str]) -> bool:
    """Moves a figure that was drawn ahead into `out`. Returns False if there is none."""
    paths = []
    if ahead:
        paths = [ahead / f"{name}.{kind}" for kind in formats]
    if not paths or not all(path.exists() for path in paths):
        return False
    out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.move(path, out / path.name)
    return True
