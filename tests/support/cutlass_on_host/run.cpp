// The rung's own source on the host: what CUTLASS asks CUDA's compiler for stands here or in the headers beside this file.
#include <cuda_runtime.h>

#include <cuda_fp16.h>

#include "device.h"

inline host::Meeting of_warp[32];
namespace host {
inline void meet_warp() { meet(of_warp[threadIdx.x / 32], 32); }
}  // namespace host

template <typename T>
T __shfl_sync(unsigned, T same, int, int = 32) {  // of the warp's number alone
    return same;
}
// Named by templates that this rung does not use.
int __syncthreads_and(int);
void __threadfence();
int atomicAdd(int*, int);
int atomicCAS(int*, int, int);
int __ffs(int);
unsigned __dp4a(unsigned, unsigned, unsigned);
unsigned __byte_perm(unsigned, unsigned, unsigned);
__half2 __hfma2(__half2, __half2, __half2);
namespace cutlass::arch {
int SmId();
int LaneId();
}  // namespace cutlass::arch

#include <cutlass/detail/helper_macros.hpp>
#define __CUDA_ARCH__ 800  // else every thread would be of warp 0
#include <cutlass/cutlass.h>
#undef __CUDA_ARCH__

__attribute__((section("shared_memory"), aligned(128))) char shared[RUNG_SHARED_BYTES];
#include "cutlass.cu"

extern "C" const char* run(const int* grid, const int* block, const Operand* a, const Operand* b, Operand* c, int m, int n,
                           int k) {
    const auto three = [](const int* sides) { return Index{unsigned(sides[0]), unsigned(sides[1]), unsigned(sides[2])}; };
    return host::launch(three(grid), three(block), [=] { matmul(a, b, c, m, n, k); });
}
