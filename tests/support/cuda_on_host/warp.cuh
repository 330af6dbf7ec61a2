// A warp's instructions on the host: lanes show one another what they hold, and meet before and after they look.
#pragma once
#include "device.h"

inline host::Meeting of_warp[64];

struct Held {
    const OPERAND* row;
    unsigned a[4], b[2];
};
inline Held held_by[64][32];

inline void meet_warp() { host::meet(of_warp[threadIdx.x / 32], 32); }

inline OPERAND element(unsigned pair, int which) {
    OPERAND two[2];
    memcpy(two, &pair, 4);
    return two[which];
}

template <bool transposed>
void load_matrices(unsigned (&to)[4], const OPERAND* row) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (reinterpret_cast<uintptr_t>(row) % 16) host::fail("unaligned row of a matrix");
    held_by[warp][lane].row = row;
    meet_warp();
    for (int matrix = 0; matrix < 4; ++matrix) {
        OPERAND two[2];
        for (int i = 0; i < 2; ++i) {
            const int along = lane % 4 * 2 + i, across = lane / 4;
            two[i] = transposed ? held_by[warp][matrix * 8 + along].row[across] : held_by[warp][matrix * 8 + across].row[along];
        }
        memcpy(&to[matrix], two, 4);
    }
    meet_warp();
}

inline void multiply_add(float (&total)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Held& own = held_by[warp][lane];
    memcpy(own.a, a, sizeof own.a);
    own.b[0] = b0;
    own.b[1] = b1;
    meet_warp();
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const Held& left = held_by[warp][row % 8 * 4 + k % 8 / 2];
            const Held& right = held_by[warp][column * 4 + k % 8 / 2];
            total[i] += float(element(left.a[row / 8 + k / 8 * 2], k % 2)) * float(element(right.b[k / 8], k % 2));
        }
    }
    meet_warp();
}
