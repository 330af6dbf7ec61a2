// Prefetched fragments: the next step's values come from shared memory while this step's are multiplied, also across the
// barrier between two tiles. Tiles are walked in groups of GROUP rows; 1 is the order of the grid.
#include "async_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    Tiles& tiles = shared_memory<Tiles>();
    const int rows = gridDim.y, columns = gridDim.x, index = blockIdx.y * columns + blockIdx.x;
    const int first = index / (GROUP * columns) * GROUP, height = min(GROUP, rows - first), place = index % (GROUP * columns);
    const int top = (first + place % height) * BM, left = place / height * BN, steps = (k + BK - 1) / BK;
    Copies copies(tiles, a + blockIdx.z * size_t(m) * k, b + blockIdx.z * size_t(k) * n, top, left, m, n, k);
    const Lane lane;
    float total[8][RUN_N] = {}, from_a[2][8], from_b[2][RUN_N];
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copies.start(stage);
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    lane.read(from_a[0], from_b[0], tiles.a[0][0], tiles.b[0][0]);
    for (int step = 0, stage = 0; step < steps; ++step) {
        const int next = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            // What was read last of the stage that is filled now was read before the previous tile's barrier.
            if (i == 0) copies.start(stage == 0 ? STAGES - 1 : stage - 1);
            if (i == BK - 1) {
                wait_for_copies<STAGES - 2>();
                __syncthreads();
            }
            const int from = i == BK - 1 ? next : stage, then = (i + 1) % BK;
            lane.read(from_a[(i + 1) % 2], from_b[(i + 1) % 2], tiles.a[from][then], tiles.b[from][then]);
            multiply(total, from_a[i % 2], from_b[i % 2]);
        }
        stage = next;
    }
    lane.store(c + blockIdx.z * size_t(m) * n, total, top, left, m, n);
}
