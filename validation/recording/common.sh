# Sourced by `record.sh`: limits, what is carried from command to command, and what is left. NAME names the log.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
OUT=${OUT:-recorded} DEVICE=${DEVICE:-cuda} ROWS=${ROWS:-} PATIENCE=${PATIENCE:-1} REPLICATES=${REPLICATES:-1} SITE=${SITE:-$HOME/site}
LIMIT_S=${LIMIT_S:-$((560 * PATIENCE))} LOG=$OUT/${NAME:-$(basename "$0" .sh)}.txt BEGAN=$SECONDS RUNNING= CUT=
if [ "$DEVICE" = cuda ] && [ -z "${DIRTY:-}" ] && [ -n "$(git status --porcelain --untracked-files=no 2> /dev/null)" ]; then
    echo "files were changed since the last commit: rows would name no code that anybody has. Commit, or give DIRTY=1."
    exit 3
fi
mkdir -p "$OUT" && touch "$LOG" || exit 3
[ "$OUT" -ef recorded ] || cat "recorded/$(basename "$LOG")" >> "$LOG" 2> /dev/null

# What an earlier command packed. All files get one time: else Snakemake takes copied code for newer than results.
if compgen -G "recorded/results.tgz.*" > /dev/null && ! compgen -G "results/*/*/*/row.csv" > /dev/null; then
    if ! cat recorded/results.tgz.* | tar tzf - > /dev/null 2>&1; then
        echo "recorded/results.tgz.*: not whole. Bring all parts of one command, or none."
        exit 3
    fi
    cat recorded/results.tgz.* | tar xzf - && find results -type f -exec touch -d "$(date -R)" {} +
fi
if [ -d wheelhouse ] && [ ! -e "$SITE/complete" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" wheelhouse/*.whl || exit 3
    touch "$SITE/complete"
fi
export PYTHONPATH=$PWD/src:$SITE PATH=$SITE/bin:$PATH:/usr/local/cuda/bin PYTHONUNBUFFERED=1 GIT_PYTHON_REFRESH=quiet MPLBACKEND=agg
nvcc=$(readlink -f "$(command -v nvcc)") # a link where several toolkits lie side by side
export CUDA_HOME=${CUDA_HOME:-${nvcc:+${nvcc%/bin/nvcc}}}
[ -n "$CUDA_HOME" ] || unset CUDA_HOME

# carried NAME: lines that earlier commands and this one left. `dropped`: kernels that hung or were wrong stay out of every later
# item; so does the worker where CUDA refuses to fork. `done`: items. `begun`: items, as often as they were.
carried() {
    if [ "$OUT" -ef recorded ]; then cat "$OUT/$1.txt" 2> /dev/null; else cat "recorded/$1.txt" "$OUT/$1.txt" 2> /dev/null; fi
}
without_worker() { [ -e recorded/no_worker.txt ] || [ -e "$OUT/no_worker.txt" ]; }
without_worker && export MFULAB_WORKER=

# left: seconds until the whole command's time is over.
left() { echo $((LIMIT_S - SECONDS + BEGAN)); }

# part NAME SECONDS COMMAND …: its output and its end in the log; ended, with all that it started, after SECONDS, or once the
# whole command's time is over.
part() {
    local name=$1 limit=$(($2 * PATIENCE)) began=$SECONDS remaining status
    shift 2
    remaining=$(($(left) - ${KEEP:-0} * PATIENCE))
    [ "$remaining" -lt "$limit" ] && limit=$remaining
    echo "=== $name" >> "$LOG"
    if [ "$remaining" -lt 5 ]; then
        CUT=1
        echo "$name: left out, no time" | tee -a "$LOG"
        return 124
    fi
    timeout --kill-after=5 "$limit" "$@" >> "$LOG" 2>&1 &
    RUNNING=$!
    wait "$RUNNING"
    status=$?
    case $status in 124 | 137) CUT=1 ;; esac
    end_running # timeout forgets what outlives the process that it watches
    tail -n 3 "$LOG"
    echo "$name: status $status after $((SECONDS - began)) s" | tee -a "$LOG"
    return $status
}

end_running() {
    [ -n "$RUNNING" ] && kill -KILL -- "-$RUNNING" 2> /dev/null
    RUNNING=
}

# rows NAME SECONDS WORD …: an experiment's rows, each ended after 90 s. Its plan is kept under the item's name, too: of two plans of
# one experiment the later would be all that is recorded.
rows() {
    local name=$1 limit=$2 status word plan
    shift 2
    rm -rf .snakemake/locks
    part "$name" "$limit" snakemake --cores 1 --keep-going rows --config "$@" device="$DEVICE" replicates="$REPLICATES" \
        overrides="timing.time_limit_s=90 $ROWS"
    status=$?
    for word in "$@"; do
        for plan in results/*/plan/"${word#experiment=}.json"; do
            [ -e "$plan" ] && cp "$plan" "${plan%.json}-$name.json"
        done
    done
    return $status
}

# turn NAME SECONDS [--list]: an item's function, unless it is done, was cut off too often, or does not fit into the time.
turn() {
    local name=$1 needed=$(($2 * PATIENCE)) state=due
    carried done | grep -qx "$name" && state=done
    [ "$(carried begun | grep -cx "$name")" -ge "$TRIES" ] && [ $state = due ] && state="given up"
    if [ "${3:-}" = --list ]; then
        printf '%-14s %4d s  %s\n' "$name" "$2" "$state"
        return
    fi
    [ "$state" = due ] || return
    case $RESUMED in *" $name "*) needed=$((60 * PATIENCE)) ;; esac
    if [ "$(left)" -lt "$needed" ]; then
        echo "$name: takes $needed s, and $(left) s are left: a later command's" | tee -a "$LOG"
        return
    fi
    echo "$name" >> "$OUT/begun.txt"
    CUT=
    "$name"
    [ -n "$CUT" ] || echo "$name" >> "$OUT/done.txt"
}

# without_paths FILE …: a traceback names files, and logs go into the repository. The longest folder comes first, as one may lie
# in another.
without_paths() {
    local pairs folder name words=()
    pairs=$(printf '%s\n' "$SITE=SITE" "$PWD=." "$HOME=~" "${TMPDIR:-/tmp}=TMP" | awk '{ print length, $0 }' | sort -rn | cut -d" " -f2-)
    while IFS="=" read -r folder name; do
        [ ${#folder} -gt 1 ] && words+=(-e "s|${folder%/}\b|$name|g")
    done <<< "$pairs"
    sed -i "${words[@]}" "$@"
}

# Whatever ended the command: what there is goes with it, and replaces what was packed only once it is whole.
pack() {
    local names each
    end_running
    for each in dropped done begun; do
        names=$(carried $each | sort)
        [ -n "$names" ] && echo "$names" > "$OUT/$each.txt"
    done
    without_worker && touch "$OUT/no_worker.txt"
    without_paths "$OUT"/*.txt
    [ -d results ] || return 0
    tar czf - --exclude=trace.json.gz --exclude=tables --exclude=superseded --exclude=results/reference \
        results 2>> "$LOG" | split -b 15M -d - "$OUT/packing." || return 0
    rm -f "$OUT"/results.tgz.*
    for each in "$OUT"/packing.*; do mv "$each" "$OUT/results.tgz.${each##*.}"; done
}
trap pack EXIT
