# Inside the two kernels of our own that are to win: counters by Nsight Compute, memory and races by compute-sanitizer. Four
# minutes. Clocks are left as they are.
. "$(dirname "$0")/common.sh"

ncu=$(command -v ncu || ls -d /opt/nvidia/nsight-compute/*/ncu 2> /dev/null | tail -1)
for kernel in cuda_hopper_hilbert:bf16 cuda_grouped:fp32; do
    name=${kernel%:*} precision=${kernel#*:}
    dropped | grep -qx "$name" && continue
    part "ncu_$name" 60 "${ncu:-ncu}" --clock-control none --set full --kernel-name matmul --launch-count 1 \
        python3 validation/one_product.py "$name" "$precision" 4096
    # More tiles than an H200 has SMs: each block of a persistent kernel takes a second one. Only our kernel, or torch's are checked too; without the exit code errors that were found would end with status 0.
    for tool in memcheck racecheck synccheck; do
        part "${tool}_$name" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name kns=matmul \
            python3 validation/one_product.py "$name" "$precision" 1664x3328x320
    done
done
