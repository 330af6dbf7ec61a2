"""Declarations of common figures: which columns place, colour and name marks, and which panels
there are. Calling a declaration draws its figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from matplotlib.axes import Axes

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, labels, style
from mfulab.lab.report.frames import DataFrame, Series

Colors: TypeAlias = Mapping[Any, str]
MANY_DOTS: style.Look = {
    "alpha": 0.75,
    "s": 36,
    "edgecolor": style.PAPER,
    "linewidth": 0.5,
}
ROOM = 1.3  # length of an x axis ÷ longest bar; labels after the bars need the rest


def unchanged(rows: DataFrame, text: Texts) -> DataFrame:
    """Default of `dressed`: returns the rows, which have all columns needed."""
    return rows


def untitled(here: DataFrame, text: Texts) -> str:
    """Default of `titled`: no words after a machine's name."""
    return ""


def untouched(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Default of `finished`: leaves a panel as it is."""


def no_entries(rows: DataFrame, text: Texts) -> Legend:
    """Default of `entries`: no legend entries besides those of the hues."""
    return []


def present(colors: Colors) -> Callable[[Series], Colors]:
    """Returns a function that selects those of the colours whose values occur in a column."""

    def kept(values: Series) -> Colors:
        distinct = set(values)
        found = {}
        for value, color in colors.items():
            if value in distinct:
                found[value] = color
        return found

    return kept


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Draws a mark for each row at its columns `x` and `y`. There is a panel for each machine and
    value of the column `facet`, if set. Labels are keys of texts, formatted with the first row."""

    x: str
    y: str
    told: Sequence[str] = ()  # further columns in a mark's tooltip
    x_label: str = ""
    y_label: str = ""
    facet: str = ""
    most: int = 3  # panels of the facet at most
    below: bool = False  # panels below each other, if labels at their right need the width
    hue: str = ""
    kind: str = ""  # of the hue's names in the catalogue; if empty, the figure's own texts
    colors: Callable[[Series], Colors] = style.colors
    markers: Callable[[Colors], Mapping[Any, str]] | None = None  # a shape for each hue
    marker: str = "o"  # in the legend, if hues have no shapes; a line if empty
    keyed: bool = True  # whether the legend has the hues
    reference: float | None = None  # x of a line that values are compared with
    dressed: Callable[[DataFrame, Texts], DataFrame] = unchanged  # adds columns of words
    titled: Callable[[DataFrame, Texts], str] = untitled  # words after a machine's name
    finished: Callable[[Axes, DataFrame, DataFrame, Texts], None] = untouched  # sets limits, ticks
    entries: Callable[[DataFrame, Texts], Legend] = no_entries  # further legend entries
    shared: Mapping[str, object] = field(default_factory=dict)  # options of panels
    look: Mapping[str, object] = field(default_factory=dict)  # options of marks

    def __call__(self, rows: DataFrame, figure: Figure, text: Texts) -> Legend:
        """Draws the rows and returns the legend entries."""
        rows = self.dressed(rows, text)
        palette: Colors = {}
        shapes: Mapping[Any, str] = {}
        look: style.Look = dict(self.look)
        if self.hue:
            palette = self.colors(rows[self.hue])
        if self.markers:
            shapes = self.markers(palette)
        if palette:
            look |= style.hued(self.hue, palette, shapes)
        for axes, here in self.panels(rows, figure, text):
            if self.reference is not None:
                axes.axvline(self.reference, **style.LIMIT)
            self.mark(axes, here, rows, look)
            self.finished(axes, here, rows, text)
        return self.legend(palette, shapes, text) + self.entries(rows, text)

    def panels(self, rows: DataFrame, figure: Figure, text: Texts) -> list[tuple[Axes, DataFrame]]:
        """Splits the rows into panels. Returns the axes of each with its rows."""
        machines = [""]
        if "machine" in rows:
            machines = style.machines(rows)
        if self.facet:
            across = min(self.most, rows[self.facet].nunique())
        elif self.below:
            across = 1
        else:
            across = len(machines)
        lines = self.lines(rows)
        shared: style.Look = {**self.shared, **self.labels(rows, across, text)}
        if "machine" in rows and not self.facet and not self.below:

            def titled(here: DataFrame) -> str:
                return self.titled(here, text)

            return style.by_machine(figure, rows, titled, lines=lines, **shared)
        if lines is not None:
            lines *= len(machines)
        if not self.facet:
            rows = rows.assign(panel="")
            return style.facets(figure, rows, "panel", 1, lines=lines, **shared)
        cases: dict[str, str] | int = self.most
        if self.facet == "mode":
            cases = style.modes(rows, text)
        return style.facets(
            figure,
            rows,
            self.facet,
            cases,
            lines=lines,
            **shared,
        )

    def labels(self, rows: DataFrame, across: int, text: Texts) -> dict[str, str]:
        """Labels of the axes of a figure with `across` panels beside each other."""
        first = rows.iloc[0]
        found = {}
        if self.x_label:
            words = text(self.x_label, row=first)
            found["x"] = style.wrapped(words, style.WIDTH // across)
        if self.y_label:
            words = text(self.y_label, row=first)
            found["y"] = style.wrapped(words, style.WIDTH)
        return found

    def lines(self, rows: DataFrame) -> int | None:
        """Number of lines that sets the figure's height; None for the default height."""
        return None

    def mark(self, axes: Axes, here: DataFrame, rows: DataFrame, look: style.Look) -> None:
        """Draws the marks of one panel, with rows `here`, of a figure of `rows`."""
        raise NotImplementedError

    def legend(self, palette: Colors, shapes: Mapping[Any, str], text: Texts) -> Legend:
        """Returns a legend entry for each hue."""
        if not self.keyed:
            return []
        if self.marker or shapes:
            return style.dots(palette, text, self.kind, shapes or self.marker)
        entries = []
        for value, color in palette.items():
            entries.append(style.line(color, text.name(self.kind, value)))
        return entries


@dataclass(frozen=True, kw_only=True)
class Bars(Spec):
    """Draws a bar for each row on the line of its name `y`, with length `x`."""

    marker: str = "s"
    words: str = ""  # column with the text after a bar
    pale: str = ""  # column that is False if a difference lies within the intervals
    room: float = ROOM
    height: float = 1  # lines for each name
    alike: bool = True  # whether all panels have the same names

    def lines(self, rows: DataFrame) -> int | None:
        """Number of lines in the panel with the most names."""
        if not self.height:
            return None
        count = rows[self.y].nunique()
        if not self.alike:
            count = rows[self.facet].value_counts().max()
        return round(self.height * count)

    def mark(self, axes: Axes, here: DataFrame, rows: DataFrame, look: style.Look) -> None:
        """Draws the bars of a panel."""
        order = None
        if self.alike:
            order = list(dict.fromkeys(rows[self.y]))
        look = look | {
            "order": order,
            "words": self.words,
            "beyond": self.reference or 0,
            "pale": self.pale,
        }
        kinds.bars(
            axes,
            here,
            self.x,
            self.y,
            *self.told,
            **look,
        )
        longest = max(here[self.x].max(), self.reference or 0)
        axes.set_xlim(0, self.room * longest)


@dataclass(frozen=True, kw_only=True)
class Dots(Spec):
    """Draws a dot for each row at its value `x`, on the line of its name `y`. Hues are separated on
    a line."""

    order: Callable[[DataFrame], Sequence[str]]  # names, the first below
    apart: float = 0.0
    small: float | None = None  # font size of the names

    def lines(self, rows: DataFrame) -> int | None:
        """Number of names."""
        return len(self.order(rows))

    def mark(self, axes: Axes, here: DataFrame, rows: DataFrame, look: style.Look) -> None:
        """Draws the dots of a panel."""
        order = self.order(rows)
        hues = list(reversed(look.get("palette", {})))
        size = {}
        if self.small:
            size = {"fontsize": self.small}
        here = here[here[self.y].isin(order)]
        heights = kinds.lanes(
            axes,
            here,
            self.y,
            order,
            self.hue,
            hues,
            self.apart,
            **size,
        )
        here = here.assign(place=heights)
        kinds.points(
            axes,
            here,
            self.x,
            "place",
            *self.told,
            **look,
        )


@dataclass(frozen=True, kw_only=True)
class Lines(Spec):
    """Draws a line for each distinct value of the columns `by`, with a point for each row, named at
    its end."""

    marker: str = ""
    by: Sequence[str] = ()
    named: str = ""  # column of the names

    def mark(self, axes: Axes, here: DataFrame, rows: DataFrame, look: style.Look) -> None:
        """Draws the lines of a panel."""
        kinds.lines(
            axes,
            here,
            self.x,
            self.y,
            *self.told,
            by=self.by,
            **look,
        )
        if not self.named:
            return
        last = here.groupby(
            [*self.by],
            sort=False,
            dropna=False,
        ).tail(1)
        inks = last[self.hue].map(look["palette"])
        labels.later(
            labels.at_line_ends,
            axes,
            last[self.x],
            last[self.y],
            last[self.named],
            inks,
        )


@dataclass(frozen=True, kw_only=True)
class Points(Spec):
    """Draws a point for each row, labelled by the column `named`."""

    named: str = ""

    def mark(self, axes: Axes, here: DataFrame, rows: DataFrame, look: style.Look) -> None:
        """Draws the points of a panel."""
        kinds.points(
            axes,
            here,
            self.x,
            self.y,
            *self.told,
            **look,
        )
        if self.named:
            places = here[[self.x, self.y, self.named]].itertuples(index=False, name=None)
            labels.later(labels.beside_points, axes, list(places))


def names(kind: str, values: Series, text: Texts) -> list[str]:
    """Names of values of a kind, such as `precision`."""
    return [text.name(kind, value) for value in values]


def shares(values: Series, text: Texts) -> list[str]:
    """Percentages as text; empty for missing ones."""
    return [text("share_of", share=value) if value == value else "" for value in values]
