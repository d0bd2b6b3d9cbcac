#!/usr/bin/env python3
"""Restart times of tp-run on this machine: medians of RUNS (default 5), steps of some 50 ms.

  kill    kill -9 of one of 4 ranks until every rank has done a step at the next layout (tp2)
  stop    SIGSTOP of one of 4 ranks: until it is named, and until every rank has done a step
  watch   processor time of tp-run and its keeper, as a share of that of the ranks (what the ranks
          themselves pay for telling is bench_tell's)
"""
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

RUNS = int(os.environ.get("RUNS", 5))
MODEL = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, head_dim=32,
             max_position_embeddings=512)


def cpu_seconds(pid):
    fields = pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def job(folder, model, **kw):
    return train_job(folder, model, steps=100000, options={"seq": 64, "batch": 4},
                     watch={"floor": "3s"}, **kw)


def one(kind, folder, model):
    """Seconds to the verdict and to training; step time."""
    with job(folder, model, restart={"blame": 1, "exclude_for": "1h"}) as j:
        j.start()
        j.await_step(25)
        step = j.status()["step_seconds"]
        pid = j.rank_pid(2)
        begin = time.time()
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        seen = j.await_event("rank_exit" if kind == "kill" else "hang")
        assert seen["rank"] == 2, seen
        again = j.await_event("training", 2)
        assert again["layout"] == "tp2", again
        lost = seen["step"] - again["resumed_at"]
        j.verb("stop", "--wait")
        return seen["time"] - begin, again["time"] - begin, step, lost


def watching(folder, model):
    with job(folder, model) as j:
        j.start()
        j.await_step(20)
        ranks = [r["pid"] for r in j.status()["ranks"]]
        watchers = [j.process.pid] + [p for p in j.processes()
                                      if p not in j.processes(keepers=False)]
        first = sum(map(cpu_seconds, watchers)), sum(map(cpu_seconds, ranks))
        time.sleep(15)
        last = sum(map(cpu_seconds, watchers)), sum(map(cpu_seconds, ranks))
        j.verb("stop", "--wait")
        return (last[0] - first[0]) / (last[1] - first[1])


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = harness.write_config(folder / "model", **MODEL)
        print("load at start: %s" % pathlib.Path("/proc/loadavg").read_text().split()[0])
        for kind in ("kill", "stop"):
            got = [one(kind, folder / kind / str(i), model) for i in range(RUNS)]
            noticed, back, step, lost = zip(*got)
            print("%-5s noticed and named  median %.2f s  worst %.2f s" %
                  (kind, statistics.median(noticed), max(noticed)))
            print("%-5s training at tp2    median %.2f s  worst %.2f s  (step %.0f ms, %d runs, "
                  "steps lost at most %d)" % (kind, statistics.median(back), max(back),
                                              1e3 * statistics.median(step), RUNS, max(lost)))
        print("watch tp-run and keeper  %.3f %% of the ranks' processor time" %
              (100 * watching(folder / "watch", model)))


main()
