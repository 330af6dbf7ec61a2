"""Traces of other profilers than torch's, worked out by hand, and bad files named."""

import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pytest
from support.said import numbers, refused

from mfulab.cli.main import main
from mfulab.measurements.read_trace.reader import files, read_file
from mfulab.tracing import xplane as profiles
from mfulab.tracing.formats import read
from mfulab.tracing.nsys import _sizes
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import TraceError, lacking, step_mark
from mfulab.tracing.xplane import message

H100 = "NVIDIA H100 80GB HBM3"
FOLDER = Path(__file__).parents[3] / "shared/traces"


def row(found):
    return found.row.model_dump()


# Nsight Systems: two processes of a GPU each; a matmul of known sizes, a copy, a wait of the host.

TABLES = {
    "StringIds": "id INTEGER, value TEXT",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,"
    " nameId INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER",
}
NAMES = ["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"]
NAMES += ["cudaLaunchKernel_v7000", "nccl_Reduce"]
NAMES += ["cudaStreamSynchronize_v3020", "cudaMemcpyAsync_v3020"]
ONE, TWO = 1 << 24, 2 << 24  # processes


def nsys(path, tables=TABLES, ranges=(), **rows):
    kept = {
        "StringIds": list(enumerate(NAMES)),
        "TARGET_INFO_GPU": [(0, H100, 132, 9, 0), (1, H100, 132, 9, 0)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (1000, 3000, 0, 7, 5, ONE, 0, 16, 8, 1), (5000, 6000, 0, 7, 6, ONE, 2, 1, 1, 1),
            (2000, 2500, 1, 7, 5, TWO, 0, 16, 8, 1),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(3000, 3500, 0, 7, 8, ONE, 1)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (900, 950, ONE + 1, 5, 1), (3200, 3600, ONE + 1, 9, 3), (4500, 4600, ONE + 1, 6, 1),
            (1900, 1950, TWO + 1, 5, 1), (1000, 1100, ONE + 1, 8, 4),
        ],
        "NVTX_EVENTS": [
            (800, 990, 59, "aten::mm, seq = 3, op_id = 9, sizes = [[2048, 512], [512, 1024]]", None, ONE + 1),
            (10, 9, 59, "never ended well", None, ONE + 1), (10, None, 59, "open", None, ONE + 1),
            *ranges,
        ],
    } | rows  # fmt: skip
    with sqlite3.connect(path) as database:
        for name, columns in tables.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", kept[name])
    return path


def test_nsight_systems_by_hand(tmp_path):
    first, second = map(row, read_file(nsys(tmp_path / "any.name")))
    found = (first["device"], first["units"], first["rank"], first["window_s"])
    assert found == (H100, 132, 0, 5e-6)
    assert first["kernel_busy_percent"] == pytest.approx(60)
    assert json.loads(first["spent"]) | {"idle": 0} == {
        "products": 2000, "recomputed": 0, "uncounted": 0, "others": 0, "graph": 0, "communication": 1000,
        "copies": 500, "input_wait": 0, "idle": 0,
    }  # fmt: skip
    seen = first["flops_by_format"]
    assert seen == json.dumps({"bf16": 2.0 * 2048 * 512 * 1024}), "the format is the kernel's"
    # Idle from 3500, while the host waited (3200 to 3600), until a launch at 4500.
    expected = {"synchronisation": 1500, "starved": 0, "queued": 0, "unlinked": 0}
    assert json.loads(first["idle_causes"]) == expected
    assert second["kernel_busy_percent"] == pytest.approx(10)
    assert second["job"] == first["job"] == "any.name"
    assert json.loads(second["reasons"])["flops"] == {"of_no_operator": {}}


def test_launches_of_two_processes_with_one_correlation_are_kept_apart(tmp_path):
    recordings = read(nsys(tmp_path / "t.sqlite"))
    assert [len(one.activities) for one in recordings] == [3, 1]
    found = len({number for one in recordings for number in one.activities.correlation.tolist()})
    assert found == 4


