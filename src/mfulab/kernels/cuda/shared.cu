// Shared memory: a block loads a TILE×TILE tile of A and of B once and reuses each value TILE times.
extern "C" __global__ void matmul(const REAL* a, const REAL* b, REAL* c, int m, int n, int k) {
    __shared__ REAL tile_a[TILE][TILE];
    __shared__ REAL tile_b[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    a += blockIdx.z * size_t(m) * k;
    b += blockIdx.z * size_t(k) * n;
    REAL total = 0;
    for (int start = 0; start < k; start += TILE) {
        tile_a[y][x] = row < m && start + x < k ? a[size_t(row) * k + start + x] : REAL(0);
        tile_b[y][x] = start + y < k && column < n ? b[size_t(start + y) * n + column] : REAL(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) total += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[blockIdx.z * size_t(m) * n + size_t(row) * n + column] = total;
}
