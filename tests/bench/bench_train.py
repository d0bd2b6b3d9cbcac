#!/usr/bin/env python3
"""tp-train's speed compared with sgemm's and PyTorch's, measured alternately on the same machine.

    tests/bench/bench_train.py [--rounds 5] [--torch PYTHON] [--no-bf16] [--no-fp32]

lib/training.py describes the model and how time is measured. Every round runs each program once, and the
table has medians; `wall` is the time of the fastest step.

  MFU     model FLOPs (6 N + 12 L H Q T per token, PaLM's count) per CPU second, divided by the rate of
          sgemm over the products of the same step (tests/bench/bench_train.c) in the same round
  ratio   PyTorch's CPU time divided by that of tp-train at tp1 with the same type, median over the rounds
"""
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402


def main():
    p = training.arguments(__doc__, 5)
    p.add_argument("--no-bf16", action="store_true", help="fp32 alone")
    p.add_argument("--no-fp32", action="store_true", help="bf16 alone")
    a = p.parse_args()
    program = training.BUILD / "bench/bench_train"
    if not program.exists():
        subprocess.run(["make", "-s", "-C", training.REPO, "all", program], check=True)
    bench = training.Bench(a.torch)
    rates = []
    runs = {"sgemm": lambda: rates.append(float(subprocess.check_output([program]))),
            "tp1": lambda: bench.tp("tp1"),
            "tp2": lambda: bench.tp("tp2"),
            "PyTorch": lambda: bench.torch("one"),
            "PyTorch compile": lambda: bench.torch("compile"),
            "tp1 bf16": lambda: bench.tp("tp1", "--dtype", "bf16"),
            "PyTorch bf16": lambda: bench.torch("one", bf16=True),
            "PyTorch compile bf16": lambda: bench.torch("compile", bf16=True)}
    if not bench.python:
        print("no %s: PyTorch is not measured (make test-clients installs it)" % a.torch)
    runs = {k: v for k, v in runs.items() if (bench.python or "PyTorch" not in k)
            and not (a.no_bf16 and "bf16" in k) and not (a.no_fp32 and "bf16" not in k and k != "sgemm")}
    print(training.machine())
    done = training.in_turn(runs, a.rounds)

    print("sgemm over the step's products: %.0f GFLOP per CPU second; a step is %.0f GFLOP"
          % (statistics.median(rates), training.FLOPS / 1e9))
    print("%-20s %10s %12s %9s %6s %7s" % ("", "CPU s/step", "tokens/CPU s", "wall", "MFU", "ratio"))
    for name, r in done.items():
        if name == "sgemm":
            continue
        mfu = statistics.median(training.FLOPS / x.cpu / g / 1e9 for x, g in zip(r, rates))
        ours = done.get(name.replace("PyTorch compile", "tp1").replace("PyTorch", "tp1"))
        print("%-20s %10.3f %12.0f %9.3f %5.0f%% %7s"
              % (name, training.cpu(r), training.TOKENS / training.cpu(r), min(x.wall for x in r), 100 * mfu,
                 "%.2f" % training.ratio(r, ours) if "PyTorch" in name else ""))
    if a.no_fp32:
        return
    print("tp2 takes %+.1f %% of tp1's CPU time (median of rounds)"
          % (100 * (training.ratio(done["tp2"], done["tp1"]) - 1)))


if __name__ == "__main__":
    main()
