#!/usr/bin/env python3
"""Compare two builds of the programs: same bits, and CPU time.

    tests/check/compare_builds.py bits OLD_BIN NEW_BIN
        Trains small models with both builds at many layouts, in fp32 and bf16. Every loss and
        gradient norm of the log and every byte of the shard files must be equal.

    tests/check/compare_builds.py time OLD_BIN NEW_BIN [--rounds N]
        Runs training, reshard and verify with both builds in turn and prints the ratio of their
        CPU time (user + system, children included), new / old: the median over the rounds.

Use it before and after a change that should not change results:

    git worktree add /tmp/old COMMIT && make -C /tmp/old
    tests/check/compare_builds.py bits /tmp/old/bin bin

Exit code: 0 equal (or the ratios are printed), 1 a difference, 2 a run failed.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 256, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_act": "silu",
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 4,
    "n_head": 8, "n_positions": 64, "n_inner": 256, "vocab_size": 256,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}
TIED = dict(LLAMA, tie_word_embeddings=True, num_key_value_heads=2)
ONE_KV = dict(LLAMA, num_hidden_layers=2, num_key_value_heads=1)
WIDE = dict(LLAMA, num_hidden_layers=2, intermediate_size=6000)  # gradients in several buckets
MODELS = {"llama": LLAMA, "gpt2": GPT2, "tied": TIED, "one-kv": ONE_KV, "wide": WIDE}
DTYPES = ("fp32", "bf16")

# (model, layout, further options)
RUNS = [
    ("llama", "tp1", []), ("llama", "tp4", []), ("llama", "tp2pp2", []),
    ("llama", "dp2zero1", []), ("llama", "tp2sp", []), ("llama", "cp2", []),
    ("llama", "tp2dp2", ["--micro", "2"]), ("llama", "dp2zero3", []),
    ("llama", "pp2vpp2", ["--micro", "2"]), ("llama", "tp2cp2dp2zero1", []),
    ("llama", "tp8", []), ("llama", "tp2sp", ["--recompute", "full"]),
    ("llama", "cp2", ["--recompute", "selective"]),
    ("gpt2", "tp1", []), ("gpt2", "tp4sp", []), ("gpt2", "tp2pp2dp2zero1", []),
    ("gpt2", "tp2dp2zero3", []), ("gpt2", "cp2pp2", []),
    ("tied", "tp4", []), ("tied", "pp2dp2zero3", []), ("tied", "tp2pp2", []),
    ("wide", "dp2", ["--micro", "2"]), ("wide", "tp2dp2zero1", []), ("wide", "dp3zero3", ["--batch", "6"]),
    ("wide", "cp2dp2zero1", ["--micro", "2"]), ("one-kv", "tp2sp", []),
] + [(model, layout, ["--same-bits", "4", "--micro", "1"])
     for model, layout in [("llama", "tp1"), ("llama", "tp2dp2"), ("llama", "tp4sp"),
                           ("llama", "dp2zero3"), ("llama", "pp2dp2zero1"),
                           ("gpt2", "tp2pp2"), ("gpt2", "tp2sp"), ("tied", "tp1"),
                           ("tied", "tp2dp2zero3"), ("one-kv", "dp2zero3"),
                           ("one-kv", "tp2dp2zero1")]]


def fail(message):
    print(f"compare_builds: {message}", file=sys.stderr)
    sys.exit(2)


def cpu_seconds(argv, cwd):
    """Run argv; return the CPU time of it and its children."""
    process = subprocess.Popen(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        fail(f"{' '.join(map(str, argv))}: exit {process.returncode}\n{said.decode()}")
    return usage.ru_utime + usage.ru_stime


def write_inputs(folder):
    text = b"".join(b"%d: the quick brown fox jumps over %d lazy dogs\n" % (i, i * i % 97)
                    for i in range(4000))
    (folder / "text").write_bytes(text)
    for name, config in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))


def train(bin_dir, folder, out, model, layout, dtype, options, steps=5):
    argv = [bin_dir / "tp-train", "--model", folder / f"{model}.json", "--data", folder / "text",
            "--layout", layout, "--steps", str(steps), "--seq", "64", "--batch", "8",
            "--dtype", dtype, "--ckpt", out / "ckpt", "--log", out / "log", *options]
    out.mkdir()
    return cpu_seconds(argv, folder)


def trace(out):
    """What has to be equal: the log's numbers and the shard files' bytes."""
    lines = [json.loads(line) for line in (out / "log").read_text().splitlines()]
    shards = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
              for path in sorted((out / "ckpt").glob("step-*/*.h5"))}
    return [(x["step"], repr(x["loss"]), repr(x["grad_norm"])) for x in lines], shards


def compare_bits(old, new, only):
    differences = 0
    with tempfile.TemporaryDirectory(prefix="compare-builds-") as name:
        folder = pathlib.Path(name)
        write_inputs(folder)
        for model, layout, options in RUNS:
            for dtype in DTYPES:
                label = f"{model} {layout} {dtype} {' '.join(options)}".strip()
                if only and only not in label:
                    continue
                traces = []
                for which, bin_dir in (("old", old), ("new", new)):
                    out = folder / which
                    shutil.rmtree(out, ignore_errors=True)
                    train(bin_dir, folder, out, model, layout, dtype, options)
                    traces.append(trace(out))
                same = traces[0] == traces[1]
                differences += not same
                print(f"{'same' if same else 'DIFFERENT':9} {label}", flush=True)
                if not same:
                    for a, b in zip(traces[0][0], traces[1][0]):
                        if a != b:
                            print(f"          step {a[0]}: loss {a[1]} {b[1]}, norm {a[2]} {b[2]}")
                            break
                    else:
                        print("          losses and norms are equal, shard files differ")
    print(f"{differences} runs differ")
    return 1 if differences else 0


def compare_time(old, new, rounds):
    big = dict(LLAMA, hidden_size=512, intermediate_size=1376, num_hidden_layers=6,
               num_attention_heads=8, head_dim=64, vocab_size=1024, max_position_embeddings=256)
    jobs = {}
    with tempfile.TemporaryDirectory(prefix="compare-builds-", dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        write_inputs(folder)
        (folder / "llama.json").write_text(json.dumps(LLAMA))
        (folder / "big.json").write_text(json.dumps(big))

        def training(layout, dtype):
            def run(bin_dir):
                return cpu_seconds([bin_dir / "tp-train", "--model", folder / "big.json", "--data",
                                    folder / "text", "--layout", layout, "--steps", "3", "--seq",
                                    "256", "--batch", "4", "--dtype", dtype], folder)
            return run

        def reshard(bin_dir):
            return sum(cpu_seconds([bin_dir / "tp-reshard", folder / "ckpt", "--to", "tp4", "-o",
                                    folder / "out", "--force"], folder) for _ in range(5))

        def verify(bin_dir):
            return sum(cpu_seconds([bin_dir / "tp-ckpt", "verify", folder / "ckpt"], folder)
                       for _ in range(5))

        cpu_seconds([old / "tp-train", "--model", folder / "big.json", "--data", folder / "text",
                     "--layout", "tp8", "--steps", "1", "--seq", "64", "--batch", "1", "--ckpt",
                     folder / "ckpt"], folder)
        jobs = {"train tp1 fp32": training("tp1", "fp32"), "train tp2 fp32": training("tp2", "fp32"),
                "train tp2 bf16": training("tp2", "bf16"),
                "train dp2zero1 fp32": training("dp2zero1", "fp32"),
                "train cp2 fp32": training("cp2", "fp32"),
                "reshard tp8 to tp4": reshard, "verify": verify}
        print(f"{'CPU time, new / old':24} {'median':>7} {'min':>7} {'max':>7}   old s, {rounds} rounds")
        for label, job in jobs.items():
            job(old)
            ratios, base = [], []
            for i in range(rounds):
                order = (old, new) if i % 2 == 0 else (new, old)
                took = {b: job(b) for b in order}
                ratios.append(took[new] / took[old])
                base.append(took[old])
            print(f"{label:24} {statistics.median(ratios):7.3f} {min(ratios):7.3f} "
                  f"{max(ratios):7.3f}   {statistics.median(base):.2f}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bits", "time"])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="runs whose label has this text")
    args = parser.parse_args()
    old, new = args.old.resolve(), args.new.resolve()
    for bin_dir in (old, new):
        if not (bin_dir / "tp-train").exists():
            fail(f"{bin_dir}/tp-train does not exist: name the bin folder of a build")
    if args.what == "bits":
        return compare_bits(old, new, args.only)
    return compare_time(old, new, args.rounds)


if __name__ == "__main__":
    sys.exit(main())
