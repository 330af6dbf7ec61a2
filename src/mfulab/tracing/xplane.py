"""Reads a profile of JAX or TensorFlow (`*.xplane.pb`) on GPUs and TPUs into a `Trace`. Messages:
tsl/profiler/protobuf/xplane.proto and xla/service/hlo.proto of OpenXLA. A TPU records FLOPs and
bytes of each operator; for a GPU they are counted from the HLO module in the profile."""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

from mfulab.core.parts import Content
from mfulab.core.said import Said, as_told
from mfulab.flops.cost import Cost, dense_pairs, document_pairs
from mfulab.flops.traced import XLA_TYPES
from mfulab.tracing.chrome import Stream
from mfulab.tracing.protobuf import classes
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import (
    COMMUNICATION,
    COPY,
    Call,
    Pair,
    Span,
    Trace,
    TraceError,
    fault,
    kind_of,
    lacking,
    step_mark,
)

_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_COPY = re.compile(r"[Mm]emcpy|[Mm]emset")
_MULTIPLIES = re.compile(r"conv(?!ert)|dot|gemm|matmul|attention|fmha", re.IGNORECASE)
_COLLECTIVE = re.compile(r"all-(?:reduce|gather|to-all)|reduce-scatter|collective-|send|recv")
_CONTRACTING = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_TENSOR = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_SIZE = re.compile(r"(\w+) = (-?\d+) : i64")
_TE_ATTENTION = re.compile(r"te_fused_attn_(forward|backward)_ffi")
# NVTE_Mask_Type of transformer_engine/common/include/transformer_engine/fused_attn.h.
_TE_PADDED = (1, 3, 5)
_TE_CAUSAL = (2, 3, 4, 5)
_TE_UPPER_LEFT = (2, 3)
HOST = "host"  # stands for the process, which a profile does not name
_NEW = 1 << 40  # with the number of events so far, an id that links activities to their operator
_PROPERTIES = {
    "name": "device_type_string",
    "numSms": "core_count",
    "computeMajor": "compute_cap_major",
    "computeMinor": "compute_cap_minor",
    "peak_tflop_s": "peak_teraflops_per_second",
    "peak_gb_s": "peak_hbm_bw_gigabytes_per_second",
}
_GRID = re.compile(r"grid:(\d+),(\d+),(\d+)")


def read(path: Path) -> list[Trace]:
    """Reads a profile: device activities, HLO operators with their FLOPs, launches and steps.
    Raises TraceError if protobuf is not installed, the file is damaged, or no device's plane has an
    event."""
    content = b"".join(Stream(path).chunks())
    try:
        space = message("XSpace")
        space.ParseFromString(content)
    except ImportError:
        raise TraceError(path, lacking("jax_profile", "google.protobuf")) from None
    except Exception as error:  # protobuf's own, which has no class of the standard library
        replaced = content.count(b"\xef\xbf\xbd")
        why = Said("bytes_replaced", count=replaced) if replaced else as_told(error)
        raise TraceError(path, Said("damaged_profile", why=why)) from None
    recorder = Recorder(path)
    properties = list[Content]()
    try:
        events = _take(recorder, properties, list(map(_Plane, space.planes)))
    except Exception as error:  # protobuf's own too, of the modules in it
        raise TraceError(path, Said("damaged_profile", why=as_told(fault(error)))) from None
    if not recorder.executed:
        raise TraceError(path, Said("no_device_plane"))
    return recorder.done({"deviceProperties": properties}, events)


def _take(recorder: Recorder, properties: list[Content], planes: "list[_Plane]") -> int:
    """Records the events of all planes and collects the devices' properties. Returns the number of
    events."""
    modules = next((plane.modules() for plane in planes if plane.name == "/host:metadata"), {})
    marked = False
    count = 0
    for plane in planes:
        events = sum(len(line.events) for line in plane.lines)
        count += events
        match = _DEVICE.fullmatch(plane.name)
        if match and events:
            number = int(match[2])
            properties.append(plane.properties(number))
            marked |= plane.device(recorder, number, modules, marked)
        elif plane.name == "/host:CPU":
            plane.host(recorder)
    return count


