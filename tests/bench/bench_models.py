#!/usr/bin/env python3
"""Whole models in one process beside PyTorch and llm.c: GPT-2 of 124 M and a Llama of 160 M parameters.

    tests/bench/bench_models.py [--rounds 2] [--steps 3] [--torch PYTHON] [--llmc DIR] [--only NAME]...

lib/training.py describes how time is measured. All programs have the same weights, tokens (pairs of bytes)
and rules, and one thread. Every round runs each program once; figures are medians over the rounds, of all
steps but the first.

  gain    CPU time of the better of PyTorch eager and torch.compile with the same type, divided by ours
  first   CPU time of the first step divided by that of a later one; torch.compile compiles in its first step
  loss    the largest difference of a loss from that of tp-train in fp32

--llmc names a clone of https://github.com/karpathy/llm.c, whose fp32 training of GPT-2 is then compared
too. Losses in fp32 must agree within 1e-4 (llm.c's within 1e-3: it decays biases and norms too), those in
bf16 within 2e-2.
"""
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402

MODELS = {"gpt2-4x256": (training.GPT2_124M, 4, 256), "gpt2-1x1024": (training.GPT2_124M, 1, 1024),
          "llama-4x256": (training.LLAMA_160M, 4, 256)}


def programs(bench):
    """{name: function that trains}; names of bf16 programs end with "bf16"."""
    runs = {"tp-train": lambda: bench.tp("tp1"), "tp-train bf16": lambda: bench.tp("tp1", "--dtype", "bf16")}
    if bench.python:
        runs |= {"PyTorch": lambda: bench.torch("one"),
                 "PyTorch bf16": lambda: bench.torch("one", bf16=True),
                 "torch.compile": lambda: bench.torch("compile"),
                 "torch.compile bf16": lambda: bench.torch("compile", bf16=True)}
    if bench.llmc:
        runs["llm.c"] = bench.llmc_fp32
    return runs


def tolerance(name):
    return 2e-2 if name.endswith("bf16") else 1e-3 if name == "llm.c" else 1e-4


def gain(done, kind):
    """The better of eager's and compile's CPU time divided by ours; `kind` is "" or " bf16"."""
    return min(training.ratio(done[name + kind], done["tp-train" + kind])
               for name in ("PyTorch", "torch.compile"))


def report(done, tokens):
    """Print the table of one model; whether all losses agree."""
    first, agree = done["tp-train"][0], True
    print("%-20s %10s %12s %6s %6s %9s %8s" % ("", "CPU s/step", "tokens/CPU s", "gain", "first", "peak MiB",
                                               "loss"))
    for name, runs in done.items():
        off = training.farthest(runs, first)
        ours = name.startswith("tp-train") and "PyTorch" in done
        agree = agree and off <= tolerance(name)
        print("%-20s %10.2f %12.0f %6s %6.2f %9.0f %8.1e"
              % (name, training.cpu(runs), tokens / training.cpu(runs),
                 "%.2f" % gain(done, name.removeprefix("tp-train")) if ours else "",
                 statistics.median(r.first / r.cpu for r in runs), max(r.rss for r in runs) / 2**20, off),
              flush=True)
    return agree


def main():
    p = training.arguments(__doc__, 2)
    p.add_argument("--steps", type=int, default=3, help="of each run, at least 2 (3)")
    p.add_argument("--llmc", metavar="DIR", help="a clone of llm.c")
    p.add_argument("--only", action="append", choices=MODELS, help="only this model and batch")
    a = p.parse_args()
    agree = True
    for name in a.only or MODELS:
        config, batch, seq = MODELS[name]
        work = training.Work(config, batch, seq, max(a.steps, 2), 1, 1e-4)
        bench = training.Bench(a.torch, work, a.llmc if config["model_type"] == "gpt2" else None)
        if not bench.python:
            print("no %s: PyTorch and llm.c are not measured (make test-clients installs it)" % a.torch)
        print("%s, %s" % (name, training.machine()), flush=True)
        agree = report(training.in_turn(programs(bench), a.rounds), batch * seq) and agree
    if not agree:
        raise SystemExit("losses differ by more than the tolerance")


if __name__ == "__main__":
    main()
