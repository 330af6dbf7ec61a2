// Hopper's instructions on the host, after the PTX ISA's text: barriers with phases and expected bytes, boxes with the
// 128-byte swizzle both ways, products read through their descriptors, blocks that reach into one another's memory. Products
// and stores are carried out as late as their waits allow, so that memory that is filled again too early shows.
#pragma once
#include <algorithm>
#include <map>

#include "device.h"
#include "mma.h"

#undef __shared__
#define __shared__
#define TEXT(x) #x
#define NAME(x) TEXT(x)

using std::min;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
    u64 words[16];  // address, three extents, three sides of the box; innermost first, 16-bit elements
};

constexpr int BLOCKS_OF_CLUSTER = 2, MEMORY = 256 << 10;
alignas(1024) unsigned char memory[BLOCKS_OF_CLUSTER][MEMORY];
constexpr bool BF16 = NAME(RESULT)[0] == 'b', FP8 = NAME(TYPE)[0] == 'e';
constexpr int ELEMENT = FP8 ? 1 : 2;  // bytes

inline unsigned char* shared_memory() { return memory[host::rank()]; }

inline float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const float magnitude = exponent ? std::ldexp(1 + fraction / 8.0f, exponent - 7) : std::ldexp(fraction / 8.0f, -6);
    return bits & 0x80 ? -magnitude : magnitude;
}
struct Table {
    float values[256];
    Table() {
        for (int i = 0; i < 256; ++i) values[i] = from_e4m3(i);
    }
};
inline const Table e4m3;
inline float value_at(const unsigned char* from) {
    if (FP8) return e4m3.values[*from];
    if (BF16) {
        __nv_bfloat16 value;
        memcpy(&value, from, 2);
        return value;
    }
    __half value;
    memcpy(&value, from, 2);
    return value;
}
inline uint16_t bits_of(float value) {
    uint16_t bits;
    if (BF16) return __nv_bfloat16(value).bits;
    const __half half = value;
    memcpy(&bits, &half, 2);
    return bits;
}

// A block's own shared memory begins at 1024; the same place in another block is `in` that block.
inline unsigned shared_address(const void* x) { return static_cast<const unsigned char*>(x) - memory[host::rank()] + 1024; }
inline unsigned char* from_address(unsigned address, int rank = host::rank()) { return memory[rank] + address - 1024; }
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
inline void require_alive(int rank) {
    if (host::has_ended(rank)) host::fail("a block reaches into another that has ended");
}

struct Barrier {
    int count, arrivals = 0;
    long bytes = 0;
    int phase = 0;
    void settle() {
        ++host::steps;
        if (arrivals == count && bytes == 0) arrivals = 0, ++phase;
        if (arrivals > count) host::fail("too many arrivals at a barrier");
    }
};
inline std::map<u64*, Barrier> barriers;

inline void init_barrier(u64* barrier, int count) {
    if (reinterpret_cast<uintptr_t>(barrier) % 8) host::fail("a barrier lies at a multiple of 8 bytes");
    barriers[barrier] = Barrier{count};
}
inline void publish_barriers() {}
inline Barrier& known(u64* barrier) {
    if (!barriers.count(barrier)) host::fail("a barrier is used before it is initialised");
    return barriers[barrier];
}
inline void arrive(u64* barrier) {
    ++known(barrier).arrivals;
    known(barrier).settle();
}
inline void arrive_expecting(u64* barrier, int bytes) {
    known(barrier).bytes += bytes;
    arrive(barrier);
}
inline void wait(u64* barrier, int parity) {
    while (known(barrier).phase % 2 == parity) host::yield();
}

inline u64* barrier_in(int rank, u64* barrier) {
    return reinterpret_cast<u64*>(from_address(shared_address(barrier), rank));
}
inline void arrive_in(int rank, u64* barrier) {
    require_alive(rank);
    arrive(barrier_in(rank, barrier));
}

