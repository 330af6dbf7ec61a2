"""The seminar's list of topics names only what is there, and what works there has rows, or says why
it has none."""

import json
import re
from pathlib import Path

import pytest
import yaml
from support.shared import leave_figures

from mfulab.cli.main import main
from mfulab.core.yaml_text import LONGEST
from mfulab.lab.planning import keys
from mfulab.lab.report import evidence, figures, frames, topics
from mfulab.lab.tables import seminar_texts
from mfulab.lab.tables.columns import columns, counters
from mfulab.lab.tables.seminar import recompute
from mfulab.measurements.registry import TABLES

ROOT = Path(__file__).parents[1]
LISTED = (ROOT / "docs" / "seminar.md").read_text(encoding="utf-8").partition("\n## State\n")[2]
TOPICS = LISTED.partition("What PyCUDA's calls become")[0]  # these are of other packages
ITEMS = topics.read(ROOT / "docs" / "seminar.yaml")
NOTEBOOK = ROOT / "notebooks" / "seminar.ipynb"
EXPERIMENTS = {path.stem for path in (ROOT / "config" / "experiment").glob("*.yaml")}
KERNELS, MODELS = (set(keys.choices(ROOT / "config", group)) for group in ("kernel", "model"))
# Of this project itself: what is first tried, what needs hours or a card, and whether numbers
# repeat.
OWN = {
    "quickstart",
    "quickstart_gpu",
    "miniature",
    "recorded",
    "gpu_record",
    "validity",
    "utilization",
}
OWN |= {"traces", "repeat"}


def known() -> set[str]:
    names = (
        EXPERIMENTS
        | set(figures.modules())
        | set(TABLES)
        | {"seminar", "failed", "no_grad", "profile_step"}
    )
    for table in TABLES:
        names |= {*columns(table), *counters(table)}
    for path in (ROOT / "config").glob("*.yaml"):
        names |= set(yaml.safe_load(path.read_text(encoding="utf-8")))
    names |= {path.stem for path in (ROOT / "config").glob("*/*.yaml")}
    return names | {path.stem for path in (ROOT / "src/mfulab/kernels").glob("*.py")}


@pytest.fixture(scope="module")
def recorded(tables_of_recordings) -> evidence.Evidence:
    """The recordings that the project ships, and its notebook."""
    return evidence.Evidence(frames.read(tables_of_recordings)[0], ROOT / "config", NOTEBOOK)


def topic(where: str, shown: str = "roofline") -> topics.Topic:
    return topics.Topic("Lab", "an invented one", where, shown, "works", "")


def test_each_name_is_of_something_that_is_there():
    names = set(re.findall(r"`(\w+)`", TOPICS))
    assert len(names) > 80
    assert names - known() == set()


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS - OWN))
def test_each_experiment_has_its_topic(experiment):
    assert f"`{experiment}`" in TOPICS


def test_each_item_has_a_state_and_a_reason_unless_it_works():
    for item in ITEMS:
        assert item.state in topics.SIGNS, item
        assert bool(item.reason) is (item.state != "works"), item
    assert len({item.topic for item in ITEMS}) == len(ITEMS)


def test_what_works_has_a_row_and_a_figure_or_a_cell(recorded):
    faults = {
        item.topic: fault
        for item in ITEMS
        if item.state == "works" and (fault := recorded.unproven(item))
    }
    assert faults == {}


def test_what_waits_for_a_gpu_has_no_row_of_one(recorded):
    for item in ITEMS:
        kernels = item.names & KERNELS
        if item.state == "gpu" and "no recording has" in item.reason and kernels:
            assert kernels & recorded.without_rows(item), item


@pytest.mark.parametrize("name", ["crossover", "cutile", "equal_devices", "compile_max_autotune"])
def test_a_name_without_rows_is_found(recorded, name):
    assert recorded.without_rows(topic(f"`{name}`")) == {name}


