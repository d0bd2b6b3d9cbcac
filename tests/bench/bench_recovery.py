#!/usr/bin/env python3
"""What a killed rank costs at 4, 8, 16, 32 and 64 local ranks, and which part of it is tp-run's own.

A job trains a tiny model at dpN. One rank is killed, and the job continues at half the ranks. The parts are
read from the journal:

  detect   kill -9 until tp-run has recorded the fault
  end      until the kernel has ended all processes of the attempt, and the reason is known
  plan     until layout and checkpoint are chosen, and the checkpoint is verified
  launch   until the next attempt's command is started
  tp-run   its own part: detect, plan and launch
  ranks    until every rank has done a step: the ranks' own start
"""
import argparse
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from run_job import train_job  # noqa: E402

PARTS = ("detect", "end", "plan", "launch", "ranks")


def times_after_fault(records):
    """{transition: when it first happened from the fault on}. A save may end between the kill and the fault, and its
    return to training is not part of the recovery."""
    names, times = [r["transition"] for r in records], {}
    fault = min(names.index(t) for t in ("drain", "diagnose") if t in names)
    for r in records[fault:]:
        times.setdefault(r["transition"], r["time"])
    times.setdefault("drain", times["diagnose"])  # the command ended before its rank was looked at
    return times


def recover(folder, model, ranks):
    """Seconds of each of PARTS."""
    with train_job(folder, model, steps=100000, nodes=str(ranks), allow="[dp%d, dp%d]" % (ranks, ranks // 2),
                   options={"seq": 16, "batch": ranks, "save-every": 5}, watch={"floor": "60s"},
                   restart={"blame": 1, "exclude_for": "1h"}) as job:
        job.start()
        job.await_event("save", timeout=300)
        pid, seen = job.rank_pid(ranks // 2), len(job.journal())
        begin = time.time()
        os.kill(pid, signal.SIGKILL)
        job.await_event("training", 2, timeout=300)
        times = times_after_fault(job.journal()[seen:])
        job.verb("stop", "--wait")
    marks = [begin] + [times[t] for t in ("drain", "diagnose", "launch", "init", "train")]
    return [b - a for a, b in zip(marks, marks[1:])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 16, 32, 64])
    a = p.parse_args()
    print("seconds, medians of %d; load at start %s, %d cores" %
          (a.runs, pathlib.Path("/proc/loadavg").read_text().split()[0], len(os.sched_getaffinity(0))))
    print("%5s  %s  %8s" % ("ranks", " ".join("%8s" % x for x in PARTS[:-1] + ("tp-run",)), PARTS[-1]))
    own = {}
    with tempfile.TemporaryDirectory() as folder:
        model = harness.write_config(pathlib.Path(folder) / "model")
        for ranks in a.ranks:
            runs = [recover(pathlib.Path(folder) / ("%d-%d" % (ranks, i)), model, ranks) for i in range(a.runs)]
            parts = [statistics.median(x) for x in zip(*runs)]
            own[ranks] = statistics.median(x[0] + x[2] + x[3] for x in runs)
            print("%5d  %s  %8.2f" % (ranks, " ".join("%8.3f" % x for x in parts[:-1] + [own[ranks]]), parts[-1]),
                  flush=True)
    print("tp-run at %d ranks: %.2f times that at %d" %
          (max(own), own[max(own)] / own[min(own)], min(own)))


if __name__ == "__main__":
    main()
