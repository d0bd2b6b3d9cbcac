"""tp-run and checkpoints of another layout: the command reads them, or tp-reshard converts them first.

needs: tp-run tp-train tp-reshard tp-ckpt fault/shim.so fault/journal_kill.so
covers: orchestrator/run_convert orchestrator/run_helper
"""
import os
import shutil
import signal
import stat
import time

import pytest

import harness
from run_job import assert_same_curve, killed_after, picky_job, train_job
from test_faults import Shim

STEPS = 250


@pytest.fixture
def reference(curve):
    return curve(STEPS)


def assert_whole(job, reference):
    """Every step was trained, the losses are those of a run without failures, checkpoints are intact."""
    assert_same_curve(job, reference)
    for step in harness.steps(job.ckpt):
        harness.ok("tp-ckpt", "verify", step)
    assert not list(job.ckpt.glob("*.tmp-*")) and job.processes() == []


def lose_a_rank(job):
    """Start a job at tp4 and, after a checkpoint, take one node away for good. tp2 is next."""
    job.start()
    job.await_event("save")
    os.kill(job.rank_pid(3), signal.SIGKILL)


def some_long(*values):
    """Parameters that only `make test-long` uses."""
    return [pytest.param(v, marks=pytest.mark.long) for v in values]


LOSE = {"restart": {"blame": 1, "exclude_for": "1h", "backoff": "0.1s"}}


def bin_with(folder, script):
    """A bin/ whose tp-reshard is this shell script. In the script, REAL is the real tp-reshard."""
    folder.mkdir(parents=True)
    for name in ("tp-run", "tp-train"):
        shutil.copy(harness.BIN / name, folder / name)
    path = folder / "tp-reshard"
    path.write_text("#!/bin/sh\nREAL='%s'\n%s\n" % (harness.BIN / "tp-reshard", script))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def shimmed(folder, root, at, do):
    """A line of a shell script that runs tp-reshard under the fault shim."""
    return Shim(folder, root).line(harness.BIN / "tp-reshard", at, do)


