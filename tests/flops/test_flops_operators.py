"""Each correction to torch's counter, against a number worked out by hand."""

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import mfulab.flops.fused  # noqa: F401 (its operators)
from mfulab.flops import elementwise
from mfulab.flops.attention import KEYWORDS, SIGNATURES, VARIABLE_SIGNATURES
from mfulab.flops.cost import Cost
from mfulab.flops.count import Count, CountError, count
from mfulab.flops.counter import OperatorCounter, Totals
from mfulab.flops.layers import LayerTracker
from mfulab.flops.operators import FORMULAS, register


class Call(nn.Module):
    """A function as a model, its parameters those tensors that it is given."""

    def __init__(self, function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.tensors = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self) -> torch.Tensor:
        return self.function(*self.tensors)


def on_meta(module: nn.Module, *inputs: torch.Tensor, **options: bool) -> Count:
    return count(module, lambda: module(*inputs).sum(), **options)


def counted(
    function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]
) -> tuple[Totals, Totals]:
    with torch.device("meta"):
        operations = on_meta(Call(function, *shapes)).operations
    assert not operations.uncounted
    return operations.sum("forward"), operations.sum("backward")


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (torch.mm, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (torch.mv, [(3, 4), (4,)], 2 * 3 * 4),
        (torch.dot, [(7,), (7,)], 2 * 7),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (torch.addmm, [(5,), (3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (torch.addmv, [(3,), (3, 4), (4,)], 2 * 3 * 4),
        (torch.matmul, [(2, 6, 3, 4), (4, 5)], 2 * 12 * 3 * 4 * 5),
        (
            lambda a, b: torch.einsum("bij,bkj->bik", a, b),
            [(2, 3, 4), (2, 5, 4)],
            2 * 2 * 3 * 5 * 4,
        ),
        (functional.linear, [(6, 3, 4), (5, 4), (5,)], 2 * 18 * 4 * 5),
    ],
)
def test_products(function, shapes, flops):
    forward, backward = counted(function, *shapes)
    assert forward.flops == flops
    assert backward.flops == 2 * flops


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        # Their gradients are plain matmuls.
        (
            lambda a, b: torch.zeros(4, 6, device=a.device).addmm_(a[0], b[0]),
            2 * 4 * 5 * 6,
            4 * 4 * 5 * 6,
        ),
        (
            lambda a, b: torch.zeros(4, device=a.device).addmv_(a[0], b[0, :, 0]),
            2 * 4 * 5,
            4 * 4 * 5,
        ),
        (
            lambda a, b: torch.zeros(3, 4, 6, device=a.device).baddbmm_(a, b),
            2 * 3 * 4 * 5 * 6,
            4 * 3 * 4 * 5 * 6,
        ),
        (
            lambda a, b: torch.zeros(4, 6, device=a.device).addbmm_(a, b),
            2 * 3 * 4 * 5 * 6,
            4 * 3 * 4 * 5 * 6,
        ),
    ],
)
def test_products_added_in_place(function, forward, backward):
    totals = counted(function, (3, 4, 5), (3, 5, 6))
    assert [total.flops for total in totals] == [forward, backward]


def test_a_bilinear_layer():
    """y[n, o] = Σ x[n, i]·W[o, i, j]·z[n, j]: of two factors first, their result with the third; so
    each gradient."""
    n, i, j, o = 4, 5, 6, 7
    with torch.device("meta"):
        found = on_meta(
            nn.Bilinear(i, j, o),
            torch.randn(n, i, requires_grad=True),
            torch.randn(n, j, requires_grad=True),
        )
    whole = n * o * i * j
    assert found.operations.sum("forward").flops == 2 * (whole + n * o * j)
    seen = found.operations.sum("backward").flops
    assert seen == 2 * (3 * whole + n * i * j + n * o * i + n * o * j)
    assert not found.operations.uncounted


