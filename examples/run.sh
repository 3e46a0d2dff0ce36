#!/usr/bin/env bash
# Sets up a Debian or Ubuntu machine, builds the example runtime, and lets the checkpoint in examples/model/ write: its
# text, and a table that compares the full cache with several policies.
#   examples/run.sh [--json FILE] [DECANT-GENERATE-ARGUMENT...]
# Arguments go to decant-generate; a prompt, composition or policy among them replaces the ones named below.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
# shellcheck source=cmake/setup.sh
. "$root/cmake/setup.sh"

need_packages g++ make cmake libcli11-dev nlohmann-json3-dev

# The build talks only when it fails. The programs run where the caller stands, so that relative paths mean what they say.
mkdir -p "$root/build"
log=$root/build/examples.log
echo "building decant-generate (log: $log)"
if ! { (cd "$root" && cmake --preset release) && cmake --build "$root/build/release" -j "$(jobs)" --target decant-generate; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi

compositions=(
  full
  evict=streaming:0.25
  evict=snapkv:0.25
  evict=capkv:0.25
  visibility=speed:0.75
  'visibility=speed:0.75 evict=capkv:0.25'
  attention=santa:n/16
)
defaults=(--model "$root/examples/model")
case " $* " in
  *' --prompt'*) ;;
  *) defaults+=(--prompt-file "$root/examples/model/prompt.txt") ;;
esac
case " $* " in
  *' --compare'* | *' --evict'* | *' --visibility'* | *' --attention'*) ;;
  *) for composition in "${compositions[@]}"; do defaults+=(--compare "$composition"); done ;;
esac
exec "$root/build/release/examples/runtime/decant-generate" "${defaults[@]}" "$@"
