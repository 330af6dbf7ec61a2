// Hopper, Hilbert order: the clusters that run at once work on a nearly square patch of C, whatever its size, so that the L2
// cache serves most of what they load. `order` has the pairs of tiles along the curve. With B_ALONG_K also the product of 8-bit elements, whose B lies with K innermost.
#include "hopper_tiles.cuh"

constexpr int BLOCKS = 2;

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1)
    matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
           const int* order, int batch, int m, int n, int k) {
    const Ring ring;
    const int pairs = (m + BLOCKS * BM - 1) / (BLOCKS * BM), columns = (n + BN - 1) / BN, steps = (k + BK - 1) / BK;
    const int tiles = batch * pairs * columns, warpgroup = threadIdx.x / WARPGROUP, rank = cluster_rank();
    if (threadIdx.x == 0) ring.initialise(BLOCKS * CONSUMING_WARPS);
    sync_cluster();

    auto own_tile = [&](int index) { return ordered_tile(order, index, pairs, columns, rank); };
    if (warpgroup == 0) {
        give_registers<40>();
        Place at = {0, 1};
        if (threadIdx.x == 0)
            for (int index = blockIdx.x / BLOCKS; index < tiles; index += gridDim.x / BLOCKS) {
                const Tile tile = own_tile(index);
                feed(ring, at, &map_a, tile, steps, [&](unsigned char* to, u64* barrier, int step) {
                    load_half_for_both(to, &map_b, barrier, tile, rank, step);
                });
            }
    } else {
        take_registers<232>();
        const int half = (warpgroup - 1) * 64;
        unsigned char* patches = ring.behind() + (warpgroup - 1) * 2 * PATCH;
        Place at = {0, 0};
        float total[128];
        for (int index = blockIdx.x / BLOCKS; index < tiles; index += gridDim.x / BLOCKS) {
            multiply_tile(total, ring, at, half, steps, [&](int stage) {
                if (threadIdx.x % 32 < BLOCKS) arrive_in(threadIdx.x % 32, &ring.empty[stage]);
            });
            store_by_copy_engine(total, patches, &map_c, own_tile(index), half);
        }
        if (threadIdx.x % WARPGROUP == 0) wait_until_read<0>();
    }
    sync_cluster();
}
