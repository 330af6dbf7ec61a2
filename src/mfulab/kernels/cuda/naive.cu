// One thread an element of C. Naive (ROWS_FIRST): neighbouring threads in neighbouring rows, so that a warp reads 32 rows of A
// at once. Coalesced: in neighbouring columns, so that it reads 32 neighbours of B in one access, and one value of A.
extern "C" __global__ void matmul(const REAL* a, const REAL* b, REAL* c, int m, int n, int k) {
    const int x = blockIdx.x * (ROWS_FIRST ? blockDim.y : blockDim.x) + (ROWS_FIRST ? threadIdx.y : threadIdx.x);
    const int y = blockIdx.y * (ROWS_FIRST ? blockDim.x : blockDim.y) + (ROWS_FIRST ? threadIdx.x : threadIdx.y);
    if (y >= m || x >= n) return;
    a += blockIdx.z * size_t(m) * k + size_t(y) * k;
    b += blockIdx.z * size_t(k) * n + x;
    REAL total = 0;
    for (int i = 0; i < k; ++i) total += a[i] * b[size_t(i) * n];
    c[blockIdx.z * size_t(m) * n + size_t(y) * n + x] = total;
}
