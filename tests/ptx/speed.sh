#!/usr/bin/env bash
# Prints how fast the interpreter is on one core: thread-instructions per second without and with checks, medians of five.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$PATH:/usr/local/cuda/bin nvcc -std=c++20 -O3 -arch=compute_90 -code=compute_90 -no-compress -cudart shared \
  -o "$work/speed" "$here/tests/speed.cu"
"$here/run.sh" --no-checks --counters "$work/counters" "$work/speed" >/dev/null
instructions=$(python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["thread_instructions"])' \
  "$work/counters")
for checks in --no-checks ''; do
  for _ in 1 2 3 4 5; do
    # shellcheck disable=SC2086  # nothing when checks are on
    "$here/run.sh" $checks "$work/speed"
  done | sort -n | sed -n 3p | awk -v n="$instructions" -v how="${checks:---checks}" \
    '{ printf "%-12s %.2f G thread-instructions/s (%.2f G in %.3f s)\n", how, n / $1 / 1e9, n / 1e9, $1 }'
done
