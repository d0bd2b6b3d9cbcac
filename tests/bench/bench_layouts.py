#!/usr/bin/env python3
"""One step of the same model at every kind of layout: CPU time, memory, messages.

    tests/bench/bench_layouts.py [--rounds 3] [--only WORD]

lib/training.py describes the model, the batch and how time is measured. Every round runs each layout once. `CPU`
is the CPU time divided by tp1's, the median over the rounds. `said` and `sent` are the bytes that tp-train
prints for rank 0 at its start (tests/unit/trainer_step.c compares both with the real ones). `peak` is the
largest resident memory of a rank; about 25 MiB of it are the program itself and oneDNN's code.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402

LAYOUTS = [
    "tp1", "tp1 --recompute=selective", "tp1 --recompute=full",
    "tp2", "tp2sp", "tp2 --recompute=full",
    "pp2 --micro=1", "pp2vpp2 --micro=1", "cp2", "cp2 --recompute=selective",
    "dp2", "dp2zero1", "dp2zero3",
    "tp2dp2", "tp2pp2 --micro=1", "tp2sp --dtype=bf16", "tp1 --dtype=bf16",
    "tp1 --same-bits=2", "tp2 --same-bits=2",
]


def main():
    p = training.arguments(__doc__, 3)
    p.add_argument("--only", metavar="WORD", help="only layouts that contain this word, and tp1")
    a = p.parse_args()
    layouts = [x for x in LAYOUTS if x == "tp1" or not a.only or a.only in x]
    bench = training.Bench(None)
    print(training.machine())
    done = training.in_turn({x: (lambda x=x: bench.tp(*x.split())) for x in layouts}, a.rounds)
    print("%-26s %10s %7s %9s %10s %9s %10s %10s"
          % ("", "CPU s/step", "CPU", "wall", "said", "peak", "messages", "sent"))
    for name, r in done.items():
        calls, size = r[0].sent
        print("%-26s %10.3f %6.0f%% %9.3f %10s %5.0f MiB %10d %10s"
              % (name, training.cpu(r), 100 * training.ratio(r, done["tp1"]), min(x.wall for x in r),
                 r[0].said, max(x.rss for x in r) / 2**20, calls, size))


if __name__ == "__main__":
    main()
