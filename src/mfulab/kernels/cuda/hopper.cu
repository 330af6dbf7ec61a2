// Hopper: one warpgroup feeds, two multiply. The copy engine (TMA) fills a ring of stages; each consumer multiplies its 64 rows
// by all 256 columns with wgmma straight from shared memory. Blocks stay and take tile after tile, so that the next tile's
// loads overlap this tile's stores. Rows of A and B must be multiples of 16 bytes.
#include "hopper_tiles.cuh"

#include "grouped.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, unsigned short* c, int batch,
           int m, int n, int k) {
    const Ring ring;
    const int rows = (m + BM - 1) / BM, columns = (n + BN - 1) / BN, steps = (k + BK - 1) / BK;
    const int tiles = batch * rows * columns, warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) ring.initialise(CONSUMING_WARPS);
    __syncthreads();

    if (warpgroup == 0) {
        give_registers<40>();
        Place at = {0, 1};
        if (threadIdx.x == 0)
            for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
                const Tile tile = tile_at(index, rows, columns);
                feed(ring, at, &map_a, tile, steps, [&](unsigned char* to, u64* barrier, int step) {
                    for (int box = 0; box < BN / BOX; ++box)
                        load_box(to + box * PATCH, &map_b, barrier, tile.left + box * BOX, step * BK, tile.batch);
                });
            }
    } else {
        take_registers<232>();
        const int half = (warpgroup - 1) * 64;
        Place at = {0, 0};
        float total[128];
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            multiply_tile(total, ring, at, half, steps, [&](int stage) {
                if (threadIdx.x % 32 == 0) arrive(&ring.empty[stage]);
            });
            store_directly(total, c, tile_at(index, rows, columns), half, m, n);
        }
    }
}
