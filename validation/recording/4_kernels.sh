# The ladder of kernels at 4096³, and the best of each family at 8192³. Nine minutes; a rung that fails costs itself alone.
. "$(dirname "$0")/common.sh"

best() { # those of $@ that were not dropped, with commas
    for kernel in "$@"; do dropped | grep -qx "$kernel" || echo "$kernel"; done | paste -sd, -
}
largest=${LARGEST:-8192}
rows large 150 experiment=kernels "kernel=$(best torch cublas cublaslt cuda_hopper_hilbert triton_autotuned)" precision=bf16 size="$largest"
rows large_fp32 100 experiment=kernels "kernel=$(best torch cublas cuda_grouped)" precision=fp32 size="$largest"
rows ladder 400 experiment=kernels precision=bf16,fp32 "kernel=glob(*,exclude=[$(dropped | paste -sd, -)])"
rows ladder_tf32 200 experiment=kernels "kernel=glob(*,exclude=[$(dropped | paste -sd, -)])"
