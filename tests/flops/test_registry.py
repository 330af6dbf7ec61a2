"""Formulas that are read from files: their examples, their grammar, and what a file may do wrong."""

from pathlib import Path

import pytest
import torch
import yaml
from support.bad_yaml import BAD_YAML

from mfulab.core.errors import ConfigurationError
from mfulab.core.said import Said
from mfulab.flops import registry
from mfulab.flops.cost import Pairs
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.flops.operators import FORMULAS, formula_of, register
from mfulab.flops.registry import step
from mfulab.flops.registry.entry import Registered, entry
from mfulab.flops.registry.expression import Operand, Scope, UnknownError, evaluated, parsed
from mfulab.flops.traced import traced_cost

FILES = sorted(registry.THIS_FOLDER.glob("*.yaml"))
ENTRIES = [(path, raw) for path in FILES for raw in yaml.safe_load(path.read_text())]
COUNTED = [(path, raw) for path, raw in ENTRIES if not raw.get("uncounted")]
# Of single models: files that are given by the environment.
OF_MODELS = sorted(Path(__file__).parents[2].glob("examples/operators/*/*.yaml"))
NAMES = [(name, raw) for _, raw in COUNTED for name in raw["operators"].split()]


def named(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("name", "raw"), NAMES, ids=named)
def test_an_example_costs_what_was_computed_by_hand(name, raw):
    example = raw["example"]
    values = example.get("values", [])
    shapes = example["shapes"]
    shapes = shapes + [[]] * (len(values) - len(shapes))
    types = example.get("types", ())
    work = step.step_work(example["step"]) if "step" in example else None
    told = example.get("name", name)
    recorded = traced_cost(told, shapes, values, types, work)
    assert recorded.reason is None
    assert recorded.cost.flops == example["flops"]
    if "causal_flops" in example:
        assert recorded.cost.causal_flops == example["causal_flops"]
    if "bytes" in example:
        assert recorded.bytes_moved == example["bytes"]


@pytest.mark.parametrize("path", OF_MODELS, ids=lambda path: path.parent.name)
def test_a_file_of_one_models_experts_comes_before_the_packages_own(path, monkeypatch):
    monkeypatch.setenv(registry.VARIABLE, str(path.parent))
    formulas = registry.registered.__wrapped__()
    for raw in yaml.safe_load(path.read_text()):
        for name in raw["operators"].split():
            example = raw["example"]
            given = [Operand(tuple(shape)) for shape in example["shapes"]]
            assert formulas[name].uncounted is False
            assert formulas[name](*given).flops == example["flops"]
    assert formulas["vllm::unified_attention"] is not None, "others stay"


def test_every_entry_names_its_source_and_each_operator_once():
    names = [name for _, raw in ENTRIES for name in raw["operators"].split()]
    assert len(names) == len(set(names))
    assert all(raw["source"].startswith("https://") for _, raw in ENTRIES)


MATMUL = {"operators": "mine::matmul", "arguments": "x w", "source": "https://example.org"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("__import__('os').system('x')", "Call"),
        ("x.shape", "Attribute"),
        ("(lambda: 1)()", "Call"),
        ("[y for y in x]", "ListComp"),
        ("x[0] ** 9", "BinOp"),
        ("x[0] << 9", "BinOp"),
        ("open(x)", "open"),
        ("y[0]", "y"),
        ("'text'", "Constant"),
        ("x[0", "expression"),
        ("1 + " * 400 + "1", "1000"),
        ("-" * 900 + "1", "deeper"),
        ("1" + "+1" * 400, "deeper"),
    ],
)
def test_an_expression_that_is_none_is_refused_before_anything_runs(text, part):
    with pytest.raises(ValueError, match=part):
        entry(MATMUL | {"flops": text}, "mine.yaml")


@pytest.mark.parametrize(
    "raw",
    [
        "text",
        {},
        MATMUL,
        MATMUL | {"flops": "1", "matmul": ["1", "1", "1"]},
        MATMUL | {"matmul": ["1", "1"]},
        MATMUL | {"flop": "1"},
        {"operators": "mine::matmul", "flops": "1"},
    ],
)
def test_an_entry_that_is_incomplete_is_one_sentence_with_its_file(raw):
    with pytest.raises(ValueError, match=r"^mine\.yaml: .+") as error:
        entry(raw, "mine.yaml")
    assert "\n" not in str(error.value)


