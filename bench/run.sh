#!/usr/bin/env bash
# Sets up a Debian or Ubuntu machine, builds the benchmarks, runs them, and writes the rows and their report.
#   bench/run.sh [--family FAMILY] [--quick] [--json FILE] [--report FILE] [BENCHMARK-FLAG...]
# --json: one array, one object a row (default build/rows.json). The report, bench/RESULTS.md with its plots, is
# renewed, for the families that run, by runs without --quick and further flags, which go to Google Benchmark; --report
# FILE writes it elsewhere. Libraries outside the system (ggml, PyTorch) are found through the environment's
# CMAKE_PREFIX_PATH=GGML-INSTALL-FOLDER:.../site-packages/torch.
set -euo pipefail
here=$(pwd)
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
# shellcheck source=cmake/setup.sh
. cmake/setup.sh

absolute() { case $1 in /*) echo "$1" ;; *) echo "$here/$1" ;; esac; }

family='*' quick=() json=build/rows.json report='' flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --family) family=${2:?--family needs a name}; shift 2 ;;
    --json) json=$(absolute "${2:?--json needs a file}"); shift 2 ;;
    --report) report=$(absolute "${2:?--report needs a file}"); shift 2 ;;
    --quick) quick=(--quick); shift ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) flags+=("$1"); shift ;;
  esac
done
if [ -z "$report" ] && [ ${#quick[@]} -eq 0 ] && [ ${#flags[@]} -eq 0 ]; then
  report=bench/RESULTS.md
fi

need_packages g++ make cmake python3 libbenchmark-dev libopenblas-dev libeigen3-dev nlohmann-json3-dev \
  libzstd-dev liblz4-dev libblosc-dev libdnnl-dev
cmake --preset release >/dev/null
cmake --build build/release -j "$(jobs)" --target decant_bench

rm -rf build/rows
mkdir -p build/rows "$(dirname "$json")"
found=0 failed=()
for program in build/release/bench/*/*; do
  # shellcheck disable=SC2053  # the family may be a pattern
  if [[ ! -f $program || ! -x $program || $(basename "$(dirname "$program")") != $family ]]; then
    continue
  fi
  found=1
  name=$(basename "$(dirname "$program")")_$(basename "$program")
  # Peers run on as many threads as decant does in a row: one, unless the row's context says otherwise. OpenBLAS's wait
  # for work in a busy loop, into the turns of others, unless told to stop after 2^20 ticks.
  OPENBLAS_NUM_THREADS=1 OPENBLAS_THREAD_TIMEOUT=20 "$program" --rows "build/rows/$name.jsonl" "${quick[@]}" "${flags[@]}" || failed+=("$name")
done
if [ $found -eq 0 ]; then
  echo "bench/run.sh: no benchmark of family '$family'" >&2
  exit 2
fi

python3 bench/report.py --json "$json" ${report:+--report "$report"} build/rows/*.jsonl
if [ ${#failed[@]} -gt 0 ]; then
  echo "bench/run.sh: failed: ${failed[*]}" >&2
  exit 1
fi
