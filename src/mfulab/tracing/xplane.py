"""Reads a profile of JAX or TensorFlow (`*.xplane.pb`), on GPUs and TPUs, into a `Trace`. Messages:
tsl/profiler/protobuf/xplane.proto and xla/service/hlo.proto of OpenXLA. A TPU names its own FLOPs and bytes of each
operator; on a GPU they are counted from the module that the profile holds."""

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mfulab.core.errors import lacks
from mfulab.flops.traced import XLA_TYPES
from mfulab.tracing.chrome import Stream
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import COMMUNICATION, COPY, Call, Pair, Span, Trace, TraceError, kind_of, step_mark

_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_COPY = re.compile(r"[Mm]emcpy|[Mm]emset")
_MULTIPLIES = re.compile(r"conv(?!ert)|dot|gemm|matmul|attention|fmha", re.IGNORECASE)
_COLLECTIVE = re.compile(r"all-(?:reduce|gather|to-all)|reduce-scatter|collective-|send|recv")
_TENSOR = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
Cost = tuple[int, Any, list[tuple[str, list[int]]]]  # FLOPs, bytes, and type and sides of each operand
HOST = "host"  # the process of all that a profile holds
_NEW = 1 << 40  # with the number of events so far a number by which activities name their operator
_PROPERTIES = {"name": "device_type_string", "numSms": "core_count", "computeMajor": "compute_cap_major"}
_PROPERTIES |= {"computeMinor": "compute_cap_minor", "peak_tflop_s": "peak_teraflops_per_second"}
_PROPERTIES |= {"peak_gb_s": "peak_hbm_bw_gigabytes_per_second"}
_GRID = re.compile(r"grid:(\d+),(\d+),(\d+)")


def read(path: Path) -> list[Trace]:
    """Reads a profile: what devices executed, HLO operators with their FLOPs, launches and steps. Raises TraceError:
    protobuf is not installed, the file is damaged, or no device's plane holds an event."""
    content = b"".join(Stream(path).chunks())
    try:
        space = message("XSpace")
        space.ParseFromString(content)
    except ImportError:
        raise TraceError(f"{path}: {lacks('a profile of JAX', 'google.protobuf')}") from None
    except Exception as error:  # protobuf's own, which has no class of the standard library
        replaced = content.count(b"\xef\xbf\xbd")
        why = f"{replaced:,} of its bytes were replaced as not UTF-8" if replaced else str(error)
        raise TraceError(f"{path}: a damaged profile ({why}); copy it anew, as a binary file") from None
    recorder, properties = Recorder(path), list[dict[str, Any]]()
    try:
        events = _take(recorder, properties, [_Plane(plane) for plane in space.planes])
    except Exception as error:  # protobuf's own too, of the modules in it
        why = f"{type(error).__name__}: {str(error)[:120]}"
        raise TraceError(f"{path}: a damaged profile ({why}); copy it anew") from None
    if not recorder.executed:
        raise TraceError(f"{path}: no device's plane holds an event: a profile of a CPU, or one that ended too soon")
    return recorder.done({"deviceProperties": properties}, events)


def _take(recorder: Recorder, properties: list[dict[str, Any]], planes: "list[_Plane]") -> int:
    modules = next((plane.modules() for plane in planes if plane.name == "/host:metadata"), {})
    marked = False
    for plane in planes:
        if (match := _DEVICE.fullmatch(plane.name)) and any(line.events for line in plane.lines):
            number = int(match[2])
            properties.append(plane.properties(number))
            marked |= plane.device(recorder, number, modules, marked)
        elif plane.name == "/host:CPU":
            plane.host(recorder)
    return sum(len(line.events) for plane in planes for line in plane.lines)


