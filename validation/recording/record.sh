#!/usr/bin/env bash
# A GPU that is lent for minutes, recorded by one command that goes on where it was:
#
#   bash validation/recording/record.sh            what is not done yet, most valuable first, in 9.5 minutes at most
#   bash validation/recording/record.sh --list     each item, the seconds that it takes, and whether it is done
#
# It installs the wheels where they are missing, goes on from what was carried along in recorded/, and leaves everything new
# in $OUT, in few files: its log, what later commands are to know, the page, and the results packed in parts of at most 15 MB.
#
#   OUT     where results go; DEVICE  cuda, or cpu for a rehearsal; LIMIT_S  seconds the whole command may take
#   ITEMS   which, and in what order, each with its seconds: ITEMS="ladder:100 vit:40"
#   ROWS    more overrides for every row, such as timing.windows=2, and PATIENCE, by which limits are multiplied: a rehearsal's
#   REPLICATES  processes that measure each run; with 2 and the results of 1 carried along, the second is added
set -u
#   NEW     1 on a kind of card that nothing is recorded of: a look at fork and CUDA and its facts come first
# Each item and the seconds that it takes. One that does not fit is left to the next command, and a shorter one has its turn.
# FIRST is what nobody knows yet of a card that was met before, all that is marked † among it: 790 s, within the 900 of a loan
# with its start. With NEW it is 940 s, so that its end is the next loan's.
FIRST="eight_bits:45 transfers:47 streams:47 graphs:36 seminar:43 main:240 paired:120 decoding:53 guarded:26 two_of_four:28
autocast:29 cutlass:21 kernels:55"
LATER="paired_all:220 loops:70 ladder_fp32:40 timer:60 ladder_tests:60 ladder:60 vit:40 alignment:40 seminar_all:240 preflight:30 versions:60
rungs:90 facts:120 headline:400 validity:200 executed:90 second_clock:60 large:120 sanitizer:80 believed:70 others:120 miniature:60
ladder_rest:300 tuned:300"
ITEMS=${ITEMS:-"${NEW:+preflight:30 facts:120} $FIRST $LATER"}
RESUMED=" headline paired_all seminar_all ladder ladder_rest " # rows that are there stay: worth beginning with a minute left
SHORT="short_processes=true ceiling_replicates=1" # the main command's pace: three seconds a step, two a ceiling
TRIES=3 # of an item that was cut off
NAME=record
. "$(dirname "$0")/common.sh"

best() { # those of $@ that were not dropped, with commas
    for kernel in "$@"; do carried dropped | grep -qx "$kernel" || echo "$kernel"; done | paste -sd, -
}
kernel_tests() { part "$1" "$2" python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "$3"; }

