"""Modes of issuing operations: what each asks torch for, and what it refuses."""

import contextlib
import os
from pathlib import Path

import pytest
import torch
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ExecutionConfig
from mfulab.mfu.models import model_config
from mfulab.models import execution
from mfulab.models.build import Batch, build

LINEAR = torch.nn.Linear(4, 2)
BATCH = Batch(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))


def mode(name: str, **options) -> ExecutionConfig:
    return ExecutionConfig(name=name, mode=name, **options)


@pytest.mark.parametrize("name", ["eager", "trace", "script"])
def test_the_result_does_not_depend_on_the_mode(name):
    issued = execution.issue(LINEAR, BATCH, mode(name))
    assert torch.allclose(issued(BATCH.inputs), LINEAR(BATCH.inputs))


@pytest.mark.parametrize("compile_mode", ["default", "reduce-overhead", "max-autotune"])
def test_compile_modes_reach_torch(compile_mode, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        torch, "compile", lambda model, **options: asked.update(model=model, **options) or model
    )
    execution.issue(LINEAR, BATCH, mode("compile", compile_mode=compile_mode, dynamic=False))
    assert asked == {"model": LINEAR, "mode": compile_mode, "dynamic": False}


def test_a_missing_compiler_is_named_with_the_way_out():
    from torch._inductor import config

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())
    broken = config.patch({"cpp.cxx": ("/no/compiler/here",), "force_disable_caches": True})
    with (
        broken,
        execution.empty_cache(),
        refused(UnsupportedError, "no_compiler"),
    ):
        execution.issue(model, BATCH, mode("compile"))(BATCH.inputs)


def test_tracing_takes_models_that_return_mappings():
    class Model(torch.nn.Linear):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    issued = execution.issue(Model(4, 2), BATCH, mode("trace"))
    assert issued(BATCH.inputs).shape == (3, 2)


def test_what_cannot_be_scripted_is_unsupported():
    class Model(torch.nn.Module):
        def forward(self, inputs):
            return eval("inputs")

    with refused(UnsupportedError, "jit_cannot", mode="script"):
        execution.issue(Model(), BATCH, mode("script"))


@pytest.mark.parametrize("name", ["resnet18", "gpt2"])
def test_a_model_whose_configuration_has_no_source_is_one_sentence(name):
    model = build(model_config(name))
    with refused(UnsupportedError, "jit_no_source", mode="script"):
        execution.issue(model, BATCH, mode("script"))


def test_a_file_that_cannot_be_read_is_no_missing_source():
    refusal = execution._refusal(FileNotFoundError(2, "gone"), "script")
    assert refusal.key == "jit_cannot"


def test_channels_last():
    images = Batch(torch.randn(2, 3, 8, 8), BATCH.targets)
    config = ExecutionConfig(name="channels_last", channels_last=True)
    model, batch = execution.arrange(torch.nn.Conv2d(3, 4, 3), images, config)
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.inputs, images.inputs)


class Attending(torch.nn.Module):
    def forward(self, inputs):
        heads = inputs.reshape(1, 1, *inputs.shape)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)[0, 0]


@pytest.mark.parametrize("attention", ["math", "flash"])
def test_the_result_does_not_depend_on_the_backend_of_attention(attention):
    inputs = BATCH.inputs.clone().requires_grad_()
    result = execution.issue(Attending(), BATCH, mode("eager", attention=attention))(inputs)
    node = result.grad_fn
    while node and "Attention" not in type(node).__name__:
        node = node.next_functions[0][0] if node.next_functions else None
    assert (node is not None) == (attention == "flash")  # fused, attention is one node
    assert torch.allclose(result, Attending()(inputs), atol=1e-6)


@pytest.mark.parametrize("attention", ["efficient", "cudnn"])
def test_a_backend_of_attention_that_the_device_lacks_is_unsupported(attention):
    issued = execution.issue(Attending(), BATCH, mode("eager", attention=attention))
    with pytest.raises(UnsupportedError, match=rf"execution\.attention={attention}: torch cannot"):
        issued(BATCH.inputs)


def test_a_cuda_graph_needs_a_gpu():
    with pytest.raises(UnsupportedError, match="NVIDIA GPU"):
        execution.capture(lambda: torch.zeros(1), torch.device("cpu"))


@pytest.fixture
def cuda(monkeypatch):
    """Stands for CUDA's streams and graphs; lists what is done: steps, the capture's begin,
    replays."""
    done = []

    class Stream:
        def wait_stream(self, other):
            pass

    class Graph:
        def replay(self):
            done.append("replay")

    @contextlib.contextmanager
    def capturing(graph):
        done.append("capture")
        yield

    for name, stand_in in {
        "Stream": lambda device: Stream(),
        "current_stream": lambda device: Stream(),
        "stream": contextlib.nullcontext,
        "CUDAGraph": Graph,
        "graph": capturing,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return done


def test_a_graph_is_captured_at_the_first_call_and_then_replayed(cuda):
    """What capturing takes belongs to the first call, and what it allocates to the peak that is
    read after it."""
    replay = execution.capture(lambda: cuda.append("step") or torch.ones(1), torch.device("cuda"))
    assert cuda == []
    assert replay() is replay()
    assert cuda == ["step"] * 3 + ["capture", "step", "replay", "replay"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("operation not permitted when stream is capturing\nmore"), UnsupportedError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
        (RuntimeError("CUDA error: out of memory"), RuntimeError),
    ],
)
def test_a_step_beyond_capture_is_unsupported_and_one_without_memory_not(error, raised, cuda):
    def step():
        if "capture" in cuda:
            raise error

    with pytest.raises(raised, match=str(error).splitlines()[0]):
        execution.capture(step, torch.device("cuda"))()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory"),
        MemoryError(),
    ],
)
def test_tracing_that_finds_no_memory_is_not_unsupported(error):
    class Model(torch.nn.Linear):
        def forward(self, inputs):
            raise error

    with pytest.raises(type(error)):
        execution.issue(Model(4, 2), BATCH, mode("trace"))


def test_compiling_begins_with_an_empty_cache_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with execution.empty_cache():
        inside = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert inside != tmp_path
        assert not inside.exists()
        inside.mkdir(parents=True)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not inside.exists()
