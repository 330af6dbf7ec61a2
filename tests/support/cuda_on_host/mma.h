// nvcuda::wmma on the host: every lane holds the whole fragment and computes all of it.
#pragma once
#include "device.h"

typedef _Float16 __half;

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value) {
        uint32_t word;
        memcpy(&word, &value, 4);
        bits = (word + 0x7FFF + (word >> 16 & 1)) >> 16;
    }
    operator float() const {
        const uint32_t word = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &word, 4);
        return value;
    }
};

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
enum layout_t { mem_row_major };
namespace precision {
struct tf32;
}

template <typename T>
struct Stored {
    typedef T type;
};
template <>
struct Stored<precision::tf32> {
    typedef float type;
};

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
    static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M, columns = std::is_same_v<Use, matrix_a> ? K : N;
    static constexpr int num_elements = rows * columns;
    typename Stored<T>::type x[num_elements];
};

inline float __float_to_tf32(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    word = (word + 0x1000) & ~0x1FFFu;
    memcpy(&value, &word, 4);
    return value;
}

// 256 bits by the CUDA C++ programming guide; 8-bit fragments by the PTX ISA less: those of the hardware's loads, 128.
template <typename T>
void require_alignment(const T* memory, unsigned stride) {
    if (reinterpret_cast<uintptr_t>(memory) % (sizeof(T) == 1 ? 16 : 32)) host::fail("unaligned fragment");
    if (stride * sizeof(T) % 16) host::fail("stride is no multiple of 16 bytes");
}

template <typename F, typename T>
void load_matrix_sync(F& to, const T* from, unsigned stride) {
    require_alignment(from, stride);
    for (int i = 0; i < F::num_elements; ++i) to.x[i] = from[i / F::columns * stride + i % F::columns];
}

template <typename F, typename T>
void store_matrix_sync(T* to, const F& from, unsigned stride, layout_t) {
    require_alignment(to, stride);
    for (int i = 0; i < F::num_elements; ++i) to[i / F::columns * stride + i % F::columns] = from.x[i];
}

template <typename F, typename T>
void fill_fragment(F& fragment, T value) {
    for (auto& x : fragment.x) x = value;
}

template <typename C, typename A, typename B>
void mma_sync(C& d, const A& a, const B& b, const C& c) {
    typedef std::decay_t<decltype(d.x[0])> Sum;
    C sum = c;
    for (int i = 0; i < C::rows; ++i)
        for (int j = 0; j < C::columns; ++j)
            for (int k = 0; k < A::columns; ++k)
                sum.x[i * C::columns + j] += Sum(a.x[i * A::columns + k]) * Sum(b.x[k * B::columns + j]);
    d = sum;
}

}  // namespace nvcuda::wmma
