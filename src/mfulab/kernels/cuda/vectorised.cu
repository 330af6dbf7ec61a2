// Vectorised: 128-bit loads from device and shared memory. A's tile is stored transposed, so that a thread's rows lie side by
// side. A thread's 8×8 of C are 2×2 quads of 4×4 half a tile apart: its neighbours then read neighbouring banks.
#include "quads.cuh"

constexpr int COLUMNS = BN / 8, THREADS = BM / 8 * COLUMNS;
constexpr int PAD = 4;  // keeps the transposed stores of one warp in different banks

extern "C" __global__ void __launch_bounds__(THREADS, THREADS <= 256 ? 2 : 1) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) float tile_a[BK][BM + PAD];
    __shared__ __align__(16) float tile_b[BK][BN];
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const int x = threadIdx.x % COLUMNS * 4, y = threadIdx.x / COLUMNS * 4;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    c += blockIdx.z * size_t(m) * n;
    float total[8][8] = {};
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int l = 0; l < BM * BK / 4 / THREADS; ++l) {
            const int i = threadIdx.x + l * THREADS, row = i / (BK / 4), column = i % (BK / 4) * 4;
            const float4 quad = load_quad(a, top + row, start + column, m, k);
            tile_a[column][row] = quad.x;
            tile_a[column + 1][row] = quad.y;
            tile_a[column + 2][row] = quad.z;
            tile_a[column + 3][row] = quad.w;
        }
#pragma unroll
        for (int l = 0; l < BK * BN / 4 / THREADS; ++l) {
            const int i = threadIdx.x + l * THREADS, row = i / (BN / 4), column = i % (BN / 4) * 4;
            *reinterpret_cast<float4*>(&tile_b[row][column]) = load_quad(b, start + row, left + column, k, n);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float from_a[8], from_b[8];
            read_quad(from_a, &tile_a[i][y]);
            read_quad(from_a + 4, &tile_a[i][y + BM / 2]);
            read_quad(from_b, &tile_b[i][x]);
            read_quad(from_b + 4, &tile_b[i][x + BN / 2]);
#pragma unroll
            for (int p = 0; p < 8; ++p)
#pragma unroll
                for (int q = 0; q < 8; ++q) total[p][q] += from_a[p] * from_b[q];
        }
        __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < 8; ++p) {
        const int row = top + y + p % 4 + p / 4 * (BM / 2);
        store_quad(c, row, left + x, m, n, &total[p][0]);
        store_quad(c, row, left + x + BN / 2, m, n, &total[p][4]);
    }
}
