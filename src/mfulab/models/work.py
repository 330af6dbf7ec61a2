"""Work of a model from its config, counted or computed; and its relation to a speed or to a
device's roofline."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said, as_told, of_source, said_by
from mfulab.mfu.explain import Explanation, denominators_of, explained
from mfulab.mfu.models import model_config
from mfulab.mfu.roofline import Expectation, expected, peak_of
from mfulab.mfu.work import Mode, Operation, Work
from mfulab.models.decoders import computed, missing

if TYPE_CHECKING:
    import torch

    from mfulab.flops.counter import Operations
    from mfulab.flops.formulas import TransformerShape
    from mfulab.models.counted import ModelCount

Sums = TypeVar("Sums", Work, Operation)

# Architectures whose blocks are all equal → the argument with their number. Work is affine in that
# number, so that counting one block and two blocks gives the work of any number, exactly and fast.
LAYERS_ARGUMENT = {"GPT2LMHeadModel": "n_layer"}
LAYERS_ARGUMENT |= dict.fromkeys(
    ("LlamaForCausalLM", "MixtralForCausalLM", "OPTForCausalLM"), "num_hidden_layers"
)
LATENT_ATTENTION = (
    "Latent attention: counted as transformers runs it, which expands the latents of all earlier tokens in each step; "
    "one that absorbs the projections multiplies less."
)


def work(
    config: ModelConfig,
    sequence_length: int | None = None,
    batch_size: int = 1,
    mode: Mode = "training",
) -> Work:
    """Counts one step. Raises ConfigurationError with the counter's message if the model cannot be
    built or counted."""
    argument = LAYERS_ARGUMENT.get(str(config.arguments.get("architecture")), "")
    layers = config.arguments.get(argument)
    try:
        if layers is None or layers <= 2:
            return _counted(config, sequence_length, batch_size, mode, sum_layers=False)
        one_block = _with_argument(config, argument, 1)
        single = _counted(one_block, sequence_length, batch_size, mode)
        two_blocks = _with_argument(config, argument, 2)
        double = _counted(two_blocks, sequence_length, batch_size, mode)
    except Exception as error:
        raise ConfigurationError(said_by(error)) from error
    return _extended(single, double, layers)


def _with_argument(config: ModelConfig, name: str, value: int) -> ModelConfig:
    return config.model_copy(update={"arguments": config.arguments | {name: value}})


def _extended(single: Work, double: Work, layers: int) -> Work:
    """Work of `layers` blocks from the work of one and of two blocks: one + (layers − 1) · (two −
    one)."""

    of_one_block = {_key(operation): operation for operation in single.operations}
    operations = []
    for operation in double.operations:
        of_one = of_one_block.get(_key(operation))
        operations.append(_affine(of_one, operation, layers))
    return replace(_affine(single, double, layers), operations=tuple(operations))


def _affine(of_one: Sums | None, of_two: Sums, layers: int) -> Sums:
    """Sums of `layers` blocks, from those of one block (0 if None) and of two."""
    numbers = dict[str, Any]()
    for name, two in vars(of_two).items():
        if isinstance(two, int | float):
            one = 0
            if of_one:
                one = getattr(of_one, name)
            numbers[name] = one + (layers - 1) * (two - one)
    return replace(of_two, **numbers)


def _key(operation: Operation) -> tuple[str, str, str]:
    return operation.layer, operation.operator, operation.direction


def _counted(
    config: ModelConfig,
    sequence_length: int | None,
    batch_size: int,
    mode: Mode,
    sum_layers: bool = True,
) -> Work:
    """Counts the whole model. With `sum_layers`, layers whose names differ only in a number are
    summed."""
    from mfulab.flops.compare import looked_up_parameters, transformer_shape
    from mfulab.flops.experts import active_parameters
    from mfulab.models.counted import count_model

    length = None
    tokens = batch_size
    if config.vocabulary_size:
        length = sequence_length or config.sequence_length
    if length and mode != "decoding":
        tokens = batch_size * length
    counted = count_model(config, batch_size, length, mode=mode)
    model = counted.model
    parameters = list(model.parameters())
    parameter_count = _elements(parameters)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    cache_elements = 0
    shape = transformer_shape(model) if length else None
    if shape and length:
        cache_elements = shape.cache_elements(batch_size * length)
    total_flos = 0
    if mode == "training":
        inputs_per_sample = length or math.prod(config.sample_shape)
        total_flos = _total_flos(model, batch_size * inputs_per_sample)
    return Work(
        mode=mode,
        tokens=tokens,
        batch_size=batch_size,
        parameters=parameter_count,
        trainable=_elements(trainable),
        looked_up=looked_up_parameters(model),
        unmultiplied=_elements(vectors),
        inactive=parameter_count - active_parameters(model),
        saved_elements=counted.count.saved.elements,
        cache_elements=cache_elements,
        operations=tuple(_operations(counted.count.operations, sum_layers)),
        total_flos=total_flos,
        message=_message(counted, shape, mode),
    )


def _message(counted: "ModelCount", shape: "TransformerShape | None", mode: Mode) -> str:
    """Text on limits of a count; empty if there are none."""
    if mode == "decoding" and shape and shape.latent_width:
        return LATENT_ATTENTION
    return str(counted.message or "")


def _total_flos(model: "torch.nn.Module", inputs: int) -> int:
    """FLOPs of a training step as transformers' Trainer reports them: 6 per input and parameter,
    except parameters of embeddings."""
    from torch.nn import Embedding

    embeddings = [module.weight for module in model.modules() if isinstance(module, Embedding)]
    return 6 * inputs * (_elements(model.parameters()) - _elements(embeddings))


def _elements(tensors: "Iterable[torch.Tensor]") -> int:
    return sum(tensor.numel() for tensor in tensors)


def _operations(operations: "Operations", sum_layers: bool) -> list[Operation]:
    """Sums the counted operations by layer, operator and pass. With `sum_layers`, numbers in layer
    names become `*`."""
    sums = defaultdict[tuple[str, str, str], list[int]](lambda: [0] * 5)
    for key, total in operations.totals.items():
        layer = key.layer
        if sum_layers:
            layer = re.sub(r"\b\d+\b", "*", layer)
        summed = sums[layer, key.operator, key.direction]
        values = (
            total.flops,
            total.causal_flops,
            total.executed_flops,
            total.elements,
            total.other_elements,
        )
        for index, value in enumerate(values):
            summed[index] += value
    return [Operation(*key, *values) for key, values in sums.items()]


def work_of(
    config: ModelConfig,
    sequence_length: int | None = None,
    batch_size: int = 1,
    mode: Mode = "training",
) -> Work:
    """Counts one step if the model can be built, or computes it if a package is missing. Raises
    ConfigurationError as `work` and `computed` do."""
    if missing(config):
        return computed(config, sequence_length, batch_size, mode)
    return work(config, sequence_length, batch_size, mode)


def explain(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    device: str,
    precision: str = "bf16",
    *,
    sequence_length: int | None = None,
    batch_size: int | None = None,
    devices: int = 1,
    tokens_per_s: float | None = None,
    samples_per_s: float | None = None,
    time_s: float | None = None,
    reported: float | None = None,
    mode: Mode = "training",
    peak_tflop_s: float | None = None,
) -> Explanation:
    """Explains a speed by every convention of the field.

    Args:
        model: a name in `config/model/`, a YAML file like those, or the content of one.
        device: its name as a driver reports it, or its PCI id.
        precision: the format of its matmuls: fp64, fp32, tf32, fp16, bf16, fp8, fp4 or
            int8.
        sequence_length: tokens per sample; the model's own by default.
        batch_size: samples per step on each device. Only with `time_s`, which needs it if
            there are several devices.
        devices: number of devices that share the work.
        tokens_per_s: speed of all devices together; give one of the three speeds.
        samples_per_s: speed of all devices together.
        time_s: time of a step.
        reported: an MFU in percent that was published for this run.
        mode: training, inference or decoding.
        peak_tflop_s: the device's dense peak, if its datasheet is not known here.

    Raises ConfigurationError for an unknown model, device or precision, and for a length that the
    model does not take. Also raises it unless exactly one speed is given and is above 0.
    """
    config = model_config(model, sequence_length=sequence_length)
    check(config, sequence_length, devices, [mode])
    sheet_name, denominators = denominators_of(device, precision, peak_tflop_s, devices)
    if reported is not None and not math.isfinite(reported):
        raise ConfigurationError(of_source(f"reported={reported}", Said("give_mfu_in_percent")))
    speeds = {"tokens_per_s": tokens_per_s, "samples_per_s": samples_per_s, "time_s": time_s}
    rate = _samples_per_s(config, sequence_length, batch_size, devices, speeds)
    counted = _work_of_sample(config, sequence_length, mode)
    return explained(config.name, sheet_name, counted, rate, denominators, reported)


def _work_of_sample(config: ModelConfig, sequence_length: int | None, mode: Mode) -> Work:
    """Work of one sample. A plain decoder's is computed by arithmetic, which equals its count and
    does not import torch."""
    try:
        return computed(config, sequence_length, mode=mode)
    except ConfigurationError:
        return work_of(config, sequence_length, mode=mode)


def _given_speed(speeds: Mapping[str, float | None]) -> tuple[str, float]:
    """Returns name and value of the only speed that is given. Raises ConfigurationError if there
    are none or several, or it is not above 0."""
    given = [(name, value) for name, value in speeds.items() if value is not None]
    if not given:
        raise ConfigurationError(Said("give_one_speed_of_none"))
    first, *others = [f"{name}={value}" for name, value in given]
    if others:
        arguments = as_told(first)
        for other in others:
            arguments = Said("and", first=arguments, second=other)
        reason = Said("give_one_speed")
        raise ConfigurationError(Said("of_source", source=arguments, reason=reason))
    name, value = given[0]
    if not 0 < value < math.inf:
        raise ConfigurationError(of_source(first, Said("give_above_0")))
    return name, value


def _samples_per_s(
    config: ModelConfig,
    sequence_length: int | None,
    batch_size: int | None,
    devices: int,
    speeds: Mapping[str, float | None],
) -> float:
    """Samples per second of each device."""
    name, value = _given_speed(speeds)
    if batch_size is not None and batch_size < 1:
        raise ConfigurationError(of_source(f"batch_size={batch_size}", Said("give_1_or_more")))
    if name == "time_s":
        return _samples(batch_size, value, devices) / value
    if batch_size is not None:
        reason = Said("belongs_to_time", name=name)
        raise ConfigurationError(of_source(f"batch_size={batch_size}", reason))
    if name == "samples_per_s":
        return value / devices
    if config.vocabulary_size is None:
        reason = Said("takes_no_tokens_give_samples", model=config.name)
        raise ConfigurationError(of_source(f"tokens_per_s={value}", reason))
    tokens_per_sample = sequence_length or config.sequence_length or 1
    return value / tokens_per_sample / devices


def _samples(batch_size: int | None, time_s: float, devices: int) -> int:
    """Samples per step of each device: one by default. Raises ConfigurationError if it is not given
    for several devices."""
    if batch_size is None and devices > 1:
        reason = Said("give_batch_of_each", devices=devices)
        raise ConfigurationError(of_source(f"time_s={time_s}", reason))
    return batch_size or 1


def expect(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    device: str,
    precision: str = "bf16",
    *,
    sequence_length: int | None = None,
    batch_size: int = 1,
    devices: int = 1,
    modes: Sequence[Mode] | None = None,
) -> list[Expectation]:
    """Computes the limits that the roofline of a device's datasheet sets for a model: a row for
    each of `modes`, by default all.

    Args:
        model: a name in `config/model/`, a YAML file like those, or the content of one.
        device: its name as a driver reports it, or its PCI id.
        precision: the format of matmuls and of everything kept in memory.
        sequence_length: tokens per sample, in decoding those of the context; the model's own
            by default.
        batch_size: samples per step on each device.
        devices: number of devices that share weights, gradients and optimiser state. Time
            for communication is not included.
        modes: any of training, inference and decoding; by default those that the model has.

    Raises ConfigurationError for an unknown model, device, precision or bandwidth, and for a length
    that the model does not take.
    """
    config = model_config(model, sequence_length=sequence_length)
    decodes = config.vocabulary_size is not None and config.task == "language_modeling"
    modes_of_model: tuple[Mode, ...] = ("training", "inference")
    if decodes:
        modes_of_model = (*modes_of_model, "decoding")
    modes = modes or modes_of_model
    check(config, sequence_length, devices, modes, batch_size)
    sheet, _, peak_tflop_s = peak_of(device, precision)
    if sheet.memory_gb_s is None:
        raise ConfigurationError(of_source(f"device={device}", Said("no_bandwidth_printed")))
    capacity = None if sheet.memory_gb is None else sheet.memory_gb * 1e9
    peak_flop_s = peak_tflop_s * 1e12
    bandwidth_bytes_s = sheet.memory_gb_s * 1e9
    element_bytes = ELEMENT_BYTES[precision]
    expectations = []
    for mode in modes:
        counted = work_of(config, sequence_length, batch_size, mode)
        expectations.append(
            expected(counted, peak_flop_s, bandwidth_bytes_s, element_bytes, capacity, devices)
        )
    return expectations


def check(
    config: ModelConfig,
    sequence_length: int | None,
    devices: int,
    modes: Sequence[str],
    batch_size: int = 1,
) -> None:
    """Raises ConfigurationError for a count below 1, an unknown mode, or a length that the model
    does not take."""
    for mode in modes:
        if mode not in get_args(Mode):
            raise unknown("mode", mode, get_args(Mode))
    counts = {"batch_size": batch_size, "devices": devices, "sequence_length": sequence_length}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigurationError(of_source(f"{name}={count}", Said("give_1_or_more")))
    if sequence_length is not None and config.vocabulary_size is None:
        reason = Said("takes_no_tokens", model=config.name)
        raise ConfigurationError(of_source(f"sequence_length={sequence_length}", reason))
