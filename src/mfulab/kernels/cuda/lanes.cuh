// Who computes what of the block's BM×BN of C: a part of PART_M×PART_N, the whole block's or a warp's, has DOWN×ACROSS threads.
// Each computes 8×RUN_N, in quads that lie as far apart as all its neighbours' first quads reach.
#include "quads.cuh"

constexpr int DOWN = PART_M / 8, ACROSS = PART_N / RUN_N, PARTS_N = BN / PART_N, THREADS = BM / 8 * (BN / RUN_N);
constexpr int PAD = 4;  // floats behind each row of A's tile: keeps the transposed stores of one warp in different banks
constexpr bool WIDE = RUN_N > 8;
constexpr int RESIDENT = ALIGNED && !WIDE && THREADS <= 256 ? 2 : 1;  // blocks on an SM
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int UNROLLED = WIDE ? BK : 2;  // of a tile's steps: Blackwell's compiler reads all of them ahead, and spills
#else
constexpr int UNROLLED = BK;
#endif

struct Lane {
    int x, y;

    __device__ __forceinline__ Lane() {
        const int part = threadIdx.x / (DOWN * ACROSS), lane = threadIdx.x % (DOWN * ACROSS);
        int row = lane / ACROSS, column = lane % ACROSS;
        if (WIDE) {  // 8×4: lanes l and l^1 share a row of A, l and l^2 the columns of B, so that either is read in two requests
            row = (lane >> 1 & 1) | (lane >> 3 & 3) << 1;
            column = (lane & 1) | (lane >> 2 & 1) << 1;
        }
        x = part % PARTS_N * PART_N + column * 4;
        y = part / PARTS_N * PART_M + row * 4;
    }

    // One step's values, from a row of each tile.
    __device__ __forceinline__ void read(float (&from_a)[8], float (&from_b)[RUN_N], const float* a, const float* b) const {
        read_quad(from_a, a + y);
        read_quad(from_a + 4, a + y + DOWN * 4);
#pragma unroll
        for (int j = 0; j < RUN_N; j += 4) read_quad(from_b + j, b + x + j * ACROSS);
    }

    // Not a loop over quads: the compiler then spills in the asynchronous rung.
    __device__ __forceinline__ void store(float* c, const float (&total)[8][RUN_N], int top, int left, int m, int n) const {
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            const int row = top + y + p % 4 + p / 4 * DOWN * 4;
            store_quad(c, row, left + x, m, n, &total[p][0]);
            store_quad(c, row, left + x + ACROSS * 4, m, n, &total[p][4]);
            if constexpr (WIDE) {
                store_quad(c, row, left + x + ACROSS * 8, m, n, &total[p][8]);
                store_quad(c, row, left + x + ACROSS * 12, m, n, &total[p][12]);
            }
        }
    }
};

// A wide lane takes every second row backwards: the operand that it ends with is the next row's first.
__device__ __forceinline__ void multiply(float (&total)[8][RUN_N], const float (&from_a)[8], const float (&from_b)[RUN_N]) {
#pragma unroll
    for (int p = 0; p < 8; ++p)
#pragma unroll
        for (int i = 0; i < RUN_N; ++i) {
            const int q = WIDE && p % 2 ? RUN_N - 1 - i : i;
            total[p][q] += from_a[p] * from_b[q];
        }
}

// A quad of A's row, down a column of its tile.
template <int ROW>
__device__ __forceinline__ void store_transposed(float (&tile)[BK][ROW], int row, int column, const float4& quad) {
    tile[column][row] = quad.x;
    tile[column + 1][row] = quad.y;
    tile[column + 2][row] = quad.z;
    tile[column + 3][row] = quad.w;
}