class _Plane:
    def __init__(self, plane: Any) -> None:
        self.name, self.lines, self._plane = _text(plane.name), plane.lines, plane
        self._stat = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
        self.kinds = {entry.key: entry.value for entry in plane.event_metadata}

    def stats(self, holder: Any) -> dict[str, Any]:
        values = {}
        for stat in holder.stats:
            field = stat.WhichOneof("value")
            value = getattr(stat, field) if field else None
            if field == "ref_value":
                value = self._stat.get(value, "")
            values[self._stat.get(stat.metadata_id, "")] = _text(value) if field == "str_value" else value
        return values

    @functools.cached_property
    def _about(self) -> dict[int, dict[str, Any]]:
        return {key: self.stats(kind) for key, kind in self.kinds.items()}

    def modules(self) -> dict[int, Any]:
        modules = {}
        for key, about in self._about.items():
            if content := about.get("Hlo Proto") or about.get("hlo_proto"):
                proto = message("HloProto")
                proto.ParseFromString(content)
                modules[key] = module_costs(proto.hlo_module)
        return modules

    def properties(self, number: int) -> dict[str, Any]:
        about = self.stats(self._plane)
        return {"id": number} | {name: about.get(stat) for name, stat in _PROPERTIES.items()}

    def device(self, recorder: Recorder, number: int, modules: dict[int, Any], marked: bool) -> bool:
        steps = False
        for line in self.lines:
            name = _text(line.name)
            if name.startswith("Stream #"):
                self._stream(recorder, line, number, modules)
            elif name == "XLA Ops":
                self._operators(recorder, line, number)
            elif name == "Steps" and not marked:
                for event in line.events:
                    if (step := _text(self.kinds[event.metadata_id].name)).isdecimal():
                        mark = f"ProfilerStep#{step}"
                        recorder.host_call(_span(line, event), mark, (HOST, f"steps {number}"), -1, False, True)
                        steps = True
        return steps

    def _stream(self, recorder: Recorder, line: Any, number: int, modules: dict[int, Any]) -> None:
        """A GPU's kernels; those of one HLO operator in a row are its one call."""
        copies = bool(_COPY.search(_text(line.name)))
        operator, external = None, -1
        for event in sorted(line.events, key=lambda event: event.offset_ps):
            about, span = self.stats(event), _span(line, event)
            name = _text(self.kinds[event.metadata_id].name)
            owner = about.get("program_id"), about.get("hlo_op")
            begins, operator = owner != operator, owner
            external = _NEW | len(recorder) if begins else external
            grid = _GRID.search(str(about.get("kernel_details", "")))
            kind, blocks = kind_of(name), math.prod(map(int, grid.groups())) if grid else 0
            kind, linked = COPY if copies or _COPY.match(name) else kind, int(about.get("correlation_id") or -1)
            recorder.activity(span, kind, name, (HOST, number), line.id, linked, external, blocks)
            if begins and about.get("hlo_op"):
                cost = modules.get(about.get("program_id", -1), {}).get(about["hlo_op"])
                _operator(recorder, span, about["hlo_op"], cost, (HOST, ("xla", number, line.id)), external)

    def _operators(self, recorder: Recorder, line: Any, number: int) -> None:
        """A TPU's operators: each with the FLOPs and bytes that its compiler names; loops by what is theirs alone."""
        for event, span in _own_spans(line):
            told, about = self.kinds[event.metadata_id], self._about[event.metadata_id] | self.stats(event)
            name, category = _text(told.display_name or told.name), str(about.get("hlo_category", ""))
            text, external = _text(told.name), _NEW | len(recorder)
            kind = COMMUNICATION if _COLLECTIVE.search(category or name) else kind_of(name)
            recorder.activity(span, kind, name, (HOST, number), line.id, -1, external, 0)
            cost = None
            if (flops := about.get("flops")) and _MULTIPLIES.search(category or name):
                operands = _TENSOR.findall(text)[1:]  # its result comes first
                tensors = [(form, [int(side) for side in sides.split(",") if side]) for form, sides in operands]
                cost = int(flops), about.get("bytes_accessed"), tensors
            _operator(recorder, span, name.lstrip("%"), cost, (HOST, ("xla", number)), external)

    def host(self, recorder: Recorder) -> None:
        """Adds the runtime's calls and the marks of `jax.profiler.StepTraceAnnotation`."""
        for line in self.lines:
            for event in line.events:
                name = _text(self.kinds[event.metadata_id].name)
                if name.startswith("$") or not event.stats:  # Python's functions
                    continue
                about = self.stats(event)
                if about.get("correlation_id"):
                    recorder.launch(_span(line, event), (HOST, line.id), int(about["correlation_id"]), name)
                elif mark := f"ProfilerStep#{about['step_num']}" if "step_num" in about else step_mark(name):
                    recorder.host_call(_span(line, event), mark, (HOST, line.id), -1, False, True)


def _own_spans(line: Any) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Events in order with the time that is theirs alone: a loop's is what its body leaves, a piece a gap."""
    stack: list[list[Any]] = []  # event, end, up to where its time is given

    def give(until: int) -> Iterator[tuple[Any, tuple[int, int]]]:
        while stack and stack[-1][1] <= until:
            event, end, begin = stack.pop()
            if begin < end:
                yield event, (begin, end)
            if stack:
                stack[-1][2] = max(stack[-1][2], end)

    for event in sorted(line.events, key=lambda event: (event.offset_ps, -event.duration_ps)):
        begin, end = _span(line, event)
        yield from give(begin)
        if stack:
            if stack[-1][2] < begin:
                yield stack[-1][0], (stack[-1][2], begin)
            stack[-1][2] = begin
        stack.append([event, min(end, stack[-1][1]) if stack else end, begin])
    yield from give(1 << 62)