// What threads wrote by ordinary stores and have not yet shown to the copy engine: address → thread.
inline std::map<std::pair<int, unsigned>, int> unpublished;
inline void publish_to_copy_engine() {
    for (auto it = unpublished.begin(); it != unpublished.end();) it = it->second == host::current ? unpublished.erase(it) : ++it;
}

inline void require_box(const TensorMap* map, unsigned address, int element) {
    if (map->words[4] * element != 128 || map->words[6] != 1) host::fail("a box of 128 bytes is expected");
    if (address % 1024) host::fail("a swizzled box begins at a multiple of 1024 bytes");
}
// Each element of a box that lies inside the tensor: its place there, and its address in shared memory.
template <typename Action>
void each_element(const TensorMap* map, unsigned address, int element, int x, int y, int z, Action action) {
    const u64* words = map->words;
    unsigned char* elements = reinterpret_cast<unsigned char*>(words[0]);
    for (int row = 0; row < int(words[5]); ++row)
        for (int column = 0; column < int(words[4]); ++column) {
            const bool inside = x + column < int(words[1]) && y + row < int(words[2]) && z < int(words[3]);
            const u64 at = (z * words[2] + y + row) * words[1] + x + column;
            action(inside ? elements + at * element : nullptr, swizzled(address + row * 128 + column * element));
        }
}

inline void load_box_for(unsigned short blocks, void* to, const TensorMap* map, u64* barrier, int x, int y, int z) {
    const unsigned address = shared_address(to);
    require_box(map, address, ELEMENT);
    for (int rank = 0; rank < BLOCKS_OF_CLUSTER; ++rank) {
        if (!(blocks >> rank & 1)) continue;
        require_alive(rank);
        each_element(map, address, ELEMENT, x, y, z, [&](const unsigned char* from, unsigned place) {
            const unsigned char zero[2] = {0, 0};
            memcpy(from_address(place, rank), from ? from : zero, ELEMENT);
        });
        Barrier& there = known(barrier_in(rank, barrier));
        there.bytes -= map->words[5] * 128;
        there.settle();
    }
}
inline void load_box(void* to, const TensorMap* map, u64* barrier, int x, int y, int z) {
    load_box_for(1 << host::rank(), to, map, barrier, x, y, z);
}

struct Store {
    unsigned address;
    const TensorMap* map;
    int x, y, z;
};
inline std::map<int, std::vector<std::vector<Store>>> stores;  // groups by thread; the last one is open

inline void store_box(const void* from, const TensorMap* map, int x, int y, int z) {
    const unsigned address = shared_address(from);
    require_box(map, address, 2);
    const auto lowest = unpublished.lower_bound({host::rank(), address});
    if (lowest != unpublished.end() && lowest->first < std::pair(host::rank(), unsigned(address + map->words[5] * 128)))
        host::fail("the copy engine reads what a thread has not published");
    auto& mine = stores[host::current];
    if (mine.empty()) mine.emplace_back();
    mine.back().push_back({address, map, x, y, z});
}
inline void commit_stores() { stores[host::current].emplace_back(); }
template <int pending>
void wait_until_read() {
    host::pass();
    auto& mine = stores[host::current];
    while (int(mine.size()) - 1 > pending) {
        for (const Store& store : mine.front())
            each_element(store.map, store.address, 2, store.x, store.y, store.z, [&](unsigned char* to, unsigned place) {
                if (to) memcpy(to, from_address(place), 2);
            });
        mine.erase(mine.begin());
    }
}

inline std::map<std::pair<int, int>, host::Meeting> named;
inline void sync_threads(int barrier, int threads) {
    if (barrier < 1 || barrier > 15) host::fail("named barriers are 1 to 15; 0 is the whole block's");
    host::meet(named[{host::rank(), barrier}], threads);
}
inline int cluster_rank() { return host::rank(); }
inline void sync_cluster() { host::meet(host::all_of_cluster, host::fibers.size()); }