def _attention(**options: bool | int) -> nn.Module:
    class Attention(nn.MultiheadAttention):
        def forward(self, query, memory):  # type: ignore[override]
            return super().forward(query, memory, memory, need_weights="kdim" in options)[0]

    return Attention(16, 4, batch_first=True, **options)  # type: ignore[arg-type]


PROJECTED = 2 * 2 * (2 * 6 + 2 * 9) * 16 * 16


@pytest.mark.parametrize(
    ("function", "shapes", "forward", "backward"),
    [
        (_attention(), [(2, 6, 16), (2, 9, 16)], PROJECTED + 4 * 2 * 6 * 9 * 16, 2),
        (_attention(kdim=16, vdim=16), [(2, 6, 16), (2, 9, 16)], PROJECTED + 4 * 2 * 6 * 9 * 16, 2),
        (
            _attention(add_bias_kv=True, add_zero_attn=True),
            [(2, 6, 16), (2, 9, 16)],
            PROJECTED + 4 * 2 * 6 * 11 * 16,
            2,
        ),
        (
            lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b),
            [(2, 3, 5, 7), (2, 3, 6, 7)],
            2 * 2 * 3 * 5 * 6 * 7,
            2,
        ),
        (torch.tensordot, [(3, 4, 5), (4, 5, 6)], 2 * 3 * 20 * 6, 2),
        (
            nn.ConvTranspose3d(8, 12, 2, stride=2, groups=2),
            [(2, 8, 3, 4, 5)],
            2 * 2 * 8 * 60 * 6 * 8,
            2,
        ),
        (lambda x, w: w @ functional.unfold(x, 3), [(2, 3, 8, 8), (4, 27)], 2 * 2 * 4 * 27 * 36, 2),
        (
            lambda x, w: torch.fft.irfft2(torch.fft.rfft2(x) * torch.fft.rfft2(w)),
            [(2, 8, 8), (8, 8)],
            0,
            0,
        ),
        (
            lambda a, b: (torch.complex(a, a) @ torch.complex(b, b)).abs(),
            [(3, 4), (4, 5)],
            4 * 2 * 60,
            2,
        ),
        (lambda a, b: torch.func.vmap(torch.mv, (None, 0))(a, b), [(4, 5), (3, 5)], 2 * 60, 2),
        # The value and its tangent; the tangent that `a` has not is zeros, by which torch
        # multiplies and nobody needs.
        (
            lambda a, x: torch.func.jvp(lambda x: x @ a, (x,), (x,))[1],
            [(5, 6), (4, 5)],
            2 * 2 * 120,
            None,
        ),
    ],
)
def test_what_others_wrote(function, shapes, forward, backward):
    if isinstance(function, nn.Module):
        function = function.to("meta")
    found = counted(function, *shapes)
    assert found[0].flops == forward
    assert backward is None or found[1].flops == backward * forward


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("p", "mode", "forward", "backward", "others"),
    [
        # two squares beside, which the kernel multiplies as columns
        (2.0, "use_mm_for_euclid_dist", 2, 4, None),
        (2.0, "donot_use_mm_for_euclid_dist", 0, 0, (3, 8)),
        (1.0, "use_mm_for_euclid_dist_if_necessary", 0, 0, (3, 8)),
    ],
)
def test_distances(device, p, mode, forward, backward, others):
    a, b = (torch.randn(2, rows, 5, device=device, requires_grad=True) for rows in (3, 9))
    found = count(
        nn.Identity(), lambda: torch.cdist(a, b, p, mode).sum(), fused=device == "meta"
    ).operations
    pairs = 2 * 3 * 9
    seen = (found.sum("forward").flops, found.sum("backward").flops)
    assert seen == (forward * pairs * 5, backward * pairs * 5)
    assert not found.uncounted
    if others:
        by_name = [
            found.sum(operator=f"aten::_cdist_{which}").other_flops
            for which in ("forward", "backward")
        ]
        assert by_name == [each * pairs * 5 for each in others]
    else:
        assert found.sum("forward").executed_flops == 2 * pairs * (5 + 2)


