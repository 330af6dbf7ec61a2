// What the rungs with asynchronous copies share: a ring of STAGES pairs of tiles, and who copies what.
#include "async.cuh"
#include "lanes.cuh"

constexpr int STAGES = 3;
constexpr int COPIES_A = BM * BK / THREADS, QUADS_B = BK * BN / 4 / THREADS;
constexpr int ROWS_A = THREADS / BK, ROWS_B = THREADS * 4 / BN;  // that all threads copy at once
static_assert(COPIES_A * THREADS == BM * BK && QUADS_B * THREADS * 4 == BK * BN, "every thread copies as much");
static_assert(THREADS % BK == 0 && THREADS * 4 % BN == 0 && COPIES_A <= 32, "whole rows at once");

// A's is transposed on its way: its elements are copied one by one, B's in fours.
struct Tiles {
    float a[STAGES][BK][BM + PAD];
    float b[STAGES][BK][BN];
};

// A thread's share of every copy. Pointers and masks are computed once; a step moves two pointers and compares twice.
struct Copies {
    Tiles& tiles;
    const float *a, *b;
    int down_a, down_b;  // elements between the rows that a thread copies
    unsigned inside_a;  // a bit for each row of A that exists
    int row_a, k_a, k_b, column_b, columns, n, k;

    __device__ __forceinline__ Copies(Tiles& tiles, const float* a, const float* b, int top, int left, int m, int n, int k)
        : tiles(tiles), down_a(ROWS_A * k), down_b(ROWS_B * n), inside_a(0), row_a(threadIdx.x / BK),
          k_a(threadIdx.x % BK), k_b(threadIdx.x / (BN / 4)), column_b(threadIdx.x % (BN / 4) * 4), columns(n - left - column_b),
          n(n), k(k) {
        this->a = a + size_t(top + row_a) * k + k_a;
        this->b = b + size_t(k_b) * n + left + column_b;
#pragma unroll
        for (int i = 0; i < COPIES_A; ++i) inside_a |= unsigned(top + row_a + i * ROWS_A < m) << i;
    }

    // The next tiles into a stage, as one group; an empty one behind the last.
    __device__ __forceinline__ void start(int stage) {
        if (k > 0) {
#pragma unroll
            for (int i = 0; i < COPIES_A; ++i)
                copy_async<4>(&tiles.a[stage][k_a][row_a + i * ROWS_A], a + size_t(i) * down_a, k_a < k && inside_a >> i & 1);
#pragma unroll
            for (int i = 0; i < QUADS_B; ++i) {
                float* to = &tiles.b[stage][k_b + i * ROWS_B][column_b];
                const float* from = b + size_t(i) * down_b;
                const bool inside = k_b + i * ROWS_B < k;
                if (ALIGNED) {
                    copy_async<16>(to, from, inside && columns > 0);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; ++j) copy_async<4>(to + j, from + j, inside && j < columns);
                }
            }
            a += BK;
            b += size_t(BK) * n;
            k -= BK;
        }
        commit_copies();
    }
};
