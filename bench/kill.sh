#!/bin/sh
# Kill `understudy proxy` at random moments, give the same command again, compare with an undisturbed run.
#   bench/kill.sh [KILLS] [SRC] [-- OPTIONS OF PROXY]      default: 200 kills, data/demo, --experts 16,8 --select random
# Every kill is followed by a check: DST is absent or complete. At the end the same command must give the same bytes.
set -eu
cd "$(dirname "$0")/.."
understudy=${US_COMMAND:-build/understudy}
kills=${1:-200}
src=${2:-data/demo}
[ $# -gt 2 ] && shift 3 || set -- --experts 16,8 --select random
work=$(mktemp -d "${TMPDIR:-/tmp}/understudy-kill.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

start=$(date +%s%N)
"$understudy" proxy "$src" "$work/clean" "$@" >/dev/null 2>&1
span=$(( ($(date +%s%N) - start) / 1000 )) # microseconds of one run
done_runs=0
i=0
killed=0
while [ "$killed" -lt "$kills" ]; do
    i=$((i + 1))
    [ "$i" -le $((20 * kills)) ] || { echo "too few kills hit: $killed of $i" >&2; exit 1; }
    # a moment between 0 and a bit more than a whole run, from a linear congruence: the same moments every time
    wait=$(( (i * 1103515245 + 12345) % 2147483648 * (span * 6 / 5) / 2147483648 ))
    "$understudy" proxy "$src" "$work/out" "$@" >/dev/null 2>&1 &
    pid=$!
    sleep "$(printf '%d.%06d' $((wait / 1000000)) $((wait % 1000000)))"
    if kill -9 "$pid" 2>/dev/null; then killed=$((killed + 1)); fi
    wait "$pid" 2>/dev/null || true
    if [ -e "$work/out" ]; then
        diff -r "$work/clean" "$work/out" >/dev/null || { echo "kill $i left a wrong result" >&2; exit 1; }
        if [ -e "$work/out.understudy-partial" ]; then "$understudy" proxy "$src" "$work/out" "$@" >/dev/null 2>&1; fi
        rm -rf "$work/out"
        done_runs=$((done_runs + 1))
    fi
done
"$understudy" proxy "$src" "$work/out" "$@" >/dev/null
diff -r "$work/clean" "$work/out"
echo "$killed kills, $done_runs runs that were complete, the same bytes after all of them"
