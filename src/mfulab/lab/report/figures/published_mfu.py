"""MFU of public training runs over the number of accelerators, one panel for each model, with one's
own runs."""

import textwrap
from collections.abc import Sequence

import pandas as pd

from mfulab.core.formats import FORMATS
from mfulab.lab.report import selection, trust
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, style
from mfulab.lab.report.frames import DataFrame, Tables, ok

TOPIC = "published"
ORDER = 1
REASONS = ()  # MFU above 100 % is no fault here: the run used a faster format
MOST_MODELS = 4  # each with a panel
FULL = 100.0
FAMILIES = {
    "8.0": "Ampere",
    "9.0": "Hopper",
    "10.0": "Blackwell",
    "10.3": "Blackwell Ultra",
    "gfx942": "CDNA 3",
    "gfx950": "CDNA 4",
}
OWN = "own"
SIXTEEN_BITS = [form.name for form in FORMATS.values() if form.bits == 16]


def rows(tables: Tables) -> DataFrame:
    """Selects public runs of the models with most of them, and training steps of the same models
    measured here in 16 bits. Of public runs of one kind and number of accelerators the best is
    drawn, of those above the 16-bit peak, too."""
    public = ok(tables["published"], "mfu_bf16_percent", "accelerators")
    # Models on the most devices; those with several sizes of machine are preferred.
    ranked = selection.pick(public, "little_scaled")
    ranked = ranked.groupby("model")["accelerators"].agg(["max", "size"])
    ranked = ranked.sort_values(["max", "size"], ascending=False)
    models = list(ranked.index[:MOST_MODELS])
    public = public[public["model"].isin(models)]
    public = public.assign(
        family=public["architecture"].replace(FAMILIES),
        doubtful=False,
        is_above=public["mfu_bf16_percent"] > FULL,
    )
    best_first = public.sort_values("mfu_bf16_percent", ascending=False, kind="stable")
    together = best_first.drop_duplicates(["model", "accelerator", "accelerators", "is_above"])
    own = _own(tables, models)
    if len(own):
        together = pd.concat([together, own.reindex(columns=together.columns)])
    together = together.assign(place=together["model"].map(models.index))
    return together.sort_values(["place", "accelerators"])


def _own(tables: Tables, models: Sequence[str]) -> DataFrame:
    """Training steps of the models measured here. MFU is relative to the peak of the format used,
    so only those in 16 bits are comparable with public ones."""
    steps = trust.with_doubts(ok(tables["profile"], "mfu_percent"))
    steps = steps[steps["model"].isin(models) & (steps["mode"] == "training")]
    steps = steps[steps["effective_precision"].isin(SIXTEEN_BITS)]
    devices = steps["devices"].fillna(steps["processes"]).fillna(1)
    return steps.assign(
        family=OWN,
        accelerators=devices.round().clip(lower=1),
        mfu_bf16_percent=steps["mfu_percent"],
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the largest fall from few to many devices of one kind, and on how many runs
    exceed the 16-bit peak."""
    public = rows[rows["family"] != OWN]
    above = int((public["mfu_bf16_percent"] > FULL).sum())
    key = "none_above"
    if above:
        key = "above"
    words = text(key, above=above, count=len(public))
    falls = _falls(public[public["mfu_bf16_percent"] <= FULL])  # probably in 16 bits
    if len(falls):
        return f"{text('finding', **falls.iloc[0])} {words}"
    return words


def _falls(public: DataFrame) -> DataFrame:
    """Falls of each model's best MFU from the fewest accelerators of a kind to the most, the
    largest first."""
    keys = ["model", "accelerator"]
    best = public.groupby([*keys, "accelerators"])["mfu_bf16_percent"].max().reset_index()
    few = best.drop_duplicates(keys, keep="first")
    many = best.drop_duplicates(keys, keep="last")
    falls = few.merge(many, on=keys, suffixes=("_few", "_many"))
    falls = falls.assign(ratio=falls["mfu_bf16_percent_many"] / falls["mfu_bf16_percent_few"])
    falls = falls[(falls["accelerators_few"] < falls["accelerators_many"]) & (falls["ratio"] < 1)]
    return falls.sort_values(["ratio", *keys])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a point for each run. The dashed line is the 16-bit peak, above which matmuls used a
    faster format."""
    families = [*dict.fromkeys([*FAMILIES.values(), *rows["family"]])]
    public = [name for name in families if name != OWN and rows["family"].eq(name).any()]
    colors = style.colors(public) | {OWN: style.INK}
    markers = {OWN: "*"}
    for index, name in enumerate(public):
        markers[name] = style.MARKERS[index % 7]
    look = style.hued("family", colors, markers) | {"alpha": 0.75}
    panels = style.facets(
        figure,
        rows,
        "model",
        MOST_MODELS,
        x=text("accelerators"),
        y=text("mfu_of_16_bits"),
        sharey=True,
    )
    for axes, here in panels:
        axes.axhline(FULL, **style.LIMIT)
        sizes = here["family"].eq(OWN).map({True: 190, False: 46})
        kinds.points(axes, here, "accelerators", "mfu_bf16_percent", s=sizes, **look)
        below = here[(here["mfu_bf16_percent"] <= FULL) & (here["family"] != OWN)]
        for _, alike in below.groupby("accelerator", sort=False):
            color = colors[alike["family"].iloc[0]]
            axes.plot(alike["accelerators"], alike["mfu_bf16_percent"], color=color, linewidth=1)
        axes.set_xscale("log", base=2)
        counts = sorted(set(here["accelerators"].astype(int)))
        if len(counts) > 4:
            counts = [counts[0], counts[len(counts) // 2], counts[-1]]
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set_ylim(0, 1.06 * max(FULL, rows["mfu_bf16_percent"].max()))
    _attribute(figure, text("derived"))
    entries = [style.dot(colors[family], family, markers[family]) for family in public]
    if rows["family"].eq(OWN).any():
        entries.append(style.dot(style.INK, text("you_are_here"), "*"))
    return entries


def _attribute(figure: Figure, derived: str) -> None:
    """Writes the attribution that MLPerf's rules require to the right of the provenance."""
    provenance = next(words for words in figure.texts if words.get_gid() == "provenance")
    room = style.LETTERS - style.letters(derived)
    provenance.set_text(textwrap.shorten(provenance.get_text(), room, placeholder=" …"))
    figure.text(
        0.985,
        0.07 / figure.get_figheight(),
        derived,
        gid="provenance",
        ha="right",
        fontsize=9,
        color=style.MUTED,
    )
