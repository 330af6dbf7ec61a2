# Versions, every family of kernels once, which counters answer, and the miniature's rows. Six minutes.
. "$(dirname "$0")/common.sh"

part versions 40 bash -c 'python3 -m pip list; nvidia-smi -q; nvcc --version; ls /opt/nvidia/nsight-compute || true'
# A kernel of one's own that deadlocks is the first thing to know. It hangs or is wrong: out of all later commands.
for rung in cuda_hopper cuda_hopper_stores cuda_hopper_cluster cuda_hopper_hilbert cuda_hopper_fp8; do
    part "$rung" 40 python3 -m pytest -q -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "every_shape and $rung-" || echo "$rung" >> "$OUT/dropped.txt"
done
for family in numba_cuda cublas triton_p torch "cuda_ and not numba_cuda and not hopper"; do
    part "family_${family%% *}" 60 python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py \
        -k "every_shape and ($family) and not compiled and not autotuned"
done
# No GPM, NVML or trace: the reason stands beside the empty value, and is read before more is recorded.
part facts 200 python3 validation/gpu_facts.py --out "$OUT/facts.json"
rows miniature 120 experiment=miniature
if grep -qr "Cannot re-initialize CUDA" "$OUT/miniature.txt" results/*/*/*/row.csv 2> /dev/null; then
    touch "$OUT/no_worker.txt"
    echo "STOP RULE: CUDA refuses the forked worker; later commands run without it"
fi
grep -h '"reason"' "$OUT/facts.json" 2> /dev/null | sort -u
