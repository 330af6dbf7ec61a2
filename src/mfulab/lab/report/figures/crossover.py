"""From which size on a matmul is faster on a GPU than on a CPU, memory and transfers counted in."""

import numpy as np
import pandas as pd

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, style, ticks
from mfulab.lab.report.figures import transfers
from mfulab.lab.report.frames import DataFrame, Series, Tables, most, ok, preferred, with_machine

TOPIC, ORDER = "kernels", 4
COLORS = dict(zip(("cpu", "gpu", "kernel"), style.PALETTE, strict=False))
SIDES = {"cpu": "no_cpu", "gpu": "no_gpu"}  # and what is said where one has no rows


def rows(tables: Tables) -> DataFrame:
    """The fastest matmul of each size on one CPU and on one GPU, in one precision; a GPU's kernel alone as a line."""
    timed = matmuls.square(with_machine(tables, ok(tables["matmul"], "time_s", "allocation_s")))
    timed = timed.assign(side="cpu", whole_s=timed[list(transfers.PARTS)].sum(axis=1))
    timed["side"] = timed["side"].where(timed["host_to_device_s"].isna(), "gpu")
    timed = preferred(timed, timed["n"] % transfers.WHOLE == 0)
    sides = timed.groupby("precision")["side"].transform("nunique")
    timed = most(timed[sides == sides.max()], ["precision"])
    of_sides = [style.one_machine(timed[timed["side"] == side]) for side in SIDES]
    best = pd.concat([side.loc[side.groupby("n")["whole_s"].idxmin()] for side in of_sides])
    return best.assign(line=best["side"], seconds=best["whole_s"]) if len(best["n"].unique()) > 1 else best.head(0)


def finding(rows: DataFrame, text: Texts) -> str:
    """From which size on the GPU wins for good, by its kernel alone too; or what is missing to tell."""
    best = rows.drop_duplicates(["side", "n"]).set_index("n", drop=False).sort_index()
    cpu, gpu = (best[best["side"] == side] for side in SIDES)
    if cpu.empty or gpu.empty:
        here = pd.concat([cpu, gpu])
        return text("cpu_alone" if gpu.empty else "gpu_alone", small=here.iloc[0], large=here.iloc[-1])
    shared = cpu.index.intersection(gpu.index)
    names = {"cpu": cpu["machine"].iloc[0], "gpu": gpu["machine"].iloc[0]}
    if shared.empty:
        return text("apart", **names, cpu_n=_sizes(cpu), gpu_n=_sizes(gpu))
    cpu_s, whole_s, kernel_s = cpu.loc[shared, "whole_s"], gpu.loc[shared, "whole_s"], gpu.loc[shared, "time_s"]
    won, alone = _from(whole_s < cpu_s), _from(kernel_s < cpu_s)
    at = shared[-1] if won is None else won
    words = [text("never" if won is None else "wins", **names, size=f"{at:.0f}", cpu_s=cpu_s[at], gpu_s=whole_s[at])]
    words += [text("kernel_wins", size=f"{alone:.0f}")] if alone is not None and alone != won else []
    return " ".join(words)


def _from(faster: Series) -> float | None:
    """The size from which on all are true; None where the last is not."""
    lost = faster[~faster].index.max()
    won = faster.index[~(faster.index <= lost)]
    return float(won[0]) if len(won) else None


def _sizes(rows: DataFrame) -> str:
    return "–".join(dict.fromkeys(f"{rows.index[place]:.0f}³" for place in (0, -1)))


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Time over size on logarithmic axes: a line of the CPU, of the GPU, and of the GPU's kernel alone."""
    axes, kernels = figure.subplots(), rows[rows["side"] == "gpu"]
    shown = pd.concat([rows, kernels.assign(line="kernel", seconds=kernels["time_s"])]).sort_values("n")
    kinds.lines(axes, shown, "n", "seconds", "n", "seconds", hue="line", palette=COLORS)
    axes.set(xscale="log", yscale="log", xlabel=text("size"), ylabel=text("time"))
    sizes = [size for size in sorted(rows["n"].unique()) if float(np.log2(size)).is_integer()]
    axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes], fontsize=9)
    axes.minorticks_off()
    ticks.decades(axes.yaxis)
    axes.set_title(" · ".join([*dict.fromkeys(rows["machine"]), text.name("precision", rows["precision"].iloc[0])]))
    present = {line: color for line, color in COLORS.items() if (shown["line"] == line).any()}
    absent = [style.dot("none", text(none)) for side, none in SIDES.items() if side not in present]
    return style.dots(present, text) + absent