def test_a_column_without_a_value_is_found(recorded, one_figure):
    matmul = recorded.tables["matmul"].assign(counters="")
    emptied = evidence.Evidence(
        recorded.tables | {"matmul": matmul}, recorded.config, recorded.notebook
    )
    item = topic("columns `host_to_device_pinned_s`, `time_s`; model `gpt2`")
    assert emptied.without_rows(item) == {"host_to_device_pinned_s"}


@pytest.mark.parametrize("shown", ["", "equal_devices", "cell-00", "no_such_figure"])
def test_what_is_shown_nowhere_is_found(recorded, shown):
    assert recorded.unproven(topic("model `gpt2`")) == ""
    assert recorded.unproven(topic("model `gpt2`", shown)) != ""


def test_a_command_counts_the_states(tables_of_recordings, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    leave_figures(monkeypatch, ("roofline", "kernel_ladder"))
    listed = tmp_path / "topics.yaml"
    listed.write_text(
        "Nobody:\n"
        '- {topic: one, where: "model `gpt2`", shown: roofline, state: works}\n'
        '- {topic: two, where: "kernel `cutile`", shown: kernel_ladder, state: works}\n'
        '- {topic: three, where: "", state: "partly: a half"}\n'
    )
    given = ["--topics", str(listed), "--tables", str(tables_of_recordings)]
    status = main(["topics", *given, "--json"])
    assert status == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["items"], told["works"], told["partly"]) == (3, 2, 1)
    assert set(told["unproven"]) == {"two"}


def test_each_number_that_a_text_prints_is_an_item():
    cases = {line["case"] for line in seminar_texts.lines() if line["source"] != "ours"}
    assert len(cases) > 60
    assert {case for case in cases if f"| {case} | table `seminar`: " not in LISTED} == set()


def test_topics_and_notebook_say_the_same_of_the_slow_kernel():
    """Both take it from the table of statements: transfers and tensor cores explain nothing."""
    cells = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text())["cells"]}
    says = "".join(cells["why-lost"]["source"])
    place = "the naive Numba kernel lost to NumPy"
    assert place in says
    of_place = {line["case"] for line in seminar_texts.lines() if line.get("place") == place}
    assert of_place <= {item.topic for item in ITEMS if item.text == "Kernels"}
    for case in of_place:
        assert case in "".join(str(cells["why-lost"]["outputs"])), case
    reasons = [item for item in ITEMS if item.topic.startswith("why the naive kernel lost")]
    assert reasons
    for item in reasons:
        assert not re.search("transfer|tensor core", item.topic)
    assert "no tensor core is used" not in "".join(cells["cell-24"]["source"])


