"""The wait for input: of a slow DataLoader nearly all the time, of none empty with the reason."""

import time

import pytest
from torch.utils.data import DataLoader, Dataset, dataloader

from mfulab.device.samplers.input_sampler import input_sampler
from mfulab.device.samplers.reading import sampling


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.02)
        return index


def test_a_slow_loader_is_waited_for():
    sampler, untouched = input_sampler(), dataloader._BaseDataLoaderIter.__next__
    sampler.start()
    assert len(list(DataLoader(Slow(), batch_size=2))) == 2
    time.sleep(0.02)
    reading = sampler.stop()["input_wait_percent"]
    assert 0.08 <= reading.value / 100 * reading.window_s <= reading.window_s - 0.02
    assert dataloader._BaseDataLoaderIter.__next__ is untouched


def test_without_a_loader_nothing_is_known():
    sampler = input_sampler()
    sampler.start()
    reading = sampler.stop()["input_wait_percent"]
    assert reading.value is None
    assert reading.reason.key == "no_loader"


def test_a_loader_that_fails_is_counted_and_its_error_passes():
    class Broken(Slow):
        def __getitem__(self, index):
            raise OSError("no such file")

    sampler = input_sampler()
    sampler.start()
    with pytest.raises(OSError, match="no such file"):
        next(iter(DataLoader(Broken())))
    assert sampler.stop()["input_wait_percent"].value > 0


def test_samplers_inside_one_another_leave_nothing_behind():
    untouched = dataloader._BaseDataLoaderIter.__next__
    outer = input_sampler()
    inner = input_sampler()
    outer.start()
    inner.start()
    list(DataLoader(Slow()))
    waited = [sampler.stop()["input_wait_percent"] for sampler in (outer, inner)]
    assert all(reading.value > 0 for reading in waited)
    assert dataloader._BaseDataLoaderIter.__next__ is untouched


def test_a_step_that_fails_leaves_the_loader_as_it_was():
    def step():
        raise RuntimeError("out of memory")

    untouched = dataloader._BaseDataLoaderIter.__next__
    with pytest.raises(RuntimeError, match="out of memory"), sampling([input_sampler()]):
        step()
    assert dataloader._BaseDataLoaderIter.__next__ is untouched
