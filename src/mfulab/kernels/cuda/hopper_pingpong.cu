// Hopper, ping-pong: each of the two multiplying warpgroups has tiles of its own, 64×256, and they take turns. While one stores
// its results the other has the tensor cores to itself, where in the rungs below these wait for both. B is loaded by a cluster
// of two blocks, half each for both, so that the smaller tiles read no more from the L2 cache than the first rung's.
#define TILE_ROWS 64
#include "hopper_tiles.cuh"

constexpr int BLOCKS = 2, TURNS = 2;

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1)
    matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
           const int* order, int batch, int m, int n, int k) {
    const Ring ring;
    u64* turns = ring.empty + STAGES;  // a barrier each warpgroup, whose phase ends as the other has issued its products
    const int pairs = (m + BLOCKS * BM - 1) / (BLOCKS * BM), columns = (n + BN - 1) / BN, steps = (k + BK - 1) / BK;
    const int tiles = batch * pairs * columns, warpgroup = threadIdx.x / WARPGROUP, rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < TURNS; ++i) init_barrier(&turns[i], CONSUMING_WARPS / TURNS);
        ring.initialise(BLOCKS * CONSUMING_WARPS / TURNS);
    }
    sync_cluster();  // nobody may arrive at a barrier that its owner has not made yet

    auto own_tile = [&](int index) { return ordered_tile(order, index, pairs, columns, rank); };
    const int first = blockIdx.x / BLOCKS, clusters = gridDim.x / BLOCKS;
    if (warpgroup == 0) {
        give_registers<40>();
        Place at = {0, 1};
        if (threadIdx.x == 0)
            for (int index = first; index < tiles; index += clusters) {
                const Tile tile = own_tile(index);
                feed(ring, at, &map_a, tile, steps, [&](unsigned char* to, u64* barrier, int step) {
                    load_half_for_both(to, &map_b, barrier, tile, rank, step);
                });
            }
    } else {
        take_registers<232>();
        const int own = warpgroup - 1;
        unsigned char* patches = ring.behind() + own * 2 * PATCH;
        Place at = {0, 0};
        int parity = 1 - own;  // the first begins at once
        float total[128];
        if (own) at.skip(steps);
        for (int index = first + own * clusters; index < tiles; index += TURNS * clusters, parity ^= 1) {
            // Until here the other has seen each stage that it was to read: none is taken for one of its rounds.
            wait(&turns[own], parity);
            multiply_tile(
                total, ring, at, 0, steps,
                [&](int stage) {
                    if (threadIdx.x % 32 < BLOCKS) arrive_in(threadIdx.x % 32, &ring.empty[stage]);
                },
                [&] {
                    if (threadIdx.x % 32 == 0) arrive(&turns[1 - own]);
                });
            at.skip(steps);  // the other's
            store_by_copy_engine(total, patches, &map_c, own_tile(index), 0);
        }
        if (threadIdx.x % WARPGROUP == 0) wait_until_read<0>();
    }
    sync_cluster();  // until then the other block writes here and arrives here
}
