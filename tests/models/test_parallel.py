"""Data parallelism: bytes by hand, devices that are not there, numbers that all agree on."""

import os
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import DeviceConfig, ParallelConfig
from mfulab.device.compute import agreed
from mfulab.device.vendors import Gpu
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models import parallel

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Model(torch.nn.Module):
    """Two blocks of 16 weights in a stack, and 4 weights beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(2)))
        self.head = torch.nn.Linear(4, 1, bias=False)


@pytest.mark.parametrize(
    ("wrapper", "device", "processes", "expected"),
    [
        ("ddp", CPU, 2, 2 * 144 / 2),  # an all-reduce of 36 floats: 2·n·(d−1)/d
        ("ddp", CUDA, 4, 2 * 144 * 3 / 4),
        # Forward all weights are gathered, backward those of the blocks: (144 + 128)·(d−1)/d, then
        # gradients.
        ("fsdp2", CUDA, 2, (144 + 128) / 2 + 144 / 2),
        ("fsdp2", CPU, 2, (144 + 128) / 2 + 2 * 144 / 2),
    ],
)
def test_bytes_by_hand(wrapper, device, processes, expected):
    config = ParallelConfig(processes=processes, wrapper=wrapper)
    assert parallel.predicted_bytes(Model(), config, device) == expected


def test_micro_batches_gather_weights_and_send_gradients_once():
    config = ParallelConfig(processes=2, wrapper="fsdp2")
    found = parallel.predicted_bytes(Model(), config, CUDA, micro_batches=3)
    assert found == 3 * (144 + 128) / 2 + 144 / 2
    seen = parallel.predicted_bytes(Model(), ParallelConfig(processes=2), CUDA, micro_batches=3)
    assert seen == 144


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_a_wrapped_model_is_told_whether_it_sends(wrapper):
    told = SimpleNamespace(
        set_requires_gradient_sync=lambda value: setattr(told, "require_backward_grad_sync", value)
    )
    for wanted in (False, True):
        parallel.sends(told, ParallelConfig(processes=2, wrapper=wrapper))(wanted)
        assert told.require_backward_grad_sync is wanted


def test_frozen_weights_are_not_sent_by_ddp():
    model = Model()
    model.blocks.requires_grad_(requires_grad=False)
    assert parallel.predicted_bytes(model, ParallelConfig(processes=2), CPU) == 4 * 4


def test_more_processes_than_devices_are_refused(monkeypatch):
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    assert parallel.threads_per_rank(ParallelConfig(processes=2), DeviceConfig()) == 1
    with refused(UnsupportedError, "too_few_devices", processes=4, devices=2):
        parallel.threads_per_rank(ParallelConfig(processes=4), DeviceConfig(threads=1))
    with refused(UnsupportedError, "too_few_devices", processes=2, devices=1):
        parallel.threads_per_rank(ParallelConfig(processes=2), DeviceConfig(threads=2))


def test_each_node_has_devices_of_its_own(monkeypatch):
    monkeypatch.setattr(parallel, "usable_cores", lambda: 4)
    assert parallel.threads_per_rank(ParallelConfig(processes=4, nodes=2), DeviceConfig()) == 2
    parallel.require_devices(ParallelConfig(processes=4, nodes=2), 2, "a GPU")
    with refused(UnsupportedError, "too_few_devices_a_node", processes=6, nodes=2, devices=2):
        parallel.require_devices(ParallelConfig(processes=6, nodes=2), 2, "a GPU")
    with pytest.raises(
        ValidationError, match="nodes=2 with processes=3: each node takes equally many"
    ):
        ParallelConfig(processes=3, nodes=2)


@pytest.mark.parametrize(("uuid", "seen"), [("GPU-b", "GPU-b"), ("", "1")])
def test_a_rank_sees_its_own_gpu_alone(uuid, seen, monkeypatch):
    gpus = [Gpu("H100", "GPU-a"), Gpu("H100", uuid)]
    monkeypatch.setattr(parallel, "gpus", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    parallel.see_one_gpu(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_a_process_alone_agrees_with_itself_and_is_not_wrapped():
    model = Model()
    assert agreed(0.25) == 0.25
    assert parallel.wrap(model, ParallelConfig(), CPU) is model


def test_what_several_processes_cannot_do_is_refused_before_anything_runs():
    with pytest.raises(ValidationError, match="slowed_rank=2: ranks are counted from 0"):
        ParallelConfig(processes=2, slowed_rank=2)
    values = {
        "model": {"name": "m", "_target_": "torch.nn.Linear", "input_shape": [4]},
        "workload": {"name": "inference", "mode": "inference"},
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": "eager"},
        "parallel": {"processes": 2},
        "batch_size": 1,
    }
    with pytest.raises(
        ValidationError, match=r"parallel\.processes=2 with mode=inference: only training"
    ):
        ProfileStepConfig.model_validate(values)


def test_the_slowed_rank_sleeps_a_share_of_its_shortest_step(monkeypatch):
    now, slept, fetched = [100.0], [], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(parallel, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(parallel.dist, "get_rank", lambda: 1)
    late = parallel.slowed(
        lambda: fetched.append(now[0]), ParallelConfig(processes=2, slowed_rank=1)
    )
    for own_s in (0.5, 9.0, 0.4, 0.01):  # the second ends a window
        late()
        now[0] += own_s
    late()
    assert slept == pytest.approx([0.02, 0.15, 0.15, 0.12, 0.02])
    assert len(fetched) == 5
    other = parallel.slowed(print, ParallelConfig(processes=2, slowed_rank=0))
    assert other is print
