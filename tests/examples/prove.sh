#!/usr/bin/env bash
# decant-prove as a user runs it: a proof, a refutation, JSON, and wrong arguments.
#   prove.sh DECANT_PROVE
set -euo pipefail
prove=$(readlink -f "$1")

# says CODE TEXT ARGUMENT...: it must end with this code and say this.
says() {
  local code=0 expected=$1 text=$2 said
  shift 2
  said=$("$prove" "$@" 2>&1) || code=$?
  if [ "$code" -ne "$expected" ] || ! grep -qF -- "$text" <<<"$said"; then
    echo "decant-prove $*: exit code $code, wanted $expected and \"$text\"" >&2
    echo "$said" >&2
    exit 1
  fi
}

example=(--p "1/2,1/3,1/6" --q "1/6,1/2,1/3")
other=(--p "1/2,1/4,1/4" --q "1/8,1/8,3/4")
says 0 'E[tau] = 29/18' --tree 2,2 --law greedy_plus_one --verifier univer "${example[@]}"
says 0 'E[tau] = 2 ' --tree 2,1,1 --law greedy_plus_one --verifier univer-paper "${example[@]}"
says 0 '341/216' --tree 1,1,1 --law chain --verifier block "${example[@]}"
says 0 '22705/20736' --tree 2,2 --law iid --verifier kseq --rho 2 "${example[@]}"
says 0 "the target's, exactly" --tree 2 --law deterministic --verifier membership "${example[@]}"
says 3 'NOT the target' --tree 2 --law deterministic --verifier kseq --rho 2 "${example[@]}"
says 3 'takes the draft for iid' --tree 2 --law without_replacement --verifier multi-round "${other[@]}"
says 2 '--p' --p 1/2,1/3
says 2 '--q' --q 1/2,1/2
says 2 '--q' --q 0.1,0.9
says 2 '--law' --law greedy
says 2 '--verifier' --verifier typical
says 2 '--tree' --tree 9
says 2 '--tree' --tree 3,3,3
says 2 '--rho' --verifier kseq
"$prove" --json "${example[@]}" | python3 -c '
import json, sys
j = json.load(sys.stdin)
assert j["lossless"] and j["expected_length"] == "29/18" and len(j["pass_mass"]) == 7, j'
