#!/usr/bin/env python3
"""Restart times of tp-run on a Slurm cluster of three nodes in namespaces (cluster.sh; needs root).

  crash   a node's first process is killed, and all others with it: time until tp-run reports that the
          node is lost, and time until every rank has completed a step on the two other nodes
  cut     a node's link is taken down: the same two times
  wall    the wall time ends: from "save and stop" until every rank trains in the next allocation

Prints medians of --runs. Slurm itself marks a node as down after SlurmdTimeout, here 10 s.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "cli"), str(TESTS / "slurm")]
import harness  # noqa: E402
from slurm_job import end_in, node_of, queue, slurm_job  # noqa: E402

# a step of four ranks takes about 50 ms on two cores
MODEL = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, head_dim=32,
             max_position_embeddings=512)
OPTIONS = {"seq": 64, "batch": 4, "save-every": 10}


def cluster(*argv):
    subprocess.run([str(TESTS / "slurm/cluster.sh"), *argv], check=True, timeout=90,
                   stdin=subprocess.DEVNULL)


def one(kind, folder, model):
    """Seconds until it is noticed, until all train; seconds per step; steps to repeat."""
    with slurm_job(folder, model, steps=100000, train_options=OPTIONS, grow="off",
                   options="[--time=60]", margin="12s") as job:
        job.start()
        job.await_step(25, timeout=120)
        step = job.status()["step_seconds"]
        if kind == "wall":
            end_in(queue()[0], 14)
            seen = job.await_event("allocation", result="ends", timeout=60)
            begin = seen["time"]
        else:
            begin = time.time()
            cluster(kind, node_of(job, 2))
            seen = job.await_event("node_lost", timeout=60)
        again = job.await_event("training", 2, timeout=120)
        assert again["layout"] == "tp4", again
        job.verb("stop", "--wait")
        done_again = max(0, seen["step"] - again["resumed_at"])
        return seen["time"] - begin, again["time"] - begin, step, done_again


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=5, help="of each kind (5)")
    runs = p.parse_args().runs
    if os.geteuid() != 0 or not shutil.which("slurmctld"):
        print("skipped: needs root and Slurm")
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = harness.write_config(folder / "model", **MODEL)
        print("load at start: %s; %d runs each" % (
            pathlib.Path("/proc/loadavg").read_text().split()[0], runs))
        for kind in ("crash", "cut", "wall"):
            got = []
            for i in range(runs):
                cluster("up", "3")
                try:
                    got.append(one(kind, folder / kind / str(i), model))
                finally:
                    cluster("down")
            noticed, back, step, again = zip(*got)
            print("slurm %-5s noticed  median %5.2f s  worst %5.2f s" % (
                kind, statistics.median(noticed), max(noticed)))
            print("slurm %-5s training median %5.2f s  worst %5.2f s  (step %.0f ms, steps to do "
                  "again at most %d)" % (kind, statistics.median(back), max(back),
                                         1e3 * statistics.median(step), max(again)))


main()
