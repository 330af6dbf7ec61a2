// Hopper's instructions on the host, after the PTX ISA's text: barriers with phases and expected bytes, boxes with the
// 128-byte swizzle, products read through their descriptors. A product is carried out as late as its wait allows, so that a
// stage that is filled again too early shows.
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

alignas(1024) unsigned char memory[256 << 10];
constexpr bool BF16 = NAME(TYPE)[0] == 'b';

inline float value_of(uint16_t bits) {
    if (BF16) {
        __nv_bfloat16 value;
        memcpy(&value, &bits, 2);
        return value;
    }
    __half value;
    memcpy(&value, &bits, 2);
    return value;
}
inline uint16_t bits_of(float value) {
    uint16_t bits;
    if (BF16) return __nv_bfloat16(value).bits;
    const __half half = value;
    memcpy(&bits, &half, 2);
    return bits;
}

inline unsigned shared_address(const void* x) { return static_cast<const unsigned char*>(x) - memory + 1024; }
inline unsigned char* from_address(unsigned address) { return memory + address - 1024; }
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

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

inline void load_box(void* to, const TensorMap* map, u64* barrier, int x, int y, int z) {
    const u64* words = map->words;
    const uint16_t* elements = reinterpret_cast<const uint16_t*>(words[0]);
    if (words[4] != 64 || words[6] != 1) host::fail("a box of 128 bytes is expected");
    if (shared_address(to) % 1024) host::fail("a swizzled box begins at a multiple of 1024 bytes");
    for (int row = 0; row < int(words[5]); ++row)
        for (int column = 0; column < 64; ++column) {
            const bool inside = x + column < int(words[1]) && y + row < int(words[2]) && z < int(words[3]);
            const uint16_t element = inside ? elements[(z * words[2] + y + row) * words[1] + x + column] : 0;
            memcpy(from_address(swizzled(shared_address(to) + row * 128 + column * 2)), &element, 2);
        }
    known(barrier).bytes -= words[5] * 128;
    known(barrier).settle();
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
}

inline void carry_out(const Product& product) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    auto start = [](u64 d) { return unsigned(d & 0x3FFF) << 4; };
    auto leading = [](u64 d) { return unsigned(d >> 16 & 0x3FFF) << 4; };
    auto stride = [](u64 d) { return unsigned(d >> 32 & 0x3FFF) << 4; };
    auto read = [](unsigned address) {
        uint16_t bits;
        memcpy(&bits, from_address(swizzled(address)), 2);
        return value_of(bits);
    };
    for (int i = 0; i < 128; ++i) {
        const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = product.accumulate ? product.d[i] : 0;
        for (int k = 0; k < 16; ++k) {
            // K innermost: 8-row atoms `stride` apart. N innermost: 64 columns, then `leading`; 8 deep, then `stride`.
            const unsigned a = start(product.a) + row / 8 * stride(product.a) + row % 8 * 128 + k * 2;
            const unsigned b = start(product.b) + column / 64 * leading(product.b) + column % 64 * 2 +
                               k / 8 * stride(product.b) + k % 8 * 128;
            sum += read(a) * read(b);
        }
        product.d[i] = sum;
    }
}

inline void multiply(float (&d)[128], u64 a, u64 b, int accumulate) {
    auto& mine = groups[threadIdx.x];
    if (mine.empty()) mine.emplace_back();
    mine.back().push_back({d, a, b, accumulate});
}
inline void fence_products() {}
inline void commit_products() { groups[threadIdx.x].emplace_back(); }
template <int pending>
void wait_for_products() {
    host::pass();
    auto& mine = groups[threadIdx.x];
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
