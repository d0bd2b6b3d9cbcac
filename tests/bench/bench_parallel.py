#!/usr/bin/env python3
"""tp2 and dp2 compared with PyTorch's DTensor TP2 and DistributedDataParallel, two ranks on two cores.

    tests/bench/bench_parallel.py [--rounds 5] [--torch PYTHON]

All programs have the same weights, text and rules (lib/training.py), and their losses must agree within 1e-4.
If PYTHON has them, Megatron-core (lib/megatron_llama.py) and transformers' LlamaForCausalLM under DDP are
measured too. The other peers are tuned; transformers' is the one that most people run. Every round runs
each program once, and the table has medians over the rounds. `ratio` is the peer's CPU time divided by
that of tp-train on the same axis; `wall` is the time of the fastest step.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402

SAME = 1e-4
TABLE = [  # name, how to run it, and the run of tp-train that it is compared with
    ("tp-train tp2", ("tp", "tp2"), None),
    ("PyTorch DTensor TP2", ("torch", "tp"), "tp-train tp2"),
    ("Megatron-core TP2", ("torch", "megatron"), "tp-train tp2"),
    ("tp-train tp2sp", ("tp", "tp2sp"), None),
    ("PyTorch DTensor TP2, sequence", ("torch", "sp"), "tp-train tp2sp"),
    ("tp-train dp2", ("tp", "dp2"), None),
    ("PyTorch DDP 2", ("torch", "dp"), "tp-train dp2"),
    ("PyTorch DDP 2, transformers", ("torch", "hf"), "tp-train dp2"),
]
NEEDS = {"megatron": "megatron.core", "hf": "transformers"}  # peers that PYTHON may not have


def main():
    a = training.arguments(__doc__, 5).parse_args()
    bench = training.Bench(a.torch)
    if not bench.python:
        print("no %s: nothing to compare with (make test-clients installs it)" % a.torch)
        return
    table = [row for row in TABLE if row[1][1] not in NEEDS or bench.has(NEEDS[row[1][1]])]
    runs = {name: (lambda who=who, what=what: getattr(bench, who)(what))
            for name, (who, what), _ in table}
    print(training.machine())
    done = training.in_turn(runs, a.rounds)
    first = done["tp-train tp2"][0]
    print("%-30s %10s %12s %9s %9s %11s %9s" % ("", "CPU s/step", "tokens/CPU s", "ratio", "wall",
                                                "peak a rank", "loss off"))
    worst = 0.0
    for name, _, against in table:
        r = done[name]
        off = training.farthest(r, first)
        worst = max(worst, off)
        print("%-30s %10.3f %12.0f %9s %9.3f %7.0f MiB %9.1e"
              % (name, training.cpu(r), training.TOKENS / training.cpu(r),
                 "%.2f" % training.ratio(r, done[against]) if against else "", min(x.wall for x in r),
                 max(x.rss for x in r) / 2**20, off))
    if worst > SAME:
        sys.exit("losses differ by %.1e: these programs do not train the same model" % worst)


if __name__ == "__main__":
    main()
