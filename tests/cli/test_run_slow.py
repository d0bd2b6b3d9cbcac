"""tp-run and slow ranks while other programs use the processors: the right rank is named, or none.

needs: tp-run tp-train libtp-progress.so
covers: orchestrator/watch/pace
"""
import contextlib
import os
import random
import signal
import subprocess
import threading
import time

import pytest

import harness
from run_job import fake_job, train_job

TRIES = int(os.environ.get("TP_SLOW_TRIES", 20))
SECONDS = 15  # of a try, from the first step of all ranks


@contextlib.contextmanager
def load(programs):
    """Programs that compute without end."""
    running = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(programs)]
    try:
        yield
    finally:
        for p in running:
            p.kill()
            p.wait()


@contextlib.contextmanager
def stopped_mostly(pid):
    """The process runs for 10 of 100 ms, as on a slow processor. Some of its stops are in collectives."""
    end = threading.Event()

    def stop_and_continue():
        with contextlib.suppress(ProcessLookupError):
            while not end.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.09)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.01)

    thread = threading.Thread(target=stop_and_continue)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def named(job):
    """The ranks that tp-run has named in the time of a try; one is enough."""
    end = time.monotonic() + SECONDS
    while not job.events("slow") and time.monotonic() < end:
        time.sleep(0.1)
    return [e["rank"] for e in job.events("slow")]


def slow_tp_train(folder, model, rank):
    with train_job(folder, model, steps=10**6, allow="[dp4]", watch={"floor": "60s", "slow_steps": 5}) as job:
        job.start().await_event("training")
        with stopped_mostly(job.rank_pid(rank)):
            return named(job)


def slow_program(folder, rank):
    with fake_job(folder, "--busy", rank, "--steps", 10**6, nodes="[a, b, c, d]", allow="[dp4]",
                  watch={"floor": "60s", "slow_steps": 5}) as job:
        job.start().await_event("training")
        return named(job)


@pytest.mark.long
def test_at_any_load_the_slow_rank_is_named_or_none(tmp_path, figure):
    model = harness.write_config(tmp_path / "model", hidden_size=256, intermediate_size=704,
                                 num_hidden_layers=4, head_dim=32)
    seed = random.randrange(10**6)
    rnd, results = random.Random(seed), []
    print("seed", seed)
    for i in range(TRIES):
        rank, programs = rnd.randrange(4), rnd.choice([0, 0, 2, 4, 8, 16])
        folder = tmp_path / str(i)
        with load(programs):
            found = slow_tp_train(folder, model, rank) if i % 2 else slow_program(folder, rank)
        results.append((rank, found))
        print("try", i, "slow", rank, "other programs", programs, "named", found, flush=True)
    right = sum(found == [rank] for rank, found in results)
    silent = sum(not found for _, found in results)
    figure("seed", seed)
    figure("tries: right, not reported, wrong", (right, silent, len(results) - right - silent))
    assert right + silent == len(results) and right > 0, results