def test_a_bag_of_embeddings_adds_its_vectors_and_reads_no_more():
    with torch.device("meta"):
        model, indices = nn.EmbeddingBag(1000, 16, mode="sum"), torch.zeros(20, dtype=torch.long)
        offsets = torch.zeros(3, dtype=torch.long)
    found = count(model, lambda: model(indices, offsets).sum()).operations
    assert not found.uncounted
    assert found.sum(operator="aten::_embedding_bag").other_flops == 20 * 16
    seen = found.sum(operator="aten::_embedding_bag").other_elements
    assert seen < 300, "not the table of 16,000"


@pytest.mark.parametrize(
    ("operator", "dtype"), [(torch._int_mm, torch.int8), (torch._scaled_mm, torch.float8_e4m3fn)]
)
def test_products_of_small_formats(operator, dtype):
    with torch.device("meta"):
        a = torch.empty(32, 64, dtype=dtype)
        b = torch.empty(48, 64, dtype=dtype).t()
        scales = [torch.ones(()), torch.ones(())] if operator is torch._scaled_mm else []
        operations = count(
            nn.Identity(),
            lambda: operator(a, b, *scales, *([None, None, torch.bfloat16] if scales else [])),
        ).operations
    assert operations.sum().flops == 2 * 32 * 64 * 48


