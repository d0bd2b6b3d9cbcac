#!/usr/bin/env python3
"""Attention beside PyTorch's scaled_dot_product_attention: CPU time, one thread, fp32 and bf16.

    tests/bench/bench_attention.py [--rounds 3] [--torch PYTHON]

Causal attention of 8 heads of 64 over 1024 tokens: 4 sequences of 256, one of 1024; and one sequence of
4096. Every round runs both programs once; the table has the best of all rounds, in milliseconds.
"""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402

SHAPES = [(4, 256), (1, 1024), (1, 4096)]
TORCH = """
import os, sys, time
os.environ["OMP_NUM_THREADS"] = "1"
import torch
torch.set_num_threads(1)
batch, seq = int(sys.argv[1]), int(sys.argv[2])
for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    x = torch.randn(batch, seq, 3, 8, 64).to(dtype).requires_grad_()
    q, k, v = (x[:, :, i].transpose(1, 2) for i in range(3))
    best = [9.0, 9.0]
    for _ in range(max(3, 8 * 256 // seq)):
        t = time.process_time()
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        best[0] = min(best[0], time.process_time() - t)
        g = torch.ones_like(y)
        t = time.process_time()
        torch.autograd.grad(y, (q, k, v), g)
        best[1] = min(best[1], time.process_time() - t)
    print("attention forward %s %f ms" % (name, best[0] * 1e3))
    print("attention backward %s %f ms" % (name, best[1] * 1e3))
"""


def times(argv):
    """{(pass, type): milliseconds} of what a program prints."""
    said = subprocess.check_output([str(a) for a in argv], text=True)
    return {(m[1], m[2]): float(m[3])
            for m in re.finditer(r"attention (\w+) +(\w+) +([\d.]+) ms", said)}


def main():
    a = training.arguments(__doc__, 3).parse_args()
    program = training.BUILD / "bench/bench_kernels"
    if not program.exists():
        subprocess.run(["make", "-s", "-C", training.REPO, program], check=True)
    if not pathlib.Path(a.torch).exists():
        print("no %s: PyTorch is not measured (make test-clients installs it)" % a.torch)
    print(training.machine())
    print("%-28s %10s %10s %7s" % ("batch x T, pass, type", "tp, ms", "PyTorch", "ratio"))
    for batch, seq in SHAPES:
        ours, theirs = [], []
        for _ in range(a.rounds):
            ours.append(times([program, "--attention", "--batch", batch, "--seq", seq, "--runs", 4]))
            if pathlib.Path(a.torch).exists():
                theirs.append(times([a.torch, "-c", TORCH, batch, seq]))
        for key in ours[0]:
            ms = min(r[key] for r in ours)
            other = min((r[key] for r in theirs), default=None)
            print("%-28s %10.2f %10s %7s" % ("%d x %d %s %s" % (batch, seq, *key), ms,
                                             "%.2f" % other if theirs else "", "%.2f" % (other / ms) if theirs else ""))


if __name__ == "__main__":
    main()
