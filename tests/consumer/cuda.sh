#!/usr/bin/env bash
# Builds tests/consumer/main.cu as a downstream would, and runs it on the PTX interpreter.
#   cuda.sh plain|find_package NVCC RUN_SH BUILD_FOLDER_OF_DECANT
set -euo pipefail
way=$1 nvcc=$2 run=$3 build=$4
here=$(dirname "$(readlink -f "$0")")
work=$build/consumer/cuda_$way
rm -rf "$work"
mkdir -p "$work"

case $way in
  plain)
    # -no-compress is for the interpreter; a user needs no flag but the language.
    "$nvcc" -std=c++20 -arch=sm_90 -cudart shared -no-compress -I "$here/../../include" "$here/main.cu" -o "$work/consumer"
    "$run" "$work/consumer"
    ;;
  find_package)
    cmake --install "$build" --prefix "$work/prefix" >/dev/null
    cmake -S "$here/cmake_cuda" -B "$work/build" "-DCMAKE_CUDA_COMPILER=$nvcc" "-DCMAKE_PREFIX_PATH=$work/prefix"
    cmake --build "$work/build"
    "$run" "$work/build/consumer"
    ;;
  *)
    echo "unknown way: $way" >&2
    exit 2
    ;;
esac