main() { # as a newcomer starts it
    part main 300 snakemake --cores 1 report --config device="$DEVICE" ${ROWS:+"overrides=$ROWS"}
    [ -e reports/report.html ] && gzip -c reports/report.html > "$OUT/report.html.gz"
}
preflight() { # a forked child that cannot use CUDA ends every run in the worker
    [ "$DEVICE" = cuda ] || return
    PYTORCH_NVML_BASED_CUDA_CHECK=1 part preflight 60 python3 -c 'import os, torch; from mfulab.lab.runtime import server as s; s.preload(s.PRELOADED); '\
'os.fork() or (torch.zeros(1, device="cuda"), os._exit(0)); raise SystemExit(9 if os.wait()[1] else 0)'
    if [ $? = 9 ]; then
        touch "$OUT/no_worker.txt"
        export MFULAB_WORKER=
        echo "STOP RULE: CUDA refuses a forked process; runs go without the worker"
    fi
}
versions() {
    part versions 90 bash -c 'python3 -m pip list; nvidia-smi -q; nvcc --version; ls /opt/nvidia/nsight-compute; \
        echo "CUDA_HOME=$CUDA_HOME"; find -L "$CUDA_HOME" "$(python3 -c "import sysconfig; print(sysconfig.get_path(\"purelib\"))")/nvidia" \
            \( -name "libnvvm.so*" -o -name mma.h \); \
        python3 -c "import hypothesis, pytest, torch, xdist; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"'
}
rungs() {
    # A kernel of one's own that is wrong, crashes, or hangs twice is left out of later items: the first time-out may be that
    # of imports which nothing has read before, and no test (5) is no verdict.
    part testable 60 python3 -c 'import hypothesis, pytest, torch, xdist' || return 0 # what could not be tested is not wrong
    local name status
    rung() { part "$1" 40 python3 -m pytest -q -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "every_shape and [$1-"; }
    for name in cuda_hopper cuda_hopper_stores cuda_hopper_cluster cuda_hopper_hilbert cuda_hopper_fp8 \
        cuda_hopper_deferred cuda_hopper_fp8_deferred; do
        rung "$name"
        status=$?
        case $status in 124 | 137) rung "$name"; status=$? ;; esac
        case $status in 0 | [2-5]) ;; *) [ "$(left)" -lt 5 ] || echo "$name" >> "$OUT/dropped.txt" ;; esac
    done
}
facts() { # no GPM, NVML or trace: the reason stands beside the empty value, and is read before more is recorded
    part facts 120 python3 validation/gpu_facts.py --out "$OUT/facts.json"
    grep -hs '"reason"' "$OUT/facts.json" | sort -u
}
loops() { part loops 90 python3 validation/plain_loops.py --device "$DEVICE" --out "$OUT/loops.json" ${SMALL:+--small}; }
# The text's size by the library, its copies by hand, and its loop with and without a loader.
seminar() { rows seminar 70 experiment=seminar_gpu kernel=torch size=2704 kernel.block=null model=simple_cnn load=steady; }
seminar_all() { rows seminar_all 270 experiment=seminar_gpu; }
eight_bits() { rows eight_bits 90 $SHORT experiment=matmul_precision precision=fp8,int8 \
    "kernel=$(best torch cublas cublaslt torch_scaled cuda_wmma cuda_hopper_fp8 cuda_hopper_fp8_deferred triton_plain)"; }
