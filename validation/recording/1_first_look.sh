# Versions, every family of kernels once, which counters answer, and the miniature's rows. Six minutes.
. "$(dirname "$0")/common.sh"

# torch once before anything is timed: its first import reads gigabytes, and would count as a kernel that hangs.
part versions 90 bash -c 'python3 -m pip list; nvidia-smi -q; nvcc --version; ls /opt/nvidia/nsight-compute; \
    echo "CUDA_HOME=$CUDA_HOME"; find -L "$CUDA_HOME" "$(python3 -c "import sysconfig; print(sysconfig.get_path(\"purelib\"))")/nvidia" \
        \( -name "libnvvm.so*" -o -name mma.h \); \
    python3 -c "import hypothesis, pytest, torch, xdist; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"'
testable=$?
# A forked child that cannot use CUDA ends every run in the worker: known in seconds rather than by the miniature's rows.
if [ "$DEVICE" = cuda ] && [ $testable = 0 ]; then
    PYTORCH_NVML_BASED_CUDA_CHECK=1 part preflight 30 python3 -c 'import os, torch; from mfulab.runtime import server as s; s.preload(s.PRELOADED); '\
'os.fork() or (torch.zeros(1, device="cuda"), os._exit(0)); raise SystemExit(9 if os.wait()[1] else 0)'
    if [ $? = 9 ]; then
        touch "$OUT/no_worker.txt"
        export MFULAB_WORKER=
        echo "STOP RULE: CUDA refuses a forked process; runs go without the worker"
    fi
fi
# A kernel of one's own that deadlocks is the first thing to know. One that is wrong, crashes, or hangs twice is left out of
# later commands: the first time-out may be that of imports which nothing has read before, and no test (5) is no verdict.
rung() { part "$1" 40 python3 -m pytest -q -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "every_shape and [$1-"; }
for rung in cuda_hopper cuda_hopper_stores cuda_hopper_cluster cuda_hopper_hilbert cuda_hopper_fp8; do
    [ $testable = 0 ] || break # what could not be tested is not wrong
    rung "$rung"
    status=$?
    case $status in 124 | 137) rung "$rung"; status=$? ;; esac
    case $status in 0 | [2-5]) ;; *) [ "$(left)" -lt 5 ] || echo "$rung" >> "$OUT/dropped.txt" ;; esac
done
# No GPM, NVML or trace: the reason stands beside the empty value, and is read before more is recorded.
part facts 200 python3 validation/gpu_facts.py --out "$OUT/facts.json"
rows miniature 120 experiment=miniature
# Last, as a family that is wrong costs itself alone later on. `[` begins a test's parameters: the file's name has "cuda_" too.
for family in numba_cuda cublas triton_p torch cuda_; do
    part "family_$family" 60 python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py \
        -k "every_shape and [$family and not hopper and not compiled"
done
grep -hs '"reason"' "$OUT/facts.json" | sort -u
