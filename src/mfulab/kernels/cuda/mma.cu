// Tensor cores by mma.sync, which every GPU since Ampere has: a warp owns 64×64 of C in registers. STAGES pairs of tiles are on
// their way to shared memory by asynchronous copies, sixteen bytes each, and are read as matrices. Rows are of whole copies.
#include <mma.h>

#include "async.cuh"
#include "warp.cuh"

constexpr int PACK = 16 / sizeof(OPERAND), DEPTH = 16;
constexpr int WARP_M = 64, WARP_N = 64, WARPS_N = BN / WARP_N, THREADS = BM / WARP_M * WARPS_N * 32;
constexpr int PACKS_A = BK / PACK, PACKS_B = BN / PACK;  // in a row of each tile
constexpr int COPIES_A = BM * PACKS_A / THREADS, COPIES_B = BK * PACKS_B / THREADS;
static_assert(PACKS_A == 4 && PACKS_B % 8 == 0, "the places of packs below avoid the same banks for these rows");

struct Tiles {
    OPERAND a[STAGES][BM * BK];
    OPERAND b[STAGES][BK * BN];
};

struct alignas(4) Pair {
    RESULT x, y;
};

// Where a pack lies in its tile: eight rows that are read together use eight different groups of banks.
__device__ __forceinline__ int place_a(int row, int pack) { return row * BK + (pack ^ (row >> 1 & 3)) * PACK; }
__device__ __forceinline__ int place_b(int row, int pack) { return row * BN + (pack ^ (row & 7)) * PACK; }

__device__ __forceinline__ void copy_pack(OPERAND* to, const OPERAND* from, bool inside) {
    copy_async<16>(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from), inside);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) matmul(const OPERAND* a, const OPERAND* b, RESULT* c, int m, int n, int k) {
    Tiles& tiles = shared_memory<Tiles>();
    const int top = blockIdx.y * BM, left = blockIdx.x * BN, steps = (k + BK - 1) / BK;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_top = warp / WARPS_N * WARP_M, warp_left = warp % WARPS_N * WARP_N;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    c += blockIdx.z * size_t(m) * n;

    // The tiles of a step into its stage, as one group; an empty one behind the last.
    auto start = [&](int step) {
        const int stage = step % STAGES, from_k = step * BK;
        if (step < steps) {
#pragma unroll
            for (int i = 0; i < COPIES_A; ++i) {
                const int copy = threadIdx.x + i * THREADS, row = copy / PACKS_A, pack = copy % PACKS_A;
                const int column = from_k + pack * PACK;
                copy_pack(tiles.a[stage] + place_a(row, pack), a + size_t(top + row) * k + column, top + row < m && column < k);
            }
#pragma unroll
            for (int i = 0; i < COPIES_B; ++i) {
                const int copy = threadIdx.x + i * THREADS, row = copy / PACKS_B, pack = copy % PACKS_B;
                const int column = left + pack * PACK;
                copy_pack(tiles.b[stage] + place_b(row, pack), b + size_t(from_k + row) * n + column, from_k + row < k && column < n);
            }
        }
        commit_copies();
    };

    float total[4][8][4] = {};
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) start(step);
    for (int step = 0; step < steps; ++step) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        start(step + STAGES - 1);  // its stage was last read before this barrier
        const OPERAND *tile_a = tiles.a[step % STAGES], *tile_b = tiles.b[step % STAGES];
#pragma unroll
        for (int i = 0; i < BK; i += DEPTH) {
            unsigned from_a[4][4], from_b[4][4];
#pragma unroll
            for (int p = 0; p < 4; ++p)
                load_matrices<false>(from_a[p], tile_a + place_a(warp_top + p * 16 + lane % 16, i / PACK + lane / 16));
#pragma unroll
            for (int q = 0; q < 4; ++q)
                load_matrices<true>(from_b[q], tile_b + place_b(i + lane % 16, (warp_left + q * 16) / PACK + lane / 16));
#pragma unroll
            for (int p = 0; p < 4; ++p)
#pragma unroll
                for (int q = 0; q < 8; ++q) multiply_add(total[p][q], from_a[p], from_b[q / 2][q % 2 * 2], from_b[q / 2][q % 2 * 2 + 1]);
        }
    }
    // A lane has two neighbours of row lane / 4 of each 16×8, and two of the row eight below.
#pragma unroll
    for (int p = 0; p < 4; ++p)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = top + warp_top + p * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int q = 0; q < 8; ++q) {
                const int column = left + warp_left + q * 8 + lane % 4 * 2;
                const Pair pair = {static_cast<RESULT>(total[p][q][half * 2]), static_cast<RESULT>(total[p][q][half * 2 + 1])};
                if (row < m && column < n) *reinterpret_cast<Pair*>(c + size_t(row) * n + column) = pair;
            }
        }
}
