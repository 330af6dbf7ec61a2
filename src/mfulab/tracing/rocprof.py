"""Reads the JSON of rocprofv3 (`--output-format json`) into a `Trace`; its times are in ns. Format:
rocprofiler-sdk, "Using rocprofv3"."""

from pathlib import Path

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Content
from mfulab.core.said import Said
from mfulab.tracing.chrome import Stream
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import (
    COPY,
    MOST_OF_FAULT,
    Span,
    Trace,
    TraceError,
    fault,
    kind_of,
    step_mark,
)

TOOL = b'"rocprofiler-sdk-tool"'
GPU = 2  # type of an agent that is a GPU
LONGEST_FILE = 1 << 32  # bytes: a trace of minutes holds gigabytes, and is parsed in one piece
_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name", "kernel_name")


def read(path: Path) -> list[Trace]:
    """Reads kernels, copies, HIP calls and ROCTx ranges. Raises TraceError if the file is
    truncated, has another schema, or holds no kernel."""
    try:
        content = parse_json(b"".join(Stream(path).chunks()), LONGEST_FILE)
        processes = content["rocprofiler-sdk-tool"]
    except ValueError as error:
        message = str(error)[:MOST_OF_FAULT]
        raise TraceError(path, Said("damaged_rocprof", error=message)) from None
    recorder = Recorder(path)
    properties = list[Content]()
    count = 0
    try:
        for number, records in enumerate(processes):
            process = _Process(recorder, number, records)
            properties += process.properties
            count += process.record()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise TraceError(path, Said("unknown_rocprof", error=fault(error))) from None
    if not recorder.executed:
        raise TraceError(path, Said("rocprof_without_kernels"))
    return recorder.done({"deviceProperties": properties}, count)


class _Process:
    """Passes the records of one process in a file to a recorder."""

    def __init__(self, recorder: Recorder, number: int, process: Content) -> None:
        self.recorder = recorder
        self.properties = list[Content]()
        self._number = number
        self._pid = process.get("metadata", {}).get("pid", number)
        self._records = process["buffer_records"]
        strings = process["strings"]
        self._operations = [buffer["operations"] for buffer in strings["buffer_records"]]
        markers = strings.get("marker_api", ())
        self._ranges = {marker["key"]: marker["value"] for marker in markers}
        self._symbols = {symbol["kernel_id"]: symbol for symbol in process["kernel_symbols"]}
        self._devices = dict[int, int]()
        gpus = [agent for agent in process["agents"] if agent["type"] == GPU]
        for index, agent in enumerate(gpus):
            ordinal = agent.get("logical_node_type_id", index)
            self._devices[agent["id"]["handle"]] = ordinal
            properties = {"name": agent.get("product_name"), "numSms": agent.get("cu_count")}
            self.properties.append({"id": ordinal, **properties})

    def record(self) -> int:
        """Records everything that is read. Returns the number of records of the process."""
        for record in self._records.get("kernel_dispatch", ()):
            self._kernel(record)
        for record in self._records.get("memory_copy", ()):
            self._copy(record)
        for record in self._records.get("hip_api", ()):
            self._launch(record)
        for record in self._records.get("marker_api", ()):
            self._range(record)
        return sum(map(len, self._records.values()))

    def _name(self, record: Content) -> str:
        return str(self._operations[record["kind"]][record["operation"]])

    def _correlation(self, record: Content) -> int:
        """Number that links a launch to its work, unique across processes."""
        return self._number << 40 | int(record["correlation_id"]["internal"])

    def _launch(self, record: Content) -> None:
        thread = (self._pid, record["thread_id"])
        linked = self._correlation(record)
        self.recorder.launch(_span(record), thread, linked, self._name(record))

    def _kernel(self, record: Content) -> None:
        dispatch = record["dispatch_info"]
        name = self._kernel_name(dispatch["kernel_id"])
        blocks = 1
        for side in "xyz":
            blocks *= dispatch["grid_size"][side] // max(1, dispatch["workgroup_size"][side])
        stream = record.get("stream_id", dispatch["queue_id"])["handle"]
        device = (self._pid, self._devices[dispatch["agent_id"]["handle"]])
        linked = self._correlation(record)
        self.recorder.activity(
            _span(record), kind_of(name), name, device, stream, linked, -1, blocks
        )

    def _kernel_name(self, kernel_id: int) -> str:
        """The most readable name of a kernel that the file holds."""
        symbol = self._symbols.get(kernel_id, {})
        for key in _NAMES:
            name = symbol.get(key)
            if name:
                return str(name)
        return f"kernel {kernel_id}"

    def _copy(self, record: Content) -> None:
        """Records a copy on the GPU that it goes to, else on the one that it comes from."""
        agents = [record[side]["handle"] for side in ("dst_agent_id", "src_agent_id")]
        devices = [self._devices[agent] for agent in agents if agent in self._devices]
        number = 0
        if devices:
            number = devices[0]
        device = (self._pid, number)
        name = self._name(record)
        linked = self._correlation(record)
        self.recorder.activity(_span(record), COPY, name, device, -1, linked, -1, 0)

    def _range(self, record: Content) -> None:
        text = self._ranges.get(record["correlation_id"]["internal"])
        if not text:
            return
        mark = step_mark(text)
        thread = (self._pid, record["thread_id"])
        self.recorder.host_call(
            _span(record), mark or text, thread, -1, False, annotation=mark is not None
        )


def _span(record: Content) -> Span:
    """Begin and end in ns. Raises ValueError if they are no times."""
    begin = record["start_timestamp"]
    end = record["end_timestamp"]
    if not isinstance(begin, int) or not isinstance(end, int) or end < begin:
        raise ValueError(f"a record from {begin} to {end}")
    return begin, end