@dataclass(frozen=True)
class Tensor:
    """A tensor of HLO: the name of its element type, and its sides."""

    type: str
    sides: list[int]


@dataclass(frozen=True)
class HloCost:
    """Work, bytes and operands of one operator; bytes are None if unknown."""

    work: Cost
    bytes: int | None
    operands: list[Tensor]


Modules = dict[int, dict[str, HloCost]]  # costs of operators by name, by the module's number


class XEvent(Protocol):
    """Message of one event."""

    metadata_id: int
    offset_ps: int
    duration_ps: int
    stats: Sequence[Any]


class XLine(Protocol):
    """Message of a line of events, such as a stream or a thread."""

    id: int
    name: bytes
    timestamp_ns: int
    events: Sequence[XEvent]


class _Plane:
    """One plane of a profile: a device, the host, or metadata."""

    def __init__(self, plane: Any) -> None:
        self.name = _text(plane.name)
        self.lines: Sequence[XLine] = plane.lines
        self._plane = plane
        self._stat = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
        self.kinds = {entry.key: entry.value for entry in plane.event_metadata}

    def stats(self, holder: Any) -> Content:
        """Statistics of an event or of a kind of event, by name."""
        values = {}
        for stat in holder.stats:
            field = stat.WhichOneof("value")
            value = None
            if field:
                value = getattr(stat, field)
            if field == "ref_value":
                value = self._stat.get(value, "")
            if field == "str_value":
                value = _text(value)
            values[self._stat.get(stat.metadata_id, "")] = value
        return values

    @functools.cached_property
    def _stats_of_kind(self) -> dict[int, Content]:
        """Statistics of each kind of event, by its number."""
        return {key: self.stats(kind) for key, kind in self.kinds.items()}

    def modules(self) -> Modules:
        """Costs of the operators of each HLO module."""
        modules = Modules()
        for key, stats in self._stats_of_kind.items():
            if content := stats.get("Hlo Proto") or stats.get("hlo_proto"):
                proto = message("HloProto")
                proto.ParseFromString(content)
                modules[key] = module_costs(proto.hlo_module)
        return modules

    def properties(self, number: int) -> Content:
        stats = self.stats(self._plane)
        return {"id": number} | {name: stats.get(stat) for name, stat in _PROPERTIES.items()}

    def device(self, recorder: Recorder, number: int, modules: Modules, marked: bool) -> bool:
        """Records a device's kernels, operators and, unless `marked`, steps. True if it records
        steps."""
        steps = False
        for line in self.lines:
            name = _text(line.name)
            if name.startswith("Stream #"):
                self._stream(recorder, line, number, modules)
            elif name == "XLA Ops":
                self._operators(recorder, line, number)
            elif name == "Steps" and not marked:
                steps = self._steps(recorder, line, number) or steps
        return steps

    def _steps(self, recorder: Recorder, line: XLine, number: int) -> bool:
        """Records the steps of a device's line. True if there are any."""
        thread = (HOST, f"steps {number}")
        found = False
        for event in line.events:
            step = _text(self.kinds[event.metadata_id].name)
            if step.isdecimal():
                mark = f"ProfilerStep#{step}"
                recorder.host_call(_span(line, event), mark, thread, -1, False, True)
                found = True
        return found

    def _stream(self, recorder: Recorder, line: XLine, number: int, modules: Modules) -> None:
        """Records the kernels of a GPU's stream. Consecutive kernels of one HLO operator belong to
        one call of it."""
        copies = bool(_COPY.search(_text(line.name)))
        operator = None
        external = -1
        for event in sorted(line.events, key=lambda event: event.offset_ps):
            stats = self.stats(event)
            span = _span(line, event)
            name = _text(self.kinds[event.metadata_id].name)
            owner = stats.get("program_id"), stats.get("hlo_op")
            begins = owner != operator
            operator = owner
            if begins:
                external = _NEW | len(recorder)
            grid = _GRID.search(str(stats.get("kernel_details", "")))
            kind = kind_of(name)
            blocks = 0
            if grid:
                blocks = math.prod(map(int, grid.groups()))
            if copies or _COPY.match(name):
                kind = COPY
            linked = int(stats.get("correlation_id") or -1)
            recorder.activity(span, kind, name, (HOST, number), line.id, linked, external, blocks)
            if begins and stats.get("hlo_op"):
                cost = modules.get(stats.get("program_id", -1), {}).get(stats["hlo_op"])
                thread = (HOST, ("xla", number, line.id))
                _operator(recorder, span, stats["hlo_op"], cost, thread, external)

    def _operators(self, recorder: Recorder, line: XLine, number: int) -> None:
        """Records a TPU's operators with the FLOPs and bytes that its compiler states. A loop's
        time is what its body leaves."""
        for event, span in _own_spans(line):
            event_kind = self.kinds[event.metadata_id]
            stats = self._stats_of_kind[event.metadata_id] | self.stats(event)
            name = _text(event_kind.display_name or event_kind.name)
            category = str(stats.get("hlo_category", ""))
            text = _text(event_kind.name)
            external = _NEW | len(recorder)
            kind = kind_of(name)
            if _COLLECTIVE.search(category or name):
                kind = COMMUNICATION
            recorder.activity(span, kind, name, (HOST, number), line.id, -1, external, 0)
            cost = None
            flops = stats.get("flops")
            if flops and _MULTIPLIES.search(category or name):
                tensors = _tensors_in(text)[1:]  # the result comes first
                cost = HloCost(Cost.of(int(flops)), stats.get("bytes_accessed"), tensors)
            _operator(recorder, span, name.lstrip("%"), cost, (HOST, ("xla", number)), external)

    def host(self, recorder: Recorder) -> None:
        """Records runtime calls, and the marks of `jax.profiler.StepTraceAnnotation`."""
        for line in self.lines:
            thread = (HOST, line.id)
            for event in line.events:
                name = _text(self.kinds[event.metadata_id].name)
                if name.startswith("$") or not event.stats:  # Python's functions
                    continue
                stats = self.stats(event)
                span = _span(line, event)
                if stats.get("correlation_id"):
                    recorder.launch(span, thread, int(stats["correlation_id"]), name)
                    continue
                mark = step_mark(name)
                if "step_num" in stats:
                    mark = f"ProfilerStep#{stats['step_num']}"
                if mark:
                    recorder.host_call(span, mark, thread, -1, False, True)


