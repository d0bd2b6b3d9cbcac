#!/usr/bin/env python3
"""What checkpoints with many ranks, and with many tensors, cost: is their time that of their files and tensors, or its square?

    bench_scale.py [--bin DIR ...] [--folder /dev/shm] [--rounds 1] [--layers 48] [--experts 128]

Ranks: a Llama of 38 M parameters (0.46 GB with the optimizer) is resharded from tp1 to more and more ranks. Tensors: a tiny
Qwen3-MoE with as many tensors as Qwen3-30B-A3B (18,867 parameters by default) makes a step and saves it, resumes, and is
resharded and exported. Each program is one of the folders given by --bin, which take turns. The lines have wall and CPU
seconds, medians of the rounds.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from command import run_counted  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parents[2]
SPECS = ["tp8", "tp8pp16", "tp8pp16dp8zero1", "tp8pp16dp64zero1"]
FORMATS = ["safetensors", "dcp", "megatron", "torch_dist"]
COMMON = {"vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
LLAMA = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
         "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8}


def mixture(layers, experts):
    return {**COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 64,
            "moe_intermediate_size": 16, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "num_experts": experts, "num_experts_per_tok": 4, "norm_topk_prob": True}


def train(binaries, folder, config):
    """The command that makes a step of a model and saves it into folder/ckpt."""
    (folder / "config.json").write_text(json.dumps(config))
    return [binaries / "tp-train", "--model", folder / "config.json", "--data", "bytes:/usr/share/common-licenses/GPL-3", "--batch", 1,
            "--seq", 16, "--steps", 1, "--ckpt", folder / "ckpt"]


def convert(binaries, folder, program, *options):
    figures = run_counted([binaries / program[0], *program[1:], folder / "ckpt", *options, "-o", folder / "out"])[:2]
    shutil.rmtree(folder / "out")
    return figures


def measure_ranks(binaries, folder):
    """{what: (wall, CPU)} of one program."""
    run_counted(train(binaries, folder, LLAMA))
    return {"tp1 to " + spec: convert(binaries, folder, ["tp-reshard"], "--to", spec) for spec in SPECS}


def measure_tensors(binaries, folder, config):
    command = train(binaries, folder, config)
    figures = {"a step, and save": run_counted(command)[:2], "resume": run_counted([*command, "--resume"])[:2],
               "tp1 to tp2pp4ep8dp8zero1": convert(binaries, folder, ["tp-reshard"], "--to", "tp2pp4ep8dp8zero1")}
    for name in FORMATS:
        figures["to " + name] = convert(binaries, folder, ["tp-ckpt", "export"], "--format", name)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, nargs="+", default=[pathlib.Path(os.environ.get("TP_BIN") or REPO / "bin")])
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    a = parser.parse_args()
    rounds = {b: [] for b in a.bin}
    for _ in range(a.rounds):
        for b in a.bin:
            with tempfile.TemporaryDirectory(dir=a.folder) as ranks, tempfile.TemporaryDirectory(dir=a.folder) as tensors:
                rounds[b].append({**measure_ranks(b, pathlib.Path(ranks)),
                                  **measure_tensors(b, pathlib.Path(tensors), mixture(a.layers, a.experts))})
    for b in a.bin:
        print(b)
        for what in rounds[b][0]:
            wall, cpu = (statistics.median(r[what][i] for r in rounds[b]) for i in (0, 1))
            print("  %-28s %7.2f s wall  %7.2f s CPU" % (what, wall, cpu))


if __name__ == "__main__":
    main()