def test_the_newest_version_of_a_table_is_read_by_its_number(tmp_path):
    columns = TABLES["CUPTI_ACTIVITY_KIND_KERNEL"]
    older, newer = (f"CUPTI_ACTIVITY_KIND_KERNEL_V{version}" for version in (9, 10))
    kernels = {older: [], newer: [(1000, 3000, 0, 7, 5, ONE, 0, 16, 8, 1)]}
    tables = TABLES | {older: columns, newer: columns}
    export = nsys(tmp_path / "t.sqlite", tables, CUPTI_ACTIVITY_KIND_MEMCPY=[], **kernels)
    assert sum(len(recording.activities) for recording in read(export)) == 1


def test_steps_that_a_user_named_are_steps(tmp_path):
    ranges = [(990, 3990, 59, "step 7", None, ONE + 1)]
    ranges += [(3990, 6100, 60, "iteration_8", None, ONE + 1)]
    first, _ = read_file(nsys(tmp_path / "t.sqlite", ranges=ranges))
    assert (first.row.steps, first.row.first_step, first.row.last_step) == (2, 7, 8)


MARKS = {"Step#3": 3, "ITERATION 12": 12, "train_step_4": 4, "ProfilerStep#9": 9, "iter: 5": 5}


@pytest.mark.parametrize(("name", "mark"), [*MARKS.items(), ("step", None)])
def test_marks_of_steps(name, mark):
    assert step_mark(name) == (None if mark is None else f"ProfilerStep#{mark}")


def cut_down(name, *without):
    columns = TABLES[name].split(",")
    kept = [each for each in columns if each.strip().partition(" ")[0] not in without]
    return TABLES | {name: ",".join(kept)}


def test_an_export_without_names_or_processes_is_read_as_far_as_it_goes(tmp_path):
    kept = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
    tables = {name: TABLES[name] for name in kept}
    first, _ = map(row, read_file(nsys(tmp_path / "t.sqlite", tables)))
    assert first["kernel_busy_percent"] == pytest.approx(60)
    assert json.loads(first["reasons"])["device"] == {"no_device_name": {}}


# JAX: a TPU whose compiler names FLOPs, with a loop around two operators; a GPU whose module holds
# them.

TPU = "/device:TPU:0"


def named(table, key, **fields):
    entry = table.add()
    entry.key = key
    for name, value in fields.items():
        setattr(entry.value, name, value.encode())
    return entry.value


def stat(holder, number, **value):
    ((field, content),) = value.items()
    one = holder.stats.add(metadata_id=number)
    setattr(one, field, content)


FIELDS = {int: "int64_value", float: "double_value", bytes: "bytes_value", str: "str_value"}


def profile(path, name=TPU, lines=(), about=()):
    """A plane of `lines`: name → events (kind, begin ns, ns), and kinds (name, {stat: value})."""
    space = message("XSpace")
    plane = space.planes.add(name=name.encode())
    stats: dict[str, int] = {}

    def put(holder, held):
        for key, value in held.items():
            number = stats.setdefault(key, len(stats) + 1)
            field = FIELDS[type(value)]
            stat(holder, number, **{field: value.encode() if isinstance(value, str) else value})

    kinds: dict[str, int] = {}
    put(plane, dict(about))
    for title, events in dict(lines).items():
        line = plane.lines.add(name=title.encode(), timestamp_ns=100, id=len(plane.lines))
        for kind, begin, length, own, held in events:
            if kind not in kinds:
                kinds[kind] = len(kinds) + 1
                put(named(plane.event_metadata, kinds[kind], name=kind), held)
            event = line.events.add(
                metadata_id=kinds[kind], offset_ps=1000 * begin, duration_ps=1000 * length
            )
            put(event, own)
    for key, number in stats.items():
        named(plane.stat_metadata, number, name=key)
    path.write_bytes(space.SerializeToString())
    return path