def _tensors_in(text: str) -> list[Tensor]:
    """Tensors that the text of an HLO instruction names, in order."""
    tensors = list[Tensor]()
    for element, sides in _TENSOR.findall(text):
        tensors.append(Tensor(element, [int(side) for side in sides.split(",") if side]))
    return tensors


@dataclass
class _Open:
    """An event that may hold others, its end, and the time up to which it was yielded."""

    event: XEvent
    end: int
    since: int


def _own_spans(line: XLine) -> Iterator[tuple[XEvent, Span]]:
    """Yields events in order, each with its exclusive time: a loop comes once per gap that its body
    leaves."""
    stack = list[_Open]()

    def close(until: int) -> Iterator[tuple[XEvent, Span]]:
        while stack and stack[-1].end <= until:
            ended = stack.pop()
            if ended.since < ended.end:
                yield ended.event, (ended.since, ended.end)
            if stack:
                outer = stack[-1]
                outer.since = max(outer.since, ended.end)

    for event in sorted(line.events, key=lambda event: (event.offset_ps, -event.duration_ps)):
        begin, end = _span(line, event)
        yield from close(begin)
        if stack:
            outer = stack[-1]
            if outer.since < begin:
                yield outer.event, (outer.since, begin)
            outer.since = begin
            end = min(end, outer.end)
        stack.append(_Open(event, end, begin))
    yield from close(1 << 62)


