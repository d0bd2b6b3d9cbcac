#!/bin/bash
# tests/bench/bench_reshard.sh - tp-reshard compared with `cp -r` and sync of the same checkpoint.
#
# usage: bench_reshard.sh [WIDTH [ROUNDS [FOLDER]]]
# WIDTH is the hidden size of a Llama of 8 layers, a multiple of 512 (1024: 2.1 GiB with bf16 weights,
# fp32 masters and moments; 512: a third of that). The checkpoints go to FOLDER (default: a temporary
# one), and its file system is measured. Both programs read from the page cache and end when everything is
# on the disk; checksums and digests are on. Prints wall seconds, bytes per second, CPU seconds and peak
# resident memory; the best of ROUNDS.
set -eu

width=${1:-1024}
rounds=${2:-3}
repo=$(cd "$(dirname "$0")/../.." && pwd)
bin=${TP_BIN:-$repo/bin}
make_ckpt=${TP_BUILD:-$repo/build/plain}/tests/make_ckpt
dir=$(mktemp -d "${3:-/tmp}/bench_reshard.XXXXXX")
trap 'rm -rf "$dir"' EXIT
TIMEFORMAT='%R %U %S'

cat >"$dir/config.json" <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
 "vocab_size": 32000, "hidden_size": $width, "intermediate_size": $((11 * width / 4)),
 "head_dim": $((width / 16)), "num_hidden_layers": 8, "num_attention_heads": 16,
 "num_key_value_heads": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": false}
END

# "wall user sys" of a command in seconds; its output is dropped
timed() {
    { time "$@" >"$dir/out" 2>"$dir/err"; } 2>&1 || { cat "$dir/err" >&2; exit 1; }
}

copy() {
    cp -r "$1" "$2"
    sync -f "$2"
}

# name, bytes, "wall user sys", peak
row() {
    awk -v name="$1" -v bytes="$2" -v times="$3" -v peak="$4" 'BEGIN {
        split(times, t, " ")
        printf "%-28s %8.2f s %9.2f GB/s %8.2f s cpu %10s\n", name, t[1], bytes / t[1] / 1e9,
               t[2] + t[3], peak ? sprintf("%.0f MiB", peak / 1048576) : ""
    }'
}

least() {
    sort -n | head -1
}

measure() {
    local from=$1 to=$2 copies=() reshards=() bytes peak
    bytes=$(du -sb "$dir/$from" | cut -f1)
    for _ in $(seq "$rounds"); do
        sync -f "$dir"
        copies+=("$(timed copy "$dir/$from" "$dir/copy")")
        rm -rf "$dir/copy"
        sync -f "$dir"
        reshards+=("$(timed "$bin/tp-reshard" "$dir/$from" --to "$to" -o "$dir/new" --json)")
        peak=$(grep -o '"peak_rss_bytes": [0-9]*' "$dir/out" | tr -dc 0-9)
        rm -rf "$dir/new"
    done
    row "cp -r $from" "$bytes" "$(printf '%s\n' "${copies[@]}" | least)" ""
    row "$from -> $to" "$bytes" "$(printf '%s\n' "${reshards[@]}" | least)" "$peak"
}

echo "making a checkpoint ..." >&2
timed "$make_ckpt" "$dir/config.json" tp8 "$dir/tp8" 1 1 bf16 >/dev/null
timed "$bin/tp-reshard" "$dir/tp8" --to tp4 -o "$dir/tp4" >/dev/null
timed "$bin/tp-reshard" "$dir/tp8" --to tp2pp4 -o "$dir/tp2pp4" >/dev/null
measure tp8 tp4
measure tp4 tp8
measure tp8 tp1pp8
measure tp2pp4 tp4pp2dp2zero1
