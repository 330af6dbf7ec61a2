"""Copies and products in several streams, by a stand-in; the same values on a CPU."""

from contextlib import contextmanager

import pytest
import torch
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.models import streamed

INPUTS = torch.randn(5, 3, 4)


class Streams:
    """Streams by name on a machine without any; `issued` is what was asked of them, in order."""

    def __init__(self) -> None:
        self.issued: list[tuple[str, str]] = []
        self.current = Stream(self, "main")

    @contextmanager
    def entered(self, stream: "Stream"):
        before, self.current = self.current, stream
        yield
        self.current = before


class Stream:
    def __init__(self, streams: Streams, name: str) -> None:
        self.streams, self.name = streams, name

    def wait_stream(self, other: "Stream") -> None:
        self.streams.issued.append((self.name, f"waits for {other.name}"))


@pytest.fixture
def streams(monkeypatch) -> Streams:
    """The model on this CPU as on a GPU: each product is noted with its stream."""
    made = Streams()
    monkeypatch.setattr(streamed, "is_gpu", lambda device: True)
    monkeypatch.setattr(streamed, "require_cuda", lambda device, what: None)
    monkeypatch.setattr(
        streamed,
        "_streams",
        lambda device, count: [Stream(made, f"side {n}") for n in range(count)],
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.entered)
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: made.issued.append((stream.name, "keeps")),
    )
    allocate = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, pin_memory=False, **how: allocate(*shape, **how)
    )
    return made


@pytest.mark.parametrize("count", [2, 4, 7])
def test_samples_take_turns_and_the_main_stream_waits_for_all(streams, count):
    model = streamed.Streamed(4, count)
    model.layer.register_forward_hook(
        lambda *_: streams.issued.append((streams.current.name, "multiplies"))
    )
    result = model(INPUTS)
    torch.testing.assert_close(result, INPUTS @ model.layer.weight.T)
    begun = [(f"side {n}", "waits for main") for n in range(count)]
    assert streams.issued[:count] == begun
    found = streams.issued[count : count + 5]
    assert found == [(f"side {n % count}", "multiplies") for n in range(5)]
    waited = {what for name, what in streams.issued[count + 5 :] if name == "main"}
    assert waited == {"keeps", *(f"waits for side {n}" for n in range(min(count, 5)))}


def test_one_stream_gives_the_same_values_and_brings_them_back():
    model = streamed.Streamed(4)
    expected = INPUTS @ model.layer.weight.T
    torch.testing.assert_close(model(INPUTS), expected)
    torch.testing.assert_close(model._host[1], expected.detach())
    assert model(INPUTS[:2]).shape == (2, 3, 4)  # another batch has memory of its own
    torch.testing.assert_close(model.double()(INPUTS.double()).float(), expected)


def test_several_streams_need_a_gpu():
    with refused(UnsupportedError, "streams_need_nvidia"):
        streamed.Streamed(4, 2)(INPUTS)


@pytest.mark.gpu
def test_streams_give_the_same_values_on_a_gpu():
    model = streamed.Streamed(256, 4).cuda()
    inputs = torch.randn(6, 64, 256, device="cuda")
    torch.testing.assert_close(model(inputs), model.layer(inputs))
