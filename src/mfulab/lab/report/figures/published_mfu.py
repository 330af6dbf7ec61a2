"""MFU of public training runs over the number of accelerators, one panel for each model, with one's
own runs."""

import textwrap

import pandas as pd

from mfulab.core.formats import FORMATS
from mfulab.lab.report import selection, trust
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, style
from mfulab.lab.report.frames import DataFrame, Tables, ok

TOPIC = "published"
ORDER = 1
REASONS = ()  # MFU above 100 % is no fault here: the run used a faster format
MOST = 4  # panels
FULL = 100.0
FAMILIES = {"8.0": "Ampere", "9.0": "Hopper", "10.0": "Blackwell", "10.3": "Blackwell Ultra"}
FAMILIES |= {"gfx942": "CDNA 3", "gfx950": "CDNA 4"}
OWN = "own"
SIXTEEN_BITS = [form.name for form in FORMATS.values() if form.bits == 16]


def rows(tables: Tables) -> DataFrame:
    """Selects public runs of the models with most of them, and training steps of the same models
    measured here in 16 bits."""
    public = ok(tables["published"], "mfu_bf16_percent", "accelerators")
    # Models on the most devices; those with several sizes of machine are preferred.
    ranked = selection.pick(public, "little_scaled")
    ranked = ranked.groupby("model")["accelerators"].agg(["max", "size"])
    models = list(ranked.sort_values(["max", "size"], ascending=False).index[:MOST])
    public = public[public["model"].isin(models)]
    public = public.assign(family=public["architecture"].replace(FAMILIES), doubtful=False)
    # MFU is relative to the peak of the format used, so only 16-bit formats are comparable.
    mine = trust.with_doubts(ok(tables["profile"], "mfu_percent"))
    mine = mine[mine["model"].isin(models) & (mine["mode"] == "training")]
    mine = mine[mine["effective_precision"].isin(SIXTEEN_BITS)].assign(
        family=OWN,
        accelerators=lambda step: (
            step["devices"].fillna(step["processes"]).fillna(1).round().clip(lower=1)
        ),
        mfu_bf16_percent=lambda step: step["mfu_percent"],
    )
    together = pd.concat([public, mine.reindex(columns=public.columns)]) if len(mine) else public
    return together.assign(place=together["model"].map(models.index)).sort_values(
        ["place", "accelerators"]
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
    best = (
        public[public["mfu_bf16_percent"] <= FULL]  # probably in 16 bits
        .groupby(["model", "accelerator", "accelerators"])["mfu_bf16_percent"]
        .max()
        .reset_index()
    )
    ends = [best.groupby(["model", "accelerator"], as_index=False).nth(place) for place in (0, -1)]
    falls = ends[0].merge(ends[1], on=["model", "accelerator"], suffixes=("_few", "_many"))
    falls = falls.assign(ratio=falls["mfu_bf16_percent_many"] / falls["mfu_bf16_percent_few"])
    falls = falls.query("accelerators_few < accelerators_many and ratio < 1")
    falls = falls.sort_values(["ratio", "model", "accelerator"])
    if len(falls):
        return f"{text('finding', **falls.iloc[0])} {words}"
    return words


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a point for each run. The dashed line is the 16-bit peak, above which matmuls used a
    faster format."""
    present = set(rows["family"])
    public = []
    for name in dict.fromkeys([*FAMILIES.values(), *rows["family"]]):
        if name in present - {OWN}:
            public.append(name)
    colors = style.colors(public) | {OWN: style.INK}
    markers = {name: style.MARKERS[index % 7] for index, name in enumerate(public)} | {OWN: "*"}
    top = 1.06 * max(FULL, rows["mfu_bf16_percent"].max())
    look: style.Look = {
        "hue": "family",
        "palette": colors,
        "style": "family",
        "markers": markers,
        "alpha": 0.75,
    }
    words = {"x": text("accelerators"), "y": text("mfu_of_16_bits")}
    for axes, here in style.facets(figure, rows, text, "model", MOST, **words, sharey=True):
        axes.axhline(FULL, **style.LIMIT)
        sizes = here["family"].eq(OWN).map({True: 190, False: 46})
        kinds.points(axes, here, "accelerators", "mfu_bf16_percent", s=sizes, **look)
        axes.set_xscale("log", base=2)
        shown = sorted(set(here["accelerators"].astype(int)))
        shown = shown if len(shown) <= 4 else [shown[0], shown[len(shown) // 2], shown[-1]]
        axes.set_xticks(shown, [f"{count:,}" for count in shown])
        axes.minorticks_off()
        axes.set_ylim(0, top)
    entries = [style.dot(colors[family], family, markers[family]) for family in public]
    # Attribution that MLPerf's rules require, to the right of the provenance.
    derived = text("derived")
    provenance = next(words for words in figure.texts if words.get_gid() == "provenance")
    room = style.LETTERS - style.letters(derived)
    provenance.set_text(textwrap.shorten(provenance.get_text(), room, placeholder=" …"))
    alignment = {"ha": "right", "fontsize": 9, "color": style.MUTED}
    figure.text(0.985, 0.07 / figure.get_figheight(), derived, gid="provenance", **alignment)
    if OWN in present:
        entries.append(style.dot(style.INK, text("you_are_here"), "*"))
    return entries
