// CUTLASS's accesses to memory on the host, where its own are PTX: plain copies, aligned as the hardware demands.
#pragma once
#include "cutlass/array.h"
#include "cutlass/arch/cache_operation.h"
#include "cutlass/cutlass.h"
#include "device.h"

namespace cutlass::arch {

template <int bytes>
void copy_aligned(void* to, const void* from, const void* in_memory) {
    if (reinterpret_cast<uintptr_t>(in_memory) % bytes) host::fail("unaligned access");
    memcpy(to, from, bytes);
}

template <typename Access, int bytes, CacheOperation::Kind = CacheOperation::Always>
struct global_load {
    global_load(Access& to, const void* from, bool inside) {
        if (inside) copy_aligned<bytes>(&to, from, from);
    }
};

template <typename Access, int bytes>
struct global_store {
    global_store(const Access& from, void* to, bool inside) {
        if (inside) copy_aligned<bytes>(to, &from, to);
    }
};

template <int bytes>
void shared_load(void* to, uint32_t from);  // of an address of 32 bits: there is none on the host

}  // namespace cutlass::arch

#include "cutlass/arch/memory_sm75.h"
#include "cutlass/arch/memory_sm80.h"
