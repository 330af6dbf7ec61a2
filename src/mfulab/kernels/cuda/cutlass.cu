// C[batch,m,n] = A[batch,m,k] * B[batch,k,n] by CUTLASS's own kernel. Each thread makes the kernel's parameters from plain
// arguments, so that the host needs no C++. The headers come with the package nvidia-cutlass.
#include <cutlass/gemm/kernel/default_gemm_universal.h>

using Operand = RUNG_OPERAND;
using Rows = cutlass::layout::RowMajor;
using Block = cutlass::gemm::GemmShape<RUNG_BLOCK>;
using Warp = cutlass::gemm::GemmShape<RUNG_WARP>;
using Instruction = cutlass::gemm::GemmShape<RUNG_INSTRUCTION>;
// Sums are rounded to the format of C; nothing is scaled and no C is read.
using Epilogue = cutlass::epilogue::thread::LinearCombination<Operand, RUNG_PACK, float, float,
                                                              cutlass::epilogue::thread::ScaleType::Nothing>;
using Order = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<RUNG_TOGETHER>;
constexpr cutlass::ComplexTransform as_it_is = cutlass::ComplexTransform::kNone;

using Kernel = cutlass::gemm::kernel::DefaultGemmUniversal<
    Operand, Rows, as_it_is, RUNG_PACK, Operand, Rows, as_it_is, RUNG_PACK, Operand, Rows, float, cutlass::arch::RUNG_UNITS,
    cutlass::arch::Sm80, Block, Warp, Instruction, Epilogue, Order, RUNG_STAGES, cutlass::arch::OpMultiplyAdd>::GemmKernel;
using Shared = Kernel::SharedStorage;

static_assert(Kernel::kThreadCount == RUNG_THREADS, "the launch has another number of threads");
static_assert(sizeof(Shared) == RUNG_SHARED_BYTES, "the launch has other shared memory");

extern "C" __global__ void __launch_bounds__(RUNG_THREADS)
matmul(const Operand* a, const Operand* b, Operand* c, int m, int n, int k) {
    extern __shared__ __align__(16) char shared[];
    const long long size_a = (long long)m * k, size_b = (long long)k * n, size_c = (long long)m * n;
    const Kernel::Arguments arguments(cutlass::gemm::GemmUniversalMode::kBatched, {m, n, k}, int(gridDim.z), {}, a, b, c, c,
                                      size_a, size_b, size_c, size_c, k, n, n, n);
    Kernel()(Kernel::Params(arguments, 1, 1), *reinterpret_cast<Shared*>(shared));
}
