// Tensor cores through nvcuda::wmma: a warp multiplies 16×16 fragments and owns 64×32 of C, 4×2 of them. Tiles in shared
// memory are double-buffered through registers. fp16, bf16 and int8 multiply 16 deep, tf32 8 deep.
#include <mma.h>

#include "packs.cuh"

using namespace nvcuda;

constexpr int WARP_M = 64, WARP_N = 32, WARPS_N = BN / WARP_N, THREADS = BM / WARP_M * WARPS_N * 32;
constexpr int ROW_A = BK + PACK, ROW_B = BN + PACK;  // a pack longer than the tile: rows then start in different banks
constexpr int PACKS_A = BM * BK / PACK / THREADS, PACKS_B = BK * BN / PACK / THREADS;
constexpr int TILES_BYTES = 2 * (BM * ROW_A + BK * ROW_B) * sizeof(OPERAND);
constexpr int ROW_C = 20, PATCH = 16 * ROW_C;  // one fragment of C on its way out, for each warp
static_assert(PACKS_A * THREADS * PACK == BM * BK && PACKS_B * THREADS * PACK == BK * BN, "every thread loads as many packs");
static_assert(THREADS / 32 * PATCH * sizeof(SUM) <= TILES_BYTES, "the tiles' memory holds the patches afterwards");

typedef wmma::fragment<wmma::matrix_a, 16, 16, DEPTH, FRAGMENT, wmma::row_major> FragmentA;
typedef wmma::fragment<wmma::matrix_b, 16, 16, DEPTH, FRAGMENT, wmma::row_major> FragmentB;
typedef wmma::fragment<wmma::accumulator, 16, 16, DEPTH, SUM> FragmentC;

#include "fragments.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(const OPERAND* a, const OPERAND* b, RESULT* c, int m, int n, int k) {
    __shared__ __align__(128) unsigned char memory[TILES_BYTES];
    OPERAND* tile_a = reinterpret_cast<OPERAND*>(memory);
    OPERAND* tile_b = tile_a + 2 * BM * ROW_A;
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_top = warp / WARPS_N * WARP_M, warp_left = warp % WARPS_N * WARP_N;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    c += blockIdx.z * size_t(m) * n;
    uint4 coming_a[PACKS_A], coming_b[PACKS_B];

    auto fetch = [&](int start) {
#pragma unroll
        for (int i = 0; i < PACKS_A; ++i) {
            const int pack = threadIdx.x + i * THREADS;
            coming_a[i] = load_pack(a, top + pack / (BK / PACK), start + pack % (BK / PACK) * PACK, m, k);
        }
#pragma unroll
        for (int i = 0; i < PACKS_B; ++i) {
            const int pack = threadIdx.x + i * THREADS;
            coming_b[i] = load_pack(b, start + pack / (BN / PACK), left + pack % (BN / PACK) * PACK, k, n);
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < PACKS_A; ++i) {
            const int pack = threadIdx.x + i * THREADS;
            OPERAND* to = tile_a + buffer * BM * ROW_A + pack / (BK / PACK) * ROW_A + pack % (BK / PACK) * PACK;
            store_pack(to, coming_a[i]);
        }
#pragma unroll
        for (int i = 0; i < PACKS_B; ++i) {
            const int pack = threadIdx.x + i * THREADS;
            OPERAND* to = tile_b + buffer * BK * ROW_B + pack / (BN / PACK) * ROW_B + pack % (BN / PACK) * PACK;
            store_pack(to, coming_b[i]);
        }
    };

    FragmentC total[4][2];
#pragma unroll
    for (int p = 0; p < 4; ++p)
#pragma unroll
        for (int q = 0; q < 2; ++q) wmma::fill_fragment(total[p][q], SUM(0));
    fetch(0);
    store(0);
    __syncthreads();
    int buffer = 0;
    for (int start = 0; start < k; start += BK, buffer ^= 1) {
        const bool more = start + BK < k;
        if (more) fetch(start + BK);
        const OPERAND* from_a = tile_a + buffer * BM * ROW_A + warp_top * ROW_A;
        const OPERAND* from_b = tile_b + buffer * BK * ROW_B + warp_left;
#pragma unroll
        for (int i = 0; i < BK; i += DEPTH) {
            FragmentA fragment_a[4];
            FragmentB fragment_b[2];
#pragma unroll
            for (int p = 0; p < 4; ++p) load_fragment(fragment_a[p], from_a + p * 16 * ROW_A + i, ROW_A);
#pragma unroll
            for (int q = 0; q < 2; ++q) load_fragment(fragment_b[q], from_b + i * ROW_B + q * 16, ROW_B);
#pragma unroll
            for (int p = 0; p < 4; ++p)
#pragma unroll
                for (int q = 0; q < 2; ++q) wmma::mma_sync(total[p][q], fragment_a[p], fragment_b[q], total[p][q]);
        }
        // The other buffer was last read before the previous barrier.
        if (more) store(buffer ^ 1);
        __syncthreads();
    }
    // A fragment's layout is the hardware's secret: it goes through shared memory to be masked and rounded.
    SUM* patch = reinterpret_cast<SUM*>(memory) + warp * PATCH;
#pragma unroll
    for (int p = 0; p < 4; ++p)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
            wmma::store_matrix_sync(patch, total[p][q], ROW_C, wmma::mem_row_major);
            __syncwarp();
#pragma unroll
            for (int i = lane; i < 256; i += 32) {
                const int row = top + warp_top + p * 16 + i / 16, column = left + warp_left + q * 16 + i % 16;
                if (row < m && column < n) c[size_t(row) * n + column] = static_cast<RESULT>(patch[i / 16 * ROW_C + i % 16]);
            }
            __syncwarp();
        }
}
