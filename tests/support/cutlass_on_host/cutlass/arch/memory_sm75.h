// ldmatrix on the host, as the PTX ISA describes it: lanes show one another the rows whose addresses they hold.
#pragma once
#include "cutlass/arch/memory.h"
#include "cutlass/layout/matrix.h"

namespace cutlass::arch {

inline unsigned cutlass_get_smem_pointer(const void*) {
    host::fail("shared memory has no address of 32 bits on the host");
    return 0;
}

template <typename Access>
void shared_load(Access& to, const void* from) {
    copy_aligned<sizeof(Access)>(&to, from, from);
}

template <typename Layout, int matrices>
void ldsm(Array<unsigned, matrices>& to, const void* row) {
    static const uint16_t* row_of[32][32];  // by warp and lane
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr bool transposed = platform::is_same<Layout, layout::ColumnMajor>::value;
    if (reinterpret_cast<uintptr_t>(row) % 16) host::fail("unaligned row of a matrix");
    row_of[warp][lane] = static_cast<const uint16_t*>(row);
    host::meet_warp();
    for (int matrix = 0; matrix < matrices; ++matrix) {
        uint16_t two[2];
        for (int i = 0; i < 2; ++i) {
            const int along = lane % 4 * 2 + i, across = lane / 4;
            two[i] = transposed ? row_of[warp][matrix * 8 + along][across] : row_of[warp][matrix * 8 + across][along];
        }
        memcpy(&to[matrix], two, 4);
    }
    host::meet_warp();
}

}  // namespace cutlass::arch
