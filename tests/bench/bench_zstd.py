#!/usr/bin/env python3
"""What compression saves and costs, for weights, masters and moments of a trained model, by level.

    bench_zstd.py [--steps 60] [--levels 1,2,3,6,9] [--folder /dev/shm] [--rounds 3] [--jobs 2]

Trains a Llama of 25.6 M parameters in bf16 on the project's own text, saves it, and makes a checkpoint of each
kind of tensor: weights (bf16), masters (fp32), exp_avg and exp_avg_sq (fp32). For each level it prints how many
times smaller the payload is, and the rate per CPU second and per wall second of tp-reshard (tp1 to tp1, from
raw to compressed and back), on --jobs threads, from the page cache. The rate of raw files is the line "raw".

At the end it says which level is the default by this rule: the lowest level whose files are at most 1 % larger
than those of the best level that costs less than twice the CPU time of level 1.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from command import run_counted  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TP_BIN") or REPO / "bin")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 512,
    "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
    "head_dim": 64, "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "initializer_range": 0.02,
}
GROUPS = {"param": "weights, bf16", "master": "masters, fp32", "exp_avg": "exp_avg, fp32", "exp_avg_sq": "exp_avg_sq, fp32"}


def train(folder, steps):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    text = folder / "text"
    text.write_bytes(b"".join(p.read_bytes() for pattern in ("docs/*.md", "*/*.[ch]", "*/*/*.[ch]")
                              for p in sorted(REPO.glob(pattern))))
    run_counted([BIN / "tp-train", "--model", folder / "config.json", "--data", text, "--steps", steps, "--batch", 4,
                 "--seq", 256, "--dtype", "bf16", "--warmup", 10, "--ckpt", folder / "ckpt", "-q"])
    return folder / "ckpt"


def groups_of(ckpt):
    """{group: (raw bytes, stored bytes)} of a step, from the rows of /index."""
    step = sorted(ckpt.glob("step-*"))[-1]
    manifest = json.loads((step / "manifest.json").read_text())
    sums = {}
    for shard in manifest["shards"]:
        data = (step / shard["file"]).read_bytes()
        for i in range(shard["index_rows"]):
            row = data[shard["index_offset"] + 160 * i:][:160]
            group = manifest["tensors"][int.from_bytes(row[:4], "little")]["group"]
            raw, stored = sums.get(group, (0, 0))
            sums[group] = (raw + int.from_bytes(row[128:136], "little"), stored + int.from_bytes(row[120:128], "little"))
    return sums


def convert(source, out, rounds, *options):
    """The least CPU and wall seconds of a conversion."""
    times = []
    for _ in range(rounds):
        subprocess.run(["rm", "-rf", out], check=True)
        wall, cpu, _ = run_counted([BIN / "tp-reshard", source, "--to", "tp1", "-o", out, *options])
        times.append((cpu, wall))
    return min(t[0] for t in times), min(t[1] for t in times)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--steps", type=int, default=60)
    a.add_argument("--levels", default="1,2,3,6,9")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--jobs", type=int, default=2)
    a.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    a = a.parse_args()
    levels = [int(n) for n in a.levels.split(",")]
    with tempfile.TemporaryDirectory(prefix="tp-bench-zstd-", dir=a.folder) as folder:
        folder = pathlib.Path(folder)
        source = train(folder, a.steps)
        raw = groups_of(source)
        total = sum(r for r, _ in raw.values())
        print("a Llama of 25.6 M parameters after %d steps, %.0f MB; %d threads; rates in MB of raw data per second" %
              (a.steps, total / 1e6, a.jobs))
        print("%-8s%s  %8s %18s %18s" % ("", "".join("%20s" % GROUPS[g] for g in GROUPS), "together", "write /CPU  /wall", "read /CPU  /wall"))
        cost, size = {}, {}
        for level in ["raw"] + levels:
            options = [] if level == "raw" else ["--zstd=%d" % level]
            cpu, wall = convert(source, folder / "there", a.rounds, "--jobs", a.jobs, "--no-clone", *options)
            sums = groups_of(folder / "there")
            back_cpu, back_wall = convert(folder / "there", folder / "back", a.rounds, "--jobs", a.jobs, "--no-clone")
            size[level], cost[level] = sum(s for _, s in sums.values()), cpu
            print("%-8s%s  %8.3f %9.0f %8.0f %9.0f %8.0f" % (
                level, "".join("%20.3f" % (sums[g][0] / sums[g][1]) for g in GROUPS), total / size[level],
                total / 1e6 / cpu, total / 1e6 / wall, total / 1e6 / back_cpu, total / 1e6 / back_wall), flush=True)
        affordable = [n for n in levels if cost[n] < 2 * cost[levels[0]]]
        best = min(size[n] for n in affordable)
        print("default  level %d" % next(n for n in affordable if size[n] <= 1.01 * best))


if __name__ == "__main__":
    sys.exit(main())
