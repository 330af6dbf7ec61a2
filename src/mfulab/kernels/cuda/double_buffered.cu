// Double-buffered: while one pair of tiles is multiplied, the next is on its way from device memory into registers, and goes
// to the other pair of buffers: one barrier a step instead of two, and the loads' latency is hidden.
#include "quads.cuh"

constexpr int COLUMNS = BN / 8, THREADS = BM / 8 * COLUMNS;
constexpr int PAD = 4;
constexpr int QUADS_A = BM * BK / 4 / THREADS, QUADS_B = BK * BN / 4 / THREADS;
static_assert(QUADS_A * THREADS * 4 == BM * BK && QUADS_B * THREADS * 4 == BK * BN, "every thread loads as many quads");

extern "C" __global__ void __launch_bounds__(THREADS, ALIGNED ? 2 : 1) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) float tile_a[2][BK][BM + PAD];
    __shared__ __align__(16) float tile_b[2][BK][BN];
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const int x = threadIdx.x % COLUMNS * 4, y = threadIdx.x / COLUMNS * 4;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    c += blockIdx.z * size_t(m) * n;
    float4 coming_a[QUADS_A], coming_b[QUADS_B];

    auto fetch = [&](int start) {
#pragma unroll
        for (int i = 0; i < QUADS_A; ++i) {
            const int quad = threadIdx.x + i * THREADS;
            coming_a[i] = load_quad(a, top + quad / (BK / 4), start + quad % (BK / 4) * 4, m, k);
        }
#pragma unroll
        for (int i = 0; i < QUADS_B; ++i) {
            const int quad = threadIdx.x + i * THREADS;
            coming_b[i] = load_quad(b, start + quad / (BN / 4), left + quad % (BN / 4) * 4, k, n);
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < QUADS_A; ++i) {
            const int quad = threadIdx.x + i * THREADS, row = quad / (BK / 4), column = quad % (BK / 4) * 4;
            tile_a[buffer][column][row] = coming_a[i].x;
            tile_a[buffer][column + 1][row] = coming_a[i].y;
            tile_a[buffer][column + 2][row] = coming_a[i].z;
            tile_a[buffer][column + 3][row] = coming_a[i].w;
        }
#pragma unroll
        for (int i = 0; i < QUADS_B; ++i) {
            const int quad = threadIdx.x + i * THREADS;
            *reinterpret_cast<float4*>(&tile_b[buffer][quad / (BN / 4)][quad % (BN / 4) * 4]) = coming_b[i];
        }
    };

    float total[8][8] = {};
    fetch(0);
    store(0);
    __syncthreads();
    int buffer = 0;
    for (int start = 0; start < k; start += BK, buffer ^= 1) {
        const bool more = start + BK < k;
        if (more) fetch(start + BK);
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float from_a[8], from_b[8];
            read_quad(from_a, &tile_a[buffer][i][y]);
            read_quad(from_a + 4, &tile_a[buffer][i][y + BM / 2]);
            read_quad(from_b, &tile_b[buffer][i][x]);
            read_quad(from_b + 4, &tile_b[buffer][i][x + BN / 2]);
#pragma unroll
            for (int p = 0; p < 8; ++p)
#pragma unroll
                for (int q = 0; q < 8; ++q) total[p][q] += from_a[p] * from_b[q];
        }
        // The other buffer was last read before the previous barrier.
        if (more) store(buffer ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < 8; ++p) {
        const int row = top + y + p % 4 + p / 4 * (BM / 2);
        store_quad(c, row, left + x, m, n, &total[p][0]);
        store_quad(c, row, left + x + BN / 2, m, n, &total[p][4]);
    }
}
