// Instructions of a whole warp for tensor cores (PTX ISA, "ldmatrix" and "mma"), on operands of 16 bits.
#define TEXT(x) #x
#define NAME(x) TEXT(x)

// Four 8×8 matrices; lane l gives the address of row l % 8 of matrix l / 8. A lane gets two neighbours of row lane / 4 of each,
// or where `transposed` of column lane / 4.
template <bool transposed>
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const OPERAND* row) {
    const unsigned address = __cvta_generic_to_shared(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// total += A·B, 16×16 by 16×8.
__device__ __forceinline__ void multiply_add(float (&total)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME(KIND) "." NAME(KIND) ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(total[0]), "+f"(total[1]), "+f"(total[2]), "+f"(total[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
