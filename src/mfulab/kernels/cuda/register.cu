// Register tile: a thread computes RUN×RUN_N of C from RUN values of A and RUN_N of B. 1-D, one column: each value of B read from
// shared memory is used RUN times. 2-D: 2·RUN reads for RUN² multiply-adds. Block: BM×BN of C in steps of BK.
constexpr int COLUMNS = BN / RUN_N, THREADS = BM / RUN * COLUMNS, UNROLLED = RUN_N > 1 ? 2 : 4;
// Blocks on an SM. A column's 512 threads fit twice in 64 registers each, of which a loop unrolled further spills.
constexpr int RESIDENT = sizeof(REAL) == 4 && THREADS <= (RUN_N > 1 ? 256 : 512) ? 2 : 1;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul(const REAL* a, const REAL* b, REAL* c, int m, int n, int k) {
    __shared__ REAL tile_a[BM][BK];
    __shared__ REAL tile_b[BK][BN];
    const int top = blockIdx.y * BM, left = blockIdx.x * BN;
    const int x = threadIdx.x % COLUMNS * RUN_N, y = threadIdx.x / COLUMNS * RUN;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    REAL total[RUN][RUN_N] = {};
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
#pragma unroll UNROLLED
        for (int i = 0; i < BK; ++i) {
            REAL from_a[RUN], from_b[RUN_N];
#pragma unroll
            for (int r = 0; r < RUN; ++r) from_a[r] = tile_a[y + r][i];
#pragma unroll
            for (int r = 0; r < RUN_N; ++r) from_b[r] = tile_b[i][x + r];
#pragma unroll
            for (int p = 0; p < RUN; ++p)
#pragma unroll
                for (int q = 0; q < RUN_N; ++q) total[p][q] += from_a[p] * from_b[q];
        }
        __syncthreads();
    }
    c += blockIdx.z * size_t(m) * n;
#pragma unroll
    for (int p = 0; p < RUN; ++p)
#pragma unroll
        for (int q = 0; q < RUN_N; ++q)
            if (top + y + p < m && left + x + q < n) c[size_t(top + y + p) * n + left + x + q] = total[p][q];
}
