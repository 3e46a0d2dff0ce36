#!/usr/bin/env bash
# Sets up a Debian or Ubuntu machine, builds decant's tests and runs them all.
#   tests/run.sh [--preset release|debug|clang|asan|tsan|cuda] [-j JOBS] [CTEST-ARGUMENT...]
# Further arguments go to ctest, as `-R kv` or `-L unit`. Extra CMake arguments can stand in DECANT_CMAKE_ARGS.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
# shellcheck source=cmake/setup.sh
. cmake/setup.sh

preset=release
jobs=$(jobs)
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --preset=*) preset=${1#*=}; shift ;;
    -j) jobs=${2:?-j needs a number}; shift 2 ;;
    -j*) jobs=${1#-j}; shift ;;
    -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) break ;;
  esac
done

packages=(g++ make cmake pkg-config python3 catch2 libeigen3-dev libtbb-dev libcli11-dev nlohmann-json3-dev)
case $preset in
  clang) packages+=(clang libomp-dev) ;;
  asan) packages+=(clang libomp-dev libclang-rt-dev) ;;
esac
need_packages "${packages[@]}"

if [ "$preset" = cuda ] && ! PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then
  echo "tests/run.sh: the preset cuda needs nvcc, from NVIDIA's CUDA toolkit 13" >&2
  exit 1
fi

read -r -a extra <<<"${DECANT_CMAKE_ARGS:-}"
cmake --preset "$preset" "${extra[@]}"
cmake --build "build/$preset" -j "$jobs"
ctest --preset "$preset" -j "$jobs" "$@"

# A test that could not run here must not look like one that passed.
log=build/$preset/Testing/Temporary/LastTest.log
if grep -q '^SKIPPED: ' "$log"; then
  echo "Skipped inside passing programs:"
  grep -h '^SKIPPED: ' "$log" | sort | uniq -c
fi
