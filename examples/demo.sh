#!/usr/bin/env bash
#
# examples/demo.sh - the whole way, on real text, in demo/ (`make demo` calls this).
#
# Trains a small byte-level Llama on Debian's license texts at tp8, stops in the middle, reshards
# the checkpoint to tp4, trains on, and exports the merged weights. Every command is printed before
# it runs, so that it can be typed again.
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

# Of the lines that tp-train prints, one a step, a dozen or so; all others as they are.
thinned() {
    local line n every=$((steps / 12))
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

# The command answered RC; WANT is as it should be.
judge() { # RC WANT COMMAND
    [ "$1" -eq "$2" ] && return
    echo "demo: '$3' ended with $1 where $2 was expected; all made so far is in $demo" >&2
    exit 1
}

# Print a command as one would type it, then run it.
step() {
    local rc=0
    announce "$@"
    "$@" || rc=$?
    judge "$rc" 0 "$1"
}

# A training run: its lines thinned out. WANT 75: saved and stopped before its end.
training() { # WANT MORE...
    local want=$1 rc
    shift
    announce "${train[@]}" "$@"
    set +e
    "${train[@]}" "$@" 2>&1 | thinned
    rc=${PIPESTATUS[0]}
    set -e
    judge "$rc" "$want" "${train[0]}"
}

# The longest difference of loss between two logs, over the steps that both have.
furthest() {
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

say "1. Train at tp8: eight ranks, each with an eighth of every matrix; stop after $half of $steps steps"
echo "(in $PWD, with $bin on the PATH)"
training 75 --layout tp8 --ckpt ckpt --save-every "$half" --exit-step "$half" \
    --log tp8.jsonl

say "2. The checkpoint: one HDF5 file a rank, and a manifest"
step tp-ckpt ls ckpt
step tp-ckpt show ckpt param/model.layers.0.mlp.gate_proj.weight
step h5dump -H -d /param/model.layers.0.mlp.gate_proj.weight \
    "ckpt/step-$(printf %08d "$half")/rank-00005.h5"

say "3. Reshard it: weights, both moments of AdamW, the state of the run"
step tp-reshard ckpt --from tp8 --to tp4
step tp-ckpt diff ckpt ckpt-tp4

say "4. Go on at tp4, to step $steps"
training 0 --layout tp4 --ckpt ckpt-tp4 --resume=must --log tp4.jsonl

say "5. Is it the same curve? The whole run once more, at tp2, never stopped"
training 0 --layout tp2 --log tp2.jsonl
cat tp8.jsonl tp4.jsonl >log.jsonl
echo "furthest apart in loss: $(furthest tp2.jsonl log.jsonl)"

say "6. Check every byte, and merge the weights for Hugging Face's transformers"
step tp-ckpt verify ckpt-tp4
step tp-ckpt export ckpt-tp4 --format safetensors -o ../hf

awk -f "$repo/examples/curve.awk" -v ref=tp2.jsonl -v ref_name="the same run at tp2, never stopped" \
    -v title="A byte-level Llama on Debian's license texts, over two layouts" \
    -v note="the peaks are the warranty clauses, IN CAPITALS" log.jsonl >../curve.svg
ln -s runs/ckpt ../ckpt

say "What was made, in $demo ($((SECONDS - started)) seconds)"
row text "the text: Debian's licenses"
row model/config.json "the model: a Llama of 4 layers, 8 heads"
row runs/ckpt "the checkpoint at tp8, after $half steps"
row runs/ckpt-tp4 "the same at tp4, and after $steps steps"
row runs/log.jsonl "loss, gradient norm, speed of every step"
row hf "merged weights: AutoModelForCausalLM.from_pretrained('demo/hf')"
row curve.svg "the picture of the loss; open it in a browser"
echo
echo "  loss  $(awk -f "$repo/examples/curve.awk" -v spark=60 log.jsonl)  (| tp8 to tp4)"
cat <<END

Now yourself:
  cd demo
  ../bin/tp-reshard ckpt --from tp8 --to tp4     (makes ckpt-tp4; try --to tp2, dp2, --dry-run)
  ../bin/tp-ckpt diff ckpt runs/ckpt-tp4 --step $half
END
