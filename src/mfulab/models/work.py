"""Work of a model from its config, counted or computed; and its relation to a speed or to a
device's roofline."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

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

    from mfulab.flops.formulas import TransformerShape
    from mfulab.models.counted import ModelCount

# Architectures whose blocks are all equal → the argument with their number. Work is affine in that
# number, so that counting one block and two blocks gives the work of any number, exactly and fast.
ALIKE = {"GPT2LMHeadModel": "n_layer"}
ALIKE |= dict.fromkeys(
    ("LlamaForCausalLM", "MixtralForCausalLM", "OPTForCausalLM"), "num_hidden_layers"
)
LATENT = (
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
    argument = ALIKE.get(str(config.arguments.get("architecture")), "")
    layers = config.arguments.get(argument)
    try:
        if layers is None or layers <= 2:
            return _counted(config, sequence_length, batch_size, mode, alike=False)
        shorter = (
            config.model_copy(update={"arguments": config.arguments | {argument: few}})
            for few in (1, 2)
        )
        single, double = (
            _counted(shortened, sequence_length, batch_size, mode) for shortened in shorter
        )
    except Exception as error:
        raise ConfigurationError(said_by(error)) from error
    return _extended(single, double, layers)


def _extended(single: Work, double: Work, layers: int) -> Work:
    """Work of `layers` blocks from the work of one and of two blocks: one + (layers − 1) · (two −
    one)."""

    def affine(first: Any, second: Any) -> Any:
        numbers = {
            name: value for name, value in vars(second).items() if isinstance(value, int | float)
        }
        firsts = {name: getattr(first, name) if first else 0 for name in numbers}
        sums = {
            name: firsts[name] + (layers - 1) * (value - firsts[name])
            for name, value in numbers.items()
        }
        return replace(second, **sums)

    before = {(part.layer, part.operator, part.direction): part for part in single.operations}
    operations = (
        affine(before.get((part.layer, part.operator, part.direction)), part)
        for part in double.operations
    )
    return replace(affine(single, double), operations=tuple(operations))


def _counted(
    config: ModelConfig,
    sequence_length: int | None,
    batch_size: int,
    mode: Mode,
    alike: bool = True,
) -> Work:
    """Counts the whole model. With `alike`, layers whose names differ only in a number are
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
    held = _elements(parameters)
    trainable = [one for one in parameters if one.requires_grad]
    vectors = [one for one in parameters if one.ndim < 2]
    cache_elements = 0
    shape = transformer_shape(model) if length else None
    if shape and length:
        cache_elements = shape.cache_elements(batch_size * length)
    total_flos = 0
    if mode == "training":
        total_flos = _total_flos(
            model, batch_size * (length or math.prod(config.input_shape or ()))
        )
    return Work(
        mode=mode,
        tokens=tokens,
        batch_size=batch_size,
        parameters=held,
        trainable=_elements(trainable),
        looked_up=looked_up_parameters(model),
        unmultiplied=_elements(vectors),
        inactive=held - active_parameters(model),
        saved_elements=counted.count.saved.elements,
        cache_elements=cache_elements,
        operations=tuple(_operations(counted.count.operations, alike)),
        total_flos=total_flos,
        message=_message(counted, shape, mode),
    )


def _message(counted: "ModelCount", shape: "TransformerShape | None", mode: Mode) -> str:
    """Text on limits of a count; empty if there are none."""
    if mode == "decoding" and shape and shape.latent_width:
        return LATENT
    return str(counted.message or "")


def _total_flos(model: "torch.nn.Module", inputs: int) -> int:
    """FLOPs of a training step as transformers' Trainer reports them: 6 per input and parameter,
    except parameters of embeddings."""
    return 6 * inputs * (_elements(model.parameters()) - _elements(_tables(model)))


def _tables(model: "torch.nn.Module") -> "Iterator[torch.Tensor]":
    """Yields the weights of embeddings, which a forward pass only looks up."""
    from torch.nn import Embedding

    for module in model.modules():
        if isinstance(module, Embedding):
            yield module.weight


def _elements(tensors: "Iterable[torch.Tensor]") -> int:
    return sum(tensor.numel() for tensor in tensors)