OTHERS = {
    "aliases": "a: &a [x, x]\nb: [*a, *a]\n",
    "a map of numbers": '"\\ud800": 1\n',
    "code": "- !!python/object/apply:os.system [touch owned]\n",
    "a date that is none": "a: 9999-99-99\n",
    "digits": "a: " + "9" * 5000 + "\n",
    "brackets": "[" * 20_000,
    "an item without its keys": "a: [{topic: x}]\n",
    "an item that is a list": "a: [[x]]\n",
    "too large": "a: " + "x" * (LONGEST + 1),
    # of valid items: each of many texts is all of them
    "aliases without end": "a: &a\n"
    + "- {topic: x, where: y, state: z}\n" * 2000
    + "".join(f"b{number}: *a\n" for number in range(2000)),
    "a text that holds itself": "a: &a [*a]\n",
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("words", [["topics"], ["slides", "kernels"]])
def test_a_file_that_holds_no_topics_is_one_sentence(name, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text(OTHERS[name])
    assert main([*words, "--topics", "other.yaml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mfulab: other.yaml: ")
    assert said.count("\n") == 1
    assert len(said) < 400
    assert not (tmp_path / "owned").exists()


# What another reading of the texts found partly there or missing, and the item that answers it.
FOUND_LACKING = {
    "PyCUDA": "PyCUDA",
    "a CUTLASS rung": "a CUTLASS rung",
    "pretrained weights": "pretrained weights",
    "registers and disk in the pyramid": "registers and disk in the pyramid, and the text's own cycles",
    "value to bits": "the bits of any value",
    "bits 1 is silently a pattern": "a number that may be a value or a pattern",
    "TensorBoard as an output": "TensorBoard as an output of a loop",
    "CPU self time against wall time": "CPU self time against wall time",
    "SimpleCNN on every slide": "SimpleCNN, the lab's own model, on its slides",
    "coalescing in Numba": "Numba on a GPU, coalesced",
    "the guarded tiled kernel": "Numba's shared-memory kernel of the text, with guards",
    "repeated pooling with accuracy": "repeated pooling: what it gets right",
    "depthwise and pointwise rows": "a block's depthwise and pointwise convolution, each by itself",
    "one picture of three techniques": "pooling, separable convolutions and pruning in one picture, with accuracy",
    "gradients add up": "gradients that add up until zero_grad",
    "an own autograd.Function": "a function with a gradient of its own, StableSigmoid",
    "an own Dataset": "a Dataset of one's own",
    "script for resnet18 and gpt2": "script and trace of ResNet-18 and GPT-2",
    "Keras fit": "Keras, fit",
    "1.67 M tokens/s, by bandwidth": "GPT-2 small at 10 TFLOP/s",
    "with_flops among the counters": "with_flops of torch's profiler, against the count",
    "tensor parallelism": "tensor parallelism: a part of each matrix on each rank",
    "pipeline parallelism": "pipeline parallelism: its bubble by micro-batches",
    "tokens a joule": "tokens a joule",
    "autocast on a GPU": "autocast on a GPU",
    "wandb in a recipe": "Weights & Biases as an output of a loop",
    "2:4 at a size where it pays": "two of four at a size at which it pays",
    "dynamic batching": "batches made of what waits",
}
# Errors that accused the wrong text, misquoted or were passed over, and the statement that answers.
ERRATA = {
    "GPU utilization is actual FLOPs": ("accounting", "GPU utilization", False),
    "structured pruning": ("accounting", "prune.l1_unstructured", False),
    "fewer MACs give speed": ("lab", "a model with fewer MACs", False),
    "PyCUDA's prediction": (
        "kernels",
        "NumPy's and PyTorch's times as predicted, ÷ 0.194 and 0.017 s",
        False,
    ),
    "SMs, cores, FLOP a cycle": (
        "hardware",
        "peak of a Turing card with 72 SMs at 1.77 GHz, fp32",
        True,
    ),
    "the text's own cycles": ("accounting", "disk, 50,000 to 100,000 cycles at 3 GHz", True),
    "failing calls raise": ("kernels", "a failing call within try and except, cublasSgemm", True),
    "a layer norm's calls": ("accounting", "operators of a layer norm by hand", False),
    "no_grad and memory": (
        "hardware",
        "a parameter updated in place outside torch.no_grad()",
        True,
    ),
    "312 T": ("lab", "peak of an A100", True),
    "FLOPs a second": ("optimise", "FLOPs", False),
    "distillation": ("accounting", "gradient of distillation at T = 4, with KL alone", False),
    "1 ms": ("optimise", "digit CNN at 1 GFLOP/s", True),
    "larger FLOPS": ("optimise", "a device of more FLOP/s, generating at batch 1", False),
    "loading": (
        "lab",
        "loading that takes as long as the step, its share of utilization and of MFU",
        False,
    ),
    "no SIMD": (
        "kernels",
        "lanes that an instruction of each scheduler of an H100 fills",
        False,
    ),
    "tensor cores by itself": (
        "kernels",
        "format of products of float32 tensors in PyTorch, unless told otherwise",
        False,
    ),
    "cudaGetLastError": ("kernels", "values that cudaGetLastError returns", False),
    "block size": ("kernels", "get_optimal_block_size of a device", False),
    "calibration": (
        "accounting",
        "a statically quantised layer without calibration, its error",
        False,
    ),
    "grad_zero_": ("hardware", "torch.Tensor.grad_zero_", False),
    "requires_grad": ("hardware", "results of a tensor that requires a gradient", False),
    "grouped queries": ("accounting", "KV cache of 32 layers", False),
    "one thread's walk": (
        "kernels",
        "memory sectors that a warp of the naive kernel reads, its threads in different rows of 1,024 float32",
        False,
    ),
    "transfers in the mean": ("kernels", "transfers in the mean of ten calls", False),
}


# What each text asks to be measured, and the item that answers: a list made by another reading.
ASKED = {
    "lab: environment check": "Python, torch and the packages",
    "lab: the GPU": "the device, its cores and its clock",
    "lab: counts of ResNet-18": "FLOPs, MACs and parameters of ResNet-18",
    "lab: counts of SimpleCNN": "FLOPs, MACs and parameters of SimpleCNN",
    "lab: timed training steps": "training steps timed, batch 32, Adam, cross-entropy",
    "lab: 50 iterations": "first step that makes half of the mean of 50 at 0.0231 s",
    "lab: MFU": "MFU of a step",
    "lab: utilization while it runs": "utilization while the step runs",
    "lab: the two side by side": "the two side by side",
    "lab: per-operator table": "the profiler's time of each operator",
    "lab: call counts": "calls of each operator",
    "lab: input shapes": "input shapes of each operator",
    "lab: memory": "memory of each operator",
    "lab: Chrome trace": "a Chrome trace",
    "lab: throughput": "throughput",
    "lab: bits, exponent, mantissa, bias": "bits, exponent, mantissa and bias of each format",
    "lab: machine epsilon": "machine epsilon of each format",
    "lab: ordering of sums": "order of a sum",
    "lab: Kahan": "Kahan's sum",
    "lab: cancellation": "cancellation",
    "lab: subnormals": "subnormal numbers",
    "lab: a format's error in a matmul": "what a format costs a matmul in error",
    "kernels: NumPy": "the matmul by NumPy",
    "kernels: Numba, naive": "Numba's naive kernel as the text has it",
    "kernels: Numba, transposed": "Numba's transposed kernel as the text has it",
    "kernels: Numba, tiles": "Numba's shared-memory kernel as the text has it, with its error",
    "kernels: CUDA C": "CUDA C by cuda-python, tiles in shared memory",
    "kernels: cuBLAS": "cuBLAS by its Python bindings",
    "kernels: PyTorch": "the matmul by torch",
    "kernels: mean over several runs": "mean over several runs",
    "kernels: transfer to the device": "transfer to the device, apart from the kernel",
    "kernels: transfer back": "transfer back, apart from the kernel",
    "kernels: maximum error": "largest error against a reference",
    "kernels: block size": "block sizes of a GPU, from its properties",
    "kernels: errors by name": "errors of CUDA calls by name",
    "kernels: compile time": "compilation apart from the runs",
    "kernels: element-wise": "the element-wise product on a GPU",
    "kernels: why it lost": "why the naive kernel lost: compilation in the mean, memory traffic, no tiling",
    "kernels: 0.540 s, 0.194 s, 0.017 s": "Numba's and PyTorch's times, ÷ NumPy's 0.194 s",
    "kernels: 6.0e-4": "greatest error of a 512³ product of uniform float32, ÷ 6.0e-4",
    "kernels: 1.5e-4": "greatest error of the same 512³ product with sums in float64, ÷ 1.5e-4",
    "optimise: rule of a convolution": "FLOP rule of a convolution, against counters",
    "optimise: rule of a linear layer": "FLOP rule of a linear layer, against counters",
    "optimise: pooling": "pooling: FLOPs beside time",
    "optimise: separable": "separable convolutions: FLOPs beside time",
    "optimise: pruning": "pruning: FLOPs beside time",
    "hardware: CPU against GPU": "CPU against GPU, and from which size on a GPU wins",
    "hardware: peak": "peak from SMs, cores and clock",
    "hardware: tensor cores": "peak of tensor cores",
    "hardware: multiples of the tile": "sizes that are and are not multiples of a tile",
    "hardware: traced": "eager and traced",
    "hardware: scripted": "scripted",
    "hardware: compiled": "compiled",
    "hardware: CUDA graphs": "CUDA graphs",
    "hardware: forward alone": "forward alone against forward and backward",
    "hardware: no_grad": "forgotten `no_grad`",
    "hardware: workers": "workers of the loader",
    "hardware: pinned": "pinned memory",
    "hardware: frameworks": "TensorFlow, eager and as a graph",
    "accounting: weights, gradients, states": "memory of weights, gradients and moments, predicted beside measured",
    "accounting: activations": "memory of activations",
    "accounting: cache": "memory of the KV cache",
    "accounting: matmul, convolution": "FLOPs of matmul and convolution",
    "accounting: attention": "FLOPs of attention",
    "accounting: GPT-2": "FLOPs of GPT-2",
    "accounting: counters": "counters against one another",
    "accounting: tokens/s and samples/s": "samples and tokens a second",
    "accounting: TTFT": "time to the first token",
    "accounting: TPOT": "time of each further token",
    "accounting: FLOP efficiency": "FLOP efficiency, with recomputation and without",
    "accounting: bandwidth efficiency": "memory-bandwidth efficiency",
    "accounting: energy efficiency": "energy efficiency",
    "accounting: accumulation": "gradient accumulation",
    "accounting: mixed precision": "mixed precision",
    "accounting: clipping": "gradient clipping",
    "accounting: checkpointing": "checkpointing",
    "accounting: fusion": "fusion",
    "accounting: quantisation": "quantisation: weights and products in fewer bits",
    "accounting: memory-mapped": "memory-mapped files",
    "accounting: streams": "streams that overlap transfers with kernels",
    "accounting: data parallelism": "data parallelism",
    "accounting: its communication": "communication: bytes sent, and what is not hidden",
    "accounting: hierarchy": "latencies as a pyramid",
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_a_text_asks_to_be_measured_is_an_item(asked):
    assert ASKED[asked] in {item.topic for item in ITEMS}


def test_a_name_that_nothing_shows_is_found(recorded):
    item = topic("model `gpt2`; workload `prefill`", "decoding")
    assert recorded.unseen(item) == {"prefill"}
    assert "prefill" in recorded.unproven(item)
    assert recorded.unseen(topic("workload `prefill`", "first-token")) == set()
    assert recorded.unseen(topic("column `prefill`", "decoding")) == set()
    assert recorded.unseen(topic("columns `mbu_percent`, `bias`", "first-token")) == {"bias"}


@pytest.mark.parametrize("found", FOUND_LACKING)
def test_what_was_found_lacking_is_an_item(found):
    assert FOUND_LACKING[found] in {item.topic for item in ITEMS}


@pytest.mark.slow
def test_each_error_of_the_texts_is_a_statement_of_the_right_text_with_a_computed_value():
    rows = {row["case"]: row for row in recompute()}
    assert len(ERRATA) == len({case for _, case, _ in ERRATA.values()})
    for error, (source, case, agrees) in ERRATA.items():
        row = rows[case]
        assert (row["source"], row["agrees"]) == (source, agrees), error
        assert row["place"], error
        assert row["note"], error
        if case not in ("GPU utilization", "FLOPs", "torch.Tensor.grad_zero_"):  # of no number
            assert row["value"] is not None, error


@pytest.mark.parametrize(
    ("shown", "holds"),
    [
        ("tests/test_seminar_topics.py::test_what_was_found_lacking_is_an_item", True),
        ("tests/test_seminar_topics.py::test_that_nobody_wrote", False),
        ("tests/no_such_file.py::test_what_was_found_lacking_is_an_item", False),
    ],
)
def test_a_test_is_evidence_where_it_is_there(recorded, shown, holds):
    assert (recorded.unproven(topic("model `gpt2`", shown)) == "") is holds


@pytest.mark.slow
def test_without_tables_the_command_takes_the_recordings(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status = main(["topics", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (status, told["unproven"]) == (0, {})
    assert told["items"] == len(ITEMS)