FUSION = "%fusion.1 = bf16[8,8]{1,0} fusion(bf16[8,16]{1,0} %a, bf16[16,8]{1,0} %b), kind=kOutput"
FUSED = {"hlo_category": "convolution fusion", "flops": 4096, "bytes_accessed": 640}
OPERATORS = {
    "XLA Ops": [
        ("%while.1", 0, 1000, {}, {"hlo_category": "while"}),
        (FUSION, 100, 400, {}, FUSED),
        ("%add.2", 500, 300, {}, {"hlo_category": "loop fusion", "flops": 64}),
        ("%all-reduce.3", 1200, 200, {}, {"hlo_category": "all-reduce"}),
    ],
    "Async XLA Ops": [("%copy-start", 0, 5000, {}, {})],
    "Steps": [("4", 0, 700, {}, {}), ("5", 700, 900, {}, {})],
}
STATED = {"peak_teraflops_per_second": 275.0, "peak_hbm_bw_gigabytes_per_second": 1228.0}
STATED |= {"device_type_string": "TPU v4"}


def test_a_tpu_by_hand(tmp_path):
    (found,) = read_file(profile(tmp_path / "p", lines=OPERATORS, about=STATED))
    told = row(found)
    assert (told["device"], told["steps"], told["window_s"]) == ("TPU v4", 2, 1.6e-6)
    assert json.loads(told["spent"]) == {
        "products": 400, "recomputed": 0, "uncounted": 0, "others": 600, "graph": 0, "communication": 200, "copies": 0,
        "input_wait": 0, "idle": 400,
    }  # fmt: skip
    assert told["flops"] * 2 == 4096
    assert told["bytes_moved"] * 2 == 640
    assert told["effective_precision"] == "bf16"
    assert json.loads(told["notes"]) == {"own_peak": {"peak": 275.0, "bandwidth": 1228.0}}
    assert [one.shapes for one in found.analysis.products] == ["[[8, 16], [16, 8]]"]
    seen = found.analysis.others
    assert seen == {"xla::while": 300, "xla::add": 300}, "a loop has what its body leaves"


def module(opcode="dot", **fields):
    """One program: c[4, 8] = a[4, 16] × b[16, 8] in bf16."""
    proto = message("HloProto")
    held = proto.hlo_module.computations.add(id=1).instructions
    for number, sides in enumerate(((4, 16), (16, 8), (4, 8))):
        one = held.add(id=number, name=(b"a", b"b", b"gemm.1")[number], opcode=b"parameter")
        one.shape.element_type = 16
        one.shape.dimensions.extend(sides)
    one = held[2]
    one.opcode, _ = opcode.encode(), one.operand_ids.extend((0, 1))
    one.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    for name, value in fields.items():
        setattr(one, name, value)
    return proto.SerializeToString()


CUBLAS = {
    "custom_call_target": b"__cublas$gemm",
    "backend_config": b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
}


def te_config(**changed):
    """As Transformer Engine writes it: 2 sequences of 64, 4 heads of 32."""
    told = {"attn_heads": 4, "input_batch": 2, "q_max_seqlen": 64, "kv_max_seqlen": 64}
    told |= {"qk_head_dim": 32, "v_head_dim": 32, "mask_type": 0}
    told |= {"window_size_left": -1, "window_size_right": -1, **changed}
    inside = ", ".join(f"{name} = {value} : i64" for name, value in told.items())
    return f"{{{inside}, dropout_probability = 1.0e-01 : f64, is_training = true}}".encode()


def te_work(way, changed):
    """Work of one call of its attention."""
    target = f"te_fused_attn_{way}_ffi".encode()
    told = {"custom_call_target": target, "backend_config": te_config(**changed)}
    proto = message("HloProto")
    proto.ParseFromString(module("custom-call", **told))
    (cost,) = profiles.module_costs(proto.hlo_module).values()
    return cost.work


PAIRS = 2 * 4 * 64 * 64  # of 2 sequences and 4 heads


