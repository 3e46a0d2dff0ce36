#!/usr/bin/env bash
# No driver, every allocation and every launch failing in turn: the calls must end with an error of decant's, never
# with a crash, and without failures they must work.
#   run.sh RUN_SH CALLS_PROGRAM
set -euo pipefail
run=$1 program=$2

# under VARIABLE=VALUE: what the program says; its status is in `status`.
under() {
  status=0
  text=$(env "$1" "$run" "$program" 2>&1) || status=$?
}

under DECANT_PTX_NO_DRIVER=1
echo "no driver: $text"
[ $status -eq 3 ]
for what in ALLOCATION LAUNCH; do
  for n in $(seq 1 200); do
    under "DECANT_PTX_FAIL_$what=$n"
    [ $status -ne 0 ] || break
    echo "failing ${what,,} $n: $text"
    [ $status -eq 3 ]
  done
  [ $status -eq 0 ]  # there were fewer than that
  [ "$n" -gt 3 ]
done
