// A warp's fragments from shared memory. nvcuda::wmma loads those of bf16 and tf32 through generic addresses, one register at
// a time; the instruction for shared memory (PTX ISA, "wmma.load") becomes `LDSM`, as it does for fp16 and int8 anyway.
#ifdef SHARED_LOAD
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
