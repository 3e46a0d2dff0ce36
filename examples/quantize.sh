#!/usr/bin/env bash
# Sets up a Debian or Ubuntu machine, builds decant-quantize, and packs the checkpoint in examples/model/ by each of many
# weight quantizers: a table of bits per weight against KL, EAR and bits per byte.
#   examples/quantize.sh [--json FILE] [DECANT-QUANTIZE-ARGUMENT...]
# Arguments go to decant-quantize; --model, and --compare or --weights, among them replace what is named below.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
# shellcheck source=cmake/setup.sh
. "$root/cmake/setup.sh"

need_packages g++ make cmake libcli11-dev nlohmann-json3-dev libeigen3-dev
build_example "$root" decant-quantize

rows=(stored rtn4 nf4 if4 nvfp4 mxfp4 q4_0 iq4_nl awq4 gptq4 aaac4 awq+aaac4 gptq+aaac4 aaac4-nvfp4
  rtn2 gptq2 osaq+gptq2 rtn3 gptq3 osaq+gptq3 gptq5 gptq6 gptq7 gptq8 slq:ear=0.99)
defaults=()
if lacks --threads "$@"; then defaults+=(--threads "$(jobs)"); fi
if lacks --model "$@"; then defaults+=(--model "$root/examples/model"); fi
if lacks --compare "$@" && lacks --weights "$@"; then
  for row in "${rows[@]}"; do defaults+=(--compare "$row"); done
fi
exec "$root/build/release/examples/runtime/decant-quantize" "${defaults[@]}" "$@"
