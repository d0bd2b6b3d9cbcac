#!/usr/bin/env python3
"""Time and memory when ranks share one long sequence: cp1, cp2, cp4, and --recompute selective.

    tests/bench/bench_context.py [--seq 4096] [--rounds 3]

The model is the Llama of lib/training.py, with one sequence of --seq tokens per step. Every round runs each
program once. CPU seconds are the sum over all ranks, and the median over the rounds; `peak` is the
peak memory of the largest rank. The losses of all rows must agree within 1e-4.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import training  # noqa: E402

SAME = 1e-4
STEPS, WARM = 3, 1
RUNS = [("tp1", ()), ("tp1", ("--recompute", "selective")), ("tp1", ("--recompute", "full")),
        ("cp2", ()), ("cp2", ("--recompute", "selective")), ("cp4", ()), ("tp2", ()), ("tp2cp2", ())]


def train(folder, seq, layout, flags):
    log = folder / "log"
    log.unlink(missing_ok=True)
    p = subprocess.run(
        [training.BIN / "tp-train", "--model", folder / "config.json", "--data", training.DATA, "--steps",
         str(STEPS), "--batch", "1", "--seq", str(seq), "--layout", layout, "--threads", "1", "--log",
         log, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise SystemExit("tp-train --layout %s %s:\n%s" % (layout, " ".join(flags), p.stderr))
    steps = [json.loads(line) for line in open(log)]
    return training.Run([x["cpu_seconds"] for x in steps[WARM:]], [x["seconds"] for x in steps[WARM:]],
                     [x["loss"] for x in steps], steps[-1]["peak_rss_bytes"], p.stderr)


def said(run, pattern):
    found = re.search(pattern, run.report)
    return found.group(1) if found else "-"


def main():
    p = training.arguments(__doc__, 3)
    p.add_argument("--seq", type=int, default=4096)
    a = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="tp-bench-") as tmp:
        folder = pathlib.Path(tmp)
        config = dict(training.CONFIG, max_position_embeddings=a.seq)
        (folder / "config.json").write_text(json.dumps(config))
        runs = {" ".join((layout,) + flags[1:]): lambda w=(layout, flags): train(folder, a.seq, *w)
                for layout, flags in RUNS}
        print(training.machine())
        done = training.in_turn(runs, a.rounds)
    print("one sequence of %d tokens" % a.seq)
    print("%-16s %10s %9s %12s %12s %12s %9s" % ("", "CPU s/step", "by tp1", "activations", "peak a rank",
                                                 "ring a step", "loss off"))
    for name, r in done.items():
        off = training.farthest(r, done["tp1"][0])
        print("%-16s %10.2f %9.2f %12s %8.0f MiB %12s %9.1e"
              % (name, training.cpu(r), training.ratio(r, done["tp1"]),
                 said(r[0], r"activations ([\d.]+ \w+)"), max(x.rss for x in r) / 2**20,
                 said(r[0], r"along the ring of cp \((.*?)\)"), off))
        if off > SAME:
            sys.exit("losses differ by %.1e: %s does not train the same model" % (off, name))


if __name__ == "__main__":
    main()
