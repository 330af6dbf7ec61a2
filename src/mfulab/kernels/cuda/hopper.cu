// Hopper: one warpgroup feeds, two multiply. The copy engine (TMA) fills a ring of stages; each consumer multiplies its 64 rows
// by all 256 columns with wgmma straight from shared memory. Blocks stay and take tile after tile, so that the next tile's
// loads overlap this tile's stores. Rows of A and B must be multiples of 16 bytes. The rungs above add, one after the other:
// STORES: results go to shared memory, swizzled, and from there by the copy engine in boxes of whole 128-byte rows; the last
// boxes are on their way while the next tile is multiplied.
// BLOCKS = 2: clusters, one tile above the other, whose blocks load half of their common columns of B each, for both. B, two
// thirds of a stage, is then read once from the L2 cache where it was read twice.
// ORDERED: `order` has the pairs of tiles along a Hilbert curve, so that clusters that run at once work on a nearly square
// patch of C. With B_ALONG_K also the product of 8-bit elements, whose B lies with K innermost.
// DEFERRED: a tile's results wait, rounded, in 64 registers, and leave a box a step while the next tile's first products run:
// the tensor cores need not wait for a store.
#include "hopper_tiles.cuh"

#if BLOCKS > 1
#define CLUSTER __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(384, 1)
    matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
           unsigned short* c, const int* order, int batch, int m, int n, int k) {
    const Ring ring;
    const int pairs = (m + BLOCKS * BM - 1) / (BLOCKS * BM), columns = (n + BN - 1) / BN, steps = (k + BK - 1) / BK;
    const int tiles = batch * pairs * columns, warpgroup = threadIdx.x / WARPGROUP, rank = own_rank();
    if (threadIdx.x == 0) ring.initialise(BLOCKS * CONSUMING_WARPS);
    sync_blocks();  // nobody may arrive at a barrier that its owner has not made yet

    auto own_tile = [&](int index) { return tile_at(order, index, pairs, columns, rank); };
    if (warpgroup == 0) {
        give_registers<40>();
        Place at = {0, 1};
        if (threadIdx.x == 0)
            for (int index = blockIdx.x / BLOCKS; index < tiles; index += gridDim.x / BLOCKS)
                feed(ring, at, &map_a, &map_b, own_tile(index), rank, steps);
    } else {
        take_registers<232>();
        const int half = (warpgroup - 1) * 64;
        unsigned char* patches = ring.behind() + (warpgroup - 1) * 2 * PATCH;
        Place at = {0, 0};
        float total[128];
        Deferred before;
        auto store_before = [&](int box) { before.store(patches, &map_c, half, box); };
        for (int index = blockIdx.x / BLOCKS; index < tiles; index += gridDim.x / BLOCKS) {
            const Tile tile = own_tile(index);
            if (DEFERRED) {
                multiply_tile(total, ring, at, half, steps, store_before);
                before.take(total, tile);
            } else {
                multiply_tile(total, ring, at, half, steps);
                if (STORES)
                    store_at_once(total, patches, &map_c, tile, half);
                else
                    store_directly(total, c, tile, half, m, n);
            }
        }
        if (DEFERRED)
#pragma unroll
            for (int box = 0; box < BOXES; ++box) store_before(box);
        if (STORES && threadIdx.x % WARPGROUP == 0) wait_until_read<0>();  // shared memory lives as long as the block
    }
    if (BLOCKS > 1) sync_blocks();  // until then the other block writes here and arrives here
}
