"""A trace as torch.profiler writes it, small enough to be worked out by hand."""

from mfulab.tracing import trace


def event(category: str, name: str, begin: float, duration: float) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration, "pid": 0, "tid": 7}


TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name"},
        event("user_annotation", trace.STEPS, 0, 100),
        event("gpu_user_annotation", trace.STEPS, 10, 80),
        event("cpu_op", "aten::mm", 0, 5),
        event("kernel", "gemm", 10, 30),
        event("kernel", "relu", 35, 15),  # overlaps gemm by 5 on another stream
        event("gpu_memcpy", "Memcpy HtoD", 45, 15),  # 5 hidden by relu, 10 bare
        event("kernel", "ncclDevKernel_AllReduce", 70, 20),
    ]
}
