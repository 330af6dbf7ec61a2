"""Figures that a lecture shows: sentences from extreme, equal and single rows; that they fit."""

import json

import numpy as np
import pandas as pd
import pytest
from support.drawn import overlaps, tables
from support.said import Heard, heard
from support.slow import few

from mfulab.lab.report import figures, frames, trust
from mfulab.lab.report.figures import (
    computational_graph,
    crossover,
    flops_by_layer,
    latency_pyramid,
)

MACHINES = [
    {"hardware": name, "recorded": "False", "device": kind, "device_name": f"Invented {name}"}
    for name, kind in (("xeon", "cpu"), ("card", "cuda"))
]
CPU, GPU = (
    {64: 1e-5, 128: 1e-4, 256: 1e-3, 512: 1e-2},
    {64: 2e-6, 128: 4e-6, 256: 8e-6, 512: 2e-5},
)


def said(module, read: frames.Tables, language: str = "en") -> dict[str, list[dict]]:
    """What the sentence says, by key, where a figure in that language has no words that overlap."""
    name = module.__name__.rpartition(".")[2]
    drawn = figures.render(name, read, language)
    assert overlaps(drawn.figure) == []
    return heard(module, read)


def won_from(told: dict[str, list[dict]]) -> str:
    """The size from which on a GPU wins."""
    return told["wins"][0]["size"]


def matmuls(
    folder, cpu: dict[int, float] = CPU, gpu: dict[int, float] = GPU, copy_s: float = 1e-4, **more
):
    """Tables of products on a CPU and on a GPU, n → seconds of the kernel; each copy to or from the
    GPU takes alike."""
    common = {"status": "ok", "recorded": "False", "kernel": "torch", "family": "library"}
    common |= {"batch": 1, "precision": "fp32", "allocation_s": 0.0}
    both = dict.fromkeys(("host_to_device_s", "device_to_host_s"), copy_s)
    lines = []
    for hardware, sizes, copies in (("xeon", cpu, {}), ("card", gpu, both)):
        for n, time_s in sizes.items():
            shape = {"run": f"size={n}", "size": str(n), "m": n, "n": n, "k": n}
            measured = {"hardware": hardware, "time_s": time_s}
            lines.append({**common, **shape, **measured, **copies, **more})
    return tables(folder, matmul=lines, environment=MACHINES)


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_a_gpu_wins_from_the_size_after_the_last_that_it_lost(tmp_path, language):
    told = said(crossover, matmuls(tmp_path), language)
    assert won_from(told) == "256"
    assert [said["size"] for said in told["kernel_wins"]] == ["64"]  # from the first size on
    lost_again = {**GPU, 256: 1.0}
    assert won_from(said(crossover, matmuls(tmp_path, gpu=lost_again), language)) == "512"


def test_extreme_equal_and_single_sizes_of_a_crossover(tmp_path):
    never = said(crossover, matmuls(tmp_path, gpu=dict.fromkeys(CPU, 1e9)))
    assert never.keys() == {"never"}
    equal = said(crossover, matmuls(tmp_path, gpu=CPU, copy_s=0.0))
    assert equal.keys() == {"alike"}
    [alike] = equal["alike"]
    assert alike["size"] == "512"
    assert not {"gpu_s", "cpu_s"} & set(alike), "no numbers that look like a difference"
    always = said(crossover, matmuls(tmp_path, copy_s=0.0))
    assert always.keys() == {"wins"}
    assert won_from(always) == "64"
    assert crossover.rows(matmuls(tmp_path, {64: 1.0}, {128: 1.0})).empty  # none in common
    assert crossover.rows(matmuls(tmp_path, {64: 1.0}, {64: 1.0})).empty  # one size is no curve


