#!/usr/bin/env bash
# decant-sim as a user runs it: a golden run, a comparison with a plot, the three trace formats, and wrong arguments.
#   sim.sh DECANT_SIM
set -euo pipefail
sim=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# says CODE TEXT ARGUMENT...: it must end with this code and say this.
says() {
  local code=0 expected=$1 text=$2 said
  shift 2
  said=$("$sim" "$@" 2>&1) || code=$?
  if [ "$code" -ne "$expected" ] || ! grep -qF -- "$text" <<<"$said"; then
    echo "decant-sim $*: exit code $code, wanted $expected and \"$text\"" >&2
    echo "$said" >&2
    exit 1
  fi
}

golden=(--generator integer --seed 42 --gap 200000000 --requests 400 --kv 16384 --maxseq 256 --budget 512)
"$sim" "${golden[@]}" --policy fcfs --json - | python3 -c '
import json, sys
j = json.load(sys.stdin)
want = {"makespan_ns": 103613683673, "steps": 3717, "preemptions": 727, "sum_ttft_ns": 12128537468640,
        "sum_e2e_ns": 13531688666343}
assert all(j[k] == v for k, v in want.items()) and len(j["digest"]) == 16, j'

"$sim" "${golden[@]}" --json "$work/runs.json" --plot "$work/plot.svg" \
  --policy fcfs,sjf,sjf-aged,shortest-prefill,mc-fcfs,mc-sf,prefill-first,sarathi,priority,fair-share >"$work/table"
grep -q '| mc-sf .* 71.94 ' "$work/table"
python3 - "$work/runs.json" "$work/plot.svg" <<'PYTHON'
import json, sys, xml.dom.minidom
runs = json.load(open(sys.argv[1]))
assert len(runs) == 10 and len({r["digest"] for r in runs}) > 5
assert len(xml.dom.minidom.parse(sys.argv[2]).getElementsByTagName("polyline")) == 30
PYTHON

printf 'TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n' >"$work/azure.csv"
printf 'Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,API log\n' >"$work/burst.csv"
printf '{"timestamp": 0, "input_length": 1030, "output_length": 52, "hash_ids": [0, 1, 2]}\n{"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}\n' >"$work/mooncake.jsonl"
says 0 '| fcfs ' --trace "$work/azure.csv" --policy fcfs
says 0 '| fcfs ' --trace "$work/burst.csv" --trace-format burstgpt --policy fcfs
says 0 '| fcfs ' --trace "$work/mooncake.jsonl" --trace-format mooncake --policy fcfs
says 2 'azure.csv:1' --trace "$work/azure.csv" --trace-format burstgpt
says 2 'burst.csv' --trace "$work/burst.csv"
says 2 'none.csv' --trace "$work/none.csv"
says 0 '| fcfs ' --generator poisson --requests 50 --policy fcfs
says 0 '| fcfs ' --generator sessions --requests 50 --policy fcfs --cost additive --device h200 --predict none
says 0 'larger than memory' --kv 1000 --policy fcfs
"$sim" --generator sessions --requests 80 --reuse --kv 40000 --json "$work/reuse.json" \
  --policy fcfs,lpm,dfs-weight,hrrn,feather-rule,feather-ucb,feather-model >/dev/null
python3 -c '
import json, sys
runs = json.load(open(sys.argv[1]))
assert all(r["prefix_hit_tokens"] > 0 and r["output_tokens"] == runs[0]["output_tokens"] for r in runs), runs' "$work/reuse.json"
says 0 '| lpm ' --trace "$work/mooncake.jsonl" --trace-format mooncake --policy lpm --reuse --block 512
says 2 '--kv' --reuse --kv 10
says 2 '--policy' --policy nope
says 2 '--prompt' --generator gamma --prompt zipf
says 2 '--device' --device abacus
says 2 '--generator' --generator chaos
says 2 '--json' --json /nonexistent/file.json
