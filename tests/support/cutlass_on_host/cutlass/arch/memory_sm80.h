// CUTLASS's asynchronous copies, on the host.
#pragma once
#include "copies.h"
#include "cutlass/arch/memory.h"

namespace cutlass::arch {

template <int bytes, CacheOperation::Kind = CacheOperation::Always>
struct cp_async {
    cp_async(void* to, const void* from, bool inside = true) {
        if (inside) host::copy_later<bytes>(to, from);
    }
};

template <int bytes, CacheOperation::Kind = CacheOperation::Always>
struct cp_async_zfill {
    cp_async_zfill(void* to, const void* from, bool inside) { host::copy_later<bytes>(to, inside ? from : nullptr); }
};

inline void cp_async_fence() { host::commit_copies(); }

template <int pending>
void cp_async_wait() {
    host::wait_for_copies<pending>();
}

}  // namespace cutlass::arch
