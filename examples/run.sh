#!/usr/bin/env bash
# Sets up a Debian or Ubuntu machine, builds the example runtime, and lets the checkpoint in examples/model/ write: its
# text, and a table that compares the full cache with several policies.
#   examples/run.sh [--json FILE] [DECANT-GENERATE-ARGUMENT...]
# Arguments go to decant-generate; a model, prompt, composition or policy among them replaces the ones named below.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
# shellcheck source=cmake/setup.sh
. "$root/cmake/setup.sh"

need_packages g++ make cmake libcli11-dev nlohmann-json3-dev libeigen3-dev

# The programs run where the caller stands, so that relative paths mean what they say.
build_example "$root" decant-generate

compositions=(
  full
  evict=streaming:0.25
  evict=snapkv:0.25
  evict=capkv:0.25
  visibility=speed:0.75
  'visibility=speed:0.75 evict=capkv:0.25'
  attention=santa:n/16
)
defaults=()
if lacks --model "$@"; then defaults+=(--model "$root/examples/model"); fi
if lacks --prompt "$@"; then defaults+=(--prompt-file "$root/examples/model/prompt.txt"); fi
if lacks --compare "$@" && lacks --evict "$@" && lacks --visibility "$@" && lacks --attention "$@" && lacks --weights "$@" &&
  lacks --draft "$@"; then
  for composition in "${compositions[@]}"; do defaults+=(--compare "$composition"); done
fi
exec "$root/build/release/examples/runtime/decant-generate" "${defaults[@]}" "$@"