@pytest.mark.parametrize(
    ("way", "changed", "needed", "attended", "executed"),
    [
        ("forward", {}, 4 * 32, 1.0, 4 * 32),
        ("forward", {"mask_type": 2}, 4 * 32, 0.5, 4 * 32),
        ("forward", {"mask_type": 5}, 4 * 32, 0.5, 4 * 32),
        ("backward", {"mask_type": 2}, 8 * 32, 0.5, 10 * 32),
        ("forward", {"v_head_dim": 64}, 2 * (32 + 64), 1.0, 2 * (32 + 64)),
        ("backward", {"v_head_dim": 64}, 4 * (32 + 64), 1.0, 4 * (32 + 64) + 2 * 32),
    ],
)
def test_transformer_engines_attention_by_its_config(way, changed, needed, attended, executed):
    work = te_work(way, changed)
    assert work.flops == needed * PAIRS
    assert work.causal_flops == attended * needed * PAIRS
    assert work.executed_flops == executed * PAIRS
    assert work.bound is (changed.get("mask_type") == 5), "its lengths are not told"


def test_a_window_of_transformer_engines_attention_holds_fewer_keys():
    window = {"window_size_left": 15, "window_size_right": 0, "mask_type": 2}
    assert te_work("forward", window).flops == 4 * 32 * 2 * 4 * 64 * 16


@pytest.mark.parametrize(("opcode", "fields"), [("dot", {}), ("custom-call", CUBLAS)])
def test_a_gpu_counts_the_module_that_the_profile_holds(tmp_path, opcode, fields):
    own = {"hlo_op": "gemm.1", "program_id": 1, "correlation_id": 7}
    # One operator of two kernels in a row, then another call of it, then a copy.
    stream = [("split", 0, 100, own, {}), ("k", 100, 200, own, {})]
    stream += [("fill", 300, 50, {}, {}), ("k", 400, 200, own, {})]
    copies = [("c", 600, 50, {}, {})]
    lines = {"Stream #3(Kernel)": stream, "Stream #4(MemcpyH2D)": copies, "XLA Ops 2": stream}
    device = profile(tmp_path / "device", "/device:GPU:0", lines, {"core_count": 132})
    program = {"": [("jit_f", 0, 0, {}, {"Hlo Proto": module(opcode, **fields)})]}
    held = profile(tmp_path / "held", "/host:metadata", program)
    path = tmp_path / "both.xplane.pb"
    # messages that follow one another are merged
    path.write_bytes(held.read_bytes() + device.read_bytes())
    told = row(read_file(path)[0])
    assert told["flops"] == 2 * (2 * 4 * 8 * 16)
    assert told["bytes_moved"] == 2 * 2 * (4 * 16 + 16 * 8 + 4 * 8)
    assert json.loads(told["spent"])["products"] == 500
    assert told["copy_percent"] == pytest.approx(100 * 50 / 650)


# rocprofv3.


def rocprof(**changes):
    records = {
        "kernel_dispatch": [
            {
                "correlation_id": {"internal": number}, "start_timestamp": begin, "end_timestamp": end, "thread_id": 3,
                "dispatch_info": {"agent_id": {"handle": 90}, "queue_id": {"handle": 1}, "kernel_id": kernel,
                                  "workgroup_size": dict.fromkeys("xyz", 1), "grid_size": dict.fromkeys("xyz", 2)},
                "stream_id": {"handle": 0},
            }
            for number, kernel, begin, end in ((1, 5, 1000, 2000), (2, 6, 1900, 2500), (4, 6, 4000, 5000))
        ],
        "memory_copy": [
            {"kind": 1, "operation": 2, "correlation_id": {"internal": 3}, "start_timestamp": 2400,
             "end_timestamp": 2800, "src_agent_id": {"handle": 1}, "dst_agent_id": {"handle": 90}}
        ],
        "hip_api": [{"kind": 0, "operation": 0, "correlation_id": {"internal": 4}, "start_timestamp": 3000,
                     "end_timestamp": 3100, "thread_id": 3}],
    }  # fmt: skip
    process = {
        "metadata": {"pid": 8},
        "agents": [{"id": {"handle": 1}, "type": 1},
                   {"id": {"handle": 90}, "type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304,
                    "logical_node_type_id": 0}],
        "kernel_symbols": [{"kernel_id": 5, "formatted_kernel_name": "Cijk_Ailk"},
                           {"kernel_id": 6, "formatted_kernel_name": "ncclDevKernel_Generic_1"}],
        "strings": {"buffer_records": [{"kind": "HIP", "operations": ["hipLaunchKernel"]},
                                       {"kind": "COPY", "operations": ["", "", "MEMORY_COPY_HOST_TO_DEVICE"]}]},
        "buffer_records": records,
    }  # fmt: skip
    return json.dumps({"rocprofiler-sdk-tool": [process | changes]}).encode()