def test_arithmetic_and_what_a_record_lacks():
    x = Operand((2, 3, 4), 2.0)
    scope = Scope({"x": x, "sizes": [5, 6], "causal": True, "absent": None})
    names = tuple(scope.arguments)
    for text, value in (
        ("numel(x) + rows(x) * 10", 84),
        ("bytes(x) / width(x)", 24),
        ("x[-1] % 3 - -1", 2),
        ("sizes[1] // 4", 1),
        ("max(x[0], min(x[1], 9))", 3),
        ("7 if causal else 8", 7),
        ("7 if x[0] > 2 else 8", 8),
        ("absent * 2 | 5", 5),
        ("absent | x[0]", 2),
        ("given(absent)", False),
    ):
        assert evaluated(parsed(text, names), scope) == value
    for text in ("absent + 1", "absent[0]", "numel(causal)", "step(x[0])", "width(absent)"):
        with pytest.raises(UnknownError):
            evaluated(parsed(text, names), scope)


@pytest.mark.parametrize(
    ("operator", "values"),
    [
        ("==", (False, True, False)),
        ("!=", (True, False, True)),
        ("<", (True, False, False)),
        ("<=", (True, True, False)),
        (">", (False, False, True)),
        (">=", (False, True, True)),
        ("+", (7, 8, 9)),
        ("-", (-1, 0, 1)),
        ("*", (12, 16, 20)),
        ("//", (0, 1, 1)),
        ("/", (0.75, 1, 1.25)),
        ("%", (3, 0, 1)),
    ],
)
def test_each_operator_of_an_expression_is_pythons(operator, values):
    tree = parsed(f"x {operator} 4", ("x",))
    assert tuple(evaluated(tree, Scope({"x": x})) for x in (3, 4, 5)) == values


@pytest.mark.parametrize("text", ["document(2, 3) * 4", "4 * document(2, 3)"])
def test_pairs_are_of_as_many_heads_as_they_are_multiplied_by(text):
    assert evaluated(parsed(text, ()), Scope({})) == Pairs(24, 24, 24)


def test_an_expression_may_be_as_deep_and_as_long_as_said():
    assert evaluated(parsed("-" * 50 + "1", ()), Scope({})) == 1
    with pytest.raises(ValueError, match="deeper than 50"):
        parsed("-" * 51 + "1", ())
    assert evaluated(parsed("1".ljust(1000), ()), Scope({})) == 1
    with pytest.raises(ValueError, match="longer than 1000"):
        parsed("1".ljust(1001), ())


def test_a_steps_lengths_belong_to_calls_of_as_many_query_tokens():
    requests = step.Requests(queries=4, keys=9, squares=8, products=20)
    work = step.StepWork(requests, step.Requests())
    scope = Scope({"tokens": 4}, work)
    for text in ("context(tokens)", "context()", "step(5)"):
        assert evaluated(parsed(text, ("tokens",)), scope) == Pairs(20, 16, 20)
    assert evaluated(parsed("context_keys()", ()), scope) == 9
    for text in ("context(3)", "generation()", "generation_keys()"):
        with pytest.raises(UnknownError):
            evaluated(parsed(text, ()), scope)


def packed(**named):
    names = ("ends", "keys", "longest", "most", "tokens", "held")
    scope = Scope(dict.fromkeys(names) | named)
    text = "packed(tokens, ends, keys, longest, most, keys=held, causal=1)"
    return evaluated(parsed(text, names), scope)


def test_lengths_of_packed_sequences_are_read_or_follow_or_are_unknown():
    ends = torch.tensor([0, 3, 8])
    by_values = packed(tokens=8, ends=Operand((3,), 4.0, ends), keys=Operand((3,), 4.0, ends))
    assert by_values == Pairs(9 + 25, 4.5 + 12.5, 9 + 25)
    shaped = Operand((3,))
    fresh = packed(tokens=8, ends=shaped, longest=4, most=4)
    assert fresh == Pairs(2 * 16, 2 * 8, 2 * 16)
    cached = packed(tokens=8, ends=shaped, longest=4, most=10, held=20)
    assert cached == Pairs(2 * 40, 2 * (40 - 8), 2 * 40)
    for told in (
        {"tokens": 7, "longest": 4, "most": 4},
        {"tokens": 8, "longest": 4, "most": 10, "held": 19},
        {"tokens": 8},
    ):
        with pytest.raises(UnknownError):
            packed(ends=shaped, **told)


@pytest.mark.parametrize(
    ("name", "context", "generation"),
    [
        (
            "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)",
            (6144, 7144, 20971520, 23019520),
            (3, 6144, 3, 6144),
        ),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            (5, 8, 25, 40),
            (1, 12, 1, 12),
        ),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", (12, 20, 80, 120), (0,) * 4),
        ("decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]", (0,) * 4, (128, 65536, 512, 262144)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=7 sqsk=8 sk=14721]", (14721, 14721, 7, 8), (0,) * 4),
    ],
)  # fmt: skip
def test_what_engines_write_of_a_steps_requests(name, context, generation):
    work = step.step_work(name)
    assert tuple(vars(work.context).values()) == context
    assert tuple(vars(work.generation).values()) == generation


