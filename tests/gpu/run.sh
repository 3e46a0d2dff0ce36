#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds the CUDA tests and benchmarks, runs the tests on the device, once more under
# compute-sanitizer, and the benchmarks. Under eight minutes on 16 cores. Exits non-zero if anything failed.
#   tests/gpu/run.sh [OUT_FOLDER]     rows and logs go there (default build/gpu)
set -uo pipefail
here=$(pwd)
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit
out=${1:-build/gpu}
[[ $out == /* ]] || { [ $# -gt 0 ] && out=$here/$out; }
mkdir -p "$out"
export PATH=$PATH:/usr/local/cuda/bin

if ! nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader | tee "$out/device.txt"; then
  echo "tests/gpu/run.sh: no NVIDIA GPU here" >&2
  exit 2
fi

started=$SECONDS
say() { printf '=== %4d s  %s\n' $((SECONDS - started)) "$*"; }
failed=()

say "build"
architecture=$(cut -d, -f3 "$out/device.txt" | head -1 | tr -d ' .')
if ! { cmake --preset cuda -DDECANT_BUILD_BENCH=ON -DDECANT_GPU_CODE=ON "-DDECANT_GPU_ARCHITECTURE=$architecture" &&
  cmake --build build/cuda -j "$(nproc)" --target decant_cuda_programs; } >"$out/build.log" 2>&1; then
  tail -40 "$out/build.log"
  exit 1
fi

for program in build/cuda/tests/cuda/test_cuda_*; do
  name=$(basename "$program")
  say "$name"
  timeout 120 "$program" >"$out/$name.log" 2>&1 || { failed+=("$name"); tail -30 "$out/$name.log"; }
  tail -3 "$out/$name.log"
done

for program in build/cuda/tests/cuda/test_cuda_*; do
  for tool in memcheck racecheck; do
    [ $((SECONDS - started)) -lt 330 ] || { say "no time left for $tool on $(basename "$program"): SKIPPED"; continue; }
    name=$tool-$(basename "$program")
    say "$name"
    timeout 90 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" >"$out/$name.log" 2>&1
    code=$?
    if [ $code -eq 124 ]; then
      say "$name: SKIPPED, ran past 90 s"
    elif [ $code -ne 0 ]; then
      failed+=("$name")
      grep -m 20 '=========' "$out/$name.log"
    fi
  done
done

mkdir -p "$out/rows"
for program in build/cuda/bench/*/*_cuda; do
  [ -x "$program" ] || continue
  name=$(basename "$(dirname "$program")")_$(basename "$program")
  say "bench $name"
  timeout 60 "$program" --rows "$out/rows/$name.jsonl" >"$out/$name.log" 2>&1 || { failed+=("$name"); tail -20 "$out/$name.log"; }
done
python3 bench/report.py --json "$out/rows.json" --report "$out/RESULTS.md" "$out"/rows/*.jsonl || failed+=(report)

say "done"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
