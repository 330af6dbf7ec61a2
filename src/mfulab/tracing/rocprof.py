"""Reads rocprofv3's JSON (`--output-format json`) into a `Trace`: rocprofiler-sdk, "Using rocprofv3". Times are ns."""

import json
import math
from pathlib import Path
from typing import Any

from mfulab.tracing.chrome import Stream
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import COPY, Trace, TraceError, kind_of, step_mark

TOOL = b'"rocprofiler-sdk-tool"'
GPU = 2  # an agent's type
_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name", "kernel_name")


def read(path: Path) -> list[Trace]:
    """Reads kernels, copies, calls of HIP and ranges of ROCTx. Raises TraceError: cut, another schema, no kernel."""
    try:
        processes = json.loads(b"".join(Stream(path).chunks()))["rocprofiler-sdk-tool"]
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: cut or damaged rocprofv3 JSON ({str(error)[:120]}); copy it anew") from None
    recorder, properties = Recorder(path), list[dict[str, Any]]()
    try:
        count = sum(_process(recorder, number, process, properties) for number, process in enumerate(processes))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        why = f"a schema of rocprofv3 that is not known here ({type(error).__name__}: {error})"
        raise TraceError(f"{path}: {why}") from None
    if not recorder.executed:
        raise TraceError(f"{path}: rocprofv3 recorded no kernel or copy: record with --kernel-trace or --sys-trace")
    return recorder.done({"deviceProperties": properties}, count)


def _process(recorder: Recorder, number: int, process: dict[str, Any], properties: list[dict[str, Any]]) -> int:
    devices: dict[int, int] = {}
    for place, agent in enumerate(agent for agent in process["agents"] if agent["type"] == GPU):
        devices[agent["id"]["handle"]] = ordinal = agent.get("logical_node_type_id", place)
        properties.append({"id": ordinal, "name": agent.get("product_name"), "numSms": agent.get("cu_count")})
    symbols = {symbol["kernel_id"]: symbol for symbol in process["kernel_symbols"]}
    kinds = [buffer["operations"] for buffer in process["strings"]["buffer_records"]]
    said = {marker["key"]: marker["value"] for marker in process["strings"].get("marker_api", ())}
    records, pid = process["buffer_records"], process.get("metadata", {}).get("pid", number)

    def name_of(record: dict[str, Any]) -> str:
        return str(kinds[record["kind"]][record["operation"]])

    def linked(record: dict[str, Any]) -> int:
        return number << 40 | int(record["correlation_id"]["internal"])

    def span(record: dict[str, Any]) -> tuple[int, int]:
        begin, end = record["start_timestamp"], record["end_timestamp"]
        if not isinstance(begin, int) or not isinstance(end, int) or end < begin:
            raise ValueError(f"a record from {begin} to {end}")
        return begin, end

    for record in records.get("kernel_dispatch", ()):
        about = record["dispatch_info"]
        symbol = symbols.get(about["kernel_id"], {})
        name = next((str(symbol[key]) for key in _NAMES if symbol.get(key)), f"kernel {about['kernel_id']}")
        blocks = math.prod(about["grid_size"][side] // max(1, about["workgroup_size"][side]) for side in "xyz")
        stream = record.get("stream_id", about["queue_id"])["handle"]
        device = devices[about["agent_id"]["handle"]]
        recorder.activity(span(record), kind_of(name), name, (pid, device), stream, linked(record), -1, blocks)
    for record in records.get("memory_copy", ()):
        agents = [record[side]["handle"] for side in ("dst_agent_id", "src_agent_id")]
        device = next((devices[agent] for agent in agents if agent in devices), 0)
        recorder.activity(span(record), COPY, name_of(record), (pid, device), -1, linked(record), -1, 0)
    for record in records.get("hip_api", ()):
        recorder.launch(span(record), (pid, record["thread_id"]), linked(record), name_of(record))
    for record in records.get("marker_api", ()):
        if text := said.get(record["correlation_id"]["internal"]):
            mark = step_mark(text)
            recorder.host_call(span(record), mark or text, (pid, record["thread_id"]), -1, False, mark is not None)
    return sum(len(kept) for kept in records.values())
