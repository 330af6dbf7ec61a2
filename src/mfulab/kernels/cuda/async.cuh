// Copies from device to shared memory that pass the registers by (PTX ISA, "cp.async"), in groups that are waited for.

// 4 or 16 bytes; zeros where `inside` is false, and then nothing is read.
template <int bytes>
__device__ __forceinline__ void copy_async(float* to, const float* from, bool inside) {
    const unsigned address = __cvta_generic_to_shared(to);
    if (bytes == 16)  // past the L1 cache
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns once at most `pending` of this thread's groups are unfinished.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// The block's shared memory: dynamic where it is more than a block has unasked.
template <typename T>
__device__ __forceinline__ T& shared_memory() {
    if constexpr (sizeof(T) <= 48 << 10) {
        __shared__ __align__(16) T memory;
        return memory;
    } else {
        extern __shared__ __align__(16) unsigned char memory[];
        return *reinterpret_cast<T*>(memory);
    }
}
