"""Recognises communication between devices by a kernel's name.

A kernel communicates if its name contains a communication library, a collective operation, or an
expert-parallel exchange. tests/tracing/names.yaml holds real names of each, with sources.
"""

import functools
import re

# Libraries: NCCL and RCCL (`ncclDevKernel`), Intel's oneCCL, Ascend's HCCL (`hcom_`), MSCCL and
# MSCCL++, NVSHMEM and rocSHMEM, Transformer Engine's userbuffers, AMD's quick all-reduce, and
# NVIDIA's instructions for memory of several devices (`multimem`).
_LIBRARY = re.compile(
    r"(?<![a-z])(?:nccl|rccl|hccl|xccl|oneccl|hcom_|msccl)|nvshmem|rocshmem|userbuffers"
    r"|quick_?reduce|multimem",
    re.IGNORECASE,
)
# Exchanges of tokens between experts: DeepEP, its relatives UCCL-EP, MORI, pplx and Hybrid-EP, and
# TensorRT-LLM's (`moeA2ADispatchKernel`). DeepEP's layout is computed on one device alone.
_EXPERTS = re.compile(
    r"\b(?:deep_?ep|dpsk::ep|uccl|pplx|hybrid_?ep|mori)\w*::(?!\S*layout)"
    r"|[Ii]nter_?[Nn]ode|[Ii]ntra_?[Nn]ode|(?<![A-Za-z])a2a|A2A"
)
# Collective operations as words: `all_reduce`, `AllReduce`, `allreduce`, `all-to-all`, `all2all`;
# vLLM's and its relatives' own all-reduce is called cross_device_reduce.
_COLLECTIVE = re.compile(
    r"(?:(?<![A-Za-z])all|All|ALL)[_-]?(?:[Rr]educe|REDUCE|[Gg]ather|GATHER|[Tt]o[_-]?[Aa]ll|2[_-]?[Aa]ll)"
    r"|(?:(?<![A-Za-z])reduce|Reduce|REDUCE)[_-]?(?:[Ss]catter|SCATTER)"
    r"|[Cc]ross_?[Dd]evice|collective[_-]permute"
)
# Reductions within one device, and fused kernels that torch names after the operators around them.
_WITHIN = re.compile(
    r"^triton_(?:poi|red|per|tem|for)_"
    r"|(?:[Ww]arp|[Bb]lock|[Cc]ta|CTA|[Tt]hread|[Qq]uad)_?[Aa]ll_?[Rr]educe"
)
_MULTIPLIES = re.compile(r"gemm|matmul|grouped_mm", re.IGNORECASE)


@functools.cache
def communicates(kernel: str) -> bool:
    """True if a kernel, by its name, exchanges data between devices. A collective that also
    multiplies counts as compute, unless it is named after a communication library."""
    if _WITHIN.search(kernel):
        return False
    if _LIBRARY.search(kernel):
        return True
    is_exchange = _EXPERTS.search(kernel) or _COLLECTIVE.search(kernel)
    return bool(is_exchange) and not _MULTIPLIES.search(kernel)
