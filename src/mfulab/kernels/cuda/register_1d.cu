// 1-D register tile: a thread computes RUN elements of one column, so each value of B read from shared memory is used RUN
// times from a register. Block: BM×BN of C in steps of BK; BM·BN/RUN threads.
constexpr int THREADS = BM * BN / RUN;

extern "C" __global__ void __launch_bounds__(THREADS, 1) matmul(const REAL* a, const REAL* b, REAL* c, int m, int n, int k) {
    __shared__ REAL tile_a[BM][BK];
    __shared__ REAL tile_b[BK][BN];
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const int x = threadIdx.x % BN, y = threadIdx.x / BN * RUN;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    REAL total[RUN] = {};
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int l = 0; l < BM * BK / THREADS; ++l) {
            const int i = threadIdx.x + l * THREADS, row = i / BK, column = i % BK;
            tile_a[row][column] = top + row < m && start + column < k ? a[size_t(top + row) * k + start + column] : REAL(0);
        }
#pragma unroll
        for (int l = 0; l < BK * BN / THREADS; ++l) {
            const int i = threadIdx.x + l * THREADS, row = i / BN, column = i % BN;
            tile_b[row][column] = start + row < k && left + column < n ? b[size_t(start + row) * n + left + column] : REAL(0);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            const REAL value = tile_b[i][x];
#pragma unroll
            for (int r = 0; r < RUN; ++r) total[r] += tile_a[y + r][i] * value;
        }
        __syncthreads();
    }
    c += blockIdx.z * size_t(m) * n;
#pragma unroll
    for (int r = 0; r < RUN; ++r)
        if (top + y + r < m && left + x < n) c[size_t(top + y + r) * n + left + x] = total[r];
}
