// Double-buffered: while one pair of tiles is multiplied, the next is on its way from device memory into registers, and goes
// to the other pair of buffers: one barrier a step instead of two, and the loads' latency is hidden.
// Where a part is a warp's 64×32, a warp reads 8 quads of A and 4 of B, and not 2 and 16 as in rows across the block.
#include "lanes.cuh"

constexpr int QUADS_A = BM * BK / 4 / THREADS, QUADS_B = BK * BN / 4 / THREADS;
static_assert(QUADS_A * THREADS * 4 == BM * BK && QUADS_B * THREADS * 4 == BK * BN, "every thread loads as many quads");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) float tile_a[2][BK][BM + PAD];
    __shared__ __align__(16) float tile_b[2][BK][BN];
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const Lane lane;
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
            const int quad = threadIdx.x + i * THREADS;
            store_transposed(tile_a[buffer], quad / (BK / 4), quad % (BK / 4) * 4, coming_a[i]);
        }
#pragma unroll
        for (int i = 0; i < QUADS_B; ++i) {
            const int quad = threadIdx.x + i * THREADS;
            *reinterpret_cast<float4*>(&tile_b[buffer][quad / (BN / 4)][quad % (BN / 4) * 4]) = coming_b[i];
        }
    };

    float total[8][RUN_N] = {};
    fetch(0);
    store(0);
    __syncthreads();
    int buffer = 0;
    for (int start = 0; start < k; start += BK, buffer ^= 1) {
        const bool more = start + BK < k;
        if (more) fetch(start + BK);
#pragma unroll UNROLLED
        for (int i = 0; i < BK; ++i) {
            float from_a[8], from_b[RUN_N];
            lane.read(from_a, from_b, tile_a[buffer][i], tile_b[buffer][i]);
            multiply(total, from_a, from_b);
        }
        // The other buffer was last read before the previous barrier.
        if (more) store(buffer ^ 1);
        __syncthreads();
    }
    lane.store(c, total, top, left, m, n);
}