def test_kernels_are_compared_with_kernels(tmp_path):
    """The CPU's kernels are as fast as the GPU's; only its memory is slower."""
    read = matmuls(tmp_path, gpu=CPU, copy_s=0.0)
    matmul = read["matmul"]
    slow = matmul["allocation_s"].mask(matmul["hardware"] == "xeon", 1.0)
    told = said(crossover, {**read, "matmul": matmul.assign(allocation_s=slow)})
    assert won_from(told) == "64"
    assert "kernel_wins" not in told
    drawn = figures.render("crossover", read)
    [axes] = drawn.figure.axes
    assert len(drawn.figure.legends[0].get_texts()) == len(crossover.LINES) == 4
    assert len(axes.lines) == len(crossover.LINES), "each side also by its kernel alone"


def test_times_of_doubtful_sides_are_not_told(tmp_path):
    read = matmuls(tmp_path)
    rows = trust.with_doubts(crossover.rows(read))
    text = Heard("crossover")
    crossover.finding(rows.assign(doubts=1), text)
    [won] = text.heard["wins_doubtful"]
    assert won["size"] == "256"
    assert not {"gpu_s", "cpu_s"} & set(won)


def test_a_win_within_the_times_intervals_is_none(tmp_path):
    read = matmuls(tmp_path)
    matmul = read["matmul"].copy()
    for name, factor in {"time_ci_low_s": 1 / 3, "time_ci_high_s": 3.0}.items():
        matmul[name] = factor * matmul["time_s"]
    assert won_from(said(crossover, read)) == "256"
    assert won_from(said(crossover, read | {"matmul": matmul})) == "512"


def test_copies_are_of_a_size_and_no_kernel_s_luck_with_them_decides(tmp_path):
    read = matmuls(tmp_path)
    gpu = read["matmul"][read["matmul"]["hardware"] == "card"]
    slower = gpu.assign(kernel="cublas", time_s=2 * gpu["time_s"])
    lucky = slower.assign(kernel="naive", host_to_device_s=0.0, device_to_host_s=0.0)
    matmul = pd.concat([read["matmul"], slower, lucky], ignore_index=True)
    best = crossover.rows(read | {"matmul": matmul})
    on_gpu = best[best["side"] == "gpu"].set_index("n")
    assert set(on_gpu["kernel"]) == {"torch"}
    expected = [time_s + 2e-4 for time_s in GPU.values()]
    assert list(on_gpu["whole_s"]) == pytest.approx(expected)


@pytest.mark.parametrize("side", ["cpu", "gpu"])
def test_without_an_answer_there_is_no_crossover(tmp_path, side):
    assert crossover.rows(matmuls(tmp_path, **{side: {}})).empty


@pytest.mark.parametrize("side", ["cpu", "gpu"])
def test_a_crossover_whose_one_side_cannot_be_right_is_not_drawn(tmp_path, side):
    read = matmuls(tmp_path)
    rows = crossover.rows(read)
    assert figures.render("crossover", read, rows=rows.assign(impossible=False, doubtful=False))
    wrong = rows.assign(impossible=rows["side"] == side, doubtful=False)
    assert figures.render("crossover", read, rows=wrong) is None


def test_sides_are_compared_in_a_precision_that_both_have(tmp_path):
    read = matmuls(tmp_path)
    others = read["matmul"][read["matmul"]["hardware"] == "xeon"].assign(
        precision="bf16", time_s=1e-9
    )
    more = pd.concat(
        [read["matmul"], others, others.assign(n=others["n"] * 16, m=others["m"] * 16)]
    )
    assert set(crossover.rows(read | {"matmul": more})["precision"]) == {"fp32"}


def memory(folder, *levels: tuple[str, float], cycles: float | None = 2.6e9):
    """Tables of chases: name and seconds of each level; the clock is hidden if `cycles` is None."""
    common = {"status": "ok", "hardware": "xeon", "recorded": "False", "caches": "{}"}
    lines = []
    for place, (level, time_s) in enumerate(levels):
        pattern = level if level in latency_pyramid.DEPENDENT else "random"
        line = common | {"pattern": pattern, "level": level, "run": str(place)}
        line |= {"working_set_bytes": 4096 * 4**place, "time_per_access_s": time_s}
        lines.append(line | {"cycles_per_access": cycles and cycles * time_s})
    return tables(folder, memory=lines, environment=[{**MACHINES[0], "virtual_machine": "False"}])


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_a_pyramid_names_its_ends_and_its_largest_step(tmp_path, language):
    levels = ("L1", 2e-9), ("L1", 1e-9), ("L2", 4e-9), ("memory", 2e-7), ("disk", 1e-3)
    told = said(latency_pyramid, memory(tmp_path, *levels), language)
    near = told["cost"][0]
    assert (near["cycles"], near["row"]["time_per_access_s"]) == ("2.60", 1e-9)
    assert told["finding"][0]["factor"] == pytest.approx(1e6)
    assert told["step"][0]["factor"] == pytest.approx(5000)
    assert len(latency_pyramid.rows(memory(tmp_path, *levels))) == 4


