#!/usr/bin/env bash
# A GPU that is lent for thirty minutes, recorded in three commands of 9.5 minutes at most:
#
#   bash validation/recording/record.sh 1    versions, Hopper rungs, facts, miniature; the headline is begun
#   bash validation/recording/record.sh 2    the headline's rest, then the ladder of kernels, our own first
#   bash validation/recording/record.sh 3    validity, a second clock, memory checks, the tests marked gpu
#
# Each installs the wheels where they are missing, goes on from the results that were carried along, and leaves everything
# new in $OUT, in few files: its log, what later parts are to know, and the results packed in parts of at most 15 MB.
#
#   OUT     where results go; DEVICE  cuda, or cpu for a rehearsal; LIMIT_S  seconds the whole command may take
#   ROWS    more overrides for every row, such as timing.windows=2, and PATIENCE, by which limits are multiplied: a rehearsal's
#   REPLICATES  processes that measure each run; with 2 and the results of 1 carried along, the second is added
set -u
PART=${1:-} OUT=${OUT:-recorded}
case $PART in 1 | 2 | 3) ;; *) echo "record.sh: part=${PART:-missing}; choose 1, 2 or 3"; exit 3 ;; esac
before=part$((PART - 1)).txt
here=$(cd "$(dirname "$0")/../.." && pwd)
if [ "$PART" != 1 ] && [ ! -e "$here/recorded/$before" ] && [ ! -e "$OUT/$before" ]; then
    echo "recorded/$before: missing. Bring back what part $((PART - 1)) left; without it this part would measure again."
    exit 3
fi
NAME=part$PART
. "$(dirname "$0")/common.sh"

best() { # those of $@ that were not dropped, with commas
    for kernel in "$@"; do dropped | grep -qx "$kernel" || echo "$kernel"; done | paste -sd, -
}
kernel_tests() { part "$1" "$2" python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "$3"; }

first() {
    # torch once before anything is timed: its first import reads gigabytes, and would count as a kernel that hangs.
    part versions 90 bash -c 'python3 -m pip list; nvidia-smi -q; nvcc --version; ls /opt/nvidia/nsight-compute; \
        echo "CUDA_HOME=$CUDA_HOME"; find -L "$CUDA_HOME" "$(python3 -c "import sysconfig; print(sysconfig.get_path(\"purelib\"))")/nvidia" \
            \( -name "libnvvm.so*" -o -name mma.h \); \
        python3 -c "import hypothesis, pytest, torch, xdist; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"'
    local testable=$? status name
    # A forked child that cannot use CUDA ends every run in the worker: known in seconds rather than by the miniature's rows.
    if [ "$DEVICE" = cuda ] && [ $testable = 0 ]; then
        PYTORCH_NVML_BASED_CUDA_CHECK=1 part preflight 30 python3 -c 'import os, torch; from mfulab.lab.runtime import server as s; s.preload(s.PRELOADED); '\
'os.fork() or (torch.zeros(1, device="cuda"), os._exit(0)); raise SystemExit(9 if os.wait()[1] else 0)'
        if [ $? = 9 ]; then
            touch "$OUT/no_worker.txt"
            export MFULAB_WORKER=
            echo "STOP RULE: CUDA refuses a forked process; runs go without the worker"
        fi
    fi
    # A kernel of one's own that deadlocks is the first thing to know. One that is wrong, crashes, or hangs twice is left out
    # of later parts: the first time-out may be that of imports which nothing has read before, and no test (5) is no verdict.
    rung() { part "$1" 40 python3 -m pytest -q -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "every_shape and [$1-"; }
    for name in cuda_hopper cuda_hopper_stores cuda_hopper_cluster cuda_hopper_hilbert cuda_hopper_fp8; do
        [ $testable = 0 ] || break # what could not be tested is not wrong
        rung "$name"
        status=$?
        case $status in 124 | 137) rung "$name"; status=$? ;; esac
        case $status in 0 | [2-5]) ;; *) [ "$(left)" -lt 5 ] || echo "$name" >> "$OUT/dropped.txt" ;; esac
    done
    # No GPM, NVML or trace: the reason stands beside the empty value, and is read before more is recorded.
    part facts 120 python3 validation/gpu_facts.py --out "$OUT/facts.json"
    rows miniature 90 experiment=miniature
    rows headline 540 experiment=gpu_record
    grep -hs '"reason"' "$OUT/facts.json" | sort -u
}

