#!/usr/bin/env python3
"""tp-train's speed beside sgemm's and PyTorch's, measured in turn on the same machine.

    tests/bench/bench_train.py [--rounds 5] [--torch PYTHON]

The model is a Llama of 25.6 M parameters (dim 512, 8 layers, 8 heads, ffn 1376, vocabulary 256), the
batch 4 x 256 tokens, fp32 (and bf16 for the record), one thread a process. Every round runs each
program once; the table has medians. Time is processor time of all ranks together, which other load
on the machine disturbs least; wall time is the quickest step.

  MFU     model FLOPs (6 N + 12 L H Q T a token, PaLM's count) a CPU second / sgemm's rate over the
          products of that very step (tests/bench/bench_train.c), of the same round
PYTHON: one that has torch and transformers (default: .venv/bin/python where that exists).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN") or REPO / "bin")
BUILD = pathlib.Path(os.environ.get("BUILD") or REPO / "build/plain")
DATA = "/usr/share/common-licenses/GPL-3"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 256,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "initializer_range": 0.02,
}
BATCH, SEQ, STEPS, WARM = 4, 256, 6, 2
TOKENS = BATCH * SEQ
MATMUL = 8 * (4 * 512 * 512 + 3 * 512 * 1376) + 256 * 512
FLOPS = TOKENS * (6 * MATMUL + 12 * 8 * 512 * SEQ)

TORCH = r"""
import json, sys, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config, data, batch, seq, steps, warm, how, bf16 = json.loads(sys.argv[1])
torch.set_num_threads(1)
model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation=how)).train()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
text = torch.frombuffer(bytearray(open(data, "rb").read()), dtype=torch.uint8).long()
rows, cpu, wall = (len(text) - 1) // seq, [], []
for s in range(steps):
    c, w = time.process_time(), time.monotonic()
    at = [(s * batch + b) % rows * seq for b in range(batch)]
    x = torch.stack([text[i:i + seq + 1] for i in at])
    opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(input_ids=x[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, 256), x[:, 1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    loss.item()
    cpu.append(time.process_time() - c)
    wall.append(time.monotonic() - w)
print(json.dumps([cpu[warm:], wall[warm:]]))
"""


def sgemm():
    return float(subprocess.check_output([BUILD / "bench/bench_train"]))


def tp_train(config, layout, dtype):
    """(CPU seconds, wall seconds) of the steps after the first few."""
    log = config.parent / "log"
    subprocess.run([BIN / "tp-train", "--model", config, "--data", DATA, "--steps", str(STEPS),
                    "--batch", str(BATCH), "--seq", str(SEQ), "--layout", layout, "--dtype", dtype,
                    "--threads", "1", "--log", log, "-q"], check=True, stderr=subprocess.DEVNULL)
    steps = [json.loads(line) for line in open(log)][WARM:]
    return [x["cpu_seconds"] for x in steps], [x["seconds"] for x in steps]


def torch_eager(python, how, bf16):
    words = json.dumps([CONFIG, DATA, BATCH, SEQ, STEPS, WARM, how, bf16])
    out = subprocess.check_output([python, "-c", TORCH, words], stderr=subprocess.DEVNULL)
    return json.loads(out.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--torch", default=REPO / ".venv/bin/python", help="python that has torch")
    p.add_argument("--no-bf16", action="store_true")
    a = p.parse_args()
    if not (BUILD / "bench/bench_train").exists():
        subprocess.run(["make", "-s", "-C", REPO, "all", BUILD / "bench/bench_train"], check=True)
    folder = pathlib.Path(tempfile.mkdtemp())
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))

    runs = {"tp-train tp1": lambda: tp_train(config, "tp1", "fp32"),
            "tp-train tp2": lambda: tp_train(config, "tp2", "fp32")}
    has_torch = pathlib.Path(a.torch).exists()
    if has_torch:
        for how in ("sdpa", "eager"):
            runs["PyTorch, %s attention" % how] = lambda how=how: torch_eager(a.torch, how, False)
    else:
        print("no %s: PyTorch is left out (make test-clients installs it)" % a.torch)
    if not a.no_bf16:
        runs["tp-train tp1 bf16"] = lambda: tp_train(config, "tp1", "bf16")
        if has_torch:
            runs["PyTorch bf16 autocast"] = lambda: torch_eager(a.torch, "sdpa", True)

    cpu, wall, mfu, rates = {k: [] for k in runs}, {}, {k: [] for k in runs}, []
    for i in range(a.rounds):
        rates.append(sgemm())
        for name, run in runs.items():
            c, w = run()
            cpu[name].append(statistics.median(c))
            wall[name] = min([wall.get(name, 1e9)] + w)
            mfu[name].append(FLOPS / statistics.median(c) / rates[-1] / 1e9)
        print("round %d of %d" % (i + 1, a.rounds), file=sys.stderr)

    base = min((statistics.median(v) for k, v in cpu.items()
                if k.startswith("PyTorch,")), default=None)
    print("sgemm over the step's products: %.0f GFLOP/s a CPU second; a step is %.0f GFLOP"
          % (statistics.median(rates), FLOPS / 1e9))
    print("%-26s %10s %12s %10s %6s %11s" % ("", "CPU s/step", "tokens/CPU s", "wall best", "MFU",
                                             "vs PyTorch"))
    for name in runs:
        c = statistics.median(cpu[name])
        print("%-26s %10.3f %12.0f %10.3f %5.0f%% %11s"
              % (name, c, TOKENS / c, wall[name], 100 * statistics.median(mfu[name]),
                 "%.2fx" % (base / c) if base else "-"))
    tp2 = statistics.median(b / a for a, b in zip(cpu["tp-train tp1"], cpu["tp-train tp2"]))
    print("tp2 takes %+.1f %% of tp1's CPU time (median of rounds)" % (100 * (tp2 - 1)))


if __name__ == "__main__":
    main()