def test_levels_are_points_at_their_times_since_a_bar_has_no_length_on_a_logarithmic_axis(tmp_path):
    levels = (("L1", 1e-9), ("L2", 4e-9), ("memory", 2e-7), ("disk", 1e-3))
    drawn = figures.render("latency_pyramid", memory(tmp_path, *levels))
    [axes] = drawn.figure.axes
    assert axes.get_xscale() == "log"
    assert not axes.patches
    places = np.vstack([each.get_offsets() for each in axes.collections])
    by_height = places[places[:, 1].argsort()[::-1]]
    assert by_height[:, 0].tolist() == pytest.approx([1e9 * time_s for _, time_s in levels])
    printed = [words.get_text() for words in axes.texts]
    assert len(printed) == len(levels) + 1, "registers have the seminar's number alone"
    for cycles in ("1–5", "3–10", "10–20", "200–300", "50,000–100,000"):
        assert any(cycles in words for words in printed), cycles


def test_extreme_equal_and_single_levels(tmp_path):
    assert figures.render("latency_pyramid", memory(tmp_path, ("L1", 1e-9))) is None
    equal = said(latency_pyramid, memory(tmp_path, ("L1", 1e-9), ("L2", 1e-9), ("L3", 1e-9)))
    assert equal["finding"][0]["factor"] == 1
    assert "step" not in equal
    hidden = said(latency_pyramid, memory(tmp_path, ("L1", 1e-9), ("memory", 1e-7), cycles=None))
    assert hidden.keys() == {"time_alone", "memory", "finding"}
    assert hidden["finding"][0]["factor"] == pytest.approx(100)
    assert latency_pyramid.rows(memory(tmp_path, ("", 1e-9))).empty


def counted(folder, **models: dict[str, int]):
    """Tables of models, each its layers with their FLOPs."""
    common = {"status": "ok", "hardware": "", "recorded": "False", "batch_size": 1}
    lines = [
        common
        | {"run": f"model={model}", "model": model, "forward_flops": sum(layers.values())}
        | {"layers": json.dumps([*layers.items()])}
        for model, layers in models.items()
    ]
    return tables(folder, flops=lines, environment=MACHINES)


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_the_most_uneven_model_is_told_of_first(tmp_path, language):
    many = {f"encoder.stages.{place}.layers.0.convolution": 100 - place for place in range(40)}
    told = said(
        flops_by_layer, counted(tmp_path, small={"a": 30, "b": 60, "c": 10}, large=many), language
    )
    first, second = told["finding"]
    assert (first["row"]["model"], first["share"]) == ("small", pytest.approx(60))
    assert second["row"]["model"] == "large"
    rows = flops_by_layer.rows(counted(tmp_path, large=many))
    assert len(rows) == flops_by_layer.BARS + 1
    assert rows["part"].sum() == pytest.approx(1)
    assert list(rows["layer"])[-1] == ""


def test_extreme_equal_and_single_layers(tmp_path):
    assert figures.render("flops_by_layer", counted(tmp_path, one={"only": 7})) is None
    alike = said(flops_by_layer, counted(tmp_path, alike=dict.fromkeys("abcd", 5)))
    [equal] = alike["alike"]
    assert (equal["count"], equal["share"]) == (4, 25)
    uneven = said(flops_by_layer, counted(tmp_path, uneven={"a": 10**15, "b": 1}))
    [most] = uneven["finding"]
    assert (most["row"]["layer"], most["share"]) == ("a", pytest.approx(100))


