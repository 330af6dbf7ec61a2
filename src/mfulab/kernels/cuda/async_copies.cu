// Asynchronous copies: two pairs of tiles are on their way to shared memory while a third is multiplied. No register holds
// what is on its way, and pointers and masks of the copies are computed once.
#include "async_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, ALIGNED ? 2 : 1) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) Tiles tiles;
    const int top = blockIdx.y * BM, left = blockIdx.x * BN, steps = (k + BK - 1) / BK;
    Copies copies(tiles, a + blockIdx.z * size_t(m) * k, b + blockIdx.z * size_t(k) * n, top, left, m, n, k);
    const Lane lane;
    float total[8][8] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copies.start(stage);
    for (int step = 0, stage = 0; step < steps; ++step) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float from_a[8], from_b[8];
            lane.read(from_a, from_b, tiles, stage, i);
            multiply(total, from_a, from_b);
            // The stage that is filled now was last read before this barrier. Not before the first reads: those would be
            // held in registers that are not there.
            if (i == 0) copies.start(stage == 0 ? STAGES - 1 : stage - 1);
        }
        if (++stage == STAGES) stage = 0;
    }
    lane.store(c + blockIdx.z * size_t(m) * n, total, top, left, m, n);
}
