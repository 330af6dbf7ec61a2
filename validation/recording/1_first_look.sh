# Versions, every family of kernels once, which counters answer, and the miniature's rows. Six minutes.
. "$(dirname "$0")/common.sh"

# torch once before anything is timed: its first import reads gigabytes, and would count as a kernel that hangs.
part versions 90 bash -c 'python3 -m pip list; nvidia-smi -q; nvcc --version; ls /opt/nvidia/nsight-compute; \
    python3 -c "import hypothesis, pytest, torch, xdist; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"'
testable=$?
# A kernel of one's own that deadlocks is the first thing to know. It hangs or is wrong: out of all later commands.
for rung in cuda_hopper cuda_hopper_stores cuda_hopper_cluster cuda_hopper_hilbert cuda_hopper_fp8; do
    [ $testable = 0 ] || break # what could not be tested is not wrong
    part "$rung" 40 python3 -m pytest -q -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "every_shape and [$rung-" || echo "$rung" >> "$OUT/dropped.txt"
done
# No GPM, NVML or trace: the reason stands beside the empty value, and is read before more is recorded.
part facts 200 python3 validation/gpu_facts.py --out "$OUT/facts.json"
rows miniature 120 experiment=miniature
if grep -qs "Cannot re-initialize CUDA" "$LOG" results/*/*/*/row.csv; then
    touch "$OUT/no_worker.txt"
    echo "STOP RULE: CUDA refuses the forked worker; later commands run without it"
fi
# Last, as a family that is wrong costs itself alone later on. `[` begins a test's parameters: the file's name has "cuda_" too.
for family in numba_cuda cublas triton_p torch cuda_; do
    part "family_$family" 60 python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py \
        -k "every_shape and [$family and not hopper and not compiled"
done
grep -hs '"reason"' "$OUT/facts.json" | sort -u
