"""Size from which a matmul is faster on a GPU than on a CPU, including memory and transfers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Texts, matmuls, specs, style, ticks
from mfulab.lab.report.figures import transfers
from mfulab.lab.report.frames import DataFrame, Series, Tables, ok, with_machine

TOPIC = "kernels"
ORDER = 4
REASONS = ("contradict",)  # it compares machines
SIDES = ("cpu", "gpu")
KERNELS = {"cpu": "cpu_kernel", "gpu": "gpu_kernel"}  # lines of a side's kernels alone
DOUBTFUL = {"wins": "wins_doubtful", "never": "never_doubtful"}  # texts without numbers
LINES = (*SIDES, *KERNELS.values())
COLORS = style.colors(LINES)
COPIES = [part for part in transfers.TIMES if part != "time_s"]


def rows(tables: Tables) -> DataFrame:
    """Selects the fastest matmul of each size on one CPU and one GPU, in one precision. Empty
    unless both measured a common size."""
    timed = matmuls.square(with_machine(tables, ok(tables["matmul"], "time_s", "allocation_s")))
    is_gpu = timed["host_to_device_s"].notna()
    timed = timed.assign(side=is_gpu.map({True: "gpu", False: "cpu"}))
    timed = selection.pick(timed, "uneven")
    sides = timed.groupby("precision")["side"].transform("nunique")
    timed = selection.largest(timed[sides == sides.max()], ["precision"])
    cpu, gpu = (_fastest(timed, side) for side in SIDES)
    best = pd.concat([cpu, gpu])
    has_common = cpu["n"].isin(gpu["n"]).any()
    if has_common and best["n"].nunique() > 1:
        return best.assign(line=best["side"], seconds=best["whole_s"])
    return best.head(0)


def _fastest(timed: DataFrame, name: str) -> DataFrame:
    """Fastest kernel of each size of one side. `whole_s` includes copies, which do not depend on
    the kernel, so their median over all kernels is used."""
    side = selection.one_machine(timed[timed["side"] == name])
    sizes = side.groupby("n")
    copies_s = sizes[COPIES].transform("median").sum(axis=1)
    best = side.loc[sizes["time_s"].idxmin()]
    return best.assign(whole_s=best["time_s"] + copies_s[best.index])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the size from which the GPU stays faster, with copies and kernel against kernel.
    Empty without a common size. Times are told only if they are free of doubt and differ."""
    best = rows.drop_duplicates(["side", "n"]).set_index("n", drop=False).sort_index()
    cpu = best[best["side"] == "cpu"]
    gpu = best[best["side"] == "gpu"]
    shared = cpu.index.intersection(gpu.index)
    if shared.empty:
        return ""
    names = {"cpu": cpu["machine"].iloc[0], "gpu": gpu["machine"].iloc[0]}
    won = _from(_is_below(gpu, cpu, "whole_s", shared))
    alone = _from(_is_below(gpu, cpu, "time_s", shared))
    size = won
    if size is None:
        size = shared[-1]
    sentences = [
        _compared(
            cpu.loc[size],
            gpu.loc[size],
            won is not None,
            names,
            text,
        )
    ]
    if alone is not None and alone != won:
        sentences.append(text("kernel_wins", size=f"{alone:.0f}", gpu=names["gpu"]))
    return " ".join(sentences)


def _compared(
    on_cpu: Series, on_gpu: Series, has_won: bool, names: Mapping[str, str], text: Texts
) -> str:
    """Sentence on one size, with the times of both sides if they are free of doubt and differ."""
    values: dict[str, object] = {**names, "size": f"{on_cpu['n']:.0f}"}
    if has_won:
        key = "wins"
    elif claims.is_below(on_cpu, on_gpu, "whole_s"):
        key = "never"
    else:
        return text("alike", **values)
    if trust.unsure(pd.DataFrame([on_cpu, on_gpu])).any():
        return text(DOUBTFUL[key], **values)
    return text(
        key,
        **values,
        cpu_s=on_cpu["whole_s"],
        gpu_s=on_gpu["whole_s"],
    )


def _is_below(gpu: DataFrame, cpu: DataFrame, column: str, sizes: pd.Index) -> Series:
    """For each size, True if the GPU's `column` is below the CPU's, intervals included."""
    fast = claims.ends_of(gpu, column)["high"]
    slow = claims.ends_of(cpu, column)["low"]
    return fast[sizes] < slow[sizes]


def _from(faster: Series) -> float | None:
    """Size from which all values are True; None if the last is not."""
    last_slower = faster[~faster].index.max()  # NaN if all are True
    sizes = faster.index[~(faster.index <= last_slower)]
    if len(sizes):
        return float(sizes[0])
    return None


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Puts both sides into one panel that names the machines, and adds each side's kernels without
    memory and copies."""
    alone = rows.assign(line=rows["side"].map(KERNELS), seconds=rows["time_s"])
    form = text.name("precision", rows["precision"].iloc[0])
    title = " · ".join([*dict.fromkeys(rows["machine"]), form])
    both = pd.concat([rows, alone]).sort_values("n")
    return both.assign(panel=title, machine="")


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic, with ticks at powers of two."""
    axes.set(xscale="log", yscale="log")
    powers = []
    for size in sorted(rows["n"].unique()):
        if float(np.log2(size)).is_integer():
            powers.append(size)
    axes.set_xticks(powers, [f"{size:.0f}" for size in powers], fontsize=9)
    axes.minorticks_off()
    ticks.decades(axes.yaxis)


draw = specs.Lines(
    x="n",
    y="seconds",
    told=("n", "seconds"),
    x_label="size",
    y_label="time",
    facet="panel",
    hue="line",
    colors=specs.present(COLORS),
    marker="o",
    dressed=_dressed,
    finished=_finished,
)
