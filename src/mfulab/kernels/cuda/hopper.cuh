// Hopper's own instructions (sm_90a), one function each: mbarriers, the bulk tensor copy engine (TMA), warpgroup products.
// PTX ISA 8.0 and later; the sections are named with each.
#define TEXT(x) #x
#define NAME(x) TEXT(x)

typedef unsigned long long u64;

// A tensor map as the driver encodes it.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ unsigned shared_address(const void* x) { return __cvta_generic_to_shared(x); }

// The block's dynamic shared memory from the first multiple of 1024 on: a swizzle repeats each 1024 bytes.
__device__ __forceinline__ unsigned char* shared_memory() {
    extern __shared__ unsigned char memory[];
    return memory + (1024 - shared_address(memory) % 1024) % 1024;
}

// "mbarrier": a phase ends once `count` threads have arrived and all expected bytes are there.
__device__ __forceinline__ void init_barrier(u64* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

// Makes the barriers' initial state visible to the copy engine.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void arrive_expecting(u64* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Returns once the phase of this parity has ended; a new barrier is in phase 0, so that parity 1 returns at once.
__device__ __forceinline__ void wait(u64* barrier, int parity) {
    unsigned over;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(over)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!over);
}

// "cp.async.bulk.tensor": one box at (x, y, z), innermost first, with zeros outside; its bytes count for the barrier.
__device__ __forceinline__ void load_box(void* to, const TensorMap* map, u64* barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// The same box for every block of the cluster whose bit is set: to the same place, counted by the same barrier, in each.
__device__ __forceinline__ void load_box_for(unsigned short blocks, void* to, const TensorMap* map, u64* barrier, int x, int y,
                                             int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(blocks)
        : "memory");
}

// The way back; what lies outside the tensor is left out.
__device__ __forceinline__ void store_box(const void* from, const TensorMap* map, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Returns once at most `pending` of this thread's committed stores have not been read from shared memory yet.
template <int pending>
__device__ __forceinline__ void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// What this thread wrote to shared memory by ordinary stores becomes visible to the copy engine.
__device__ __forceinline__ void publish_to_copy_engine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// "barrier.sync" of a part of the block.
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// "stmatrix": four 8×8 matrices of 16-bit elements. Lane 8·i + r tells where row r of matrix i goes.
__device__ __forceinline__ void store_matrices(void* row, unsigned x0, unsigned x1, unsigned x2, unsigned x3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(row)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
}

// This block's place in its cluster.
__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

// By all threads of all blocks of the cluster.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the barrier of the same name in another block of the cluster, or in this one. A release of the whole cluster's
// scope would cost a memory barrier of the whole GPU each time; what was only read needs none.
__device__ __forceinline__ void arrive_in(int rank, u64* barrier) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
}

// "wgmma matrix descriptor", 128-byte swizzle; addresses and offsets in units of 16 bytes.
__device__ __forceinline__ u64 descriptor(const void* tile, int leading_bytes, int stride_bytes) {
    return u64(shared_address(tile) >> 4 & 0x3FFF) | u64(leading_bytes >> 4) << 16 | u64(stride_bytes >> 4) << 32 | 1ull << 62;
}

// "wgmma.mma_async": D[64×256] (+)= A · B by a warpgroup, 32 bytes of the inner dimension deep; A with K innermost, B with N
// innermost or, for 8-bit elements, K.
#ifdef B_ALONG_K
#define PRODUCT "m64n256k32"
#define AS_THEY_LIE "p, 1, 1"
#else
#define PRODUCT "m64n256k16"
#define AS_THEY_LIE "p, 1, 1, 0, 1"
#endif
#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
__device__ __forceinline__ void multiply(float (&d)[128], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned." PRODUCT ".f32." NAME(TYPE) "." NAME(TYPE) " {"
        TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)
        "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, " AS_THEY_LIE "; }"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Returns once at most `pending` committed groups are unfinished.
template <int pending>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// The sums are complete from here on: nothing else tells the compiler that the wait before changed them.
__device__ __forceinline__ void hold(float (&d)[128]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// "setmaxnreg", by all warps of a warpgroup.
template <int registers>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// A value of the lane whose number differs by `mask`.
__device__ __forceinline__ unsigned exchanged(unsigned value, int mask) {
    return __shfl_xor_sync(0xFFFFFFFF, value, mask);
}

// Two results rounded to nearest, the first in the lower half.
__device__ __forceinline__ unsigned rounded_pair(float first, float second) {
    unsigned pair;
    asm("cvt.rn." NAME(RESULT) "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
