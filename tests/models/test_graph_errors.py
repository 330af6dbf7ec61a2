"""What a dynamic and a static graph say of the same mistake, and when."""

from pathlib import Path

import pytest
import torch
from torch import fx, nn

from mfulab.models.control_flow import Branching

SHAPES = r"mat1 and mat2 shapes cannot be multiplied \(2x32 and 256x256\)"


def test_a_wrong_width_is_said_at_the_line_or_only_when_the_finished_graph_runs():
    model = Branching()
    with pytest.raises(RuntimeError, match=SHAPES) as dynamic:
        model(torch.ones(2, 32))
    graph = fx.symbolic_trace(model)  # which asks for no shape
    with pytest.raises(RuntimeError, match=SHAPES) as static:
        graph(torch.ones(2, 32))
    files = [
        {Path(str(entry.path)).name for entry in error.traceback} for error in (dynamic, static)
    ]
    assert "control_flow.py" in files[0]
    # the graph's own code stands there, and not the model's
    assert "control_flow.py" not in files[1]


def test_a_branch_on_a_value_stops_a_static_graph_before_anything_ran():
    model = Branching("data")
    # a dynamic graph takes the branch that it meets
    assert model(torch.ones(2, 256)).shape == (2, 256)
    with pytest.raises(fx.proxy.TraceError, match="cannot be used as inputs to control flow"):
        fx.symbolic_trace(model)


def test_a_traced_graph_keeps_the_branch_that_its_example_took_and_says_so():
    model, inputs = Branching("data"), torch.ones(2, 256)
    with pytest.warns(torch.jit.TracerWarning, match="Converting a tensor to a Python boolean"):
        traced = torch.jit.trace(model, inputs)
    torch.testing.assert_close(
        traced(-inputs), nn.functional.linear(-inputs, model.second.weight, model.second.bias)
    )
    assert not torch.allclose(traced(-inputs), model(-inputs))
