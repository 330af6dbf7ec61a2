"""Reads a trace of torch.profiler into a `Trace`; nothing is interpreted but the kind of each event."""

import gc
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from mfulab.core.said import Said
from mfulab.flops.traced import is_traced_matmul
from mfulab.tracing.chrome import MOST_US, WANTED, Stream, nanoseconds
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import COPY, MODULE, Call, Collective, Pair, Span, Trace, TraceError, kind_of, printable

_KERNEL, _COPY, _LAUNCH, _CALL, _ANNOTATION, _FUNCTION = range(6)
_NAMES = (  # of each kind
    *("kernel Kernel concurrent_kernel", "gpu_memcpy gpu_memset Memcpy Memset"),
    "cuda_runtime cuda_driver hip_runtime hip_driver xpu_runtime Runtime runtime",
    *("cpu_op Operator", "user_annotation", "python_function"),
)
_KINDS = {name: kind for kind, names in enumerate(_NAMES) for name in names.split()}
# Kinds that name a device and are no work of one.
_ASIDE = re.compile(r"annotation|sync|event$|runtime|driver|counter|overhead|range|^Trace$", re.IGNORECASE)
_OF_DEVICES = {"device", "device id", "stream", "stream id", "task type"}  # arguments, in any case
# Bytes of torch's types as it names them in a trace; others have no size here.
BYTES = {"Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8}
BYTES |= {"Double": 8, "Float8_e4m3fn": 1, "Float8_e5m2": 1}
MOST = 2**62  # of a number that columns hold
MOST_LETTERS = 60  # of a kind's name


def read(path: Path) -> list[Trace]:
    """Reads a trace file, gzip or not, a trace of each process that launched work. Raises TraceError where none is."""
    stream, taken = Stream(path), _Taken(Recorder(path))
    count = 0
    collects = gc.isenabled()
    gc.disable()  # millions of young objects without a circle make it look again and again
    try:
        for batch in stream.batches():
            count += len(batch)
            for event in batch:
                try:
                    if (kind := _KINDS.get(event.get("cat", ""))) is not None:
                        taken.event(event, kind)
                    elif event.get("ph") == "X":
                        taken.of_device(event.get("cat"), event.get("args"))
                except (TypeError, ValueError, AttributeError, ArithmeticError):  # a part of another type
                    taken.odd += 1
    finally:
        if collects:
            gc.enable()
    taken.check(path, count, stream.metadata)
    return taken.recorder.done(stream.metadata, count, taken.notes())


class _Taken:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.endless = self.timeless = self.odd = 0
        self.unknown = Counter[str]()  # kinds of device events that are not read here

    def check(self, path: Path, count: int, metadata: dict[str, Any]) -> None:
        properties, why = metadata.get("deviceProperties"), ""
        if self.timeless:
            why = f"{self.timeless:,} events of devices or operators have no number as `ts` or `dur`"
        elif self.endless:
            why = f"{self.endless:,} device events have no usable `dur`: the trace was written before they ended; "
            why += "synchronise before the profiler stops"
        elif not count:
            why = "the trace holds no events; was the profiler active in any step?"
        elif self.unknown and not self.recorder.executed:
            why = f"what its device executed is of kinds that mfulab does not read: {self._kinds()}"
        elif not len(self.recorder):
            odd = f"; {self.odd:,} of its {count:,} events are not events" if self.odd else ""
            odd += ": export_memory_timeline writes such lists" if self.odd == count else ""
            why = f"the trace of another program, without events of torch.profiler{odd}; {WANTED}"
        elif isinstance(properties, list) and properties and not self.recorder.executed:  # torch writes GPUs wherever
            name = properties[0].get("name") if isinstance(properties[0], dict) else properties[0]
            why = f"no GPU events, though the trace names {name!r}: record with ProfilerActivity.CUDA, "
            why += "and see that CUPTI or roctracer may be used"
        if why:
            raise TraceError(f"{path}: {why}")

    def notes(self) -> list[Said]:
        notes = [Said("odd_events", {"count": self.odd})] if self.odd else []
        return [*notes, Said("unknown_kinds", {"kinds": self._kinds()})] if self.unknown else notes

    def _kinds(self) -> str:
        return ", ".join(f"{name} ({count:,})" for name, count in self.unknown.most_common(5))

    def event(self, event: dict[str, Any], kind: int) -> None:
        name = event.get("name", "")
        if kind == _FUNCTION:
            if not name.startswith(MODULE):
                return
            kind = _ANNOTATION
        ts, dur = event.get("ts"), event.get("dur")
        if type(ts) is int and type(dur) is int and -MOST_US < ts < MOST_US and 0 <= dur < MOST_US:
            span = ts * 1000, (ts + dur) * 1000
        elif not (span := self._span(event, kind <= _COPY)):  # type: ignore[assignment]
            return
        args, thread = event.get("args"), (event.get("pid"), event.get("tid"))
        name, args = name if type(name) is str else str(name), args if type(args) is dict else {}
        if kind <= _COPY:
            self._activity(span, kind, name, thread, args)
        elif kind != _LAUNCH:
            self._call(span, name, thread, args, kind == _ANNOTATION)
        elif (number := args.get("correlation")) is not None:
            self.recorder.launch(span, thread, _integer(number), name, str(args.get("kernel", "")))

    def _span(self, event: dict[str, Any], of_device: bool) -> tuple[int, int] | None:
        ts, dur = event.get("ts"), event.get("dur")
        begin, length = nanoseconds(ts), nanoseconds(dur)
        if begin is not None and length is not None and length >= 0:
            return begin, begin + length
        if event.get("ph") == "X":
            self.endless += of_device and begin is not None and (length is not None or dur is None)
            self.timeless += begin is None or (length is None and dur is not None)
        return None

    def _activity(self, span: Span, kind: int, name: str, thread: Pair, args: dict[str, Any]) -> None:
        device, stream = _integer(args.get("device", thread[0])), _integer(args.get("stream", thread[1]))
        collective = _collective(args) if "Collective name" in args else None
        grid = args.get("grid")
        blocks = max(0, _integer(math.prod(map(_integer, grid)))) if isinstance(grid, list) and grid else 0
        self.recorder.activity(
            span, kind_of(name) if kind == _KERNEL else COPY, name, (thread[0], device), stream,
            _integer(args.get("correlation")), _external(args), blocks, collective,
        )  # fmt: skip

    def _call(self, span: Span, name: str, thread: Pair, args: dict[str, Any], annotation: bool) -> None:
        call, number = None, args.get("Sequence number")
        # Gradients are enabled where an operator has a number of its own; in backward that is a recomputation.
        forward = "Sequence number" in args and args.get("Fwd thread id", 0) == 0
        shapes = args.get("Input Dims", args.get("Input dims", ()))
        if is_traced_matmul(name) or (not annotation and any(shapes)):
            types, values = args.get("Input type", ()), args.get("Concrete Inputs", ())
            call = Call(name, *(tuple(told) if isinstance(told, list) else () for told in (shapes, types, values)))
        sequence = -1 if number is None else _integer(number)
        self.recorder.host_call(span, name, thread, _external(args), forward, annotation, call, sequence)

    def of_device(self, category: Any, args: Any) -> None:
        if not isinstance(args, dict) or _ASIDE.search(str(category)):
            return
        if not _OF_DEVICES.isdisjoint(map(str.lower, args)):
            task = next((args[name] for name in args if name.lower() == "task type"), "no category")
            self.unknown[printable(str(category or task))[:MOST_LETTERS]] += 1


def _collective(args: dict[str, Any]) -> Collective | None:
    """Bytes that a kernel sends, where torch describes it as a collective."""
    counts = [args.get(name) for name in ("In msg nelems", "Out msg nelems", "Group size")]
    numbers = [count for count in counts if isinstance(count, int) and 0 <= count < MOST]
    if args.get("dtype") not in BYTES or len(numbers) < len(counts):
        return None
    return str(args["Collective name"]).replace("_", "").lower(), BYTES[args["dtype"]] * max(numbers[:2]), numbers[2]


def _external(args: dict[str, Any]) -> int:
    number = args.get("External id")
    return _integer(args.get("external id", -1) if number is None else number)


def _integer(value: Any) -> int:
    try:
        number = value if type(value) is int else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -MOST < number < MOST else -1
