"""Private parts of torch that the counter leans on: where this fails alone, torch has changed."""

import importlib
import inspect

import pytest
import torch

PRIVATE = {
    "torch.autograd": ["_engine_run_backward"],
    "torch._C": ["_current_autograd_node"],
    "torch._C._autograd": ["_get_sequence_nr"],
    "torch._ops": ["HigherOrderOperator", "OpOverload", "OpOverloadPacket"],
    "torch._subclasses.fake_tensor": ["FakeTensor", "FakeTensorMode"],
    "torch.nn.attention.flex_attention": [
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", "_validate_device", "create_mask", "flex_attention_hop", "noop_mask",
    ],
    "torch.nn.modules.conv": ["_ConvNd"],
    "torch.nn.modules.module": ["register_module_forward_hook", "register_module_forward_pre_hook"],
    "torch.optim.optimizer": ["register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"],
    "torch.testing._internal.distributed.fake_pg": ["FakeStore"],
    "torch.utils._python_dispatch": [
        "TorchDispatchMode", "_disable_current_modes", "_get_current_dispatch_mode_stack",
        "is_traceable_wrapper_subclass_type",
    ],
    "torch.utils._pytree": ["tree_flatten", "tree_leaves", "tree_map_only"],
    "torch.utils.checkpoint": ["_StopRecomputationError"],
    "torch.utils.flop_counter": ["flop_registry"],
    "torch.utils.weak": ["WeakIdKeyDictionary"],
}  # fmt: skip


@pytest.mark.parametrize("module", PRIVATE)
def test_it_is_where_it_was(module):
    found = importlib.import_module(module)
    assert [name for name in PRIVATE[module] if not hasattr(found, name)] == []


def test_they_take_what_they_took():
    from torch.autograd import graph
    from torch.nn.attention import flex_attention

    found = list(inspect.signature(graph._engine_run_backward).parameters)
    assert found == ["t_outputs", "args", "kwargs"]
    mask = flex_attention.BlockMask.as_tuple.__doc__ or inspect.getsource(
        flex_attention.BlockMask.as_tuple
    )
    assert mask
    full = flex_attention.create_block_mask(
        flex_attention.noop_mask, 1, 1, 128, 128, device="cpu"
    ).as_tuple()
    assert full[2].shape == (1, 1, 1)
    assert full[-1] is flex_attention.noop_mask
    assert full[-3:-1] == (128, 128)
    linear = torch.ops.aten.linear.default
    assert linear.has_kernel_for_dispatch_key("CompositeImplicitAutograd"), (
        "how an operator of a trace is known"
    )
    assert torch._C._dispatch_key_for_device("meta") == "Meta"
    silu_backward = torch.ops.aten.silu_backward.default
    assert torch._C._dispatch_has_kernel_for_dispatch_key(silu_backward.name(), "CPU"), (
        "what is not taken apart"
    )
    given = torch.ones(2, 2), torch.ones(2, 2)
    assert linear._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *given).sum() == 8


def test_tensors_nodes_and_operators_answer_as_they_did():
    made = torch.ones(2, requires_grad=True) * 2
    later = made * 2
    assert made.grad_fn._sequence_nr() < later.grad_fn._sequence_nr()
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.strided)
    assert nested._nested_tensor_size().tolist() == [[2, 3], [4, 3]]
    assert torch.eye(3).to_sparse()._values().numel() == 3
    written = torch.zeros(2)
    assert written.view(1, 2).untyped_storage()._cdata == written.untyped_storage()._cdata
    before = written._version
    assert written.add_(1)._version > before
    operator = torch.ops.aten.add_.Tensor
    assert operator._schema.is_mutable
    assert operator._overloadpacket is torch.ops.aten.add_
    assert torch.ops.aten.add_._qualified_op_name == "aten::add_"
    assert callable(torch.library.Library._destroy)