vit() { rows vit 60 $SHORT experiment=gpu_record model=vit_b_16 workload=inference batch_size=64; }
alignment() { rows alignment 90 $SHORT experiment=alignment precision=bf16 size=8192x50257x768,8192x50304x768,4096,4097,4104; }
decoding() { # a cache that grows, and a token from a static one, launch by launch and replayed
    rows decoding 110 $SHORT experiment=decoding model=gpt2,llama_3_2_1b precision=bf16 batch_size=1,64 \
        execution=eager,static_cache,static_cache_cuda_graph
}
transfers() { # copies are timed at the short pace, too
    rows transfers 90 $SHORT experiment=transfers kernel=torch,numba_cuda_unrolled size=64,128,256,512,1024,2048,4096
}
streams() { rows streams 80 $SHORT experiment=streams; }
# What the seminar's topics still mark †: its guarded tile, two of four where they pay, autocast, and CUTLASS's template.
guarded() {
    rows guarded 40 $SHORT experiment=seminar_matmul kernel=numba_cuda_shared,numba_cuda_seminar_shared,numba_cuda_seminar_guarded size=1000
}
two_of_four() { rows two_of_four 40 $SHORT experiment=pruning batch_size=4096; }
autocast() { rows autocast 40 $SHORT experiment=training workload=training precision=fp32,amp_bf16 model=resnet18 batch_size=8; }
cutlass() {
    if ! python3 -c "import cutlass_library" 2> /dev/null; then
        echo "left out: cutlass, whose package nvidia-cutlass is not installed"
        return 0
    fi
    rows cutlass 30 $SHORT experiment=kernels kernel=torch,cutlass precision=bf16
}
# Beside torch in the same run, windows of a GPU's own length, bursts beside: shares to quote.
paired() {
    rows paired 160 ceiling_replicates=1 experiment=kernels "kernel=torch,$(best cuda_mma cuda_hopper cuda_hopper_deferred triton_plain)" \
        precision=bf16,tf32 size="${PAIRED:-4096}"
}
paired_all() {
    rows paired_all 280 ceiling_replicates=1 experiment=kernels "kernel=torch,torch_scaled_fast,$(best cuda_mma cuda_hopper \
        cuda_hopper_deferred cuda_hopper_fp8 cuda_hopper_fp8_deferred triton_plain)" precision=bf16,tf32,fp8 size="${PAIRED:-4096,8192}"
}
graphs() { rows graphs 60 $SHORT experiment=execution execution=eager,cuda_graph model=tiny_kernels; }
headline() { rows headline 540 experiment=gpu_record; }
# Our own rungs first: torch's product is their reference. Packages that are not there would be rows without a time.
ladder() {
    rows ladder 150 $SHORT experiment=kernels "kernel=torch,$(best cuda_hopper_hilbert cuda_hopper_stores cuda_hopper cuda_hopper_cluster \
        cuda_wmma numba_cuda_tensor_core numba_cuda_async triton_plain triton_persistent)" precision=bf16,tf32
}
ladder_fp32() { rows ladder_fp32 100 $SHORT experiment=kernels "kernel=torch,$(best cuda_wide cuda_grouped cuda_warp_tile cuda_register_1d numba_cuda_unrolled numba_cuda_wide triton_plain)" precision=fp32; }
large() {
    local libraries=() name
    for name in cublas:nvmath cublaslt:nvmath cutlass:cutlass_library triton_autotuned:triton cutile:cuda.tile; do
        python3 -c "import ${name#*:}" 2> /dev/null && libraries+=("${name%:*}")
    done
    rows large 120 experiment=kernels "kernel=torch,$(best cuda_hopper_hilbert "${libraries[@]}")" precision=bf16 size="${LARGEST:-8192}"
}
ladder_rest() { rows ladder_rest 300 experiment=kernels precision=bf16,fp32,tf32 "kernel=glob(*,exclude=[$(carried dropped | paste -sd, -)])"; }
miniature() { rows miniature 90 experiment=miniature; }
# Executed ÷ counted operations near 2, or nonsense of NVML or the trace: stop, and mend before more is recorded.
executed() { part executed 90 python3 validation/executed_operations.py --out "$OUT/executed.json"; }
second_clock() { part second_clock 60 python3 validation/second_clock.py --out "$OUT/clocks.json"; }
validity() { rows validity 240 experiment=validity; }
sanitizer() {
    # More tiles than an H200 has SMs: each block of a persistent kernel takes a second one. Only our kernel, or torch's are
    # checked too; without the exit code errors that were found would end with status 0. A driver that lacks a newer one's
    # functions says so to whoever asks, which is no error here.
    local tool kernel
    for tool in memcheck racecheck; do
        for kernel in $(best cuda_hopper_hilbert cuda_wide cuda_grouped | tr , ' '); do
            part "${tool}_$kernel" 40 compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 --kernel-name kns=matmul \
                python3 validation/one_product.py "$kernel" "$([ "$kernel" != cuda_hopper_hilbert ] && echo fp32 || echo bf16)" 1664x3328x320
        done
    done
}
believed() { # of the rows that there are: Snakemake would go on measuring those that are missing
    local found=() each
    part tables 40 python3 scripts/command.py tables --also results/*/plan/*.json --out results/tables
    for each in executed clocks; do [ -e "$OUT/$each.json" ] && found+=("--$each" "$OUT/$each.json"); done
    part believed 30 python3 validation/gpu_validity.py "${found[@]}"
    grep -E '^(ok|differs|not measurable) ' "$LOG"
}
kernels() {
    local kept="not compiled and not autotuned" kernel
    for kernel in $(carried dropped); do kept+=" and not [$kernel-"; done # what hangs takes the others' time
    kernel_tests kernels 150 "$kept"
}
timer() { part timer 60 python3 -m pytest -q -m gpu tests/gpu/test_device_timer_gpu.py; }
ladder_tests() { part ladder_tests 150 python3 -m pytest -q -m gpu tests/gpu/test_gpu_ladder.py; }
others() { # by name: other files import what such a machine lacks, and one that cannot be imported ends the whole run
    local files
    mapfile -t files < <(grep -rlE 'mark\.gpu\b' tests --include 'test_*.py' | grep -vE 'test_(cuda_kernels_gpu|device_timer_gpu|gpu_ladder)\.py')
    part others 120 python3 -m pytest -q -m gpu "${files[@]}"
}
tuned() { kernel_tests tuned 300 "compiled or autotuned"; }

for item in $ITEMS; do
    turn "${item%:*}" "${item#*:}" "${1:-}"
done
