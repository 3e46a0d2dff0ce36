#!/usr/bin/env bash
# Runs a CUDA program on the PTX interpreter, without a GPU.
#   tests/ptx/run.sh [--seed N] [--no-checks] [--counters FILE] PROGRAM [ARGUMENT...]
# The program must have been built with `nvcc -cudart shared -no-compress` and contain PTX. Anything that the checks
# find is printed, and makes the exit status non-zero even where the program's own is zero.
#   --seed N         another order of blocks, warps and lanes (0: the default order)
#   --no-checks      no checks of races, bounds and initialisation: about ten times as fast
#   --counters FILE  appends a line of JSON per kernel: instructions, bytes, sectors, bank conflicts
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

while [ $# -gt 0 ]; do
  case $1 in
    --seed) export DECANT_PTX_SEED=${2:?--seed needs a number}; shift 2 ;;
    --no-checks) export DECANT_PTX_CHECKS=0; shift ;;
    --counters) DECANT_PTX_COUNTERS=$(realpath "${2:?--counters needs a file}"); export DECANT_PTX_COUNTERS; shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "$0: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { sed -n '3p' "$0" >&2; exit 2; }

# Tests name the folder with the stand-in; everybody else gets it built.
if [ -z "${DECANT_PTX_LIBRARY_FOLDER:-}" ]; then
  build=${DECANT_PTX_BUILD:-$here/../../build/ptx}
  mkdir -p "$build"
  build=$(readlink -f "$build")
  log=$build/build.log
  (
    flock 9
    { [ -f "$build/CMakeCache.txt" ] || cmake -S "$here" -B "$build"; } >"$log" 2>&1 &&
      cmake --build "$build" --target ptx_cudart -j "${DECANT_PTX_JOBS:-$(nproc)}" >>"$log" 2>&1
  ) 9>"$build/lock" || { cat "$log" >&2; exit 2; }
  DECANT_PTX_LIBRARY_FOLDER=$build/lib
fi
if [ ! -e "$DECANT_PTX_LIBRARY_FOLDER/libcudart.so.13" ]; then
  echo "$0: no libcudart.so.13 in $DECANT_PTX_LIBRARY_FOLDER (are the CUDA toolkit's headers there?)" >&2
  exit 2
fi

DECANT_PTX_REPORTS=$(mktemp)
export DECANT_PTX_REPORTS
trap 'rm -f "$DECANT_PTX_REPORTS"' EXIT

status=0
LD_LIBRARY_PATH=$DECANT_PTX_LIBRARY_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@" || status=$?
if [ -s "$DECANT_PTX_REPORTS" ]; then
  echo "$0: $(wc -l <"$DECANT_PTX_REPORTS") reports" >&2
  [ "$status" -ne 0 ] || status=1
fi
exit "$status"