// A warp's exchange. Of rows: every lane tells its own, and each takes those of the matrices that it holds a part of.
struct Exchange {
    host::Meeting told, taken;
    void* rows[32];
    unsigned values[32];
};
inline std::map<int, Exchange> exchanges;
inline void store_matrices(void* row, unsigned x0, unsigned x1, unsigned x2, unsigned x3) {
    Exchange& warp = exchanges[host::current / 32];
    const int lane = threadIdx.x % 32;
    if (shared_address(row) % 16) host::fail("a matrix's row lies at a multiple of 16 bytes");
    warp.rows[lane] = row;
    host::meet(warp.told, 32);
    const unsigned values[4] = {x0, x1, x2, x3};
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned char* to = static_cast<unsigned char*>(warp.rows[matrix * 8 + lane / 4]) + lane % 4 * 4;
        memcpy(to, &values[matrix], 4);
        unpublished[{host::rank(), shared_address(to)}] = host::current;
    }
    host::meet(warp.taken, 32);
}

// Every lane tells its value, and takes that of another.
inline unsigned exchanged(unsigned value, int mask) {
    Exchange& warp = exchanges[host::current / 32];
    const int lane = threadIdx.x % 32;
    warp.values[lane] = value;
    host::meet(warp.told, 32);
    const unsigned got = warp.values[lane ^ mask];
    host::meet(warp.taken, 32);
    return got;
}

inline u64 descriptor(const void* tile, int leading_bytes, int stride_bytes) {
    return u64(shared_address(tile) >> 4 & 0x3FFF) | u64(leading_bytes >> 4) << 16 | u64(stride_bytes >> 4) << 32 | 1ull << 62;
}

struct Product {
    float* d;
    u64 a, b;
    int accumulate;
};
inline std::map<int, std::vector<std::vector<Product>>> groups;  // by thread; the last one is open

// Shared memory and what belongs to it, as a launch finds them.
inline void forget() {
    memset(memory, 0xFF, sizeof(memory));
    barriers.clear();
    groups.clear();
    stores.clear();
    unpublished.clear();
    named.clear();
    exchanges.clear();
}

inline void carry_out(const Product& product) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    auto start = [](u64 d) { return unsigned(d & 0x3FFF) << 4; };
    auto leading = [](u64 d) { return unsigned(d >> 16 & 0x3FFF) << 4; };
    auto stride = [](u64 d) { return unsigned(d >> 32 & 0x3FFF) << 4; };
    auto read = [](unsigned address) { return value_at(from_address(swizzled(address))); };
    for (int i = 0; i < 128; ++i) {
        const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = product.accumulate ? product.d[i] : 0;
        for (int k = 0; k < 32 / ELEMENT; ++k) {
            // K innermost: 8-row atoms `stride` apart. N innermost: 64 columns, then `leading`; 8 deep, then `stride`.
            const unsigned a = start(product.a) + row / 8 * stride(product.a) + row % 8 * 128 + k * ELEMENT;
#ifdef B_ALONG_K
            const unsigned b = start(product.b) + column / 8 * stride(product.b) + column % 8 * 128 + k * ELEMENT;
#else
            const unsigned b = start(product.b) + column / 64 * leading(product.b) + column % 64 * 2 +
                               k / 8 * stride(product.b) + k % 8 * 128;
#endif
            sum += read(a) * read(b);
        }
        product.d[i] = sum;
    }
}

inline void multiply(float (&d)[128], u64 a, u64 b, int accumulate) {
    auto& mine = groups[host::current];
    if (mine.empty()) mine.emplace_back();
    mine.back().push_back({d, a, b, accumulate});
}
inline void fence_products() {}
inline void commit_products() { groups[host::current].emplace_back(); }
template <int pending>
void wait_for_products() {
    host::pass();
    auto& mine = groups[host::current];
    while (int(mine.size()) - 1 > pending) {
        for (const Product& product : mine.front()) carry_out(product);
        mine.erase(mine.begin());
    }
}

inline void hold(float (&)[128]) {}

template <int registers>
void take_registers() {}
template <int registers>
void give_registers() {}

inline unsigned rounded_pair(float first, float second) { return bits_of(first) | unsigned(bits_of(second)) << 16; }
