"""tp-run itself: killed, started twice, frozen, with a clock that jumps; and many faults in one run.

needs: tp-run tp-train tp-reshard tp-ckpt fault/journal_kill.so
covers: orchestrator/run_root
"""
import contextlib
import fcntl
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

import harness
from freezer import open_freezer
from run_job import Job, alive, assert_same_curve, await_file, fake_job, killed_after, train_job

STEPS = 250


def test_a_second_tp_run_of_a_job_is_refused(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=2000) as job:
        job.start()
        job.await_step(10)
        r = harness.run("tp-run", job.path)
        assert r.rc == 2 and "another tp-run (pid %d)" % job.process.pid in r.err
        job.verb("stop", "--wait")


def test_where_dev_shm_is_full_heartbeats_are_elsewhere(tmp_path, tiny):
    """As in a container, whose /dev/shm other programs fill. The name of the folder is in Latin-1."""
    tmp_path = pathlib.Path(os.fsdecode(os.fsencode(tmp_path / "caf") + b"\xe9"))
    tmp_path.mkdir()
    (tmp_path / "job.yaml").write_text(
        "name: full\ncommand: tp-train --model %s --data %s --steps 4 --seq 32\nckpt: ckpt\nnodes: [localhost:2]\n"
        "layouts:\n  max_ranks: 2\nrestart:\n  max: 1\n" % (tiny, harness.TEXT))
    full = "mount -t tmpfs -o size=24k tmpfs /dev/shm && { head -c 96k /dev/zero > /dev/shm/full; exec \"$@\"; }"
    inside = ["unshare", "-m", "sh", "-c", full, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    harness.ok(*inside, harness.BIN / "tp-run", tmp_path / "job.yaml")
    events = [json.loads(x) for x in (tmp_path / "job.run" / "events.jsonl").read_text().splitlines()]
    assert "restart" not in [e["event"] for e in events]
    log = (tmp_path / "job.run" / "attempt-0001.log").read_text()
    assert "done: 4 steps" in log and "heartbeat" not in log, log


def test_killed_while_training_it_takes_over_the_running_job(tmp_path, tiny, curve):
    with train_job(tmp_path, tiny, steps=STEPS) as job:
        job.start()
        job.await_step(20)
        pids = sorted(r["pid"] for r in job.status()["ranks"])
        job.process.kill()
        job.process.wait()
        assert all(alive(p) for p in pids)
        job.start()
        job.await_event("takeover", running=True)
        assert sorted(r["pid"] for r in job.await_step(20)["ranks"]) == pids
        assert job.wait() == 0
        assert len(job.events("launch")) == 1
        assert_same_curve(job, curve(STEPS))


def test_a_job_that_ended_while_no_tp_run_watched_is_reported(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=100) as job:
        job.start()
        job.await_step(5)
        job.process.kill()
        job.process.wait()
        end = time.monotonic() + 60
        while job.processes() and time.monotonic() < end:
            time.sleep(0.1)
        assert job.start().wait() == 0
        assert len(job.events("launch")) == 1 and job.events("done")


def test_it_answers_while_the_root_is_locked_after_prepare(tmp_path, tiny):
    prepare = json.dumps(["sh", "-c", "touch began; while [ ! -e go ]; do sleep 0.02; done"])
    with train_job(tmp_path, tiny, steps=20, prepare=prepare) as job:
        job.ckpt.mkdir()
        job.start()
        await_file(job, "began")
        with open(job.ckpt / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (job.folder / "go").touch()
            job.await_event("plan", reason="root_locked")
            assert job.status()["state"] == "reshard" and not job.events("launch"), job.story()
        assert job.wait() == 0, job.story()


@pytest.mark.parametrize("verb", [["stop"], ["resize", "dp1"]], ids=["stop", "resize"])
def test_a_command_that_obeyed_while_no_tp_run_watched_is_not_done(tmp_path, verb):
    """A program other than tp-train may exit with 0 when it was asked to stop. tp-run is killed meanwhile."""
    script = "[ {ranks} = 1 ] && exit 0; trap 'touch asked; while [ ! -e go ]; do sleep 0.02; done; exit 0' TERM; " \
        "touch up; while :; do sleep 0.02; done"
    with Job(tmp_path, ["sh", "-c", script], nodes="[a, b]", allow="[dp2, dp1]", checkpoints="none") as job:
        job.start()
        await_file(job, "up")
        assert job.verb(*verb).rc == 0
        await_file(job, "asked")
        job.process.kill()
        job.wait()
        (job.folder / "go").touch()
        await_file(job, "job.run/attempt-0001.exit")
        assert job.start().wait() == (75 if verb[0] == "stop" else 0), job.story()
        assert len(job.events("launch")) == (1 if verb[0] == "stop" else 2), job.story()
        assert [e["layout"] for e in job.events("done")] == ([] if verb[0] == "stop" else ["tp1"]), job.story()


def test_a_layout_that_was_asked_for_before_the_launch_outlives_tp_run(tmp_path):
    with Job(tmp_path, ["true"], nodes="[a, b]", allow="[dp2, dp1]", checkpoints="none",
             prepare="sh -c 'while [ ! -e go ]; do sleep 0.02; done'") as job:
        job.start()
        while (job.status() or {}).get("state") != "reshard":
            time.sleep(0.02)
        assert job.verb("resize", "dp1").rc == 0
        job.process.kill()
        job.wait()
        (job.folder / "go").touch()
        assert job.start().wait() == 0, job.story()
        assert [e["layout"] for e in job.events("done")] == ["tp1"], job.story()


def test_a_stop_that_was_asked_for_while_ranks_end_outlives_tp_run(tmp_path):
    script = "trap 'touch asked; while [ ! -e go ]; do sleep 0.02; done; exit 0' TERM; touch up; while :; do sleep 0.02; done"
    with Job(tmp_path, ["sh", "-c", script], nodes="[a, b]", allow="[dp2, dp1]", checkpoints="none") as job:
        job.start()
        await_file(job, "up")
        assert job.verb("resize", "dp1").rc == 0
        await_file(job, "asked")
        assert job.verb("stop").rc == 0
        job.process.kill()
        job.wait()
        (job.folder / "go").touch()
        assert job.start().wait() == 75, job.story()
        assert len(job.events("launch")) == 1, job.story()


TRANSITIONS = ["plan:1", "launch:1", "init:1", "train:1", "save:1", "train:2", "drain:1", "diagnose:1",
               "plan:2", "launch:2", "init:2", "train:4", "done:1"]


def rank_of_step(job, step):
    """The pid of a rank once tp-run has seen that it trains and the job has reached this step, else None. It is read from files, because
    `tp-run status` with a sanitizer may take as long as all steps."""
    try:
        if max(job.losses(), default=0) < step or "train" not in [r["transition"] for r in job.journal()]:
            return None
        pids = job.processes(supervisors=False)
        parents = {pid: int(pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[1]) for pid in pids}
    except (OSError, ValueError):  # the attempt has just begun, or a record is being written
        return None
    return max([pid for pid, parent in parents.items() if parent in parents], default=None)


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_killed_at_a_record_of_the_journal_it_continues(tmp_path, tiny, transition, curve):
    """The job has one fault, so that it passes through every state. tp-run is killed after the record."""
    # tp-run looks ten times per second; there are many saves, so it sees some even if they are short
    every = 1 if transition in ("save:1", "train:4") else 25
    with train_job(tmp_path, tiny, steps=STEPS, options={"save-every": every}) as job:
        job.start(killed_after(transition))
        fault = None
        while job.process.poll() is None:
            if not fault and (fault := rank_of_step(job, 30)):
                os.kill(fault, signal.SIGKILL)
            time.sleep(0.01)
        assert job.process.returncode == -signal.SIGKILL, job.story()
        assert job.journal()[-1]["transition"] == transition.split(":")[0]
        assert job.start().wait() == 0, job.story()
        assert job.processes() == []
        assert_same_curve(job, curve(STEPS))
        assert harness.ok("tp-ckpt", "verify", job.ckpt).rc == 0


@pytest.mark.parametrize("code, exit_code, reason", [(0, 0, "all_steps_done"), (75, 75, "saved"), (2, 2, "command_refused")])
def test_killed_before_it_decides_it_decides_and_does_not_run_the_command_again(tmp_path, code, exit_code, reason):
    with Job(tmp_path, ["sh", "-c", "echo >> lives; exit %d" % code], nodes="[a]", allow="[tp1]", checkpoints="none") as job:
        job.start(killed_after("diagnose:1"))
        assert job.wait() == -signal.SIGKILL, job.story()
        assert job.start().wait() == exit_code, job.story()
        assert (tmp_path / "lives").read_text() == "\n"
        assert [e["reason"] for e in job.events() if e["event"] in ("done", "stopped", "failed")] == [reason]


def test_killed_before_it_decides_it_continues_at_the_layout_that_was_asked_for(tmp_path):
    script = "[ -e up ] && exit 0; trap 'exit 1' TERM; touch up; while :; do sleep 0.02; done"
    with Job(tmp_path, ["sh", "-c", script], nodes="[a, b]", allow="[dp2, dp1]", checkpoints="none",
             restart={"no_progress": 1}) as job:
        job.start(killed_after("diagnose:1"))
        await_file(job, "up")
        assert job.verb("resize", "dp1").rc == 0
        assert job.wait() == -signal.SIGKILL, job.story()
        assert job.start().wait() == 0, job.story()
        assert [e["layout"] for e in job.events("launch")] == ["tp1dp2", "tp1"] and not job.events("restart"), job.story()


def test_after_a_takeover_ranks_are_on_the_nodes_on_which_they_were_started(tmp_path):
    """Though other nodes have come back since."""
    with fake_job(tmp_path, "--steps", 100000, nodes="[a, b, c]", allow="[dp2, dp1]", restart={"settle": "0s"}) as job:
        job.start()
        job.await_event("training")
        assert job.verb("node", "down", "a").rc == 0
        job.await_event("training", 2)
        assert job.verb("node", "up", "a").rc == 0
        assert [r["node"] for r in job.status()["ranks"]] == ["b", "c"]
        job.process.kill()
        job.process.wait()
        job.start()
        job.await_event("takeover", running=True)
        job.await_step(1)
        assert [r["node"] for r in job.status()["ranks"]] == ["b", "c"], job.status()["nodes"]
        assert job.verb("node", "down", "a").rc == 0  # none of the ranks is there
        assert job.verb("node", "down", "c").rc == 0
        assert job.await_event("training", 4)["layout"] == "tp1"
        assert [r["node"] for r in job.status()["ranks"]] == ["b"]
        job.verb("stop", "--wait")


def test_ranks_that_end_after_their_supervisor_do_not_end_the_next_attempt(tmp_path):
    """All of them end while tp-run is stopped, so it hears of all at once. Connections were open while the attempt
    began, so that a rank had the descriptor that the next supervisor gets."""
    with fake_job(tmp_path, "--steps", 100000, nodes="[a:4]", allow="[dp4]") as job:
        job.start()
        job.await_event("training")
        assert job.verb("node", "down", "a").rc == 0
        job.await_event("plan", result="waiting_for_nodes")
        with contextlib.ExitStack() as open_now:
            for _ in range(2):
                open_now.enter_context(socket.socket(socket.AF_UNIX)).connect(str(job.state / "control"))
            assert job.verb("node", "up", "a").rc == 0
            job.await_event("launch", 2)
        job.await_event("training", 2)
        ranks = job.processes(supervisors=False)
        supervisor, = set(job.processes()) - set(ranks)
        os.kill(job.process.pid, signal.SIGSTOP)
        for pids in [supervisor], ranks:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the command ends with its supervisor
                    os.kill(pid, signal.SIGKILL)
            while any(alive(pid) for pid in pids):
                time.sleep(0.02)
        os.kill(job.process.pid, signal.SIGCONT)
        job.await_event("training", 3)
        assert len(job.events("launch")) == 3, job.story()
        job.verb("stop", "--wait")


@contextlib.contextmanager
def stopped_by(how):
    """(stop(pids), resume()), with SIGSTOP or with the kernel's freezer."""
    if how == "SIGSTOP":
        pids = []

        def send(signal_number, some):
            pids[:] = some
            for pid in some:
                os.kill(pid, signal_number)

        yield lambda some: send(signal.SIGSTOP, some), lambda: send(signal.SIGCONT, pids)
        return
    freezer, why = open_freezer()
    if not freezer:
        pytest.skip(why)
    try:
        yield freezer.freeze, freezer.thaw
    finally:
        freezer.close()


def is_locked(root):
    with open(root / "lock") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


HOLD = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_process_that_holds_the_lock_is_named(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=40, name="first") as first:
        assert first.start().wait() == 0
    holder = subprocess.Popen([sys.executable, "-c", HOLD, first.ckpt / "lock"],
                              stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        prune = subprocess.Popen(harness.command(["tp-ckpt", "prune", first.ckpt, "--keep", "1"]),
                                 stderr=subprocess.PIPE, text=True)
        with train_job(tmp_path, tiny, steps=60, name="second") as second:
            second.start()
            waits = second.await_event("plan", result="waiting_for_root")
            assert "held by process %d" % holder.pid in waits["message"]
            assert second.status()["state"] == "plan"
            assert prune.wait(60) == 3 and "process %d (" % holder.pid in prune.stderr.read()
            assert len(harness.steps(first.ckpt)) > 1
            holder.kill()
            second.await_event("launch")
            assert second.wait() == 0
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("how", ["SIGSTOP", "freezer"])
def test_a_stale_job_that_wakes_up_cannot_write(tmp_path, tiny, how):
    """A job and its tp-run are stopped. tp-train, which asks no owner, trains in the same root. Then the
    first continues."""
    with train_job(tmp_path, tiny, steps=3000, name="old") as old, stopped_by(how) as (stop, resume):
        old.start()
        old.await_event("save")
        stop([old.process.pid] + old.processes())
        while is_locked(old.ckpt):  # it was stopped in the middle of a commit; try again
            resume()
            time.sleep(0.05)
            stop([old.process.pid] + old.processes())
        newest = int(harness.steps(old.ckpt)[-1].name[5:])
        r = harness.run("tp-train", "--model", tiny, "--data", harness.TEXT, "--steps", newest + 20, "--seq", 64,
                        "--batch", 8, "--warmup", 2, "--resume", "--ckpt", old.ckpt, "--save-every", 10)
        assert r.rc == 0, repr(r)
        resume()
        assert old.wait() == 3
        assert old.events("failed")[-1]["reason"] == "newer_job"
        epochs = {json.loads((s / "manifest.json").read_text())["epoch"]
                  for s in harness.steps(old.ckpt)}
        assert epochs == {1, 2}
        assert harness.ok("tp-ckpt", "verify", old.ckpt).rc == 0


def test_a_second_job_with_the_same_root_is_refused_while_the_first_lives(tmp_path, tiny):
    """Also while only its ranks live. A dead job is replaced at once."""
    with train_job(tmp_path, tiny, steps=100000, name="first") as first, \
            train_job(tmp_path, tiny, steps=40, name="second") as second:
        first.start()
        first.await_event("save")

        def is_refused():
            r = harness.run("tp-run", second.path)
            assert r.rc == 2 and len(r.lines) == 1, repr(r)
            for word in ('job "first"', "user ", "host " + os.uname().nodename, "since 20",
                         "pid %d" % first.process.pid):
                assert word in r.err, repr(r)
            assert not second.events("launch")
        is_refused()
        first.await_step(first.status()["step"] + 20)
        assert len(first.events("launch")) == 1 and not first.events("drain"), "the first is not disturbed"
        supervisor = set(first.processes()) - set(first.processes(supervisors=False))
        first.process.kill()
        first.process.wait()
        is_refused()
        assert "run on under pid %d," % supervisor.pop() in harness.run("tp-run", second.path).err
        for pid in first.processes():
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while first.processes() and time.monotonic() < end:
            time.sleep(0.02)
        begin = time.monotonic()
        second.path.write_text(second.path.read_text().replace('"40"', '"100000"'))
        second.start()
        second.await_event("training")
        assert time.monotonic() - begin < 20
        assert second.events("training")[0]["resumed_at"] > 0
        assert second.verb("stop", "--wait").rc == 0
        assert not (first.ckpt / "owner").exists(), "a job that has ended owns nothing"
        assert second.wait() == 75


def test_a_rank_that_cannot_be_killed_does_not_hold_up_the_job(tmp_path, tiny, figure):
    """The rank is frozen, as by a dead disk, and SIGKILL has no effect. The other nodes continue."""
    freezer, why = open_freezer(must_hold=True)
    if not freezer:
        pytest.skip(why)
    with train_job(tmp_path, tiny, steps=3000, options={"save-every": 100}) as job:
        try:
            job.start()
            job.await_event("save")  # the next save comes about a second later
            pid = job.rank_pid(2)
            freezer.freeze([pid])
            assert job.await_event("hang")["rank"] == 2
            lost = job.await_event("node_lost")
            assert lost["node"] == "c" and lost["reason"] == "rank_unkillable"
            again = job.await_event("training", 2)
            figure("seconds until the other ranks train", round(again["seconds"], 2))
            assert again["layout"] == "tp2" and alive(pid)
        finally:
            freezer.close()
        end = time.monotonic() + 10
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.05)
        assert not alive(pid), "after thawing, the pending SIGKILL must end it"
        job.verb("stop", "--wait")
        assert harness.ok("tp-ckpt", "verify", job.ckpt).rc == 0


def test_the_wall_clock_may_jump_a_year(tmp_path, tiny):
    if harness.SANITIZE:
        pytest.skip("libfaketime and a sanitizer's library each have to be loaded first")
    lib = subprocess.run("ls /usr/lib/*/faketime/libfaketime.so.1", shell=True,
                         capture_output=True, text=True).stdout.strip()
    if not lib:
        pytest.skip("needs libfaketime (Debian: faketime)")
    stamp = tmp_path / "stamp"

    def write(jump):
        """At once: a program that reads half of it ends."""
        (tmp_path / "next").write_text(jump)
        (tmp_path / "next").rename(stamp)

    write("+0")
    with train_job(tmp_path, tiny, steps=100000) as job:
        job.start({"LD_PRELOAD": lib, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                   "DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1",
                   "FAKETIME_TIMESTAMP_FILE": str(stamp)})
        for jump in ("+1y", "-1y", "+0"):
            s = job.await_step(10)
            write(jump)
            job.await_step(s["step"] + 30)
        assert job.verb("stop", "--wait").rc == 0
        times = [e["time"] for e in job.events()]
        assert max(times) - min(times) > 300 * 86400  # the clock did jump
        assert len(job.events("launch")) == 1 and not job.events("hang")


# ---- many faults ----

class Faults:
    """Random faults of a job that trains. Nodes that come back and resizing are not counted as faults."""

    def __init__(self, job, rng, specs):
        self.job, self.rng, self.specs = job, rng, specs
        self.down, self.count = set(), {}

    def happen(self):
        """Cause one. Returns when every rank trains again."""
        job, rng = self.job, self.rng
        ranks = job.await_step(0)["ranks"]
        seen = len(job.events("training"))
        kind = rng.choice(["kill", "stop", "node", "tp_run", "supervisor", "corrupt", "resize"])
        if not ranks or (kind == "node" and len(self.down) == 2):
            return
        rank = rng.choice(ranks)
        if self.down and rng.random() < 0.4:
            job.verb("node", "up", self.down.pop())  # not a fault; the job scales up again if that pays off
        elif kind == "resize":
            job.verb("resize", rng.choice(self.specs + ["auto"]))
        else:
            getattr(self, kind)(rank)
            self.count[kind] = self.count.get(kind, 0) + 1
            if kind != "tp_run":
                job.await_event("training", seen + 1)

    def kill(self, rank):
        os.kill(rank["pid"], signal.SIGKILL)

    def stop(self, rank):
        os.kill(rank["pid"], signal.SIGSTOP)

    def node(self, rank):
        self.down.add(rank["node"])
        self.job.verb("node", "down", rank["node"])

    def tp_run(self, _):
        self.job.process.kill()
        self.job.process.wait()
        self.job.start()

    def supervisor(self, _):
        ranks = self.job.processes(supervisors=False)
        os.kill(next(p for p in self.job.processes() if p not in ranks), signal.SIGKILL)

    def corrupt(self, rank):
        """Flip a bit of the newest checkpoint, then kill a rank, so that the checkpoint is needed."""
        os.kill(rank["pid"], signal.SIGSTOP)
        shards = sorted(harness.steps(self.job.ckpt)[-1].glob("*.h5"))
        if len(harness.steps(self.job.ckpt)) > 1 and shards:
            data = bytearray(shards[0].read_bytes())
            data[-1000] ^= 4
            shards[0].write_bytes(data)
        os.kill(rank["pid"], signal.SIGKILL)


def test_with_same_bits_a_run_that_was_rescaled_has_the_same_bits(tmp_path, tiny):
    log = tmp_path / "reference"
    harness.ok(harness.JOB_TRAIN, "--model", tiny, "--data", harness.TEXT, "--steps", STEPS, "--warmup", 2,
               "--seq", 64, "--batch", 8, "--same-bits", 4, "--log", log)
    with train_job(tmp_path, tiny, steps=STEPS, allow="[tp4, tp2pp2, tp2, tp1]",
                   options={"same-bits": 4}, restart={"blame": 1, "exclude_for": "1h"}) as job:
        job.start()
        job.await_step(20)
        assert job.verb("resize", "tp2pp2").rc == 0
        assert job.await_event("training", 2)["layout"] == "tp2pp2"
        job.await_event("save", 1)
        os.kill(job.rank_pid(1), signal.SIGKILL)
        assert job.await_event("training", 3)["layout"] == "tp2"
        assert job.wait() == 0
        assert job.losses() == dict(enumerate(harness.losses(log)))


@pytest.mark.long
@pytest.mark.parametrize("same_bits", [0, 4])
def test_twenty_random_faults_in_one_run(tmp_path, figure, same_bits):
    """On all axes. The losses are those of a run without failures, within the oracle's tolerances of 5e-6 in
    the first 20 steps and 2e-4 in 200 steps; with --same-bits they have the same bits."""
    seed = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
    rng, steps = random.Random(seed), 200
    figure("seed", seed)
    model = harness.write_config(tmp_path / "model", hidden_size=256, intermediate_size=704,
                                 num_hidden_layers=4, head_dim=32, max_position_embeddings=256)
    log = tmp_path / "reference"
    bits = {"same-bits": same_bits} if same_bits else {}
    harness.ok(harness.JOB_TRAIN, "--model", model, "--data", harness.TEXT, "--steps", steps, "--warmup",
               2, "--seq", 64, "--batch", 8, "--log", log,
               *("--%s=%d" % option for option in bits.items()))
    reference = dict(enumerate(harness.losses(log)))
    with train_job(tmp_path, model, steps=steps, options={"save-every": 5, **bits}, allow="[]",
                   restart={"max": 1000, "blame": 1000, "settle": "0.1s", "backoff": "0.1s",
                            "backoff_max": "1s", "no_progress": 20, "worth": 0.01}) as job:
        specs = [c["layout"] for c in json.loads(job.verb("plan", "--json").out) if c["legal"]]
        job.start()
        job.await_event("save")
        faults = Faults(job, rng, specs)
        while sum(faults.count.values()) < 20:
            time.sleep(rng.uniform(0.05, 0.3))
            faults.happen()
        assert job.wait(300) == 0, job.story()
        got = job.losses()
        figure("faults", faults.count)
        figure("layouts", sorted({e["layout"] for e in job.events("training")}))
        figure("worst difference of a loss", max(abs(got[s] - reference[s]) for s in got))
        assert_same_curve(job, reference)
        assert not same_bits or got == reference
        assert job.processes() == []
        assert harness.ok("tp-ckpt", "verify", job.ckpt).rc == 0
