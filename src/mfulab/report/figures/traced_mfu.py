"""Steps read from traces beside the public runs on devices of their kind: MFU, or why there is none."""

import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from mfulab.core.language import Texts, verdicts
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.figures import published_mfu
from mfulab.report.frames import UNNAMED, Tables, ok, short_name

TABLES = ("traces", "published")
TOPIC = "published"
ORDER = 3
MOST = 14  # traces
IDLE = 4.0  # percent busy, to the right of which the reason begins
FAINTEST = 0.05  # percent at the left edge
LETTERS = 48  # of a line of a reason, which ends before the marks of busy devices


def rows(tables: Tables) -> pd.DataFrame:
    """Traces read here, then recorded ones, the highest MFU first; each with the range of public runs of its family."""
    public = ok(tables["published"], "mfu_bf16_percent")
    traces = ok(tables["traces"], "time_s")
    if public.empty or traces.empty:
        return traces.iloc[:0]
    ordered = traces.sort_values(["recorded", "mfu_percent", "model"], ascending=[True, False, True]).head(MOST)
    alike = [_alike(public, row.device, row.compute_capability) for row in ordered.itertuples()]
    return ordered.assign(
        named=ordered["device"].replace("", UNNAMED).map(short_name),
        public_least=[found.min() for found in alike],
        public_most=[found.max() for found in alike],
    )


def _alike(public: pd.DataFrame, device: str, capability: str) -> pd.Series:
    """MFU of public runs on devices of one architecture: a compute capability of NVIDIA's, or AMD's gfx number."""
    architecture = public["architecture"].fillna("").astype(str)
    if not device or not capability:
        return public["mfu_bf16_percent"].iloc[:0]
    amd = "gfx" + capability.replace(".", "")
    return public["mfu_bf16_percent"][
        architecture.str.startswith(amd) if "AMD" in device else architecture == capability
    ]


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The highest MFU of a trace and the public runs of its family, and how many traces have none."""
    known, words = rows.dropna(subset=["mfu_percent"]), []
    if len(known):
        best = known.loc[known["mfu_percent"].idxmax()]
        words.append(text("finding" if best["public_most"] == best["public_most"] else "finding_alone", best=best))
    missing = len(rows) - len(known)
    words.append(text("missing" if missing else "all_known", missing=missing, count=len(rows)))
    return " ".join(words)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A line a trace: its MFU or the reason for none, its busy time, and the range of public runs as a bar."""
    style.resize(figure, max(figure.get_figheight(), 1.8 + 0.34 * len(rows)))
    axes = figure.subplots()
    measures = {name: rows[name].clip(lower=FAINTEST) for name in ("utilization_percent", "mfu_percent")}
    shown = rows.assign(place=range(len(rows)), busy=measures["utilization_percent"], useful=measures["mfu_percent"])
    public = shown.dropna(subset=["public_most"])
    least = public["public_least"].clip(lower=FAINTEST)
    axes.barh(public["place"], public["public_most"] - least, left=least, color=style.GRID, height=0.62)
    ring = {"edgecolor": style.PALETTE[1], "linewidth": 1.5, "s": 64}
    kinds.points(
        axes, shown, "busy", "place", "utilization_percent", colors=to_hex(runs.UNSEEN, keep_alpha=True), **ring
    )
    kinds.points(axes, shown, "useful", "place", "mfu_percent", marker="D", s=64, zorder=4)
    names = []
    for row in shown.itertuples():
        names.append(f"{row.model}\n{text.name('machine', row.named)} · {text.name('mode', row.mode)}")
        if row.mfu_percent != row.mfu_percent:
            reason = verdicts.flags(row.mfu_reason, text.language) or text("no_reason")
            start = 1.5 * row.utilization_percent if row.utilization_percent < IDLE else FAINTEST
            words = {"va": "center", "fontsize": 8, "color": style.MUTED}
            axes.text(max(1.1 * FAINTEST, start), row.place, style.wrapped(reason, LETTERS), **words)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(FAINTEST, max(150.0, 1.2 * public["public_most"].max() if len(public) else 0))
    ticks.decades(axes.xaxis)
    axes.axvline(published_mfu.FULL, **style.LIMIT)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(text("percent"))
    entries = [style.dot(style.PALETTE[0], text("traced"), "D")]
    entries += [style.dot(style.PALETTE[1], text("busy"), fill="none"), style.dot(style.GRID, text("public"), "s")]
    style.legend(figure, entries + runs.key(rows, text))
    published_mfu.disclaim(figure, text.within("published_mfu"))
