// The parts of the Hopper rungs: the order of tiles, the ring of stages, feeding it, multiplying from it, storing.
#include "hopper.cuh"

constexpr int ROW = 128;  // bytes of a box's row: the widest swizzle
constexpr int BM = 128, BN = 256, BK = ROW / OPERAND_BYTES, STAGES = 4;
constexpr int BOX = 64;  // of B's and C's columns in one box
constexpr int BOXES = BN / BOX;
constexpr int PATCH = BOX * ROW;  // bytes of a box of B, and of one of C
constexpr int TILE_A = BM * ROW, TILE_B = BN * ROW, STAGE = TILE_A + TILE_B;  // bytes
constexpr int WARPGROUP = 128;
constexpr int CONSUMING_WARPS = 8;
constexpr int GROUP = 16;  // rows of tiles that are walked together, column by column, where there is no other order

struct Tile {
    int batch, top, left;
};

// A stage of the ring, and the parity of the phase that ends when it may be used.
struct Place {
    int stage, parity;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

struct Ring {
    unsigned char* stages;
    u64 *full, *empty;

    __device__ __forceinline__ Ring() : stages(shared_memory()) {
        full = reinterpret_cast<u64*>(stages + STAGES * STAGE);
        empty = full + STAGES;
    }

    // By one thread; `arrivals` free a stage.
    __device__ __forceinline__ void initialise(int arrivals) const {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(&full[stage], 1);
            init_barrier(&empty[stage], arrivals);
        }
        publish_barriers();
    }

    // Behind the ring and its barriers, at a multiple of 1024 bytes.
    __device__ __forceinline__ unsigned char* behind() const { return stages + STAGES * STAGE + 1024; }
};

// One box of B: 64 columns, BK deep.
__device__ __forceinline__ void place_of_box(int& x, int& y, const Tile& tile, int box, int step) {
#ifdef B_ALONG_K
    x = step * BK, y = tile.left + box * BOX;
#else
    x = tile.left + box * BOX, y = step * BK;
#endif
}

__device__ __forceinline__ int own_rank() { return BLOCKS > 1 ? cluster_rank() : 0; }
__device__ __forceinline__ void sync_blocks() { BLOCKS > 1 ? sync_cluster() : __syncthreads(); }

// In a cluster of blocks, one tile above the other, that of block `rank` at `index`: along the curve, where `order` holds
// (row << 16 | column) of each cluster, else in groups whose A and few columns of B stay in the L2 cache. It may lie outside.
__device__ __forceinline__ Tile tile_at(const int* order, int index, int pairs, int columns, int rank) {
    const int within = index % (pairs * columns), first = within / (GROUP * columns) * GROUP, height = min(GROUP, pairs - first);
    const int place = within % (GROUP * columns);
    int row = first + place % height, column = place / height;
    if (ORDERED) row = order[within] >> 16, column = order[within] & 0xFFFF;
    return Tile{index / (pairs * columns), (row * BLOCKS + rank) * BM, column * BN};
}

// All steps of a tile into the ring, by one thread. In a cluster block `rank` loads its part of the common columns of B for all.
__device__ __forceinline__ void feed(const Ring& ring, Place& at, const TensorMap* map_a, const TensorMap* map_b, const Tile& tile,
                                     int rank, int steps) {
    constexpr int OWN = BOXES / BLOCKS;
    for (int step = 0; step < steps; ++step, at.advance()) {
        unsigned char* to = ring.stages + at.stage * STAGE;
        u64* full = &ring.full[at.stage];
        wait(&ring.empty[at.stage], at.parity);
        arrive_expecting(full, STAGE);
        load_box(to, map_a, full, step * BK, tile.top, tile.batch);
        for (int box = rank * OWN; box < (rank + 1) * OWN; ++box) {
            int x, y;
            place_of_box(x, y, tile, box, step);
            if (BLOCKS > 1)
                load_box_for(0b11, to + TILE_A + box * PATCH, map_b, full, x, y, tile.batch);
            else
                load_box(to + TILE_A + box * PATCH, map_b, full, x, y, tile.batch);
        }
    }
}

// A stage has been read, which the blocks that fill it are told: in a cluster both, for each loads a part of B.
__device__ __forceinline__ void release(const Ring& ring, int stage) {
    const int lane = threadIdx.x % 32;
    if (BLOCKS > 1) {
        if (lane < BLOCKS) arrive_in(lane, &ring.empty[stage]);
    } else if (lane == 0) {
        arrive(&ring.empty[stage]);
    }
}

// Begins a step: rows `half` … `half` + 63 of the stage's A times all of its B. The first step of a tile forgets the sums before.
__device__ __forceinline__ void begin_step(float (&total)[128], const Ring& ring, const Place& at, int half, bool is_first) {
    const unsigned char* from = ring.stages + at.stage * STAGE;
    wait(&ring.full[at.stage], at.parity);
    fence_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // A: 8-row atoms of 1024 bytes. B with N innermost: boxes PATCH bytes apart, 8-deep atoms of 1024 bytes.
#ifdef B_ALONG_K
        const u64 b = descriptor(from + TILE_A + i * 32, 16, 1024);
#else
        const u64 b = descriptor(from + TILE_A + i * 16 * ROW, PATCH, 1024);
#endif
        multiply(total, descriptor(from + half * ROW + i * 32, 16, 1024), b, !is_first || i > 0);
    }
    commit_products();
}

// The previous step's products are done now: its stage may be filled again.
__device__ __forceinline__ void end_step(const Ring& ring, Place& at, int& last, bool is_first) {
    wait_for_products<1>();
    if (!is_first) release(ring, last);
    last = at.stage;
    at.advance();
}

