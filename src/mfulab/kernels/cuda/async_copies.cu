// Asynchronous copies: two pairs of tiles are on their way to shared memory while a third is multiplied. No register holds
// what is on its way, and pointers and masks of the copies are computed once.
#include "async_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    Tiles& tiles = shared_memory<Tiles>();
    const int top = blockIdx.y * BM, left = blockIdx.x * BN, steps = (k + BK - 1) / BK;
    Copies copies(tiles, a + blockIdx.z * size_t(m) * k, b + blockIdx.z * size_t(k) * n, top, left, m, n, k);
    const Lane lane;
    float total[8][RUN_N] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copies.start(stage);
    for (int step = 0, stage = 0; step < steps; ++step) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
#pragma unroll UNROLLED
        for (int i = 0; i < BK; ++i) {
            float from_a[8], from_b[RUN_N];
            lane.read(from_a, from_b, tiles.a[stage][i], tiles.b[stage][i]);
            multiply(total, from_a, from_b);
            // The stage that is filled now was last read before this barrier. Not before the first reads: those would be
            // held in registers that are not there.
            if (i == 0) copies.start(stage == 0 ? STAGES - 1 : stage - 1);
        }
        if (++stage == STAGES) stage = 0;
    }
    lane.store(c + blockIdx.z * size_t(m) * n, total, top, left, m, n);
}