def _operations(operations: Any, alike: bool) -> list[Operation]:
    """Sums the counted operations by layer, operator and pass. With `alike`, numbers in layer names
    become `*`."""
    sums = defaultdict[tuple[str, str, str], list[float]](lambda: [0] * 5)
    for key, total in operations.totals.items():
        where = (
            re.sub(r"\b\d+\b", "*", key.layer) if alike else key.layer,
            key.operator,
            key.direction,
        )
        values = (
            total.flops,
            total.causal_flops,
            total.executed_flops,
            total.elements,
            total.other_elements,
        )
        sums[where] = [before + value for before, value in zip(sums[where], values, strict=True)]
    return [Operation(*key, *values) for key, values in sums.items()]


def work_of(
    config: ModelConfig,
    sequence_length: int | None = None,
    batch_size: int = 1,
    mode: Mode = "training",
) -> Work:
    """Counts one step if the model can be built, or computes it if a package is missing. Raises
    ConfigurationError as `work` and `computed` do."""
    return (computed if missing(config) else work)(config, sequence_length, batch_size, mode)


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
    counted = _work_under_a_speed(config, sequence_length, mode)
    return explained(config.name, sheet_name, counted, rate, denominators, reported)


def _work_under_a_speed(config: ModelConfig, sequence_length: int | None, mode: Mode) -> Work:
    """Work of one sample. A plain decoder's is computed by arithmetic, which equals its count and
    does not import torch."""
    try:
        return computed(config, sequence_length, mode=mode)
    except ConfigurationError:
        return work_of(config, sequence_length, mode=mode)


def _one_speed(speeds: Mapping[str, float | None]) -> tuple[str, float]:
    """Returns name and value of the only speed that is given. Raises ConfigurationError if there
    are none or several, or it is not above 0."""
    given = {name: value for name, value in speeds.items() if value is not None}
    if not given:
        raise ConfigurationError(Said("give_one_speed_of_none"))
    first, *others = (f"{name}={value}" for name, value in given.items())
    if others:
        named = as_told(first)
        for other in others:
            named = Said("and", {"first": named, "second": other})
        one = Said("give_one_speed")
        raise ConfigurationError(Said("of_source", {"source": named, "reason": one}))
    ((name, value),) = given.items()
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
    name, value = _one_speed(speeds)
    if batch_size is not None and batch_size < 1:
        raise ConfigurationError(of_source(f"batch_size={batch_size}", Said("give_1_or_more")))
    if name == "time_s":
        return _samples(batch_size, value, devices) / value
    if batch_size is not None:
        beside = Said("belongs_to_time", {"name": name})
        raise ConfigurationError(of_source(f"batch_size={batch_size}", beside))
    if name == "samples_per_s":
        return value / devices
    if config.vocabulary_size is None:
        samples = Said("takes_no_tokens_give_samples", {"model": config.name})
        raise ConfigurationError(of_source(f"tokens_per_s={value}", samples))
    return value / (sequence_length or config.sequence_length or 1) / devices


def _samples(batch_size: int | None, time_s: float, devices: int) -> int:
    """Samples per step of each device: one by default. Raises ConfigurationError if it is not given
    for several devices."""
    if batch_size is None and devices > 1:
        needed = Said("give_batch_of_each", {"devices": devices})
        raise ConfigurationError(of_source(f"time_s={time_s}", needed))
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
    modes = modes or (
        ("training", "inference", "decoding") if decodes else ("training", "inference")
    )
    check(config, sequence_length, devices, modes, batch_size)
    sheet, _, spec = peak_of(device, precision)
    if sheet.memory_gb_s is None:
        raise ConfigurationError(of_source(f"device={device}", Said("no_bandwidth_printed")))
    capacity = None if sheet.memory_gb is None else sheet.memory_gb * 1e9
    speeds = spec * 1e12, sheet.memory_gb_s * 1e9
    counts = (work_of(config, sequence_length, batch_size, mode) for mode in modes)
    return [
        expected(counted, *speeds, ELEMENT_BYTES[precision], capacity, devices)
        for counted in counts
    ]


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
    for name, count in (
        ("batch_size", batch_size),
        ("devices", devices),
        ("sequence_length", sequence_length),
    ):
        if count is not None and count < 1:
            raise ConfigurationError(of_source(f"{name}={count}", Said("give_1_or_more")))
    if sequence_length is not None and config.vocabulary_size is None:
        no_tokens = Said("takes_no_tokens", {"model": config.name})
        raise ConfigurationError(of_source(f"sequence_length={sequence_length}", no_tokens))