// The sums of a tile are complete.
__device__ __forceinline__ void end_tile(float (&total)[128], const Ring& ring, int last) {
    wait_for_products<0>();
    hold(total);
    release(ring, last);
}

__device__ __forceinline__ void multiply_tile(float (&total)[128], const Ring& ring, Place& at, int half, int steps) {
    int last = 0;
    for (int step = 0; step < steps; ++step) {
        begin_step(total, ring, at, half, step == 0);
        end_step(ring, at, last, step == 0);
    }
    end_tile(total, ring, last);
}

// Pair i of 8 columns from each of four lanes of a row, to the lane i: a 4×4 transposition in two exchanges.
__device__ __forceinline__ uint4 gathered(unsigned x0, unsigned x1, unsigned x2, unsigned x3) {
    auto swap = [](unsigned& low, unsigned& high, int mask) {
        const bool upper = threadIdx.x & mask;
        const unsigned got = exchanged(upper ? low : high, mask);
        (upper ? low : high) = got;
    };
    swap(x0, x1, 1), swap(x2, x3, 1), swap(x0, x2, 2), swap(x1, x3, 2);
    return {x0, x1, x2, x3};
}

// From registers to device memory, 16 bytes a lane. "Register fragments for wgmma, accumulator D": a lane holds pairs of
// columns, 8 apart, in two rows 8 apart; written as they lie, they would fill half of each 32-byte sector.
__device__ __forceinline__ void store_directly(const float (&total)[128], unsigned short* c, const Tile& tile, int half, int m,
                                               int n) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const int row = tile.top + half + warp * 16 + lane / 4, column = tile.left + lane % 4 * 8;
    unsigned short* to = c + (tile.batch * size_t(m) + row) * n + column;
#pragma unroll
    for (int i = 0; i < BN / 32; ++i)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const float* x = &total[i * 16 + below * 2];
            const uint4 eight = gathered(rounded_pair(x[0], x[1]), rounded_pair(x[4], x[5]), rounded_pair(x[8], x[9]),
                                         rounded_pair(x[12], x[13]));
            if (row + below * 8 < m && column + i * 32 < n)
                *reinterpret_cast<uint4*>(to + below * size_t(8) * n + i * 32) = eight;
        }
}

// 64 columns of a warpgroup's 64 rows to shared memory as the copy engine wants them: rows of 128 bytes, whose eight 16-byte
// columns change places by the row, so that neither these stores nor the engine's reads meet in a bank. `pair(i)` is a lane's
// i-th pair of results.
template <typename Pair>
__device__ __forceinline__ void write_patch(unsigned char* patch, const Pair& pair, int box) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const int row = warp * 16 + lane % 16, right = lane / 16;  // of the matrix row that this lane tells the place of
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const int first = (box * 8 + i) * 2;
        store_matrices(patch + row * ROW + ((i + right) ^ row % 8) * 16, pair(first), pair(first + 1), pair(first + 2),
                       pair(first + 3));
    }
}

// A box of a warpgroup's 64×256 by way of one of two patches of its own and the copy engine, which goes on by itself.
template <typename Pair>
__device__ __forceinline__ void store_by_copy_engine(const Pair& pair, unsigned char* patches, const TensorMap* map_c,
                                                     const Tile& tile, int half, int box) {
    const bool first = threadIdx.x % WARPGROUP == 0;
    const int barrier = threadIdx.x / WARPGROUP;
    unsigned char* patch = patches + box % 2 * PATCH;
    if (first) wait_until_read<1>();  // the patch before last has been read
    sync_threads(barrier, WARPGROUP);
    write_patch(patch, pair, box);
    publish_to_copy_engine();
    sync_threads(barrier, WARPGROUP);
    if (first) {
        store_box(patch, map_c, tile.left + box * BOX, tile.top + half, tile.batch);
        commit_stores();
    }
}

// All boxes, the last of which are on their way while the next tile is multiplied.
__device__ __forceinline__ void store_at_once(const float (&total)[128], unsigned char* patches, const TensorMap* map_c,
                                              const Tile& tile, int half) {
    auto pair = [&](int i) { return rounded_pair(total[2 * i], total[2 * i + 1]); };
#pragma unroll
    for (int box = 0; box < BOXES; ++box) store_by_copy_engine(pair, patches, map_c, tile, half, box);
}

// A tile's results, in half as many registers as its sums, on their way out while the next tile is multiplied.
struct Deferred {
    unsigned pairs[64];
    Tile tile;
    bool any = false;

    __device__ __forceinline__ void take(const float (&total)[128], const Tile& of) {
#pragma unroll
        for (int i = 0; i < 64; ++i) pairs[i] = rounded_pair(total[2 * i], total[2 * i + 1]);
        tile = of, any = true;
    }

    __device__ __forceinline__ void store(unsigned char* patches, const TensorMap* map_c, int half, int box) const {
        if (any) store_by_copy_engine([this](int i) { return pairs[i]; }, patches, map_c, tile, half, box);
    }
};

// A tile's products; `meanwhile(box)` stores a box of the tile before while those of a step run.
template <typename Meanwhile>
__device__ __forceinline__ void multiply_tile(float (&total)[128], const Ring& ring, Place& at, int half, int steps,
                                              const Meanwhile& meanwhile) {
    int last = 0;
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        if (box < steps) begin_step(total, ring, at, half, box == 0);
        meanwhile(box);
        if (box < steps) end_step(ring, at, last, box == 0);
    }
    for (int step = BOXES; step < steps; ++step) {
        begin_step(total, ring, at, half, false);
        end_step(ring, at, last, false);
    }
    end_tile(total, ring, last);
}
