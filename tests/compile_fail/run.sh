#!/usr/bin/env bash
# Compiles one file twice: it must compile as it stands, and must not compile with -DMUST_FAIL, for the reason that its
# `// expect: REGEX` lines state (extended regular expressions, each must match the compiler's message).
#   run.sh FILE COMPILER FLAG...
set -euo pipefail
file=$1 compiler=$2
shift 2

"$compiler" "$@" -fsyntax-only "$file"

if message=$("$compiler" "$@" -fsyntax-only -DMUST_FAIL "$file" 2>&1); then
  echo "$file compiles with -DMUST_FAIL" >&2
  exit 1
fi
expectations=$(sed -n 's,^// expect: ,,p' "$file")
if [ -z "$expectations" ]; then
  echo "$file states no '// expect: REGEX'" >&2
  exit 1
fi
while read -r expected; do
  if ! grep -qE -- "$expected" <<<"$message"; then
    printf '%s: the message does not match "%s":\n%s\n' "$file" "$expected" "$message" >&2
    exit 1
  fi
done <<<"$expectations"
