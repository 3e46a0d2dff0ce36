#!/usr/bin/env bash
# bugs.sh RUN PROGRAM: every bug of bugs.cu is reported in the default order or under a seed, no clean twin ever.
set -euo pipefail
run=$1 program=$2
failed=0 found=0 clean=0
while read -r kind name; do
  reported=
  for seed in 0 1 2 3; do
    if ! "$run" --seed $seed "$program" "$name" >/dev/null 2>&1; then
      reported+=" $seed"
      [ "$kind" = clean ] || break
    fi
  done
  if [ "$kind" = bug ] && [ -z "$reported" ]; then
    echo "not reported: $name"
    failed=1
  elif [ "$kind" = clean ] && [ -n "$reported" ]; then
    echo "reported without cause: $name (seeds$reported)"
    failed=1
  elif [ "$kind" = bug ]; then
    found=$((found + 1))
  else
    clean=$((clean + 1))
  fi
done < <(DECANT_PTX_CHECKS=0 "$run" "$program" --list)
echo "$found bugs found, $clean clean kernels left alone"
[ $found -ge 17 ] && [ $clean -ge 3 ] || failed=1
exit $failed