def _operator(recorder: Recorder, span: Span, name: str, cost: Cost | None, thread: Pair, external: int) -> None:
    short, call = re.sub(r"[.\d]+$", "", name), None  # without its number
    if cost:
        flops, moved, tensors = cost
        types = tuple(XLA_TYPES[kind] for kind, _ in tensors if kind in XLA_TYPES)
        call = Call(f"xla::matmul {short}", tuple(sides for _, sides in tensors), types, (flops, moved))
    recorder.host_call(span, call.name if call else f"xla::{short}", thread, external, False, False, call)


def module_costs(module: Any) -> dict[str, Cost]:
    """FLOPs, bytes and operands of each top-level operator of an HLO module that multiplies, fusions included."""
    computations = {computation.id: computation for computation in module.computations}
    parts = {part.id: part for computation in module.computations for part in computation.instructions}

    def flops(part: Any) -> int:
        output = _result(part.shape)
        operands = [parts[number] for number in part.operand_ids if number in parts]
        opcode, target = _text(part.opcode), _text(part.custom_call_target)
        if opcode == "fusion":
            inner = (computations[number] for number in part.called_computation_ids if number in computations)
            return sum(flops(part) for computation in inner for part in computation.instructions)
        if opcode == "dot" or "$matmul" in target or "$gemm" in target:
            sides = part.dot_dimension_numbers.lhs_contracting_dimensions
            if opcode != "dot":
                match = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', _text(part.backend_config))
                sides = [int(side) for side in re.findall(r"\d+", match[1])] if match else ()
            lengths = [operands[0].shape.dimensions[side] for side in sides] if operands else []
            return 2 * math.prod(output.dimensions) * math.prod(lengths) if lengths else 0
        if (opcode == "convolution" or "cudnn$conv" in target) and len(operands) >= 2:
            numbers = part.convolution_dimension_numbers
            result, weight = output.dimensions, operands[1].shape.dimensions
            if "BackwardInput" in target:
                result = operands[0].shape.dimensions
            elif "BackwardFilter" in target:
                result, weight = weight, output.dimensions
            return 2 * math.prod(result) * math.prod(weight) // weight[numbers.kernel_output_feature_dimension]
        return 0

    costs = {}
    for computation in module.computations:
        for part in computation.instructions:
            if count := flops(part):
                shapes = [parts[number].shape for number in part.operand_ids if number in parts] + [_result(part.shape)]
                kinds = [XLA_ELEMENTS.get(shape.element_type, ("", 0)) for shape in shapes]
                sides = [list(shape.dimensions) for shape in shapes]
                moved = sum(math.prod(lengths) * size for lengths, (_, size) in zip(sides, kinds, strict=True))
                operands = [(kind, lengths) for lengths, (kind, _) in zip(sides, kinds, strict=True)][:-1]
                costs[_text(part.name)] = count, moved, operands
    return costs


def _result(shape: Any) -> Any:
    """The first of a tuple: a library's call returns its workspace after it."""
    return shape.tuple_shapes[0] if shape.tuple_shapes else shape


def _span(line: Any, event: Any) -> tuple[int, int]:
    """Whole nanoseconds of the profile's clock, each end rounded by itself."""
    begin = 1000 * line.timestamp_ns + event.offset_ps
    return (begin + 500) // 1000, (begin + event.duration_ps + 500) // 1000


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# Of each message its fields: name=number, `*` where repeated, and the type: i(nt64), u(int64), d(ouble), b(ytes, text
# too) or a message. `|` marks members of a oneof called value.
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


def message(name: str) -> Any:
    """An empty message of this name. Raises ImportError without protobuf."""
    return _classes()[name]()


@functools.cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    types = {"i": field.TYPE_INT64, "u": field.TYPE_UINT64, "d": field.TYPE_DOUBLE, "b": field.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(name="xplane", package="xplane", syntax="proto2")
    for owner, fields in _MESSAGES.items():
        declared = file.message_type.add(name=owner)
        for text in fields.split():
            name, number, sign, kind = re.fullmatch(r"(\w+)=(\d+)([*|]?)(\w+)", text).groups()  # type: ignore[union-attr]
            entry = declared.field.add(name=name, number=int(number), label=3 if sign == "*" else 1)
            if kind in types:
                entry.type = types[kind]
            else:
                entry.type, entry.type_name = field.TYPE_MESSAGE, f".xplane.{kind}"
            if sign == "|":
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="value")
                entry.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptors = {owner: pool.FindMessageTypeByName(f"xplane.{owner}") for owner in _MESSAGES}
    return {owner: message_factory.GetMessageClass(descriptor) for owner, descriptor in descriptors.items()}
