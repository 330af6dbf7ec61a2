// Asynchronous copies and shared memory of the kernels' own, on the host.
#pragma once
#include "copies.h"

using host::commit_copies;
using host::wait_for_copies;
using std::min;

template <int bytes>
void copy_async(float* to, const float* from, bool inside) {
    host::copy_later<bytes>(to, inside ? from : nullptr);
}

template <typename T>
T& shared_memory() {
    __shared__ __align__(16) char memory[sizeof(T)];
    return *reinterpret_cast<T*>(memory);
}