def test_repeated_blocks_that_do_equal_work_are_one_bar(tmp_path):
    blocks = {f"h.{place}.mlp": 10 for place in range(6)} | {"h.6.mlp": 7, "head": 33}
    rows = flops_by_layer.rows(counted(tmp_path, net=blocks))
    assert list(rows["layer"]) == ["h.*.mlp", "head", "h.6.mlp"]
    assert list(rows["times"]) == [6, 1, 1]
    assert rows["part"].sum() == pytest.approx(1)
    [several] = said(flops_by_layer, counted(tmp_path, net=blocks))["several"]
    assert (several["row"]["times"], several["share"]) == (6, pytest.approx(60))


@pytest.mark.parametrize("names", [("0.layer.0", "1.layer.1"), ("1.layer.0", "2.layer.0")])
def test_bars_of_a_model_have_different_names(tmp_path, names):
    """Layers of one pattern that do other work, told apart by their numbers or by their FLOPs."""
    first, other = names
    path = "resnet.encoder.stages.{}.layers.{}.convolution"
    layers = {path.format(stage, first): 57 for stage in range(3)}
    layers |= {path.format(stage, other): 115 for stage in range(4)}
    layers |= {path.format(7, "3.layer.5"): 115}
    drawn = figures.render("flops_by_layer", counted(tmp_path, net=layers))
    [axes] = drawn.figure.axes
    shown = [label.get_text().partition("× ")[2] for label in axes.get_yticklabels()]
    assert len(set(shown)) == len(shown) == 2


def test_kinds_of_layers_with_one_shortened_name_have_their_flops(tmp_path):
    long = "a_module_of_a_very_long_name"
    layers = {f"{part}.{long}": flops for part, flops in (("a", 100), ("b", 200), ("c", 300))}
    drawn = figures.render("flops_by_layer", counted(tmp_path, net=layers))
    shown = [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()]
    assert len(set(shown)) == len(shown) == 3
    assert all("FLOP" in name for name in shown)


@pytest.mark.parametrize(("parameters", "is_tied"), [(130, True), (230, False)])
def test_a_head_that_shares_its_weights_says_so(tmp_path, parameters, is_tied):
    """The linear layers have 120 parameters, 100 of them the head's."""
    layers = {"h.0.attn": 400, "h.0.attn.c_attn": 20 * 2 * 16, "lm_head": 100 * 2 * 16}
    read = counted(tmp_path, net=layers)
    flops = read["flops"].assign(parameters=float(parameters), sequence_length=16.0)
    rows = flops_by_layer.rows({**read, "flops": flops})
    assert rows.set_index("layer")["tied"].to_dict() == {
        "h.0.attn": False,
        "h.0.attn.c_attn": False,
        "lm_head": is_tied,
    }
    told = heard(flops_by_layer, {**read, "flops": flops})
    assert ("tied" in told) == is_tied


GPT = {
    f"h.{block}.{name}": flops
    for block in range(12)
    for name, flops in (("attn", 8), ("attn.c_attn", 30), ("attn.c_proj", 10), ("mlp.fc", 40))
} | {"lm_head": 500}  # fmt: skip


def listed(folder, layers: dict[str, int], most: int):
    """Tables of a model of which only the largest layers are listed."""
    read = counted(folder, net=layers)
    largest = sorted(layers, key=lambda layer: -layers[layer])[:most]
    cell = json.dumps([(layer, flops) for layer, flops in layers.items() if layer in largest])
    return {**read, "flops": read["flops"].assign(layers=cell)}


@pytest.mark.parametrize("most", [48, 44, 38])
def test_blocks_of_which_the_list_lacks_some_are_counted_as_whole_blocks(tmp_path, most):
    """The numbers of the other layers' blocks say how many there are."""
    rows = flops_by_layer.rows(listed(tmp_path, GPT, most))
    whole = flops_by_layer.rows(counted(tmp_path, net=GPT))
    shown = ["layer", "times", "part"]
    assert rows[shown].equals(whole[shown])
    assert rows.set_index("layer").loc["h.*.attn", "times"] == 12


