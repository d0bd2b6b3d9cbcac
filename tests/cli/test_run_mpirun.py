"""tp-run with `launcher: mpirun`: ranks that Open MPI starts.

needs: tp-run tp-train tp-ckpt
"""
import os
import signal

import harness
from run_job import SLOW, alive, assert_same_curve, train_job

STEPS = 300
MPIRUN = {"launcher": "mpirun", "allow": "[tp2, tp1]", "nodes": "[a, b]"}


def test_a_killed_rank_is_named_and_the_job_continues(tmp_path, tiny, curve):
    with train_job(tmp_path, tiny, steps=STEPS, **MPIRUN) as job:
        job.start()
        job.await_event("save", timeout=120)
        os.kill(job.rank_pid(1), signal.SIGKILL)
        assert job.await_event("rank_exit")["rank"] == 1, job.story()
        job.await_event("training", 2, timeout=120)
        assert job.wait(300) == 0
        assert_same_curve(job, curve(STEPS))
        assert job.processes() == []


def test_a_stopped_rank_is_named_and_mpirun_is_ended(tmp_path, tiny):
    """mpirun itself does not notice, and does not end on SIGTERM while its ranks hang."""
    with train_job(tmp_path, tiny, steps=20000, restart={"blame": 1, "exclude_for": "1h"},
                   **MPIRUN) as job:
        job.start()
        job.await_step(30, timeout=120)
        before = job.processes()
        os.kill(job.rank_pid(1), signal.SIGSTOP)
        hang = job.await_event("hang", timeout=60)
        assert hang["rank"] == 1 and hang["node"] == "b"
        again = job.await_event("training", 2, timeout=120)
        assert again["layout"] == "tp1" and again["resumed_at"] >= 10
        assert not any(alive(p) for p in before)
        assert job.verb("stop", "--wait").rc == 0


def test_sigusr1_saves_and_stops(tmp_path, tiny, curve):
    """With SIGTERM mpirun would kill the ranks, so tp-run forwards every request to stop as SIGUSR1."""
    with train_job(tmp_path, tiny, steps=STEPS, options={"save-every": 10000, "batch": SLOW}, **MPIRUN) as job:
        for sent in (signal.SIGUSR1, signal.SIGTERM):
            job.start()
            job.await_step(5 if sent == signal.SIGUSR1 else 20, timeout=120)
            job.process.send_signal(sent)
            assert job.wait() == 75, job.story()
            step = job.events("stopped")[-1]["step"]
            assert harness.steps(job.ckpt)[-1].name == "step-%08d" % step
        assert job.start().wait(300) == 0
        assert_same_curve(job, curve(STEPS, SLOW))
