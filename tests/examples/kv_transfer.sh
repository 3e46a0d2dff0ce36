#!/usr/bin/env bash
# kv-transfer as a user runs it: both sides here, two programs over a Unix socket, and one of them killed.
#   kv_transfer.sh KV_TRANSFER MODEL_FOLDER
set -euo pipefail
transfer=$(readlink -f "$1") model=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prompt=(--prompt-file "$model/prompt.txt")
decode=("$transfer" --model "$model" --listen "unix:$work/socket" --timeout 60)
prefill=("$transfer" --model "$model" "${prompt[@]}" --connect "unix:$work/socket" --timeout 60)

# It checks by itself that every cache is bit-identical, and that its text is the text without a transfer.
"$transfer" --model "$model" "${prompt[@]}" --max-tokens 40 --runs 1 --synthetic 3,2,100,64 --synthetic 1,1,1,1 \
  --bandwidth 1e8 --json "$work/json" >"$work/self"
[ "$(grep -c '"bit_identical": true' "$work/json")" -eq 3 ]

for codec in splitzip stored; do
  "${decode[@]}" --max-tokens 40 >"$work/text" &
  "${prefill[@]}" --codec $codec
  wait $!
  size=$(stat -c %s "$work/text")
  [ "$size" -ge 41 ]
  cmp -n "$size" "$work/text" "$work/self"
done

# failed PID TEXT: the process must end with 1, say this, and print nothing.
failed() {
  local code=0
  wait "$1" || code=$?
  if [ $code -ne 1 ] || ! grep -q "$2" "$work/said" || [ -s "$work/text" ]; then
    echo "exit code $code, wanted 1 and \"$2\":" >&2
    cat "$work/said" "$work/text" >&2
    exit 1
  fi
}

"${decode[@]}" >"$work/text" 2>"$work/said" &
survivor=$!
"${prefill[@]}" --bandwidth 2e5 2>/dev/null &  # twelve seconds
victim=$!
sleep 3
kill -KILL $victim
failed $survivor 'no cache was received'
wait $victim || true

: >"$work/text"
"${decode[@]}" >/dev/null 2>&1 &
victim=$!
"${prefill[@]}" --bandwidth 2e5 >"$work/text" 2>"$work/said" &
survivor=$!
sleep 3
kill -KILL $victim
wait $victim || true
failed $survivor 'send\|confirm'

# A model that is another.
mkdir "$work/other"
sed 's/"rope_theta": 100000.0/"rope_theta": 50000.0/' "$model/config.json" >"$work/other/config.json"
cp "$model/model.safetensors" "$work/other"
rm -f "$work/socket"  # a killed listener cannot take its name away
"$transfer" --model "$work/other" --listen "unix:$work/socket" >"$work/text" 2>"$work/said" &
survivor=$!
"${prefill[@]}" 2>/dev/null && exit 1
failed $survivor 'rope_mismatch'

# A prompt that leaves no room for the text.
"${decode[@]}" --max-tokens 500 >"$work/text" 2>"$work/said" &
survivor=$!
"${prefill[@]}" 2>/dev/null && exit 1
failed $survivor "the sender's prompt"

refused() {
  local code=0
  "$transfer" "$@" >"$work/said" 2>&1 || code=$?
  [ $code -eq 2 ] || { echo "kv-transfer $*: exit code $code, wanted 2" >&2; exit 1; }
}
refused
refused --synthetic 1,2,3
refused --synthetic 1,2,3,0.5
refused --listen 127.0.0.1:0 --connect 127.0.0.1:1 --model "$model"
refused --model "$model" --listen nonsense
refused --model "$model" "${prompt[@]}" --bandwidth -1
