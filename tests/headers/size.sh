#!/usr/bin/env bash
# Bounds the preprocessed size of each public header: compile time as a number that is the same on every run.
#   size.sh INCLUDE_FOLDER COMPILER FLAG...
# The bounds are for libstdc++ 12; with another standard library the sizes are printed and the test is skipped (77).
# What sets them: <stdexcept> is 670 kB, with <cmath> and <vector> 1,075 kB, with <algorithm> too 1,392 kB;
# <immintrin.h> 1,360 kB, which headers with SIMD kernels are granted on top; Eigen/Core 3.6 MB,
# Eigen/Eigenvalues 4.1 MB.
set -euo pipefail
include=$1
shift
compile=("$@")

preprocess() { "${compile[@]}" -E -P -x c++ -; }

release=$(echo '#include <version>
release _GLIBCXX_RELEASE' | preprocess | awk '/^release/ { print $2 }')
fail=0
printf '%9s %9s  header\n' bytes bound
while read -r header; do
  case $header in
    decant/config.hpp | decant/version.hpp) bound=1000 ;;
    decant/core/*) bound=750000 ;;
    decant/interop/*) bound=4500000 ;;
    decant/decant.hpp) bound=3150000 ;;
    decant/scheduling/* | decant/speculative/*) bound=1500000 ;;  # host machinery with <cmath>, <vector> and <algorithm>
    decant/stack.hpp) bound=1750000 ;;
    *) bound=1250000 ;;
  esac
  if ! text=$(echo "#include <$header>" | preprocess 2>/dev/null); then
    if [[ $header == decant/interop/* ]]; then
      echo "  not measured       $header (wants a library or a flag of its own)"
    else
      echo "  not preprocessed   $header"
      fail=1
    fi
    continue
  fi
  if [[ $text == *"namespace Eigen"* && $header != decant/decant.hpp ]]; then
    bound=4500000
  fi
  if [[ $text == *"typedef long long __m512i"* ]]; then
    bound=$((bound + 1360000))
  fi
  note=''
  if [ ${#text} -gt "$bound" ]; then
    note='  <- too large'
    fail=1
  fi
  printf '%9d %9d  %s%s\n' ${#text} "$bound" "$header" "$note"
done < <(cd "$include" && find decant -name '*.hpp' -not -path '*/detail/*' | sort)

if [ "$release" != 12 ]; then
  echo "SKIPPED: the bounds are for libstdc++ 12, this is ${release}"
  exit 77
fi
exit $fail