def test_rocprofv3_by_hand(tmp_path):
    path = tmp_path / "1_results.json.gz"
    path.write_bytes(gzip.compress(rocprof()))
    (found,) = read_file(path)
    told = row(found)
    assert (told["device"], told["units"], told["window_s"]) == ("AMD Instinct MI300X", 304, 4e-6)
    # The second kernel begins 100 ns before the first ends, on the same stream.
    assert json.loads(told["notes"]) == {"trimmed_overlap": {"count": 1, "ms": 1e-4}}
    assert json.loads(told["spent"]) == {
        "products": 0, "recomputed": 0, "uncounted": 1000, "others": 0, "graph": 0, "communication": 1500,
        "copies": 300, "input_wait": 0, "idle": 1200,
    }  # fmt: skip
    seen = json.loads(told["idle_causes"])
    assert seen == {"synchronisation": 0, "starved": 1200, "queued": 0, "unlinked": 0}
    assert json.loads(told["reasons"])["flops"] == {"of_no_operator": {}}


@pytest.mark.parametrize("kind", ["nsys", "xplane", "rocprof"])
def test_the_terminal_shows_each_format(tmp_path, capsys, kind):
    (tmp_path / "any").write_bytes(whole(kind, tmp_path))
    assert main(["trace", "--all", str(tmp_path / "any")]) == 0
    told = capsys.readouterr().out
    assert "Where the time of a step goes" in told
    assert "Longest idle gaps" in told
    if kind == "xplane":
        assert "8×16 · 16×8" in told


# Files that are none of them.


def whole(kind, tmp_path):
    path = tmp_path / "whole"
    if kind == "nsys":
        return nsys(path).read_bytes()
    if kind == "xplane":
        return profile(path, lines=OPERATORS).read_bytes()
    return rocprof()


def replaced(content):
    return content.decode(errors="replace").encode()


@pytest.mark.parametrize("kind", ["nsys", "xplane", "rocprof"])
@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[: len(content) * 2 // 3],
        lambda content: (
            content[: len(content) // 2] + b"\xff" * 64 + content[len(content) // 2 + 64 :]
        ),
        lambda content: gzip.compress(content)[:-40],
        lambda content: (
            gzip.compress(content + b"\xff" * 300_000_000, 1) if content[:1] == b"{" else b""
        ),
        lambda content: content[:60] + bytes(40) + content[100:200],
        replaced,
    ],
    ids=["cut", "overwritten", "cut gzip", "bomb or empty", "zeros", "not UTF-8"],
)
def test_one_sentence_says_what_is_wrong(tmp_path, kind, harm):
    path = tmp_path / "bad.trace"
    content = whole(kind, tmp_path)
    path.write_bytes(harm(content))
    if path.read_bytes() == content:  # ASCII alone is its own replacement
        return
    try:
        read(path)
    except TraceError as error:
        said = str(error)
        assert said.startswith(str(path))
        assert "\n" not in said
        assert len(said) < 500
    else:
        assert path.read_bytes()[:16] == content[:16], "what still parses is whole enough to read"


