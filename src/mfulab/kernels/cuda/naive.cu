// Naive: one thread an element of C, neighbouring threads in neighbouring rows. A warp reads 32 rows of A at once.
extern "C" __global__ void matmul(const REAL* a, const REAL* b, REAL* c, int m, int n, int k) {
    const int row = blockIdx.y * blockDim.x + threadIdx.x;
    const int column = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    a += blockIdx.z * size_t(m) * k + size_t(row) * k;
    b += blockIdx.z * size_t(k) * n + column;
    REAL total = 0;
    for (int i = 0; i < k; ++i) total += a[i] * b[size_t(i) * n];
    c[blockIdx.z * size_t(m) * n + size_t(row) * n + column] = total;
}
