// Sixteen bytes of neighbouring elements at a time, masked at the edges. ALIGNED: every row's length is a multiple of a pack,
// so that a pack is one 128-bit access and lies wholly inside or outside.
constexpr int PACK = 16 / sizeof(OPERAND);

__device__ __forceinline__ uint4 load_pack(const OPERAND* x, int row, int column, int rows, int columns) {
    const OPERAND* from = x + size_t(row) * columns + column;
    uint4 pack = {0, 0, 0, 0};
    if (ALIGNED) {
        if (row < rows && column < columns) pack = *reinterpret_cast<const uint4*>(from);
        return pack;
    }
    OPERAND* to = reinterpret_cast<OPERAND*>(&pack);
#pragma unroll
    for (int i = 0; i < PACK; ++i)
        if (row < rows && column + i < columns) to[i] = from[i];
    return pack;
}

// float32 rounded to nearest for the multiplier, which alone would cut bits off: once, on the way to shared memory.
__device__ __forceinline__ void store_pack(OPERAND* to, uint4 pack) {
#ifdef ROUND_TO_TF32
    float* values = reinterpret_cast<float*>(&pack);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = nvcuda::wmma::__float_to_tf32(values[i]);
#endif
    *reinterpret_cast<uint4*>(to) = pack;
}