def _operator(
    recorder: Recorder, span: Span, name: str, cost: HloCost | None, thread: Pair, external: int
) -> None:
    """Records the call of an HLO operator, with its cost if known."""
    short = re.sub(r"[.\d]+$", "", name)  # without its number
    called = f"xla::{short}"
    call = None
    if cost:
        called = f"xla::matmul {short}"
        known = [tensor.type for tensor in cost.operands if tensor.type in XLA_TYPES]
        types = tuple(XLA_TYPES[name] for name in known)
        sides = tuple(tensor.sides for tensor in cost.operands)
        call = Call(called, sides, types, (astuple(cost.work), cost.bytes))
    recorder.host_call(span, called, thread, external, False, False, call)


def module_costs(module: object) -> dict[str, HloCost]:
    """FLOPs, bytes and operands of each top-level HLO operator that multiplies, fusions included,
    by name."""
    hlo = _Module(module)
    costs = dict[str, HloCost]()
    for part in hlo.parts.values():
        work = hlo.attention(part) or Cost.of(hlo.flops(part))
        if work.flops:
            tensors = [_tensor(operand.shape) for operand in hlo.operands(part)]
            result = _tensor(_result(part.shape))
            moved = sum(map(_bytes, [*tensors, result]))
            costs[_text(part.name)] = HloCost(work, moved, tensors)
    return costs


class _Module:
    """Instructions of an HLO module, by number."""

    def __init__(self, module: Any) -> None:
        self.computations = {computation.id: computation for computation in module.computations}
        self.parts = dict[int, Any]()
        for computation in module.computations:
            self.parts |= {part.id: part for part in computation.instructions}

    def operands(self, part: Any) -> list[Any]:
        """Instructions whose results an instruction takes."""
        return [self.parts[number] for number in part.operand_ids if number in self.parts]

    def flops(self, part: Any) -> int:
        """FLOPs of a dot, convolution or library call; of a fusion, the sum over its instructions;
        0 for others."""
        opcode = _text(part.opcode)
        target = _text(part.custom_call_target)
        if opcode == "fusion":
            return sum(map(self.flops, self._fused(part)))
        if opcode == "dot" or "$matmul" in target or "$gemm" in target:
            return self._dot_flops(part)
        if opcode == "convolution" or "cudnn$conv" in target:
            return self._convolution_flops(part)
        return 0

    def attention(self, part: Any) -> Cost | None:
        """Work of Transformer Engine's attention, with the sizes in its configuration; None for
        other instructions. The backward pass computes four matmuls where the forward pass computes
        two, and the scores once more. Source: transformer_engine/jax/csrc/extensions/attention.cpp
        of NVIDIA/TransformerEngine."""
        match = _TE_ATTENTION.match(_text(part.custom_call_target))
        if match is None:
            return None
        sizes = {name: int(number) for name, number in _SIZE.findall(_text(part.backend_config))}
        is_causal = sizes["mask_type"] in _TE_CAUSAL
        window = sizes["window_size_left"], sizes["window_size_right"]
        lengths = sizes["q_max_seqlen"], sizes["kv_max_seqlen"]
        if sizes["mask_type"] in _TE_UPPER_LEFT and window == (-1, -1):
            pairs = dense_pairs(*lengths, is_causal)
        else:
            pairs = document_pairs(*lengths, is_causal, *window)
        heads = sizes["input_batch"] * sizes["attn_heads"]
        scores = 2 * heads * sizes["qk_head_dim"]  # FLOPs of a pair
        needed = scores + 2 * heads * sizes["v_head_dim"]
        executed = needed
        if match[1] == "backward":
            needed = 2 * needed
            executed = needed + scores
        full = int(needed * pairs.full)
        is_packed = sizes["mask_type"] in _TE_PADDED  # lengths are unknown: an upper bound
        return Cost(
            full,
            int(needed * pairs.attended),
            int(executed * pairs.executed),
            full,
            full,
            bound=is_packed,
        )

    def _fused(self, part: Any) -> Iterator[Any]:
        for number in part.called_computation_ids:
            if number in self.computations:
                yield from self.computations[number].instructions

    def _dot_flops(self, part: Any) -> int:
        sides = part.dot_dimension_numbers.lhs_contracting_dimensions
        if _text(part.opcode) != "dot":
            match = _CONTRACTING.search(_text(part.backend_config))
            sides = ()
            if match:
                sides = list(map(int, re.findall(r"\d+", match[1])))
        operands = self.operands(part)
        if not operands or not sides:
            return 0
        contracted = math.prod(operands[0].shape.dimensions[side] for side in sides)
        return 2 * math.prod(_result(part.shape).dimensions) * contracted

    def _convolution_flops(self, part: Any) -> int:
        """2 × result × weight ÷ output channels; a backward pass costs the same as its forward
        pass."""
        operands = self.operands(part)
        if len(operands) < 2:
            return 0
        result = _result(part.shape).dimensions
        weight = operands[1].shape.dimensions
        target = _text(part.custom_call_target)
        if "BackwardInput" in target:
            result = operands[0].shape.dimensions
        elif "BackwardFilter" in target:
            result, weight = weight, result
        channels = weight[part.convolution_dimension_numbers.kernel_output_feature_dimension]
        return 2 * math.prod(result) * math.prod(weight) // channels


