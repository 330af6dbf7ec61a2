"""What Helion compiles: its kernels may refer to names of their module alone."""

import helion.language as hl
import torch


def matmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """C[batch,m,n] = A[batch,m,k] · B[batch,k,n], tile by tile; sums in float32."""
    batch, m, k = a.size()
    n = b.size(2)
    for matrix, row, column in hl.tile([batch, m, n]):
        total = hl.zeros([matrix, row, column], dtype=torch.float32)
        for depth in hl.tile(k):
            total = torch.baddbmm(total, a[matrix, row, depth], b[matrix, depth, column])
        c[matrix, row, column] = total.to(c.dtype)
    return c
