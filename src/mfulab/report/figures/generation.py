"""Generating text: prefill beside decoding under their ceilings, and what batching makes of their times under load."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.frames import Tables, ok, one_each, with_machine
from mfulab.timing.serving import Policy, Server, latencies, requests
from mfulab.timing.statistics import Stats

TABLES = ("profile", "environment")
TOPIC = "batch_size"
ORDER = 3
ALIKE = ["machine", "model", "precision", "execution", "sequence_length"]
PLACE = ("arithmetic_intensity", "tflop_s")
MARKERS = {"prefill": "o", "decoding": "s"}
DASHES: Mapping[str, style.Dash] = {"prefill": "", "decoding": (4, 2)}
WORDS = ("prefill_mfu", "decoding_mbu")
POLICIES: Mapping[Policy, str] = {"static": style.PALETTE[3], "continuous": style.PALETTE[2]}
TOKENS, COUNT = 32, 200  # of an answer on average, and requests that arrive
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)  # of the most requests a second
TOLD = 0.7  # the load that the sentence speaks of


def rows(tables: Tables) -> pd.DataFrame:
    """Prefill and decoding of the same model and context on the same machine, where both were measured."""
    found = with_machine(tables, ok(tables["profile"], "time_s", "mfu_percent", "mbu_percent", "tokens_per_s"))
    found = one_each(found[found["mode"].isin(DASHES)], [*ALIKE, "mode", "batch_size"])
    halves = found.groupby(ALIKE)["mode"].transform("nunique")
    return found[halves == len(DASHES)].sort_values("batch_size")


def server(here: pd.DataFrame) -> Server:
    """Times by batch size of rows that are alike in all else."""
    times: dict[str, dict[int, float]] = {
        str(mode): dict(zip(half["batch_size"].astype(int), half["time_s"], strict=True))
        for mode, half in here.groupby("mode")
    }
    return Server(times["prefill"], times["decoding"])


def load(server: Server, share: float, policy: Policy) -> Stats:
    """Latencies at a share of the most requests a second."""
    rate = share * server.most_requests_per_s(TOKENS)
    return Stats(latencies(server, requests(rate, COUNT, TOKENS), policy))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The longest context of the first model: TTFT, TPOT, cache, MFU and MBU; then both ways of batching."""
    here = _longest(rows)
    halves = {mode: here[here["mode"] == mode] for mode in DASHES}
    said = [text("finding", **{mode: half.iloc[0] for mode, half in halves.items()})]
    largest = halves["decoding"].iloc[-1]
    if pd.notna(largest["key_value_cache_bytes"]):
        said.append(text("cache", largest=largest))
    one = server(here)
    if one.places > 1:
        waits = {policy: load(one, TOLD, policy).p95 for policy in POLICIES}
        rate = TOLD * one.most_requests_per_s(TOKENS)
        said.append(text("batching", load=100 * TOLD, places=one.places, tokens=TOKENS, rate=rate, **waits))
    return " ".join(said)


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first model with the longest context, of those alike the ones with most batch sizes."""
    sizes = rows.groupby(ALIKE)["batch_size"].transform("count")
    ranked = rows.assign(sizes=sizes).sort_values(["sizes", "sequence_length"], ascending=False, kind="stable")
    return rows[(rows[ALIKE] == ranked.iloc[0][ALIKE]).all(axis=1)]


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """For each machine MFU and MBU by batch size, both halves under one roof, and simulated latency by load."""
    machines = style.machines(rows, 2)
    rows = rows.assign(
        context=rows["sequence_length"].map("{:.0f}".format),
        share=rows["mfu_percent"].where(rows["mode"] == "prefill", rows["mbu_percent"]),
    )
    under = rows.dropna(subset=[*PLACE, "ceiling_tflop_s", "ceiling_gb_s"])
    columns = [text("shares"), *([text("roofline")] if len(under) else []), text("simulated")]
    grid = style.panels(figure, machines, columns)
    colors = style.colors(f"{length:.0f}" for length in sorted(rows["sequence_length"].unique()))
    look: style.Look = {
        "by": [*ALIKE, "mode"],
        "dash": "mode",
        "dashes": DASHES,
        "hue": "context",
        "colors": colors,
    }
    for machine in machines:
        left, right = grid[machine, columns[0]], grid[machine, columns[-1]]
        here = rows[rows["machine"] == machine]
        kinds.lines(left, here, "batch_size", "share", "batch_size", "mfu_percent", "mbu_percent", **look)
        left.axhline(100, color=style.MUTED, linewidth=1)
        left.set_ylim(0, max(105.0, 1.05 * here[["mfu_percent", "mbu_percent"]].max(axis=None)))
        left.set_ylabel(text("share"))
        ticks.doublings(left, rows["batch_size"])
        _latencies(right, server(_longest(here)), text)
        if len(columns) == 3:
            _roofline(grid[machine, columns[1]], under[under["machine"] == machine], colors, text)
    grid[machines[-1], columns[0]].set_xlabel(text("batch_size"))
    grid[machines[-1], columns[-1]].set_xlabel(text("load"))
    entries = [style.line(color, text("context", tokens=tokens)) for tokens, color in colors.items()]
    entries += [style.line(style.MUTED, text(name), dash) for name, dash in zip(WORDS, DASHES.values(), strict=True)]
    entries += [style.line(color, text.name("batching", policy)) for policy, color in POLICIES.items()]
    marks = [style.dot(style.MUTED, text.name("mode", mode), marker) for mode, marker in MARKERS.items()]
    entries += marks if len(columns) == 3 else []
    style.legend_rows(figure, entries + runs.key(rows, text), columns=4)


def _roofline(axes: Axes, here: pd.DataFrame, colors: Mapping[str, str], text: Texts) -> None:
    """Each step at its FLOPs a byte and its FLOP/s; the roof is the best matmul and the bandwidth measured here."""
    if here.empty:
        axes.set_visible(False)
        return
    x = np.geomspace(here[PLACE[0]].min() / 2, here[PLACE[0]].max() * 2, 100)
    for ceiling, bandwidth in sorted(set(zip(here["ceiling_tflop_s"], here["ceiling_gb_s"], strict=True))):
        axes.plot(x, np.minimum(ceiling, x * bandwidth / 1e3), color=style.MUTED, linewidth=1.2)
    kinds.points(axes, here, *PLACE, hue="context", colors=colors, shape="mode", markers=MARKERS, alpha=0.8)
    axes.set(xscale="log", yscale="log", xlabel=text("intensity"))
    ticks.decades(axes.xaxis, 5)
    ticks.speeds(axes)


def _latencies(axes: Axes, one: Server, text: Texts) -> None:
    for policy, color in POLICIES.items():
        found = [load(one, share, policy) for share in LOADS]
        shares = [100 * share for share in LOADS]
        axes.plot(shares, [each.median for each in found], color=color, marker="o")
        axes.fill_between(shares, [each.median for each in found], [each.p95 for each in found], color=color, alpha=0.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(text("latency"))
