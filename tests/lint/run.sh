#!/usr/bin/env bash
# Rules that no compiler checks, over all files of the repository. Prints each breach as FILE:LINE:TEXT under its rule.
# An exception is a line "RULE FILE REASON..." of tests/lint/allow.txt.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  mapfile -t files < <(git -c safe.directory='*' ls-files --cached --others --exclude-standard | sort -u)
else
  mapfile -t files < <(find . -path ./build -prune -o -type f -print | sed 's,^\./,,' | sort)
fi

breaches=0

# select PATTERN: the repository's files whose path matches.
select_files() {
  local file
  for file in "${files[@]}"; do
    if [[ $file =~ $1 && -f $file ]]; then
      printf '%s\n' "$file"
    fi
  done
}

# report RULE WHY: prints the lines on stdin (FILE:LINE:TEXT) that allow.txt does not excuse.
report() {
  local rule=$1 why=$2 line found=0
  while IFS= read -r line; do
    if grep -qE "^$rule ${line%%:*} ." tests/lint/allow.txt; then
      continue
    fi
    [ $found -eq 1 ] || echo "$rule: $why"
    found=1
    breaches=$((breaches + 1))
    echo "  $line"
  done
}

# forbid RULE WHY PATHS REGEX: no line of the files whose path matches PATHS may match REGEX.
forbid() {
  local paths
  mapfile -t paths < <(select_files "$3")
  if [ ${#paths[@]} -gt 0 ]; then
    report "$1" "$2" < <(grep -nHE -- "$4" "${paths[@]}" || true)
  fi
}

text='\.(hpp|cpp|cuh|cu|cmake|txt|md|sh|py|json|in|inc)$'
headers='^include/decant/.*\.(hpp|cuh)$'
shared_headers='^include/decant/([^i/][^/]*/|[^/]+$).*|^include/decant/[^/]*\.hpp$'

forbid slow-include 'costs every user compile time, or does not work on every compiler' "$shared_headers" \
  '^ *# *include <(random|iostream|ostream|istream|fstream|sstream|iomanip|memory|functional|ranges|span|format|expected|source_location|regex|filesystem)>'
forbid cuda-in-hpp 'a .hpp never includes a CUDA header' '^include/.*\.hpp$' '^ *# *include <(cuda|cub/|thrust/|cooperative_groups|mma\.h)'
forbid eigen-umbrella 'include the Eigen module that is used, nothing unsupported' '^include/' \
  '^ *# *include <(unsupported/Eigen|Eigen/(Dense|Eigen|Sparse)>)'
forbid foreign-macro 'macros start with DECANT_' "$headers" '^ *# *define +([^D ]|D[^E]|DE[^C])'
forbid using-namespace 'no using-directive at namespace scope in a header' "$headers" '^using namespace '
mapfile -t parallel < <(select_files '^tests/(unit/(attention|codec|core|kv|quant|stack)|conformance)/.*\.cpp$' |
  xargs grep -lE '(real|reversed)_threads\(|std::thread\b')
report threads-tag 'a case on several threads says [threads]: ThreadSanitizer runs these' < <(
  grep -LF '[threads]' "${parallel[@]}" | sed 's/$/:1:/' || true)
forbid stack-in-family 'nothing in a family includes the stack' '^include/decant/[a-z]+/' '^ *# *include .*[/"<]stack\.hpp'
forbid core-upwards 'core includes only core' '^include/decant/core/' \
  '^ *# *include "(\.\./)+(attention|kv|quant|codec|speculative|sampling|scheduling|interop)/'
forbid catch-directly 'tests include catch_compat.hpp' '^(tests|examples)/.*\.(cpp|hpp|cu)$' '^ *# *include [<"]catch2/'
forbid unfinished 'no unfinished work' '^(include|examples|tests|bench|cmake)/.*\.(hpp|cpp|cuh|cu|cmake|py)$|CMakeLists\.txt$' \
  '(//|#).*\b(TODO|FIXME|XXX|HACK)\b'
forbid white-space 'no tab, carriage return or blank at a line end' "^[^.].*$text" $'\t|\r| $'

opening() {
  local file
  for file in $(select_files "$headers"); do
    case $(head -c 3 "$file") in
      '// ') ;;
      *) echo "$file:1:$(head -n 1 "$file")" ;;
    esac
    if [ -n "$(tail -c 1 "$file")" ]; then
      echo "$file:$(wc -l <"$file"):no newline at the end"
    fi
    grep -qE '^#pragma once|^#ifndef DECANT_.*_(HPP|CUH)$' "$file" || echo "$file:1:no include guard"
  done
}
report header-opening 'a header opens with a comment on what it is, and has a guard' < <(opening)

guards() {
  mapfile -t paths < <(select_files "$headers")
  [ ${#paths[@]} -eq 0 ] || grep -hE '^#ifndef DECANT_.*_(HPP|CUH)$' "${paths[@]}" | sort | uniq -d | sed 's,^,include:1:,'
}
report unique-guard 'two headers share a guard' < <(guards)

versions() {
  local part version=''
  for part in MAJOR MINOR PATCH; do
    version+=.$(sed -n "s/^#define DECANT_VERSION_$part //p" include/decant/version.hpp)
  done
  version=${version#.}
  grep -qE "^## \[?$version" CHANGELOG.md || echo "CHANGELOG.md:1:has no section for $version"
  grep -noE 'find_package\(decant [0-9.]+' README.md | grep -v "(decant ${version%.*}\b" | sed 's,^,README.md:,' || true
}
report version 'the version is the one in version.hpp' < <(versions)

scripts() {
  local paths
  command -v shellcheck >/dev/null || { echo 'SKIPPED: shellcheck is not installed' >&2; return; }
  mapfile -t paths < <(select_files '\.sh$|^\.ci/run$')
  shellcheck -x -f gcc "${paths[@]}" || true
}
report shellcheck 'shell scripts are clean' < <(scripts)

links() {
  local file target
  for file in $(select_files '\.md$'); do
    { grep -noE '\]\([^)#:]+(#[^)]*)?\)' "$file" || true; } | while IFS=: read -r line target; do
      target=${target#](}
      target=${target%)}
      target=${target%%#*}
      [ -e "$(dirname "$file")/$target" ] || echo "$file:$line:$target"
    done
  done
}
report dead-link 'a link in the documentation leads nowhere' < <(links)

echo "lint: ${#files[@]} files, $breaches breaches"
[ $breaches -eq 0 ]
