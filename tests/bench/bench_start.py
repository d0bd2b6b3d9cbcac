#!/usr/bin/env python3
"""How long tp-train takes to start with random weights, to save, and to resume.

    bench_start.py [--hidden 1024] [--layers 4] [--device cpu] [--threads N] [--bin DIR ...] [--folder /dev/shm] [--rounds 3]

A Llama (by default of 70 M parameters, in fp32) makes one step of 16 tokens and saves it into the folder; then a run
resumes from there, and has nothing left to train. Each program is one of the folders given by --bin, which take turns.
The lines are medians: wall seconds, CPU seconds (of the whole run), and for saves and resumes GB of state per second.
"start" includes the step, which has the first access to gradients and moments; "save" is the delay of the training loop.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from command import run_counted  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parents[2]


def config(hidden, layers):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
            "intermediate_size": hidden * 11 // 4, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
            "num_key_value_heads": max(1, hidden // 512), "head_dim": 64, "vocab_size": 16000,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "initializer_range": 0.02}


def measure(binaries, options, folder):
    """{what: (wall, CPU)} of one program, and the bytes of its checkpoint."""
    log, ckpt = folder / "log", folder / "ckpt"
    command = (binaries / "tp-train", *options, "--ckpt", ckpt, "--log", log)
    figures = {"start": run_counted([binaries / "tp-train", *options])[:2]}
    figures["start and save"] = run_counted(command)[:2]
    figures["save"] = (json.loads(log.read_text())["save_seconds"], float("nan"))
    figures["resume"] = run_counted([*command, "--resume"])[:2]
    size = sum(p.stat().st_size for p in ckpt.glob("step-*/*"))
    subprocess.run(["rm", "-rf", ckpt, log], check=True)
    return figures, size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--bin", type=pathlib.Path, nargs="+", default=[pathlib.Path(os.environ.get("TP_BIN") or REPO / "bin")])
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        folder, rounds, size = pathlib.Path(name), {b: [] for b in a.bin}, 0
        (folder / "config.json").write_text(json.dumps(config(a.hidden, a.layers)))
        options = ["--model", folder / "config.json", "--data", "bytes:/usr/share/common-licenses/GPL-3", "--batch", 1,
                   "--seq", 16, "--steps", 1, "--device", a.device] + (["--threads", a.threads] if a.threads else [])
        for _ in range(a.rounds):
            for b in a.bin:
                figures, size = measure(b, options, folder)
                rounds[b].append(figures)
    for b in a.bin:
        print("%s: %.2f GB of state" % (b, size / 1e9))
        for what in rounds[b][0]:
            wall, cpu = (statistics.median(r[what][i] for r in rounds[b]) for i in (0, 1))
            rate = "  %5.2f GB/s" % (size / 1e9 / wall) if what in ("save", "resume") else ""
            print("  %-15s %6.2f s wall%s%s" % (what, wall, "" if cpu != cpu else "  %6.2f s CPU" % cpu, rate))


if __name__ == "__main__":
    main()
