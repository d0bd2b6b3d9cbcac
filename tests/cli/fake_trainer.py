#!/usr/bin/env python3
"""A trainer other than tp-train: RANKS processes, steps of 20 ms (--step-ms) with a barrier, and faults.

    fake_trainer.py RANKS [--steps N] [--state FILE] [--nan-at STEP] [--jump-at STEP] [--slow RANK]
                    [--exit-at STEP CODE] [--never-start] [--ignore-signals] [--step-ms MS]
                    [--freeze RANK PHASE ATTEMPT] [--busy RANK] [--slower-at STEP]

It stores its step in FILE and continues from there. SIGUSR1 or SIGTERM: it stores the step and exits
with 75. Rank 0 chooses the step after which all ranks stop. If one rank stopped a step earlier, the other
ranks would wait for it in the barrier.

--exit-at: rank 0 ends with CODE, or by the signal -CODE, the others with 0.
--freeze: the rank stops itself (SIGSTOP) in a phase of the first ATTEMPT: start, train, save or drain.
--slow: the rank sleeps 200 ms per step; --busy: it computes for 200 ms. --slower-at: all sleep so long, from this step on.
"""
import argparse
import math
import mmap
import os
import pathlib
import signal
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "progress"))
from tp_progress import Progress  # noqa: E402


STOP_STEP = 4088  # offset in the shared page of the step after which all stop, plus 1; rank 0 writes it


def barrier(shared, rank, world, count):
    """Wait until every rank has called this `count` times."""
    shared[8 * rank:8 * rank + 8] = struct.pack("q", count)
    while min(struct.unpack("%dq" % world, shared[:8 * world])) < count:
        time.sleep(0.001)


def freeze(rank, a, phase):
    if a.freeze and a.freeze[:2] == [str(rank), phase] and a.freeze[2] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)


def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def work(rank, a, shared, stop):
    first = int((pathlib.Path(a.state).read_text() if os.path.isfile(a.state) else "") or 0)
    progress = Progress(rank, a.ranks)
    freeze(rank, a, "start")
    progress.phase(Progress.TRAIN)
    for step in range(first, a.steps):
        time.sleep(0.2 if rank == a.slow or step >= a.slower_at else a.step_ms / 1000)
        compute(0.2 if rank == a.busy else 0)
        if step == first + 10:
            freeze(rank, a, "train")
            progress.phase(Progress.SAVE)
            freeze(rank, a, "save")
            progress.phase(Progress.TRAIN)
        if a.exit_at and step == a.exit_at[0]:
            if rank == 0 and a.exit_at[1] < 0:
                os.kill(os.getpid(), -a.exit_at[1])
            sys.exit(a.exit_at[1] if rank == 0 else 0)
        if rank == 0 and stop[0] == 1 and not a.ignore_signals:
            shared[STOP_STEP:] = struct.pack("q", step + 1)
        with progress.collective():
            barrier(shared, rank, a.ranks, step + 1)
        loss = 3 + 1 / (1 + step) + 0.01 * math.sin(step)
        loss = math.nan if step == a.nan_at else 50 if step == a.jump_at else loss
        progress.step(step + 1, loss)
        if rank == 0 and a.state != os.devnull:
            pathlib.Path(a.state + ".new").write_text(str(step + 1))
            os.replace(a.state + ".new", a.state)
        if struct.unpack("q", shared[STOP_STEP:])[0] == step + 1:
            progress.phase(Progress.DRAIN)
            freeze(rank, a, "drain")
            sys.exit(75)
    progress.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ranks", type=int)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--state", default=os.devnull)
    p.add_argument("--nan-at", type=int)
    p.add_argument("--jump-at", type=int)
    p.add_argument("--slow", type=int)
    p.add_argument("--step-ms", type=float, default=20)
    p.add_argument("--exit-at", type=int, nargs=2)
    p.add_argument("--never-start", action="store_true")
    p.add_argument("--ignore-signals", action="store_true")
    p.add_argument("--freeze", nargs=3)
    p.add_argument("--busy", type=int)
    p.add_argument("--slower-at", type=int, default=2**62)
    a = p.parse_args()
    if a.never_start:
        sys.exit("fake: cannot start")
    shared, stop, pids = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096), []
    for rank in range(a.ranks):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            work(rank, a, shared, stop)
            sys.exit(0)
        pids.append(pid)
    for s in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(s, lambda *_: stop.__setitem__(0, 1))
    code = 0
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            print("fake: rank with pid %d ended: %d" % (pid, code), file=sys.stderr)
            if code != 75:
                for other in pids:
                    os.kill(other, signal.SIGKILL)
    sys.exit(code if code >= 0 else 1)


main()
