# What must agree if anything is to be believed. Eight minutes. Executed ÷ counted operations near 2, or nonsense of NVML or the
# trace: stop, and mend before more is recorded.
. "$(dirname "$0")/common.sh"

part executed 120 python3 validation/executed_operations.py --out "$OUT/executed.json"
experiments=busy_but_useless,validity
[ -e config/experiment/known_truth.yaml ] && experiments=busy_but_useless,known_truth,validity
rows validity 420 experiment=$experiments
part tables 60 snakemake --cores 1 tables --config experiment=$experiments device="$DEVICE" replicates="$REPLICATES" \
    overrides="timing.time_limit_s=90 $ROWS"
part second_clock 60 python3 validation/second_clock.py --out "$OUT/clocks.json"
part believed 30 python3 validation/gpu_validity.py --executed "$OUT/executed.json" --clocks "$OUT/clocks.json"
