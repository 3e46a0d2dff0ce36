#!/usr/bin/env bash
# kv-pack as a user runs it: what goes in comes out bit for bit; damaged files and wrong options are refused, and
# nothing half-written is left.
#   kv_pack.sh KV_PACK MODEL_FOLDER
set -euo pipefail
pack=$(readlink -f "$1") model=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# refused CODE TEXT ARGUMENT...: kv-pack must end with this code, say this, and change no file here.
refused() {
  local code=0 expected=$1 text=$2 before
  shift 2
  before=$(cksum -- *)
  "$pack" "$@" >said 2>&1 || code=$?
  if [ "$code" -ne "$expected" ] || ! grep -q -- "$text" said; then
    echo "kv-pack $*: exit code $code, wanted $expected and \"$text\"" >&2
    cat said >&2
    exit 1
  fi
  rm said
  [ "$before" = "$(cksum -- *)" ] || { echo "kv-pack $* changed files" >&2; exit 1; }
}

# flip FILE OFFSET BIT
flip() {
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1")
  printf '%b' "\\x$(printf %x $((byte ^ 1 << $3)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

for dtype in bf16 f32 f16 e4m3 e5m2; do
  "$pack" dump --model "$model" --prompt-file "$model/prompt.txt" --kv-dtype $dtype dump.$dtype
  "$pack" pack dump.$dtype packed.$dtype
  "$pack" verify packed.$dtype
  "$pack" unpack packed.$dtype again.$dtype
  cmp dump.$dtype again.$dtype
done
[ "$(stat -c %s packed.bf16)" -lt $(($(stat -c %s dump.bf16) * 3 / 4)) ]

"$pack" pack --model "$model" --chunk 256 dump.bf16 described --json pack.json
"$pack" pack --model "$model" --chunk 256 dump.bf16 described.again
cmp described described.again
"$pack" unpack described again.bf16
cmp dump.bf16 again.bf16
"$pack" inspect --entropy --json inspect.json described >table
[ "$(grep -c 'splitzip-bf16 |' table)" -eq 16 ]
grep -q '"escape_rate"' inspect.json
rm again.* table

size=$(stat -c %s packed.bf16)
for cut in 0 63 80 1000 $((size / 2)) $((size - 1)); do
  head -c "$cut" packed.bf16 >damaged
  for verb in verify inspect; do refused 1 damaged $verb damaged; done
  refused 1 damaged unpack damaged out
done
for i in $(seq 0 24); do
  cp packed.bf16 damaged
  flip damaged $((i < 5 ? i * 300 : size * i / 25)) $((i % 8))
  refused 1 damaged verify damaged
  refused 1 damaged unpack damaged out
done
# What was there before a failure is there after it.
echo precious >out
refused 1 damaged unpack damaged out
refused 1 damaged pack damaged out
[ "$(cat out)" = precious ]

head -c 5000 dump.bf16 >damaged
refused 1 damaged pack damaged out2
refused 1 'layers.0.k' pack "$model/model.safetensors" out2
refused 1 'No such file' verify nothing
refused 1 'No such file' pack nothing out2
refused 2 'power of two' pack --chunk 100 dump.bf16 out2
refused 2 'kv-dtype' dump --model "$model" --prompt-file "$model/prompt.txt" --kv-dtype f64 out2
refused 2 'a file in a folder' unpack packed.bf16 no/folder/out
refused 2 subcommand
refused 2 'OUT is required' unpack packed.bf16
