#!/usr/bin/env bash
#
# examples/demo.sh - train, reshard, resume and export on real text, in demo/; `make demo` calls it.
#
# Trains a small Llama on the bytes of Debian's license texts at tp8, stops in the middle, reshards
# the checkpoint to tp4, continues there, and exports the weights. Every command is printed before
# it runs, so that readers can repeat it.
set -euo pipefail
cd "$(dirname "$0")/.."

repo=$PWD
demo=$repo/demo
steps=${DEMO_STEPS:-200}
half=$((steps / 2))
bin=$(cd "${BIN:-bin}" && pwd)
export PATH="$bin:$PATH"

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' plain=$'\e[0m'
else
    bold='' plain=''
fi

say() {
    printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}

# Pass about a dozen of the lines that tp-train prints for its steps, and all other lines.
thinned() {
    local line n every=$((steps < 12 ? 1 : steps / 12))
    while IFS= read -r line; do
        case $line in
        "step "[0-9]*/*)
            n=${line#step }
            n=${n%%/*}
            [ "$n" -ne 1 ] && [ $((n % every)) -ne 0 ] && continue
            ;;
        esac
        echo "$line"
    done
}

announce() {
    printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"
}

# End the demo if a command did not exit with the expected code.
check_exit() { # RC WANT COMMAND
    [ "$1" -eq "$2" ] && return
    echo "demo: '$3' exited with $1 instead of $2; everything made so far is in $demo" >&2
    exit 1
}

# Print a command, then run it.
step() {
    local rc=0
    announce "$@"
    "$@" || rc=$?
    check_exit "$rc" 0 "$1"
}

# Run tp-train. It exits with WANT: 0, or 75 if it saves and stops before the end.
training() { # WANT MORE...
    local want=$1 rc
    shift
    announce "${train[@]}" "$@"
    set +e
    "${train[@]}" "$@" 2>&1 | thinned
    rc=${PIPESTATUS[0]}
    set -e
    check_exit "$rc" "$want" "${train[0]}"
}

# The largest difference of loss between two logs, over the steps that both have.
largest_difference() {
    awk '
        function field(name) {
            if (!match($0, "\"" name "\": *[-+0-9.eE]+")) return ""
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
        }
        FNR == NR { loss[field("step")] = field("loss"); next }
        field("step") in loss {
            d = field("loss") - loss[field("step")]
            if (d < 0) d = -d
            if (d > most) most = d
            n++
        }
        END { printf "%.1e over %d steps", most, n }' "$1" "$2"
}

size_of() {
    du -sh "$1" | cut -f1
}

row() {
    printf '  %-30s %8s   %s\n' "$1" "$(size_of "$demo/$1")" "$2"
}

started=$SECONDS
rm -rf "$demo"
mkdir -p "$demo/runs"
cp -r examples/llama-tiny "$demo/model"
find /usr/share/common-licenses -type f | LC_ALL=C sort | xargs cat >"$demo/text"
cd "$demo/runs"

train=(tp-train --model ../model/config.json --data ../text --steps "$steps" --batch 8 --seq 128
    --lr 1e-3 --warmup 10)

say "1. Train on eight ranks, each with an eighth of every matrix (tp8). Stop after $half of $steps steps."
echo "(commands run in $PWD, with $bin on the PATH)"
training 75 --layout tp8 --ckpt ckpt --save-every "$half" --exit-step "$half" \
    --log tp8.jsonl

say "2. Look at the checkpoint: one HDF5 file for each rank, and a manifest"
step tp-ckpt ls ckpt
step tp-ckpt show ckpt param/model.layers.0.mlp.gate_proj.weight
step h5dump -H -d /param/model.layers.0.mlp.gate_proj.weight \
    "ckpt/step-$(printf %08d "$half")/rank-00005.h5"

say "3. Reshard it for four ranks: weights, both moments of AdamW, training state"
step tp-reshard ckpt --from tp8 --to tp4
step tp-ckpt diff ckpt ckpt-tp4

say "4. Resume on four ranks, up to step $steps"
training 0 --layout tp4 --ckpt ckpt-tp4 --resume=must --log tp4.jsonl

say "5. Compare the loss curve with that of a run on two ranks that never stopped"
training 0 --layout tp2 --log tp2.jsonl
cat tp8.jsonl tp4.jsonl >log.jsonl
echo "largest difference of loss: $(largest_difference tp2.jsonl log.jsonl)"

say "6. Verify every byte, and export the weights for Hugging Face transformers"
step tp-ckpt verify ckpt-tp4
step tp-ckpt export ckpt-tp4 --format safetensors -o ../hf

awk -f "$repo/examples/curve.awk" -v ref=tp2.jsonl -v ref_name="a run at tp2 that never stopped" \
    -v title="Training a Llama on Debian's license texts: tp8, then tp4" \
    -v note="the peaks are warranty clauses in capital letters" log.jsonl >../curve.svg
ln -s runs/ckpt ../ckpt

say "Done in $((SECONDS - started)) seconds. $demo now has:"
row text "the text: Debian's licenses"
row model/config.json "the model: a Llama with 4 layers and 8 heads"
row runs/ckpt "the checkpoint at tp8, after $half steps"
row runs/ckpt-tp4 "the same checkpoint at tp4, and the one after $steps steps"
row runs/log.jsonl "loss, gradient norm and speed of every step"
row hf "weights for transformers: AutoModelForCausalLM.from_pretrained('demo/hf')"
row curve.svg "a picture of the loss; open it in a browser"
echo
echo "  loss  $(awk -f "$repo/examples/curve.awk" -v spark=60 log.jsonl)  (| tp8 to tp4)"
cat <<END

Try it yourself:
  cd demo
  ../bin/tp-reshard ckpt --from tp8 --to tp4     (makes ckpt-tp4; try --to tp2, --to dp2, --dry-run)
  ../bin/tp-ckpt diff ckpt runs/ckpt-tp4 --step $half
END
