# Sourced by each command of a recording. Each is complete in itself: it installs the wheels where they are missing, goes on
# from the results that were carried along, and leaves everything new in $OUT, results packed in parts of at most 15 MB.
#
#   OUT     where results go; DEVICE  cuda, or cpu for a rehearsal; LIMIT_S  seconds the whole command may take
#   ROWS    more overrides for every row, such as timing.windows=2, and PATIENCE, by which limits are multiplied: a rehearsal's
#   REPLICATES  processes that measure each run; with 2 and the results of 1 carried along, the second is added
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
OUT=${OUT:-recorded} DEVICE=${DEVICE:-cuda} LIMIT_S=${LIMIT_S:-560} ROWS=${ROWS:-} PATIENCE=${PATIENCE:-1} REPLICATES=${REPLICATES:-1} SITE=${SITE:-$HOME/site}
mkdir -p "$OUT"
BEGAN=$SECONDS

if [ -d wheelhouse ] && [ ! -e "$SITE/complete" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" wheelhouse/*.whl || exit 3
    touch "$SITE/complete"
fi
export PYTHONPATH=$PWD/src:$SITE PATH=$SITE/bin:$PATH PYTHONUNBUFFERED=1 GIT_PYTHON_REFRESH=quiet MPLBACKEND=agg
[ -d /usr/local/cuda ] && export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}

# What an earlier command packed. All files get one time: else Snakemake takes copied code for newer than results.
if compgen -G "recorded/results.tgz.*" > /dev/null && ! compgen -G "results/*/profile_step" > /dev/null; then
    cat recorded/results.tgz.* | tar xzf - && find results -type f -exec touch -d "$(date -R)" {} +
fi
# Kernels that hung or were wrong stay out of every later command; so does the worker where CUDA refuses to fork.
dropped() { cat recorded/dropped.txt "$OUT/dropped.txt" 2> /dev/null | sort -u; }
[ -e recorded/no_worker.txt ] || [ -e "$OUT/no_worker.txt" ] && export MFULAB_WORKER=

# part NAME SECONDS COMMAND …: its output in $OUT/NAME.txt, its end in $OUT/parts.txt; ended, with all that it started, after
# SECONDS, or once the whole command's time is over.
part() {
    local name=$1 limit=$(($2 * PATIENCE)) left=$((LIMIT_S - SECONDS + BEGAN)) began=$SECONDS status
    shift 2
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$left" -lt 5 ]; then
        echo "$name: left out, no time" | tee -a "$OUT/parts.txt"
        return 124
    fi
    timeout --kill-after=5 "$limit" "$@" > "$OUT/$name.txt" 2>&1
    status=$?
    echo "$name: status $status after $((SECONDS - began)) s" | tee -a "$OUT/parts.txt"
    tail -n 3 "$OUT/$name.txt"
    return $status
}

# rows NAME SECONDS WORD …: an experiment's rows, each ended after 90 s.
rows() {
    local name=$1 limit=$2
    shift 2
    rm -rf .snakemake/locks
    part "$name" "$limit" snakemake --cores 1 --keep-going rows --config "$@" device="$DEVICE" replicates="$REPLICATES" \
        overrides="timing.time_limit_s=90 $ROWS"
}

# Whatever ended the command: what there is goes with it.
pack() {
    [ -d results ] || return 0
    tar czf - --exclude=trace.json.gz --exclude=tensorboard --exclude=tables --exclude=superseded results \
        | split -b 15M -d - "$OUT/results.tgz."
}
trap pack EXIT