EMPTY = {name: [] for name in TABLES}
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
TIMELESS, IN_WORDS = {KERNELS: [(1,)]}, {KERNELS: [("x", "y", 0, 7, 5, ONE, 0, 1, 1, 1)]}
ONE_CALL = [("f", 0, 5, {}, {})]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: nsys(path, {"other": "a INTEGER"}, other=[(1,)]), "foreign_database"),
        (lambda path: nsys(path, {"StringIds": TABLES["StringIds"]}), "without_cuda_activities"),
        (lambda path: nsys(path, **EMPTY), "no_cuda_work"),
        (lambda path: nsys(path, {KERNELS: "begin INTEGER"}, **TIMELESS), "table_without_times"),
        (lambda path: nsys(path, **IN_WORDS), "damaged_export"),
        (lambda path: profile(path, "/host:CPU", {"python": ONE_CALL}), "no_device_plane"),
        (lambda path: profile(path, TPU, {"Steps": ONE_CALL}), "no_device_plane"),
        (lambda path: path.write_bytes(rocprof(buffer_records={})), "rocprof_without_kernels"),
        (lambda path: path.write_bytes(rocprof(agents=[])), "unknown_rocprof"),
        (lambda path: path.write_bytes(rocprof(kernel_symbols=None)), "unknown_rocprof"),
        (lambda path: path.write_bytes(b'{"rocprofiler-sdk-tool": 5}'), "unknown_rocprof"),
    ],
)
def test_a_file_without_what_is_needed_says_what(tmp_path, make, said):
    make(tmp_path / "bad")
    with pytest.raises(TraceError) as error:
        read(tmp_path / "bad")
    assert error.value.why.key == said


SNAPSHOT = {"segments": [{"device": 0}], "device_traces": [[]]}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.pickle", pickle.dumps(SNAPSHOT), "is_snapshot"),
        ("a.pickle", pickle.dumps(["segment"]), "is_pickle"),
        ("a.nsys-rep", b"\x00binary", "is_nsys_report"),
        ("a.pftrace", b"\n\x05packet", "is_pftrace"),
        ("a.perfetto-trace.gz", gzip.compress(b"\n\x00", mtime=0), "is_pftrace"),
        ("memory.json", b'[["cuda:0", 1], ["cuda:0", 2]]', "all_are_no_events"),
    ],
)
def test_other_files_of_profilers_are_named(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with refused(TraceError, said):
        read(tmp_path / name)


def test_without_protobuf_the_extra_is_named(tmp_path, monkeypatch):
    path = profile(tmp_path / "p", lines=OPERATORS)
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    from mfulab.tracing import xplane

    xplane._classes.cache_clear()
    with pytest.raises(TraceError) as error:
        read(path)
    assert error.value.why == lacking("jax_profile", "google.protobuf")
    assert numbers(error.value, "pip_in_checkout") == {"extra": "jax-traces"}
    monkeypatch.undo()
    xplane._classes.cache_clear()


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no traces in {FOLDER}")
def test_real_files():
    """Busy time is what a plain union of kernels gives; a convolution's FLOPs are counted by
    hand."""
    whole, repeating = (
        read_file(FOLDER / "nsys_h100_2_gpus.sqlite", steps=steps) for steps in (1, None)
    )
    found = [1e7 * one.row.kernel_busy_percent * one.row.time_s for one in whole]
    assert found == pytest.approx([22_385_163, 22_444_359])
    assert {one.row.steps for one in repeating} == {23}, "generations, before the next prompt"
    jax = read_file(FOLDER / "jax_conv_mi300.xplane.pb")
    assert [one.row.device_index for one in jax] == list(range(8))
    output, weight = 5120 * 34 * 31 * 53, 16 * 1 * 2 * 2
    seen = {one.row.flops for one in jax}
    assert seen == {2 * output * weight}, "one convolution of each of the steps that repeat"
    (amd,) = read_file(FOLDER / "rocprofv3_results.json.gz", steps=1)
    assert amd.row.device == "AMD Instinct MI350X"
    assert 1e7 * amd.row.kernel_busy_percent * amd.row.time_s == pytest.approx(4_233_112_334)
    with pytest.raises(TraceError) as error:
        read(FOLDER / "tpu_inference.xplane.pb")
    assert numbers(error.value, "bytes_replaced") == {"count": 258_174}


def test_trimming_keeps_the_union_and_lets_a_stream_execute_one_at_a_time(tmp_path):
    recorder = Recorder(tmp_path)
    on_one = [(begin, end, 1) for begin, end in ((0, 10), (5, 12), (6, 8), (20, 30))]
    for begin, end, stream in (*on_one, (5, 9, 2), (7, 9, -1), (8, 9, -1)):
        recorder.activity((begin, end), 0, "k", (1, 0), stream, -1, -1, 0)
    (found,) = recorder.done({}, 7)
    assert found.trimmed == {0: (2, 7)}
    spans = list(zip(found.activities.begin.tolist(), found.activities.end.tolist(), strict=True))
    assert spans == [(0, 10), (10, 12), (8, 8), (20, 30), (5, 9), (7, 9), (8, 9)]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("[2, 3]", [2, 3]), ("5", []), ("null", []), ('{"a": 1}', []), ("[2", []), (None, [])],
)
def test_sizes_that_are_no_list_are_none(text, sizes):
    assert _sizes(text) == sizes


