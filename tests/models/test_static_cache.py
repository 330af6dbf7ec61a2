"""Decoding with a static cache: tokens and FLOPs are those of a growing one, and a step holds nothing
that a CUDA graph could not."""

from typing import Any

import pytest
import torch
from support.language_models import (
    BATCH,
    BERT,
    GPT2,
    LAYERS,
    LENGTH,
    LLAMA,
    SLIDING,
    VOCABULARY,
)
from support.said import keys
from torch.utils._python_dispatch import TorchDispatchMode

from mfulab.core.errors import UnsupportedError
from mfulab.flops.count import count
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models import static_cache
from mfulab.models.build import build
from mfulab.models.decoding import generating
from mfulab.models.step import make

CPU = torch.device("cpu")
MODELS = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])


def made(config, device="cpu"):
    """A model and tokens of a batch, made on a device."""
    with torch.device(device):
        return build(config).eval(), torch.randint(VOCABULARY, (BATCH, LENGTH))


def asked(workload="decoding", **execution) -> ProfileStepConfig:
    return ProfileStepConfig.model_validate(
        {
            "model": GPT2,
            "batch_size": BATCH,
            "workload": {"name": workload, "mode": workload},
            "precision": {"name": "fp32", "dtype": "float32"},
            "execution": {"name": "asked", **execution},
        }
    )


def logits(config: ProfileStepConfig, device: torch.device = CPU) -> list[torch.Tensor]:
    """Those of three steps of the same weights and tokens."""
    torch.manual_seed(0)
    call = make(config, device).call
    return [call().logits.clone() for _ in range(3)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@MODELS
@torch.no_grad()
def test_each_step_gives_the_token_of_a_growing_cache_and_of_the_whole_sequence(config, device):
    model, tokens = made(config, device)
    grown = generating("decoding", model, tokens, model)
    step = static_cache.decoding(model, tokens, model)
    whole = model(tokens).logits[:, -1:]
    for _ in range(3):
        found = step().logits
        torch.testing.assert_close(found, whole)
        assert torch.equal(found.argmax(-1), grown().logits.argmax(-1))


@MODELS
@torch.no_grad()
def test_its_flops_are_those_of_a_growing_cache(config):
    model, tokens = made(config, "meta")
    counts = []
    for decoding in (lambda *given: generating("decoding", *given), static_cache.decoding):
        step = decoding(model, tokens, model)
        counted = count(model, lambda step=step: step().logits, backward=False)
        counts.append(counted.operations.sum("forward").flops)
    assert counts[0] == counts[1] > 0


class Watch(TorchDispatchMode):
    """Notes operators that read a value on the host or make a tensor elsewhere, and the memory that
    the cache is written to."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.elsewhere: list[str] = []
        self.written: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = func.name().partition(".")[0]
        is_elsewhere = isinstance(result, torch.Tensor) and result.device != self.device
        if is_elsewhere or name in ("aten::_local_scalar_dense", "aten::nonzero"):
            self.elsewhere.append(name)
        if name == "aten::index_copy_":
            self.written.append(args[0].untyped_storage()._cdata)
        return result


@MODELS
@torch.no_grad()
def test_a_step_stays_on_its_device_and_writes_where_the_last_one_wrote(config):
    model, tokens = made(config, "meta")
    step = static_cache.decoding(model, tokens, model)
    written = []
    for _ in range(2):
        with Watch("meta") as seen:
            step()
        assert seen.elsewhere == []
        written.append(seen.written)
    assert written[0] == written[1]
    assert len(set(written[0])) == 2 * LAYERS, "keys and values of each layer"


@torch.no_grad()
def test_what_a_graph_cannot_hold_is_noticed():
    """The test above, of a step that reads a value and one that makes a tensor on the host."""
    with Watch("cpu") as seen:
        torch.ones(2).sum().item()
    assert seen.elsewhere == ["aten::_local_scalar_dense"]
    with Watch("meta") as seen:
        torch.ones(2)
    assert seen.elsewhere == ["aten::ones"]


def test_a_step_has_the_cache_that_its_execution_asks_for(monkeypatch):
    calls = []
    decoding = static_cache.decoding
    monkeypatch.setattr(
        static_cache, "decoding", lambda *given: calls.append(1) or decoding(*given)
    )
    grown = logits(asked())
    assert calls == []
    torch.testing.assert_close(logits(asked(cache="static")), grown)
    assert calls == [1]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (asked("training", cache="static"), "static_cache_decodes"),
        (asked("inference", cache="static"), "static_cache_decodes"),
        (asked("prefill", cache="static"), "static_cache_decodes"),
        (asked(mode="cuda_graph"), "cache_needs_eager"),
        (asked(mode="cuda_graph", cache="static"), "graph_needs_nvidia"),
        (asked(mode="trace", cache="static"), "cache_needs_eager"),
    ],
    ids=["training", "inference", "prefill", "grown graph", "graph on a CPU", "traced"],
)
def test_what_has_no_static_cache_says_why(config, key):
    with pytest.raises(UnsupportedError) as refused:
        make(config, CPU)
    assert key in keys(refused.value)


@torch.no_grad()
@pytest.mark.parametrize(
    ("config", "key"), [(SLIDING, "no_static_cache"), (BERT, "keeps_no_cache")]
)
def test_a_window_that_slides_and_an_encoder_are_unsupported(config, key):
    model, tokens = made(config)
    with pytest.raises(UnsupportedError) as refused:
        static_cache.decoding(model, tokens, model)
    assert key in keys(refused.value)


@pytest.mark.gpu
def test_a_replayed_step_gives_the_token_of_an_eager_one():
    device = torch.device("cuda")
    graph = logits(asked(mode="cuda_graph", cache="static"), device)
    torch.testing.assert_close(graph, logits(asked(cache="static"), device))
