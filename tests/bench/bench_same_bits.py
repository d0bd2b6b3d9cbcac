#!/usr/bin/env python3
"""What --same-bits costs: CPU time of a step with it and without it, measured alternately.

    tests/bench/bench_same_bits.py [--rounds 3]

lib/training.py describes the model and how time is measured. `ratio` compares with the same layout without
--same-bits (one microbatch of four sequences), the median over the rounds. The additional time has two
causes: matrix products of the size of a shard, with sums over shards along a tree (N), and gradients
that are written and added for each microbatch separately (--micro).
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402

SHARDS = (2, 4, 8)
MICROS = (4, 2, 1)


def main():
    a = training.arguments(__doc__, 3).parse_args()
    bench = training.Bench(None)
    runs, base = {}, {}
    for layout in ("tp1", "tp2"):
        for micro in MICROS:
            name = "%s --micro %d" % (layout, micro)
            runs[name] = lambda o=(layout, "--micro", str(micro)): bench.tp(*o)
            for n in SHARDS if micro == 4 else SHARDS[-1:]:
                name = "%s --same-bits %d --micro %d" % (layout, n, micro)
                runs[name] = lambda o=(layout, "--micro", str(micro), "--same-bits", str(n)): \
                    bench.tp(*o)
                base[name] = "%s --micro %d" % (layout, MICROS[0])
    print(training.machine())
    done = training.in_turn(runs, a.rounds)
    print("%-30s %10s %12s %10s %7s" % ("", "CPU s/step", "tokens/CPU s", "peak MiB", "ratio"))
    for name, r in done.items():
        plain = base.get(name)
        print("%-30s %10.3f %12.0f %10.0f %7s"
              % (name, training.cpu(r), training.TOKENS / training.cpu(r), max(x.rss for x in r) / 2**20,
                 "%.2f" % training.ratio(r, done[plain]) if plain else ""))


if __name__ == "__main__":
    main()