def test_a_range_that_counts_requests_alone_tells_no_lengths():
    for name in (
        "execute_context_2(14721)_generation_0(0)",
        "step[DECODE bs=64]",
        "ProfilerStep#3",
    ):
        assert step.step_work(name) is None


def test_what_no_shape_tells_is_named_and_not_0():
    shapes = [[4, 8, 128], [4, 2, 128], [4, 2, 128], [4, 8, 128], []]
    attention = traced_cost("vllm::unified_attention_with_output", shapes, [])
    assert (attention.cost, attention.reason) == (None, Said("no_step_lengths"))
    experts = traced_cost("vllm::moe_forward", [[4, 64], [4, 8]], [])
    assert (experts.cost, experts.reason) == (None, Said("uncounted_operator"))
    larger = step.step_work("decode[bs=9 tok=9 sqsq=9 sqsk=90 sk=90]")
    assert traced_cost("vllm::unified_attention", shapes[:3], [], (), larger).cost is None
    odd = traced_cost("vllm::rocm_unquantized_gemm", [[4], []], [])
    assert odd.cost is None


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes a file into a folder that MFULAB_OPERATORS names."""

    def write(content):
        (tmp_path / "mine.yaml").write_text(content)
        monkeypatch.setenv(registry.VARIABLE, str(tmp_path))
        forget()

    yield write
    monkeypatch.undo()
    forget()


def forget():
    registry.registered.cache_clear()
    registry.patterns.cache_clear()
    registry.registered_formula.cache_clear()


MINE = """
- operators: mfulab_file_test::product
  arguments: x w
  matmul: [rows(x), "w[0]", "x[-1]"]
  source: https://example.org
"""


def test_a_folder_of_ones_own_serves_traces_and_counts(files):
    files(MINE)
    assert traced_cost("mfulab_file_test::product", [[2, 3, 8], [5, 8]], []).cost.flops == 480

    @torch.library.custom_op("mfulab_file_test::product", mutates_args=())
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x.shape[:-1], w.shape[0])

    class Model(torch.nn.Module):
        def forward(self, x):
            return product(x, w=torch.ones(5, 8))

    model = Model()
    counter = OperatorCounter(LayerTracker(model))
    with counter:
        model(torch.ones(2, 3, 8))
    assert counter.operations.model_flops == 480
    assert not counter.operations.uncounted


def test_arguments_that_tell_nothing_leave_a_call_uncounted(files):
    files(MINE)
    formula = registry.registered_formula("mfulab_file_test::product")
    assert isinstance(formula, Registered)
    assert formula(torch.ones(2, 8), "text") is None
    assert formula() is None


@pytest.mark.parametrize("flops", ["9" * 990, "-numel(x)", "1e308 * 10", "1 / 0"])
def test_a_number_that_no_call_costs_leaves_the_call_uncounted(files, flops):
    files(f"- {{operators: mine::x, arguments: x, source: s, flops: {flops}}}")
    recorded = traced_cost("mine::x", [[2, 3]], [])
    assert recorded.cost is None
    assert recorded.reason.key == "no_formula_for"


FAULTY = {name: f"- {text}" if "\n" not in text else text for name, text in BAD_YAML.items()}
FAULTY |= {"incomplete": "- operators: mine::x\n  flops: 1", "a map": "a: 1", "a number": "- 1"}


@pytest.mark.parametrize("content", FAULTY.values(), ids=FAULTY)
def test_a_faulty_file_of_ones_own_is_one_sentence(files, content):
    files(content)
    with pytest.raises(ConfigurationError, match=r"mine\.yaml"):
        registry.registered()


def test_a_folder_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv(registry.VARIABLE, "/no/such/folder")
    forget()
    with pytest.raises(ConfigurationError, match="/no/such/folder"):
        registry.registered()
    monkeypatch.undo()
    forget()


def test_a_package_names_a_folder_of_which_nothing_is_imported(tmp_path, monkeypatch):
    package = tmp_path / "mfulab_entry_test"
    (package / "formulas").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "formulas" / "mine.yaml").write_text(MINE)
    about = tmp_path / "mfulab_entry_test-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mfulab_entry_test\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[mfulab.operators]\nmine = mfulab_entry_test.formulas\nbad = mfulab_no_package.formulas\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    with pytest.warns(UserWarning, match="mfulab_no_package"):
        assert "mfulab_file_test::product" in registry.registered()
    monkeypatch.undo()
    forget()


def test_formulas_of_code_go_before_those_of_files(files):
    files(MINE)
    register("mfulab_file_test::product", lambda x, w: 7)
    try:
        assert formula_of("mfulab_file_test::product")(None, None, out=None) == 7
    finally:
        del FORMULAS["mfulab_file_test::product"]