# Convolutions: input gradient and weight gradient each cost what the forward pass costs, grouped or
# not.
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions(groups, transposed, dimensions):
    kind = getattr(functional, f"conv{'_transpose' if transposed else ''}{dimensions}d")
    shapes = [(2, 8, *[9] * dimensions), (8, 8 // groups, *[3] * dimensions)]
    forward, backward = counted(
        lambda x, w: kind(x, w, stride=2, padding=1, groups=groups), *shapes
    )
    places = 9 if transposed else 5
    assert forward.flops == 2 * 2 * 8 * places**dimensions * (8 // groups) * 3**dimensions
    assert backward.flops == 2 * forward.flops


def test_torch_overcounts_the_backward_pass_of_depthwise_convolution():
    """The reason for the correction: should torch be repaired, this says so."""
    with torch.device("meta"):
        convolution = nn.Conv2d(32, 32, 3, groups=32)
        images = torch.randn(1, 32, 8, 8, requires_grad=True)
        output = convolution(images)
        with FlopCounterMode(display=False) as torchs:
            output.sum().backward()
        ours = on_meta(convolution, images).operations
    assert ours.sum("backward").flops == 2 * ours.sum("forward").flops
    assert torchs.get_total_flops() == 16.5 * ours.sum("backward").flops


def test_attention_is_counted_full_and_causal_and_as_executed():
    shape = (2, 3, 16, 8)
    full = 4 * 2 * 3 * 16 * 16 * 8
    for causal in (False, True):
        forward, backward = counted(
            lambda q, k, v, causal=causal: functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal
            ),
            *[shape] * 3,
        )
        assert forward.flops == forward.executed_flops == full
        assert backward.flops == 2 * full
        assert backward.executed_flops == 2.5 * full
        assert forward.causal_flops == (full // 2 if causal else full)
        assert backward.causal_flops == 2 * forward.causal_flops


def test_attention_counts_the_heads_of_the_queries_and_the_width_of_the_values():
    forward, _ = counted(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (1, 8, 5, 16), (1, 2, 7, 16), (1, 2, 7, 4),
    )  # fmt: skip
    assert forward.flops == 2 * 8 * 5 * 7 * (16 + 4)


def test_causal_attention_to_fewer_keys_than_queries():
    forward, _ = counted(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (1, 1, 6, 2), (1, 1, 4, 2), (1, 1, 4, 2),
    )  # fmt: skip
    # Four queries see half of four keys, the two beyond see all of them.
    assert forward.causal_flops == 4 * 2 * (4 * 4 / 2 + 2 * 4)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_fused_attention_with_frozen_inputs_costs_what_eager_attention_does(frozen):
    def eager(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    totals = []
    for function in (eager, functional.scaled_dot_product_attention):
        with torch.device("meta"):
            module = Call(function, *[(2, 3, 16, 8)] * 3)
        for index in frozen:
            module.tensors[index].requires_grad_(False)
        operations = on_meta(module).operations
        totals.append((operations.sum("forward").flops, operations.sum("backward").flops))
    assert totals[0] == totals[1]


def test_attention_is_counted_on_a_real_cpu_too():
    module = Call(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        *[(2, 3, 16, 8)] * 3,
    )
    operations = on_meta(module, fused=False).operations
    full = 4 * 2 * 3 * 16 * 16 * 8
    assert operations.sum("forward").flops == full
    assert operations.sum("forward").causal_flops == full // 2
    assert operations.sum("backward").flops == 2 * full
    assert not operations.uncounted


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers(device, kind, gates):
    with torch.device(device):
        network = kind(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        tokens = torch.randn(3, 5, 8)
    operations = count(network, lambda: network(tokens)[0].sum(), fused=device == "meta").operations
    # Two directions each: the first layer reads 8 values, the second 2·6, both the state's 6.
    assert operations.sum("forward").flops == 3 * 5 * 2 * 2 * gates * 6 * ((8 + 6) + (12 + 6))
    assert operations.sum("backward").flops > 1.6 * operations.sum("forward").flops
    assert not operations.uncounted


@pytest.mark.parametrize("asked", ["all", "weights", "input", "state", "input_alone_of_all"])
def test_of_a_fused_recurrent_layer_the_gradients_asked_for_are_needed(asked):
    """The kernel makes all of them, which is executed."""
    layer = nn.LSTM(8, 6)
    tokens = torch.randn(5, 3, 8, requires_grad=asked in ("all", "input", "input_alone_of_all"))
    layer.requires_grad_(asked in ("all", "weights", "input_alone_of_all"))
    state = tuple(torch.randn(1, 3, 6, requires_grad=asked == "state") for _ in range(2))
    with OperatorCounter(LayerTracker(layer), memory=False) as counter:
        loss = layer(tokens, state)[0].sum()
        if asked == "input_alone_of_all":
            torch.autograd.grad(loss, [tokens])
        else:
            loss.backward()
    of_input, of_state = 2 * 15 * 24 * 8, 2 * 15 * 24 * 6
    through_time = of_state - 2 * 3 * 24 * 6
    by_hand = {
        "all": 2 * of_input + of_state + through_time,
        "weights": of_input + of_state + through_time,
        "input": of_input + through_time,
        "state": of_state,
        "input_alone_of_all": of_input + through_time,
    }
    backward = counter.operations.sum("backward", operator="aten::mkldnn_rnn_layer_backward")
    assert backward.flops == by_hand[asked]
    assert backward.executed_flops == 2 * (of_input + of_state)


@pytest.mark.parametrize("operator", ["aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mask", [(1, 0, 0, 1), (0, 0, 0, 1), (1, 0, 0, 0), (1, 1, 1, 1)])
def test_a_gpus_recurrent_layers_honour_what_is_asked_for(operator, directions, mask):
    """GRU of two layers, 5 steps of 3 sequences, 8 wide, 6 hidden."""
    weights = []
    for width in (8, 6 * directions):
        for _ in range(directions):
            weights += [torch.empty(18, width), torch.empty(18, 6), *torch.empty(2, 18)]
    tokens = torch.empty(5, 3, 8)
    hidden = torch.empty(2 * directions, 3, 6)
    sizes = (6, 2) if "miopen" in operator else (6, 0, 2)
    flags = (False, 0.0, True, directions == 2, [], None, torch.empty(0))
    given = (tokens, weights, 4, torch.empty(0), hidden, None, tokens, tokens, None, None, 3)
    flops = FORMULAS[operator](*given, *sizes, *flags, list(map(bool, mask)), out=None)
    first, others = 2 * 15 * 18 * 8 * directions, 2 * 15 * 18 * 6 * directions * (2 + directions)
    through_time = 0 if mask[1] else 2 * directions * 2 * 3 * 18 * 6
    assert flops == mask[3] * (first + others) + mask[0] * first + others - through_time


LOSSES = """mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss
    soft_margin_loss l1_loss kl_div poisson_nll_loss"""
ACTIVATIONS = (
    "logsigmoid hardsigmoid elu selu celu mish softsign relu6 hardshrink softshrink rrelu glu"
)
RESIZINGS = [
    *(("nearest", 1), ("linear", 1), ("nearest", 2), ("bilinear", 2), ("bicubic", 2)),
    *(("area", 2), ("nearest-exact", 2), ("nearest", 3), ("trilinear", 3), ("area", 3)),
]


@pytest.mark.parametrize("name", LOSSES.split())
def test_a_loss_is_no_uncounted_operator(name):
    network, target = nn.Linear(4, 4), torch.rand(3, 4)
    loss = getattr(functional, name)
    found = count(network, lambda: loss(network(torch.rand(3, 4)).sigmoid(), target)).operations
    assert (dict(found.uncounted), found.model_flops) == ({}, 2 * 2 * 3 * 4 * 4)


@pytest.mark.parametrize("name", ACTIVATIONS.split())
def test_an_activation_is_no_uncounted_operator(name):
    network, activation = nn.Linear(4, 4), getattr(functional, name)
    found = count(network, lambda: activation(network(torch.rand(3, 4))).sum()).operations
    assert (dict(found.uncounted), found.model_flops) == ({}, 2 * 2 * 3 * 4 * 4)


@pytest.mark.parametrize(("mode", "dimensions"), RESIZINGS)
def test_resizing_is_no_uncounted_operator(mode, dimensions):
    network, image = nn.PReLU(), torch.rand(1, 2, *dimensions * [4])
    resized = count(
        network, lambda: functional.interpolate(network(image), scale_factor=2, mode=mode).sum()
    )
    assert (dict(resized.operations.uncounted), resized.operations.model_flops) == ({}, 0)


def test_normed_weights_and_packed_sequences_are_no_uncounted_operators():
    network = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def step():
        packed = nn.utils.rnn.pack_padded_sequence(torch.rand(5, 2, 4), torch.tensor([5, 3]))
        padded, _ = nn.utils.rnn.pad_packed_sequence(packed)
        return network(padded).sum()

    found = count(network, step).operations
    assert (dict(found.uncounted), found.model_flops) == ({}, 2 * 2 * 10 * 4 * 4)


def test_a_product_at_the_places_of_a_sparse_one_is_counted():
    places, a, b = torch.eye(6).to_sparse_csr(), torch.randn(6, 5), torch.randn(5, 6)
    with OperatorCounter(LayerTracker(nn.Identity()), memory=False) as counter:
        torch.sparse.sampled_addmm(places, a, b)
    assert counter.operations.model_flops == 2 * 6 * 5


def test_the_encoder_layers_fast_path_is_counted():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    tokens = torch.randn(2, 5, 32)
    by_hand = 2 * 10 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 2 * 5 * 5 * 32
    with torch.inference_mode():
        fast = on_meta(layer.eval(), tokens, backward=False, fused=False).operations
    assert {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"} & {
        key.operator for key in fast.totals
    }
    slow = on_meta(layer.train().to("meta"), tokens.to("meta")).operations
    assert fast.sum("forward").flops == slow.sum("forward").flops == by_hand


def test_a_padding_mask_is_no_weight_of_the_encoder_layers_fast_path():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    tokens = torch.randn(2, 5, 32)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    counts = []
    for mask in (None, padding):
        counter = OperatorCounter(LayerTracker(layer), memory=False)
        with torch.inference_mode(), counter:
            layer(tokens, src_key_padding_mask=mask)
        operators = {key.operator for key in counter.operations.totals}
        assert "aten::_transformer_encoder_layer_fwd" in operators
        counts.append(counter.operations.model_flops)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("is_nested", [False, True])
def test_the_fast_path_of_attention_takes_only_as_many_keys_as_queries(is_nested):
    # its formula counts the projections of keys and values for each query
    query, key = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    if is_nested:
        query, key = (torch.nested.nested_tensor(list(tensor)) for tensor in (query, key))
    weights = (torch.randn(48, 16), torch.zeros(48), torch.randn(16, 16), torch.zeros(16))
    torch._native_multi_head_attention(query, query, query, 16, 4, *weights, None, False)
    with pytest.raises(RuntimeError):
        torch._native_multi_head_attention(query, key, key, 16, 4, *weights, None, False)


def test_an_embedding_costs_nothing_and_is_known():
    with torch.device("meta"):
        table = nn.Embedding(100, 8)
        operations = on_meta(table, torch.zeros(2, 3, dtype=torch.long)).operations
    assert operations.sum().flops == 0
    assert operations.sum("forward").other_flops == 2 * 3 * 8  # the sum that stands for a loss
    assert not operations.uncounted


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_is_told_apart(use_reentrant):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        inputs = torch.randn(4, 8, requires_grad=True)
        plain = on_meta(model, inputs).operations
        again = count(
            model, lambda: checkpoint(model, inputs, use_reentrant=use_reentrant).sum()
        ).operations
    assert plain.sum("recomputed").calls == 0
    assert again.sum("recomputed").flops == 2 * 2 * 4 * 8 * 8
    for direction in ("forward", "backward"):
        assert again.sum(direction).flops == plain.sum(direction).flops


def test_recomputed_attention_is_not_taken_for_backward():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            x = self.project(x)
            return self.out(functional.scaled_dot_product_attention(x, x, x))

    with torch.device("meta"):
        model = nn.Sequential(Block())
        tokens = torch.randn(2, 8, 16)
    operations = count(
        model, lambda: checkpoint(model, tokens, use_reentrant=False).sum()
    ).operations
    attention = 4 * 2 * 8 * 8 * 16
    for direction, flops in (
        ("forward", attention),
        ("recomputed", attention),
        ("backward", 2 * attention),
    ):
        of_attention = [
            total.flops for key, total in operations.totals.items()
            if key.direction == direction and "attention" in key.operator
        ]  # fmt: skip
        assert sum(of_attention) == flops


def test_what_is_frozen_is_not_counted_backward():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    inputs = torch.randn(4, 8, device="meta")
    one = 2 * 4 * 8 * 8
    assert on_meta(model, inputs).operations.sum("backward").flops == 3 * one
    model[0].requires_grad_(False)
    assert on_meta(model, inputs).operations.sum("backward").flops == one
    model.requires_grad_(False)
    assert on_meta(model, inputs).operations.sum("backward").flops == 0


def test_a_low_rank_adapter_pays_for_the_way_back_but_not_for_the_weights():
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(64, 64, bias=False).requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

        def forward(self, x):
            return self.frozen(x) + self.up(self.down(x))

    with torch.device("meta"):
        model = nn.Sequential(Adapted(), Adapted())
        operations = on_meta(model, torch.randn(10, 64)).operations
    frozen, adapter = 2 * 10 * 64 * 64, 2 * 10 * 64 * 4
    assert operations.sum("forward").flops == 2 * (frozen + 2 * adapter)
    # Second layer: gradient of its input through both ways. Both: weight gradients, and the way
    # into `down`.
    assert operations.sum("backward").flops == (frozen + adapter) + 2 * (2 * adapter + adapter)


@pytest.mark.parametrize(("stride", "flops"), [([2, 2], 64 * 9 // 4), ([], 64)])
def test_a_pooling_costs_its_window_per_output(stride, flops):
    """`elementwise.other_flops`: 64 inputs; a window of 3 × 3 is also the stride if none is given."""
    x = torch.empty(1, 1, 8, 8, device="meta")
    packet = torch.ops.aten.max_pool2d_with_indices
    assert elementwise.other_flops(packet, [x], (x, [3, 3], stride), {}) == flops


def test_grouped_products_cost_what_the_active_experts_cost():
    def experts(rows, weights):
        ends = torch.empty(8, dtype=torch.int32, device="meta")
        return torch._grouped_mm(rows, weights, offs=ends)

    forward, backward = counted(experts, (24, 16), (8, 16, 32))
    assert forward.flops == 2 * 24 * 16 * 32
    assert backward.flops == 2 * forward.flops


def test_an_operator_without_a_formula_is_named_and_can_be_registered_in_one_line():
    @torch.library.custom_op("mfulab_test::shifted_product", mutates_args=())
    def shifted_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w + 1

    @shifted_product.register_fake
    def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.shape[0], w.shape[1])

    with torch.device("meta"):
        model = Call(lambda x, w: shifted_product(shifted_product(x, w), w), (3, 4), (4, 4))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = on_meta(model).operations
    assert before.uncounted == {"mfulab_test::shifted_product": 2}
    assert before.sum().flops == 0

    try:
        for operator in (
            shifted_product,
            torch.ops.mfulab_test.shifted_product,
            "mfulab_test::shifted_product",
        ):
            register(operator, lambda x, w: 2 * x.numel() * w.shape[1])
            assert on_meta(model).operations.sum().flops == 2 * 2 * 3 * 4 * 4
        register(shifted_product, lambda x, w, out: Cost(out.numel(), 1, 2))
        after = on_meta(model).operations
        found = (after.sum().flops, after.sum().causal_flops, after.sum().executed_flops)
        assert found == (24, 2, 4)
        assert not after.uncounted
    finally:
        del FORMULAS["mfulab_test::shifted_product"]


def test_only_operators_have_names():
    with pytest.raises(TypeError, match="is no operator"):
        register(3, lambda: 0)


def test_bytes_are_of_what_a_kernel_reads_and_writes():
    forward, backward = counted(torch.mm, (3, 4), (4, 5))
    assert forward.elements == 12 + 20 + 15
    # The sum's gradient is one number, repeated: 1 + 20 + 12 and 12 + 1 + 20.
    assert backward.elements == 33 + 33
    attention, _ = counted(functional.scaled_dot_product_attention, *[(1, 2, 16, 8)] * 3)
    assert attention.elements == 4 * 2 * 16 * 8 + 2 * 16


def test_elementwise_operators_are_counted_apart():
    forward, backward = counted(lambda x: torch.softmax(torch.relu(x), -1), (4, 6))
    assert forward.flops == backward.flops == 0
    # relu, softmax, and the sum that stands for a loss
    assert forward.other_flops == 24 * (1 + 3 + 1)
    assert forward.other_elements > 4 * 24


SINCE_2_12 = ("_varlen_attn_out",)  # operators that torch 2.11, the least one, lacks


def test_attention_reads_its_arguments_where_torch_puts_them() -> None:
    importlib.import_module("torch.nn.attention.varlen")
    for operator, signature in {**SIGNATURES, **VARIABLE_SIGNATURES}.items():
        namespace, _, short = operator.partition("::")
        if namespace not in ("aten", "mfulab", "torch_attn"):
            continue
        found = getattr(getattr(torch.ops, namespace), short, None)
        if found is None and short in SINCE_2_12:
            continue
        for ours, argument in zip(signature.split(), found.default._schema.arguments, strict=False):
            theirs = (
                {"window_size": "window_sides"}.get(argument.name)
                if namespace == "torch_attn"
                else None
            )
            assert ours in ("_", argument.name, theirs, KEYWORDS.get(argument.name))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layers", [1, 2])
def test_an_encoder_that_drops_its_padding_costs_its_real_tokens(layers):
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), layers
    ).eval()
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 6:] = True
    with torch.inference_mode(), OperatorCounter(LayerTracker(encoder), memory=False) as counter:
        encoder(torch.randn(2, 10, 64), src_key_padding_mask=padding)
    by_hand = sum(
        2 * tokens * (4 * 64 * 64 + 2 * 64 * 128) + 4 * tokens**2 * 64 for tokens in (10, 6)
    )
    assert counter.operations.model_flops == layers * by_hand
    assert not counter.operations.uncounted


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_products_of_sequences_of_different_lengths():
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.strided)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.inference_mode(), OperatorCounter(LayerTracker(attention), memory=False) as counter:
        torch.bmm(x, x.transpose(1, 2))
        torch.bmm(x, torch.randn(2, 8, 4))
        attention(x, x, x, need_weights=False)
    projected, attended = 2 * 8 * 4 * 8 * 8, 4 * (9 + 25) * 8
    assert counter.operations.model_flops == 2 * 8 * (9 + 25) + 2 * 8 * 8 * 4 + projected + attended


def test_tangents_that_are_zeros_are_executed_and_not_needed():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(3, 8)
    one = 2 * 3 * 8 * 8
    with torch.no_grad(), OperatorCounter(LayerTracker(model), memory=False) as counter:
        torch.func.jvp(model, (x,), (x,))
        torch.addmm(torch.zeros(()).expand(3, 8), x, model[0].weight)
    assert counter.operations.model_flops == 2 * 2 * one + one
    found = sum(each.executed_flops for each in counter.operations.totals.values())
    assert found == 2 * 3 * one + one


def test_solving_by_factors_costs_two_triangles_a_column():
    a, b = torch.eye(6) * 2, torch.randn(6, 3)
    factors, pivots = torch.linalg.lu_factor(a)
    with OperatorCounter(LayerTracker(torch.nn.ModuleDict())) as counter:
        torch.linalg.lu_solve(factors, pivots, b)
        torch.cholesky_solve(b, a)
    assert counter.operations.model_flops == 2 * (2 * 6 * 6 * 3)
    assert not counter.operations.uncounted


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda a, b: torch.linalg.cholesky(a), 6**3 / 3),
        (lambda a, b: torch.linalg.lu_factor(a), 2 * 6**3 / 3),
        (lambda a, b: torch.linalg.inv(a), 2 * 6**3),
        (lambda a, b: torch.linalg.solve(a, b), 2 * 6**3 / 3 + 2 * 6**2 * 4),
        (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), 6**2 * 4),
        (lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=True, left=False), 6**2 * 4),
    ],
)
def test_factors_and_solutions_of_six_rows_cost_what_golub_and_van_loan_say(function, flops):
    a, b = torch.eye(6).repeat(2, 1, 1), torch.randn(2, 6, 4)
    with OperatorCounter(LayerTracker(torch.nn.ModuleDict())) as counter:
        function(a, b)
    assert counter.operations.model_flops == 2 * flops
    assert not counter.operations.uncounted


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no gradient of this")


def test_recomputation_that_ends_early_is_no_layer_that_failed():
    with torch.device("meta"):
        block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        x = torch.randn(2, 4, requires_grad=True)

    def step() -> torch.Tensor:
        return checkpoint(block, FailsBackward.apply(x), use_reentrant=False).sum()

    with pytest.raises(CountError) as raised:
        count(block, step)
    assert raised.value.said.key == "failed_in_forward"
    with pytest.raises(CountError) as raised:
        count(block, lambda: block(x[:, :3]).sum())
    assert (raised.value.said.key, raised.value.said.numbers["layer"]) == ("failed_in_layer", "0")


def test_what_began_before_the_count_is_known_by_its_layer_or_as_the_optimisers():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    seen = []
    for what in (model[1], optimizer):
        layers = LayerTracker(model)
        with OperatorCounter(layers, memory=False) as counter, torch.no_grad():
            layers.begin(what)
            torch.mm(torch.ones(2, 3), torch.ones(3, 5))
        for key, totals in counter.operations.totals.items():
            if totals.flops:
                seen.append((key.layer, key.direction, totals.flops))
    assert seen == [("1", "forward", 60), ("", "optimizer", 60)]
