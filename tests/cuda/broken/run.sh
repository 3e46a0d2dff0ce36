#!/usr/bin/env bash
# The checker is checked: with any one __syncthreads taken out of decant's block sums the program must fail on the
# interpreter with a race, and with all of them it must not.
#   run.sh NVCC RUN_SH WORK_FOLDER
set -euo pipefail
nvcc=$1 run=$2 work=$3
here=$(dirname "$(readlink -f "$0")")
source=$(readlink -f "$here/../../..")
rm -rf "$work"
mkdir -p "$work"

# build OUT: block_sum.cu against the headers in $work/include.
build() {
  "$nvcc" -std=c++20 -O2 -gencode arch=compute_90,code=compute_90 -no-compress -cudart shared -I "$work/include" \
    "$here/block_sum.cu" -o "$work/$1"
}

cp -r "$source/include" "$work/include"
header=include/decant/core/detail/device.cuh
count=$(grep -c '__syncthreads();' "$source/$header")
[ "$count" -ge 4 ]
build whole
"$run" "$work/whole"
for n in $(seq "$count"); do
  awk -v n="$n" '/__syncthreads\(\);/ && ++seen == n { next } { print }' "$source/$header" >"$work/$header"
  build "without_$n"
  caught=0
  for seed in 0 1 2 3; do
    if ! "$run" --seed "$seed" "$work/without_$n" >"$work/without_$n.log" 2>&1; then
      grep -qi race "$work/without_$n.log"
      caught=1
      break
    fi
  done
  if [ $caught -eq 0 ]; then
    echo "without barrier $n of $header nothing was found" >&2
    exit 1
  fi
  echo "without barrier $n: $(grep -i -m 1 race "$work/without_$n.log")"
done
