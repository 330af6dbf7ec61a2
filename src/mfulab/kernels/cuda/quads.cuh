// Four neighbouring float32 at a time, masked at the edges. ALIGNED: every row's length is a multiple of four, so that a quad
// is one 128-bit access and lies wholly inside or outside.
__device__ __forceinline__ float4 load_quad(const float* x, int row, int column, int rows, int columns) {
    if (row >= rows) return float4{0, 0, 0, 0};
    const float* from = x + size_t(row) * columns + column;
    if (ALIGNED) return column < columns ? *reinterpret_cast<const float4*>(from) : float4{0, 0, 0, 0};
    return float4{
        column < columns ? from[0] : 0,
        column + 1 < columns ? from[1] : 0,
        column + 2 < columns ? from[2] : 0,
        column + 3 < columns ? from[3] : 0,
    };
}

__device__ __forceinline__ void store_quad(float* x, int row, int column, int rows, int columns, const float* quad) {
    if (row >= rows) return;
    float* to = x + size_t(row) * columns + column;
    if (ALIGNED) {
        if (column < columns) *reinterpret_cast<float4*>(to) = float4{quad[0], quad[1], quad[2], quad[3]};
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (column + i < columns) to[i] = quad[i];
}

// Four values from shared memory in one 128-bit access.
__device__ __forceinline__ void read_quad(float* to, const float* from) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
}