second() {
    rows headline 330 experiment=gpu_record
    # Our own rungs first: torch's product is their reference. Packages that are not there would be rows without a time.
    local own=() libraries=()
    for name in cuda_hopper_hilbert cuda_hopper_stores cuda_hopper cuda_hopper_cluster cuda_wmma triton_plain triton_persistent; do own+=("$name"); done
    for name in cublas:nvmath cublaslt:nvmath triton_autotuned:triton cutile:cuda.tile; do
        python3 -c "import ${name#*:}" 2> /dev/null && libraries+=("${name%:*}")
    done
    rows ladder 150 experiment=kernels "kernel=torch,$(best "${own[@]}")" precision=bf16
    rows ladder_fp32 100 experiment=kernels "kernel=torch,$(best cuda_wide cuda_grouped cuda_warp_tile numba_cuda_unrolled triton_plain)" precision=fp32
    rows large 120 experiment=kernels "kernel=torch,$(best cuda_hopper_hilbert "${libraries[@]}")" precision=bf16 size="${LARGEST:-8192}"
    rows ladder_rest 300 experiment=kernels precision=bf16,fp32,tf32 \
        "kernel=glob(*,exclude=[$(dropped | paste -sd, -)])"
}

third() {
    # Executed ÷ counted operations near 2, or nonsense of NVML or the trace: stop, and mend before more is recorded.
    part executed 90 python3 validation/executed_operations.py --out "$OUT/executed.json"
    part second_clock 60 python3 validation/second_clock.py --out "$OUT/clocks.json"
    KEEP=240 rows validity 240 experiment=validity
    # More tiles than an H200 has SMs: each block of a persistent kernel takes a second one. Only our kernel, or torch's are
    # checked too; without the exit code errors that were found would end with status 0. A driver that lacks a newer one's
    # functions says so to whoever asks, which is no error here.
    for tool in memcheck racecheck; do
        for kernel in $(best cuda_hopper_hilbert cuda_wide cuda_grouped | tr , ' '); do
            part "${tool}_$kernel" 40 compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 --kernel-name kns=matmul \
                python3 validation/one_product.py "$kernel" "$([ "$kernel" != cuda_hopper_hilbert ] && echo fp32 || echo bf16)" 1664x3328x320
        done
    done
    # Of the rows that there are: Snakemake would go on measuring those that are missing.
    part tables 40 python3 scripts/tables.py --also results/*/plan/*.json --out results/tables
    local found=() kept="not compiled and not autotuned" kernel
    [ -e "$OUT/executed.json" ] && found+=(--executed "$OUT/executed.json")
    [ -e "$OUT/clocks.json" ] && found+=(--clocks "$OUT/clocks.json")
    part believed 30 python3 validation/gpu_validity.py "${found[@]}"
    grep -E '^(ok|differs|not measurable) ' "$LOG"
    for kernel in $(dropped); do kept+=" and not [$kernel-"; done # what hangs takes the others' time
    kernel_tests kernels 150 "$kept"
    part timer 60 python3 -m pytest -q -m gpu tests/gpu/test_device_timer_gpu.py
    part ladder_tests 150 python3 -m pytest -q -m gpu tests/gpu/test_gpu_ladder.py
    # By name: other files import what such a machine lacks, and one that cannot be imported ends the whole run.
    local others
    mapfile -t others < <(grep -rlE 'mark\.gpu\b' tests --include 'test_*.py' | grep -vE 'test_(cuda_kernels_gpu|device_timer_gpu|gpu_ladder)\.py')
    part others 120 python3 -m pytest -q -m gpu "${others[@]}"
    kernel_tests tuned 300 "compiled or autotuned"
}

case $PART in 1) first ;; 2) second ;; 3) third ;; esac
