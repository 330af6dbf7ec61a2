// A warp's fragments from shared memory. nvcuda::wmma loads those of bf16 and tf32 through generic addresses, one register at
// a time; the instruction for shared memory (PTX ISA, "wmma.load") becomes `LDSM`, as it does for fp16 and int8 anyway.
#if defined(__CUDA_ARCH__) && defined(SHARED_LOAD)
#define TEXT(x) #x
#define NAME(x) TEXT(x)
#define LOAD(which, to, from, stride)                                                                                 \
    asm volatile("wmma.load." which ".sync.aligned.row." NAME(SHARED_LOAD) " {%0, %1, %2, %3}, [%4], %5;"             \
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                                                 \
                 : "r"(unsigned(__cvta_generic_to_shared(from))), "r"(stride)                                         \
                 : "memory")

__device__ __forceinline__ void load_fragment(FragmentA& fragment, const OPERAND* from, unsigned stride) {
    unsigned* to = reinterpret_cast<unsigned*>(fragment.x);
    LOAD("a", to, from, stride);
}
__device__ __forceinline__ void load_fragment(FragmentB& fragment, const OPERAND* from, unsigned stride) {
    unsigned* to = reinterpret_cast<unsigned*>(fragment.x);
    LOAD("b", to, from, stride);
}
#else
template <typename F>
__device__ __forceinline__ void load_fragment(F& fragment, const OPERAND* from, unsigned stride) {
    wmma::load_matrix_sync(fragment, from, stride);
}
#endif

// float32 rounded to nearest for the multiplier, which alone would cut bits off: once, on the way to shared memory.
__device__ __forceinline__ void store_pack(OPERAND* to, uint4 pack) {
#ifdef ROUND_TO_TF32
    float* values = reinterpret_cast<float*>(&pack);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = wmma::__float_to_tf32(values[i]);
#endif
    *reinterpret_cast<uint4*>(to) = pack;
}
