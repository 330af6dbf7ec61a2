// Hopper: one warpgroup feeds, two multiply. The copy engine (TMA) fills a ring of stages; each consumer multiplies its 64 rows
// by all 256 columns with wgmma straight from shared memory. Blocks stay and take tile after tile, so that the next tile's
// loads overlap this tile's stores. Rows of A and B must be multiples of 16 bytes.
#include "hopper.cuh"

constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4;
constexpr int BOX = 64;  // columns of B in one box: 128 bytes, the widest swizzle
constexpr int TILE_A = BM * BK * 2, TILE_B = BK * BN * 2, STAGE = TILE_A + TILE_B;  // bytes
constexpr int GROUP = 16;  // rows of tiles that are walked together: their A and a few columns of B stay in the L2 cache

struct Tile {
    int batch, top, left;
};

__device__ __forceinline__ Tile tile_at(int index, int rows, int columns) {
    const int batch = index / (rows * columns), within = index % (rows * columns);
    const int group = within / (GROUP * columns), first = group * GROUP, height = min(GROUP, rows - first);
    const int place = within % (GROUP * columns);
    return Tile{batch, (first + place % height) * BM, place / height * BN};
}

extern "C" __global__ void __launch_bounds__(384, 1)
    matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, unsigned* c, int batch, int m, int n,
           int k) {
    extern __shared__ unsigned char memory[];
    unsigned char* stages = memory + (1024 - shared_address(memory) % 1024) % 1024;  // a swizzle repeats each 1024 bytes
    u64* full = reinterpret_cast<u64*>(stages + STAGES * STAGE);
    u64* empty = full + STAGES;
    const int rows = (m + BM - 1) / BM, columns = (n + BN - 1) / BN, steps = (k + BK - 1) / BK;
    const int tiles = batch * rows * columns;
    const int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(&full[stage], 1);
            init_barrier(&empty[stage], 8);  // a lane of each consuming warp
        }
        publish_barriers();
    }
    __syncthreads();

    if (warpgroup == 0) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            int stage = 0, parity = 1;
            for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
                const Tile tile = tile_at(index, rows, columns);
                for (int step = 0; step < steps; ++step) {
                    unsigned char* to = stages + stage * STAGE;
                    wait(&empty[stage], parity);
                    arrive_expecting(&full[stage], STAGE);
                    load_box(to, &map_a, &full[stage], step * BK, tile.top, tile.batch);
                    for (int box = 0; box < BN / BOX; ++box)
                        load_box(to + TILE_A + box * BOX * BK * 2, &map_b, &full[stage], tile.left + box * BOX, step * BK,
                                 tile.batch);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
    } else {
        take_registers<232>();
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, half = (warpgroup - 1) * 64;
        int stage = 0, parity = 0;
        float total[128];
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            const Tile tile = tile_at(index, rows, columns);
            int last = 0;
            for (int step = 0; step < steps; ++step) {
                const unsigned char* from = stages + stage * STAGE;
                wait(&full[stage], parity);
                fence_products();
#pragma unroll
                for (int depth = 0; depth < BK; depth += 16) {
                    // A: 8-row atoms of 1024 bytes. B: boxes BOX·BK·2 bytes apart, 8-deep atoms of 1024 bytes.
                    multiply(total, descriptor(from + half * BK * 2 + depth * 2, 16, 1024),
                             descriptor(from + TILE_A + depth * BOX * 2, BOX * BK * 2, 1024), step > 0 || depth > 0);
                }
                commit_products();
                // The previous step's products are done now: its stage may be filled again.
                wait_for_products<1>();
                if (step > 0 && lane == 0) arrive(&empty[last]);
                last = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            wait_for_products<0>();
            hold(total);
            if (lane == 0) arrive(&empty[last]);
            // "Register fragments for wgmma, accumulator D": a lane holds pairs of columns, 8 apart, in two rows 8 apart.
            const int row = tile.top + half + warp * 16 + lane / 4, column = tile.left + lane % 4 * 2;
            unsigned* to = c + (tile.batch * size_t(m) + row) * n / 2 + column / 2;
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                if (column + i * 8 >= n) break;
                if (row < m) to[i * 4] = rounded_pair(total[i * 4], total[i * 4 + 1]);
                if (row + 8 < m) to[i * 4 + size_t(4) * n] = rounded_pair(total[i * 4 + 2], total[i * 4 + 3]);
            }
        }
    }
}