@pytest.mark.parametrize("most", [35, 30, 26])
def test_a_kind_that_the_list_may_have_cut_is_among_all_others(tmp_path, most):
    """Layers of a kind are missing beside others that the list lacks altogether."""
    rows = flops_by_layer.rows(listed(tmp_path, GPT, most)).set_index("layer")
    assert "h.*.attn.c_proj" not in rows.index
    assert rows.loc["h.*.mlp.fc", "times"] == 12
    assert rows["part"].sum() == pytest.approx(1)
    known = {"h.*.attn.c_attn": 360, "h.*.mlp.fc": 480, "lm_head": 500}
    rest = 1 - sum(known.values()) / sum(GPT.values())
    assert rows.loc["", "part"] == pytest.approx(rest)


def test_equal_layers_of_which_the_list_lacks_some_have_no_number(tmp_path):
    alike = {f"h.{block}.fc": 5 for block in range(100)}
    assert flops_by_layer.rows(listed(tmp_path, alike, 60)).empty
    assert list(flops_by_layer.rows(listed(tmp_path, alike, 100))["times"]) == [100]


def test_whether_a_head_shares_its_weights_is_open_where_layers_are_not_listed(tmp_path):
    """Attention without its own linear layers in the list would be taken for one."""
    layers = {f"h.{block}.attn": 400 for block in range(2)} | {"lm_head": 100 * 2 * 16}
    layers |= {f"h.{block}.attn.c_attn": 20 * 2 * 8 for block in range(2)}
    for most, is_tied in ((5, True), (3, False)):
        read = listed(tmp_path, layers, most)
        flops = read["flops"].assign(parameters=150.0, sequence_length=16.0)
        rows = flops_by_layer.rows({**read, "flops": flops}).set_index("layer")
        assert rows.loc["lm_head", "tied"] == is_tied


def test_models_without_flops_have_no_layers(tmp_path):
    assert flops_by_layer.rows(counted(tmp_path, none={"a": 0})).empty


def graphs(folder, **models: list):
    """Tables of models, each with autograd's nodes: name, forward and backward FLOPs."""
    common = {"status": "ok", "hardware": "", "recorded": "False", "batch_size": 2}
    common |= {"activation_bytes": 4096, "forward_flops": 1, "backward_flops": 1}
    lines = []
    for model, nodes in models.items():
        graph = [
            [name, [2, 3], [["", [2, 3]], ["weight", []]], ["weight"], *flops]
            for name, *flops in nodes
        ]
        line = {"run": f"model={model}", "model": model, "graph": json.dumps(graph)}
        lines.append(common | line)
    return tables(folder, flops=lines, environment=MACHINES)


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_the_graph_with_two_kinds_of_layers_is_drawn_and_its_passes_compared(tmp_path, language):
    net = [
        ("ConvolutionBackward0", 100, 100),
        ("ReluBackward0", 0, 0),
        ("AddmmBackward0", 100, 200),
    ]
    read = graphs(
        tmp_path, net=net, alike=[("MmBackward0", 1, 1)] * 2, deep=[*net, ("ViewBackward0", 0, 0)]
    )
    told = said(computational_graph, read, language)
    [passes] = told["finding"]
    assert (passes["row"]["model"], passes["factor"]) == ("net", pytest.approx(1.5))
    assert told["once"] == [{"node": "ConvolutionBackward0"}]
    assert list(computational_graph.rows(read)["forward_flops"]) == [100, 0, 100]


def test_a_graph_of_one_layer_is_not_drawn_and_equal_layers_are(tmp_path):
    assert computational_graph.rows(graphs(tmp_path, one=[("MmBackward0", 1, 1)])).empty
    assert computational_graph.rows(graphs(tmp_path)).empty
    longest = [(f"SlowConvTranspose{place}Backward0", 10**12, 2 * 10**12) for place in range(12)]
    [passes] = said(computational_graph, graphs(tmp_path, longest=longest))["finding"]
    assert passes["factor"] == pytest.approx(2)
