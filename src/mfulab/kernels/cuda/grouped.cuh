// Tiles in an order that finds their operands in the L2 cache: GROUP rows of tiles are walked together, column by column, so
// that their A and a few columns of B stay there.
constexpr int GROUP = 16;

__device__ __forceinline__ Tile tile_at(int index, int rows, int columns) {
    const int batch = index / (rows * columns), within = index % (rows * columns);
    const int group = within / (GROUP * columns), first = group * GROUP, height = min(GROUP, rows - first);
    const int place = within % (GROUP * columns);
    return Tile{batch, (first + place % height) * BM, place / height * BN};
}