def await_file(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, "%s does not appear" % path
        time.sleep(0.02)


# ---- read or convert ----

def test_tp_train_reads_another_layout_itself_and_the_reason_is_given(tmp_path, tiny, reference):
    with train_job(tmp_path, tiny, steps=STEPS, **LOSE) as job:
        lose_a_rank(job)
        assert job.wait() == 0
        event, = job.events("reshard")
        assert event["how"] == "resume" and event["from"] == "tp4" and event["to"] == "tp2"
        assert event["resume_seconds"] < event["convert_seconds"]
        assert event["reason"] == "resume_faster" and "--resume reads" in event["message"]
        size = sum(f.stat().st_size for f in harness.steps(job.ckpt)[0].glob("*.h5"))
        assert 0.9 * size < event["bytes"] < 1.1 * size
        assert_whole(job, reference)


def test_with_reshard_always_tp_train_gets_a_conversion_too(tmp_path, tiny, reference):
    with train_job(tmp_path, tiny, steps=STEPS, reshard="always", **LOSE) as job:
        lose_a_rank(job)
        assert job.wait() == 0
        event, = job.events("reshard")
        assert event["how"] == "convert" and len(job.events("resharded")) == 1
        assert "(written by tp2) at tp2" in (job.state / "attempt-0002.log").read_text()
        assert_whole(job, reference)


def test_a_trainer_that_reads_only_its_own_layout_gets_a_conversion(tmp_path, tiny, reference):
    with picky_job(tmp_path, tiny, steps=STEPS, **LOSE) as job:
        lose_a_rank(job)
        assert job.wait() == 0
        event, = job.events("reshard")
        assert event["how"] == "convert" and event["reason"] == "own_layout_only"
        assert job.events("training")[1]["layout"] == "tp2"
        assert_whole(job, reference)


def test_a_conversion_ends_expert_parallelism_where_the_next_layout_has_none(tmp_path):
    moe = harness.write_config(tmp_path / "moe", architectures=["MixtralForCausalLM"], model_type="mixtral",
                               num_local_experts=4, num_experts_per_tok=2)
    with picky_job(tmp_path / "job", moe, nodes="[a, b]", allow="[dp2ep2, dp1]", **LOSE) as job:
        job.start()
        job.await_event("save")
        os.kill(job.rank_pid(1), signal.SIGKILL)
        assert job.wait() == 0, job.story()
        assert [e["layout"] for e in job.events("launch")] == ["tp1ep2dp2", "tp1"] and len(job.events("resharded")) == 1


def test_with_reshard_never_the_command_reads_the_checkpoint(tmp_path, tiny):
    with picky_job(tmp_path, tiny, steps=STEPS, reshard="never", **LOSE) as job:
        lose_a_rank(job)
        assert job.wait() == 3
        assert job.events("reshard")[0]["how"] == "resume"
        assert "picky:" in job.events("failed")[0]["message"]


# ---- faults during a conversion ----

@pytest.mark.parametrize("at", [3, 16] + some_long(9, 12, 20, 1000))
def test_a_killed_tp_reshard_is_resumed(tmp_path, tiny, reference, at):
    """The first run is killed at a change of the file system (1000 is never reached)."""
    once = tmp_path / "once"
    script = "if [ -e '%s' ]; then exec \"$REAL\" \"$@\"; fi\n: > '%s'\n%s" % (
        once, once, shimmed(tmp_path, tmp_path / "ckpt", at, "kill-self"))
    with picky_job(tmp_path, tiny, steps=STEPS, bin=bin_with(tmp_path / "bin", script),
                   **LOSE) as job:
        lose_a_rank(job)
        assert job.wait() == 0
        failed = job.events("reshard_failed")
        assert len(failed) == (at < 1000), job.story()
        assert all(e["reason"] == "tp_reshard_failed" and "signal 9" in e["message"] for e in failed)
        assert len(job.events("reshard")) == 1 + len(failed)
        assert_whole(job, reference)


@pytest.mark.parametrize("picky", [False, True])
def test_without_space_for_a_conversion_no_step_is_lost(tmp_path, tiny, reference, picky):
    """tp-train continues without it. A trainer that needs it gets a message. No step is lost."""
    bin_dir = bin_with(tmp_path / "bin", shimmed(tmp_path, tmp_path / "ckpt", 4, "enospc"))
    kind = picky_job if picky else train_job
    with kind(tmp_path, tiny, steps=STEPS, bin=bin_dir, reshard="always", **LOSE) as job:
        lose_a_rank(job)
        code = job.wait()
        failed = job.events("reshard_failed")
        assert "No space left" in failed[0]["message"], failed
        if picky:
            assert code == 3 and len(failed) == 3
            assert "No space left" in job.events("failed")[0]["message"]
            for step in harness.steps(job.ckpt):
                harness.ok("tp-ckpt", "verify", step)
            assert not list(job.ckpt.glob("*.tmp-*")) and job.processes() == []
        else:
            assert code == 0 and len(failed) == 1
            assert [e["how"] for e in job.events("reshard")] == ["convert", "resume"]
            assert_whole(job, reference)


def test_a_job_that_is_stopped_during_a_conversion_continues_later(tmp_path, tiny, reference):
    """It ends at once. The conversion is done when the job is started again."""
    slow = tmp_path / "slow"
    slow.write_text("")
    script = "[ -e '%s' ] && { : > '%s'; exec sleep 60; }\nexec \"$REAL\" \"$@\"" % (
        slow, tmp_path / "asleep")
    with picky_job(tmp_path, tiny, steps=STEPS, bin=bin_with(tmp_path / "bin", script),
                   **LOSE) as job:
        lose_a_rank(job)
        job.await_event("reshard")
        await_file(tmp_path / "asleep")
        assert job.status()["state"] == "reshard"
        assert job.verb("stop").rc == 0
        assert job.wait(10) == 75
        slow.unlink()
        assert job.start().wait() == 0
        assert_whole(job, reference)


def test_a_node_that_is_back_before_the_conversion_ends_changes_the_plan(tmp_path, tiny, reference):
    go = tmp_path / "go"
    script = ": > '%s'; while [ ! -e '%s' ]; do sleep 0.05; done\nexec \"$REAL\" \"$@\"" % (
        tmp_path / "asleep", go)
    with picky_job(tmp_path, tiny, steps=STEPS, bin=bin_with(tmp_path / "bin", script)) as job:
        job.start()
        job.await_event("save")
        job.verb("node", "down", "d")
        job.await_event("reshard", to="tp2")
        await_file(tmp_path / "asleep")
        job.verb("node", "up", "d")
        go.write_text("")
        assert job.await_event("training", 2)["layout"] == "tp4"
        assert job.wait() == 0
        assert_whole(job, reference)


@pytest.mark.parametrize("record", ["reshard:1", "launch:2"] +
                         some_long("diagnose:1", "plan:2", "init:2"))
def test_tp_run_killed_around_a_conversion(tmp_path, tiny, reference, record):
    """tp-run is killed at each journal record from the fault to the next training."""
    with picky_job(tmp_path, tiny, steps=STEPS, **LOSE) as job:
        job.start(killed_after(record))
        job.await_event("save")
        os.kill(job.rank_pid(3), signal.SIGKILL)
        assert job.process.wait(60) == -signal.SIGKILL, job.story()
        assert job.journal()[-1]["transition"] == record.split(":")[0]
        assert job.start().wait() == 0, job.story()
        assert_whole(job, reference)


def test_the_journal_keeps_the_measured_rates(tmp_path, tiny):
    with picky_job(tmp_path, tiny, steps=STEPS, **LOSE) as job:
        lose_a_rank(job)
        assert job.wait() == 0
        book = job.journal()[-1]["record"]
        assert book["read_rate"] > 0 and book["convert_rate"] > 0
