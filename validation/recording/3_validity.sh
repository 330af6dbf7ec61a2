# What must agree if anything is to be believed. Nine minutes. Executed ÷ counted operations near 2, or nonsense of NVML or the
# trace: stop, and mend before more is recorded.
. "$(dirname "$0")/common.sh"

part executed 120 python3 validation/executed_operations.py --out "$OUT/executed.json"
part second_clock 90 python3 validation/second_clock.py --out "$OUT/clocks.json"
KEEP=75 rows validity 360 experiment=validity
KEEP=75 rows known 300 experiment=known_truth,busy_but_useless
# Of the rows that there are: Snakemake would go on measuring those that are missing.
part tables 40 python3 scripts/tables.py --also results/*/plan/*.json --out results/tables
found=()
[ -e "$OUT/executed.json" ] && found+=(--executed "$OUT/executed.json")
[ -e "$OUT/clocks.json" ] && found+=(--clocks "$OUT/clocks.json")
part believed 30 python3 validation/gpu_validity.py "${found[@]}"
grep -E '^(ok|differs|not measurable) ' "$LOG"