def as_parquet(export, folder):
    """Writes the tables of an SQLite export as `nsys export --type parquetdir` does."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    with sqlite3.connect(export) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            cursor = database.execute(f'SELECT * FROM "{table}"')
            names = [about[0] for about in cursor.description]
            rows = cursor.fetchall()
            columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
            parquet.write_table(pyarrow.table(columns), folder / f"{table}.parquet")
    return folder


def test_a_folder_of_parquet_tables_reads_as_the_export_in_one_file(tmp_path):
    export = nsys(tmp_path / "t.sqlite")
    (path,) = files([str(as_parquet(export, tmp_path / "t_pqtdir"))])
    named = {"trace", "model", "job"}
    one, other = (
        [found.row.model_dump(exclude=named) for found in read_file(each)]
        for each in (export, path)
    )
    assert one == other
    assert read_file(path)[0].row.trace == "t_pqtdir"


def test_a_damaged_folder_of_parquet_tables_is_one_sentence(tmp_path):
    folder = as_parquet(nsys(tmp_path / "t.sqlite"), tmp_path / "t_pqtdir")
    kernels = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    kernels.write_bytes(kernels.read_bytes()[:-20])
    with refused(TraceError, "damaged_export"):
        read(kernels)
    kernels.unlink()
    with refused(TraceError, "without_cuda_activities"):
        read(folder / "StringIds.parquet")


ROOT = {"children": [], "frame": {"name": "ROOT"}}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.hatchet", [ROOT | {"metrics": {"time (ns)": 5}}], "is_proton"),
        ("p.json", [ROOT, {"CUDA": {}}], "is_proton"),
        ("t.ndjson", {"event_type": "compilation", "pid": 1, "payload": {}}, "is_tritonparse"),
        ("c.json", {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}, "is_chakra"),
        ("c.json", {"pid": 1, "schema": "1.0.2-chakra.0.0.4", "nodes": []}, "is_chakra"),
        ("c.et", {"a": 1}, "is_chakra"),
    ],
)
def test_what_other_tools_write_is_named_with_the_way_on(tmp_path, name, content, said):
    (tmp_path / name).write_text(json.dumps(content, indent=1))
    with refused(TraceError, said):
        read(tmp_path / name)


def test_a_trace_that_holds_such_words_is_read(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {}}
    ]
    content = {"schemaVersion": 1, "name": "chakra", "traceEvents": events, "frame": {}}
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert len(read(tmp_path / "t.json")[0].activities) == 1