def _tensor(shape: Any) -> Tensor:
    name, _ = XLA_ELEMENTS.get(shape.element_type, ("", 0))
    return Tensor(name, list(shape.dimensions))


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.sides) * _ELEMENT_BYTES.get(tensor.type, 0)


def _result(shape: Any) -> Any:
    """Shape of a result, or the first of a tuple: library calls return a workspace after it."""
    if shape.tuple_shapes:
        return shape.tuple_shapes[0]
    return shape


def _span(line: XLine, event: XEvent) -> Span:
    """Begin and end in whole ns of the profile's clock, each rounded by itself."""
    begin = 1000 * line.timestamp_ns + event.offset_ps
    return (begin + 500) // 1000, (begin + event.duration_ps + 500) // 1000


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


_MESSAGES = {
    "XSpace": "planes=1*XPlane",
    "XPlane": "name=2b lines=3*XLine event_metadata=4*Kind stat_metadata=5*Name stats=6*XStat",
    "Kind": "key=1i value=2XEventMetadata",
    "Name": "key=1i value=2XStatMetadata",
    "XLine": "id=1i name=2b timestamp_ns=3i events=4*XEvent",
    "XEvent": "metadata_id=1i offset_ps=2i duration_ps=3i stats=4*XStat",
    "XStat": "metadata_id=1i double_value=2|d uint64_value=3|u int64_value=4|i str_value=5|b bytes_value=6|b"
    " ref_value=7|u",
    "XEventMetadata": "name=2b display_name=4b stats=5*XStat",
    "XStatMetadata": "name=2b",
    "HloProto": "hlo_module=1Module",
    "Module": "computations=3*Computation",
    "Computation": "instructions=2*Instruction id=5i",
    "Instruction": "name=1b opcode=2b shape=3Shape convolution_dimension_numbers=16Convolution custom_call_target=28b"
    " dot_dimension_numbers=30Dot id=35i operand_ids=36*i called_computation_ids=38*i backend_config=43b",
    "Shape": "element_type=2i dimensions=3*i tuple_shapes=4*Shape",
    "Dot": "lhs_contracting_dimensions=1*i",
    "Convolution": "kernel_output_feature_dimension=4i",
}
# XLA's PrimitiveType → its name and bytes.
XLA_ELEMENTS = {
    1: ("pred", 1), 2: ("s8", 1), 3: ("s16", 2), 4: ("s32", 4), 5: ("s64", 8), 6: ("u8", 1), 7: ("u16", 2),
    8: ("u32", 4), 9: ("u64", 8), 10: ("f16", 2), 11: ("f32", 4), 12: ("f64", 8), 16: ("bf16", 2),
    19: ("f8e5m2", 1), 20: ("f8e4m3fn", 1), 24: ("f8e5m2fnuz", 1), 25: ("f8e4m3fnuz", 1),
}  # fmt: skip

_ELEMENT_BYTES = dict(XLA_ELEMENTS.values())


def message(name: str) -> Any:
    """Creates an empty message by name. Raises ImportError if protobuf is not installed."""
    return _classes()[name]()


@functools.cache
def _classes() -> Content:
    return classes("xplane", _MESSAGES)
