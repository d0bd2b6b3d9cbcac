#!/usr/bin/env python3
"""Restart times of tp-run on this machine, compared with torchrun's.

  kill    kill -9 of one of 4 ranks: time until tp-run names it, and time until every rank has
          completed a step at the next layout (tp2)
  stop    SIGSTOP of one of 4 ranks: the same two times
  watch   CPU time of tp-run and its supervisor, as a share of that of the ranks (bench_heartbeat
          measures what a report costs a rank)

--torch PYTHON (of an installation with torch): the same faults under torchrun with --max-restarts. The
trainer has 4 gloo ranks and steps of the same length (lib/torch_elastic.py). The time ends when all 4
ranks have completed a step after a restart, at the same scale. torchrun runs with its defaults, and
with the workaround for the store that its restarts share (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, pytorch
issue 135712). Runs that do not return within --patience seconds are counted.
"""
import argparse
import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from run_job import train_job  # noqa: E402

# A step takes about 50 ms on two idle cores.
MODEL = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, head_dim=32,
             max_position_embeddings=512)
PACE = {"seq": 64, "batch": 4}
TRAINER = pathlib.Path(__file__).with_name("lib") / "torch_elastic.py"
RANKS, VICTIM = 4, 2


def cpu_seconds(pid):
    fields = pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- tp-run ----

def job(folder, model, **kw):
    return train_job(folder, model, steps=100000, options=PACE, watch={"floor": "3s"}, **kw)


def ours(kind, folder, model):
    """Seconds until the fault is named, seconds until all train; step time; steps repeated."""
    with job(folder, model, restart={"blame": 1, "exclude_for": "1h"}) as j:
        j.start()
        j.await_step(25)
        step = j.status()["step_seconds"]
        pid = j.rank_pid(VICTIM)
        begin = time.time()
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        seen = j.await_event("rank_exit" if kind == "kill" else "hang")
        assert seen["rank"] == VICTIM, seen
        again = j.await_event("training", 2)
        assert again["layout"] == "tp2", again
        saved = [e["step"] for e in j.events("save") if e["time"] < begin]
        assert again["resumed_at"] >= saved[-1], "more steps are lost than those since the checkpoint"
        j.verb("stop", "--wait")
        return seen["time"] - begin, again["time"] - begin, step, seen["step"] - again["resumed_at"]


def watching(folder, model, seconds):
    with job(folder, model) as j:
        j.start()
        j.await_step(20)
        ranks = [r["pid"] for r in j.status()["ranks"]]
        watchers = [j.process.pid] + [p for p in j.processes()
                                      if p not in j.processes(supervisors=False)]
        first = sum(map(cpu_seconds, watchers)), sum(map(cpu_seconds, ranks))
        time.sleep(seconds)
        last = sum(map(cpu_seconds, watchers)), sum(map(cpu_seconds, ranks))
        j.verb("stop", "--wait")
        return (last[0] - first[0]) / (last[1] - first[1]), (last[0] - first[0]) / seconds


# ---- torchrun ----

def told(folder):
    """[(pid, restarts, step)] of all ranks; None while a rank has not reported."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return [tuple(map(int, (folder / ("rank-%d" % r)).read_text().split()))
                for r in range(RANKS)]
    return None


def await_ranks(folder, process, test, patience):
    """Seconds until test(ranks) is true; None on a timeout, or if torchrun has ended."""
    begin = time.monotonic()
    while time.monotonic() - begin < patience and process.poll() is None:
        ranks = told(folder)
        if ranks and test(ranks):
            return time.monotonic() - begin
        time.sleep(0.02)
    return None


def theirs(kind, folder, python, env, patience):
    """Seconds until all ranks train again; None if not within `patience`."""
    folder.mkdir(parents=True)
    torchrun = pathlib.Path(python).with_name("torchrun")
    with open(folder / "out", "w") as out:
        p = subprocess.Popen([str(torchrun), "--nproc-per-node", str(RANKS), "--max-restarts", "9",
                              "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                              str(TRAINER), str(folder)], stdout=out, stderr=out,
                             env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                             start_new_session=True)
    try:
        if await_ranks(folder, p, lambda all: min(r[2] for r in all) >= 25, 120) is None:
            sys.exit("torchrun does not start: see %s" % (folder / "out").read_text()[-2000:])
        os.kill(told(folder)[VICTIM][0], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        return await_ranks(folder, p, lambda all: min(r[1] for r in all) >= 1, patience)
    finally:
        p.kill()  # first, because it would start other ranks
        p.wait()
        subprocess.run(["pkill", "-KILL", "-f", "%s %s$" % (TRAINER.name, folder)])


# ---- the table ----

def row(who, fault, what, seconds, note=""):
    came = [s for s in seconds if s is not None]
    text = "median %6.2f s  worst %6.2f s" % (statistics.median(came), max(came)) if came else \
        "never"
    if len(came) < len(seconds):
        note = "%d of %d did not return%s" % (len(seconds) - len(came), len(seconds),
                                                 "; " + note if note else "")
    print("%-22s %-5s %-16s %-36s %s" % (who, fault, what, text, note), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--torch", metavar="PYTHON", help="the python of an installation with torch")
    p.add_argument("--torch-runs", type=int, default=3)
    p.add_argument("--patience", type=float, default=60)
    p.add_argument("--watch-seconds", type=float, default=15)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = harness.write_config(folder / "model", **MODEL)
        print("load at start %s, %d runs; 4 ranks" %
              (pathlib.Path("/proc/loadavg").read_text().split()[0], a.runs))
        for kind in ("kill", "stop"):
            got = [ours(kind, folder / kind / str(i), model) for i in range(a.runs)]
            noticed, back, step, lost = zip(*got)
            row("tp-run", kind, "named", noticed, "steps of %.0f ms" % (1e3 * statistics.median(step)))
            row("tp-run", kind, "trains at tp2", back, "at most %d steps repeated" % max(lost))
        for who, env in (("torchrun", {}), ("torchrun, own stores",
                                            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})):
            for kind in ("kill", "stop") if a.torch else ():
                runs = a.torch_runs if kind == "kill" else 1
                got = [theirs(kind, folder / who / kind / str(i), a.torch, env, a.patience)
                       for i in range(runs)]
                row(who, kind, "trains", got, "patience %.0f s" % a.patience)
        share, rate = watching(folder / "watch", model, a.watch_seconds)
        print("watching takes %.3f %% of the ranks' CPU time (%.1f ms per second)" %
              (100 * share, 1e3 * rate))


if __name__ == "__main__":
    main()
