// mma.sync on the host, as the PTX ISA places the elements of its fragments: lanes show one another what they hold.
#pragma once
#include "cutlass/arch/mma.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/numeric_types.h"
#include "device.h"

namespace cutlass::arch {

// 16×8 of C by `depth` of k. A lane's registers hold rows 8 apart, then columns of A half a depth apart; each register
// holds as many neighbours along k as fit 32 bits.
template <typename Operand, int depth>
struct HostMma {
    using Shape = gemm::GemmShape<16, 8, depth>;
    using ElementA = Operand;
    using LayoutA = layout::RowMajor;
    using FragmentA = Array<Operand, 16 * depth / 32>;
    using ElementB = Operand;
    using LayoutB = layout::ColumnMajor;
    using FragmentB = Array<Operand, 8 * depth / 32>;
    using ElementC = float;
    using LayoutC = layout::RowMajor;
    using FragmentC = Array<float, 4>;
    using Operator = OpMultiplyAdd;
    using ArchTag = Sm80;

    void operator()(FragmentC& d, const FragmentA& a, const FragmentB& b, const FragmentC& c) const {
        static FragmentA all_a[32][32];  // by warp and lane
        static FragmentB all_b[32][32];
        constexpr int packed = depth / 8;  // elements of a register
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        all_a[warp][lane] = a;
        all_b[warp][lane] = b;
        host::meet_warp();
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float total = c[i];
            for (int k = 0; k < depth; ++k) {
                const int half = k / (depth / 2), holder = k % (depth / 2) / packed, place = k % packed;
                const auto& left = all_a[warp][row % 8 * 4 + holder];
                const auto& right = all_b[warp][column * 4 + holder];
                total += float(left[(row / 8 + half * 2) * packed + place]) * float(right[half * packed + place]);
            }
            d[i] = total;
        }
        host::meet_warp();
    }
};

#define ON_THE_HOST(Operand, depth)                                                                        \
    template <>                                                                                            \
    struct Mma<gemm::GemmShape<16, 8, depth>, 32, Operand, layout::RowMajor, Operand, layout::ColumnMajor, \
               float, layout::RowMajor, OpMultiplyAdd> : HostMma<Operand, depth> {}

ON_THE_HOST(half_t, 16);
ON_THE_HOST(bfloat16_t, 16);
ON_THE_HOST(tfloat32_t, 8);

}  // namespace cutlass::arch
