// Sixteen bytes of neighbouring elements at a time, masked at the edges. ALIGNED: every row's length is a multiple of a pack,
// so that a pack is one 128-bit access and lies wholly inside or outside.
constexpr int PACK = 16 / sizeof(OPERAND);

struct alignas(16) Pack {
    OPERAND values[PACK];
};

__device__ __forceinline__ Pack load_pack(const OPERAND* x, int row, int column, int rows, int columns) {
    const OPERAND* from = x + size_t(row) * columns + column;
    if (ALIGNED && row < rows && column < columns) return *reinterpret_cast<const Pack*>(from);
    Pack pack;
#pragma unroll
    for (int i = 0; i < PACK; ++i)
        pack.values[i] = !ALIGNED && row < rows && column + i < columns ? from[i] : static_cast<OPERAND>(0);
    return pack;
}
