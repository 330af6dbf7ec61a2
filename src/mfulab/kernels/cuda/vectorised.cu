// Vectorised: 128-bit loads from device and shared memory. A's tile is stored transposed, so that a thread's rows lie side by
// side. A thread's 8×8 of C are 2×2 quads of 4×4 half a tile apart: its neighbours then read neighbouring banks.
#include "lanes.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, THREADS <= 256 ? 2 : 1) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) float tile_a[BK][BM + PAD];
    __shared__ __align__(16) float tile_b[BK][BN];
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const Lane lane;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    float total[8][RUN_N] = {};
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int l = 0; l < BM * BK / 4 / THREADS; ++l) {
            const int i = threadIdx.x + l * THREADS, row = i / (BK / 4), column = i % (BK / 4) * 4;
            store_transposed(tile_a, row, column, load_quad(a, top + row, start + column, m, k));
        }
#pragma unroll
        for (int l = 0; l < BK * BN / 4 / THREADS; ++l) {
            const int i = threadIdx.x + l * THREADS, row = i / (BN / 4), column = i % (BN / 4) * 4;
            *reinterpret_cast<float4*>(&tile_b[row][column]) = load_quad(b, start + row, left + column, k, n);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float from_a[8], from_b[RUN_N];
            lane.read(from_a, from_b, tile_a[i], tile_b[i]);
            multiply(total, from_a, from_b);
        }
        __syncthreads();
    }
    lane.store(c + blockIdx.z * size_t(m) * n, total, top, left, m, n);
}
