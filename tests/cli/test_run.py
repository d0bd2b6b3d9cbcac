"""tp-run on one machine: restarts, scaling, stopping, taking over. Faults 45 to 52."""
import json
import os
import random
import signal
import subprocess
import time

import pytest

import harness
from run_job import Job, alive, fake_job, train_job

STEPS = 150


@pytest.fixture(scope="session")
def reference(tmp_path_factory, tiny):
    """{step: loss} of a run that never failed."""
    log = tmp_path_factory.mktemp("reference") / "log"
    harness.ok("tp-train", "--model", tiny, "--data", harness.TEXT, "--steps", STEPS, "--warmup", 2,
               "--seq", 64, "--batch", 8, "--log", log)
    return dict(enumerate(harness.losses(log)))


def assert_same_curve(job, reference, steps):
    """The decay of the learning rate depends on --steps, so the reference has as many."""
    got = job.losses()
    assert sorted(got) == list(range(steps)), "steps are missing"
    for s in got:  # the oracle's tolerances for 20 and for 200 steps
        assert abs(got[s] - reference[s]) <= (5e-6 if s < 20 else 2e-4), s


# ---- the job file ----

def test_example_is_a_job_file_that_plans(tmp_path, tiny):
    text = harness.ok("tp-run", "--example").out.replace("model/", str(tiny))
    (tmp_path / "x.yaml").write_text(text)
    assert "tp4" in harness.ok("tp-run", "plan", tmp_path / "x.yaml").out


@pytest.mark.parametrize("text, sentence", [
    ("command: x\n", 'the key "ckpt" is missing'),
    ("command: x\nckpt: y\nwatch: {flor: 1}\n", 'x.yaml:3: there is no key "watch.flor"'),
    ("command: x\nckpt: y\npage: {listen: '0.0.0.0:0'}\n", "set page.token_file"),
    ("command: x\nckpt: y\npage: {listen: nowhere}\n", "expected address:port"),
])
def test_a_wrong_job_file_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "x.yaml").write_text(text)
    r = harness.run("tp-run", tmp_path / "x.yaml")
    assert r.rc == 2 and len(r.lines) == 1 and sentence in r.err, repr(r)


def test_requests_without_a_running_job(tmp_path, tiny):
    job = train_job(tmp_path, tiny)
    for verb in (["status"], ["stop"], ["resize", "2"], ["node", "down", "a"], ["events"]):
        r = job.verb(*verb)
        assert r.rc == 2 and len(r.lines) == 1, repr(r)
    r = harness.run("tp-run", "status", tmp_path / "absent.yaml")
    assert r.rc == 2 and "absent.yaml" in r.err


# ---- faults ----

def test_a_killed_rank_means_the_next_layout_and_the_same_curve(tmp_path, tiny, reference, figure):
    with train_job(tmp_path, tiny, steps=STEPS, restart={"blame": 1, "exclude_for": "1h"}) as job:
        job.start()
        job.await_event("save")
        os.kill(job.rank_pid(2), signal.SIGKILL)
        exit_event = job.await_event("rank_exit")
        assert exit_event["rank"] == 2 and exit_event["node"] == "c"
        again = job.await_event("training", 2)
        figure("seconds from kill to training at tp2", round(again["seconds"], 2))
        assert again["layout"] == "tp2" and again["resumed_at"] >= 10
        assert job.wait() == 0
        assert_same_curve(job, reference, STEPS)
        assert job.processes() == []


def test_a_stopped_rank_is_named_and_the_job_goes_on(tmp_path, tiny, figure):
    with train_job(tmp_path, tiny, steps=2000) as job:
        job.start()
        job.await_step(30)
        pid = job.rank_pid(1)
        os.kill(pid, signal.SIGSTOP)
        hang = job.await_event("hang")
        assert hang["rank"] == 1, job.story()
        again = job.await_event("training", 2)
        figure("seconds to the verdict", round(hang["seconds"], 2))
        figure("seconds from SIGSTOP to training", round(again["seconds"], 2))
        assert not alive(pid)
        assert (job.state / "attempt-0001.stacks").exists()
        assert job.verb("stop", "--wait").rc == 0
        assert job.wait() == 75


def test_a_killed_keeper_leaves_nothing_behind(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=2000) as job:
        job.start()
        job.await_step(20)
        before = job.processes()
        keeper = [p for p in before if p not in job.processes(keepers=False)]
        assert len(keeper) == 1
        os.kill(keeper[0], signal.SIGKILL)
        job.await_event("training", 2)
        assert not any(alive(p) for p in before)
        job.verb("stop", "--wait")


def test_a_lost_node_is_replaced_by_a_spare_and_taken_back(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=3000, nodes="[a, b, c]", allow="[tp2, tp1]",
                   restart={"spares": 1, "settle": "0.2s"}) as job:
        job.start()
        job.await_step(15)
        assert {r["node"] for r in job.status()["ranks"]} == {"a", "b"}
        assert job.verb("node", "down", "b").rc == 0
        again = job.await_event("training", 2)
        assert again["layout"] == "tp2"
        assert {r["node"] for r in job.status()["ranks"]} == {"a", "c"}
        assert job.verb("node", "down", "c").rc == 0
        assert job.await_event("training", 3)["layout"] == "tp1"
        assert job.verb("node", "up", "b").rc == 0
        assert job.await_event("training", 4)["layout"] == "tp2"  # scaled up by itself
        assert job.events("node_back")[0]["node"] == "b"
        assert job.verb("node", "down", "nowhere").rc == 2
        job.verb("stop", "--wait")


def test_without_nodes_it_waits_for_one(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=3000, nodes="[a]", allow="[tp1]") as job:
        job.start()
        job.await_step(15)
        job.verb("node", "down", "a")
        job.await_event("plan", result="waiting for nodes")
        assert job.status()["state"] == "plan"
        job.verb("node", "up", "a")
        job.await_event("training", 2)
        job.verb("stop", "--wait")
        assert job.wait() == 75


def test_a_crash_loop_backs_off_and_stops_with_the_reason(tmp_path):
    with fake_job(tmp_path, "--never-start", restart={"no_progress": 3, "backoff": "0.4s"}) as job:
        begin = time.monotonic()
        assert job.start().wait() == 3
        assert time.monotonic() - begin >= 0.4
        assert len(job.events("launch")) == 3
        failed = job.events("failed")[0]["reason"]
        assert "3 starts in a row" in failed and "fake: cannot start" in failed


def test_a_budget_of_restarts_is_kept(tmp_path):
    with fake_job(tmp_path, "--exit-at", 5, 9, restart={"max": 2, "no_progress": 99,
                                                        "backoff": "0.1s"}) as job:
        assert job.start().wait() == 3
        assert len(job.events("launch")) == 3
        assert "2 restarts within" in job.events("failed")[0]["reason"]


def test_a_program_that_does_not_exist(tmp_path):
    with Job(tmp_path, ["/nonexistent/trainer"], checkpoints="none", allow="[dp1]") as job:
        assert job.start().wait() == 2
        assert "/nonexistent/trainer: cannot be executed" in job.events("failed")[0]["reason"]


def test_a_loss_that_is_nan_stops_when_it_comes_again(tmp_path):
    with fake_job(tmp_path, "--nan-at", 20) as job:
        assert job.start().wait() == 3
        assert len(job.events("nan")) == 2
        assert "same step again" in job.events("failed")[0]["reason"]


def test_a_slow_rank_and_a_jump_are_reported(tmp_path):
    with fake_job(tmp_path, "--slow", 1, "--jump-at", 40, "--steps", 60) as job:
        assert job.start().wait() == 0
        assert job.events("slow")[0]["rank"] == 1
        assert job.events("loss_jump")[0]["loss"] == 50


def test_a_jump_or_a_nan_of_one_short_step_is_not_missed(tmp_path):
    """Steps of a millisecond or two, of which tp-run looks at one in fifty."""
    with fake_job(tmp_path / "jump", "--step-ms", 1, "--jump-at", 333, "--steps", 600) as job:
        assert job.start().wait() == 0
        assert [e["loss"] for e in job.events("loss_jump")] == [50]
    with fake_job(tmp_path / "nan", "--step-ms", 1, "--nan-at", 333, "--steps", 600,
                  watch={"nan": "stop"}) as job:
        assert job.start().wait() == 3
        assert [e["at_step"] for e in job.events("nan")] == [334]


def test_another_trainer_is_stopped_resumed_and_done(tmp_path):
    with fake_job(tmp_path, "--state", tmp_path / "step", "--steps", 150) as job:
        job.start()
        job.await_step(10)
        assert job.verb("stop").rc == 0
        assert job.wait() == 75
        assert job.start().wait() == 0
        assert job.events("done") and int((tmp_path / "step").read_text()) == 150


def test_grace_ends_a_job_that_does_not_stop(tmp_path):
    with fake_job(tmp_path, "--ignore-signals", "--steps", 10000) as job:
        job.path.write_text(job.path.read_text().replace("grace: 20s", "grace: 1s"))
        job.start()
        job.await_step(5)
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 75
        assert 1 <= time.monotonic() - begin < 8
        assert job.events("killed") and job.processes() == []


# ---- stopping, resizing ----

@pytest.mark.parametrize("how", ["stop", "SIGTERM", "SIGUSR1"])
def test_asked_to_stop_it_saves_and_goes_on_later(tmp_path, tiny, how):
    with train_job(tmp_path, tiny, steps=STEPS, options={"save-every": 100000}) as job:
        job.start()
        job.await_step(20)
        if how == "stop":
            assert job.verb("stop").rc == 0
        else:
            job.process.send_signal(getattr(signal, how))
        assert job.wait() == 75
        step = job.events("stopped")[0]["step"]
        assert 20 <= step < STEPS and (job.ckpt / ("step-%08d" % step)).is_dir()
        assert harness.run("tp-run", "status", job.path).out.count("stopped")
        assert job.start().wait() == 0
        assert job.events("training")[1]["resumed_at"] == step
        assert harness.ok("tp-run", job.path).rc == 0  # done already: nothing to do


def test_resize_down_and_up_while_training(tmp_path, tiny, reference):
    with train_job(tmp_path, tiny, steps=STEPS) as job:
        job.start()
        job.await_step(10)
        assert job.verb("resize", "tp3").rc == 2
        assert job.verb("resize", "tp2").rc == 0
        assert job.await_event("training", 2)["layout"] == "tp2"
        assert job.verb("resize", "1").rc == 0
        assert job.await_event("training", 3)["layout"] == "tp1"
        assert job.verb("resize", "auto").rc == 0
        assert job.await_event("training", 4)["layout"] == "tp4"
        assert job.wait() == 0
        assert_same_curve(job, reference, STEPS)
        drained = [e["seconds"] for e in job.events("training")[1:]]
        assert max(drained) < 10, drained


# ---- checkpoints ----

def flip(path, offset=-1000):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def stop_with_checkpoints(job):
    job.start()
    job.await_step(45)
    job.verb("stop", "--wait")
    job.wait()
    return harness.steps(job.ckpt)


def test_a_corrupt_newest_checkpoint_is_put_away_loudly(tmp_path, tiny, reference):
    with train_job(tmp_path, tiny, steps=STEPS) as job:
        steps = stop_with_checkpoints(job)
        flip(next(steps[-1].glob("*.h5")))
        assert job.start().wait() == 0
        bad = job.events("quarantine")
        assert [e["step"] for e in bad] == [int(steps[-1].name[5:])]
        assert job.events("training")[1]["resumed_at"] == int(steps[-2].name[5:])
        assert (job.ckpt / "quarantine" / steps[-1].name).is_dir()
        assert_same_curve(job, reference, STEPS)


def test_when_none_is_good_it_never_begins_at_0(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=STEPS, options={"save-every": 20}) as job:
        for step in stop_with_checkpoints(job):
            flip(next(step.glob("*.h5")))
        assert job.start().wait() == 3
        assert "to begin again from step 0" in job.events("failed")[-1]["reason"]
        assert len(job.events("launch")) == 1


# ---- tp-run itself ----

def test_two_orchestrators_of_one_job(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=2000) as job:
        job.start()
        job.await_step(10)
        r = harness.run("tp-run", job.path)
        assert r.rc == 2 and "another tp-run (pid %d)" % job.process.pid in r.err
        job.verb("stop", "--wait")


def test_killed_while_training_it_takes_over_the_running_job(tmp_path, tiny, reference):
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
        assert_same_curve(job, reference, STEPS)


def test_a_job_that_ended_while_nobody_watched(tmp_path, tiny):
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


def test_killed_after_each_journal_record_it_goes_on(tmp_path, tiny, reference, figure):
    """Each run dies after one more record; a fault on the way makes every state come by."""
    died = 0
    for record in range(1, 60):
        with train_job(tmp_path / str(record), tiny, steps=60,
                       options={"save-every": 25}) as job:
            job.start({"TP_RUN_DIE_AFTER": str(record)})
            fault = None
            while job.process.poll() is None:
                s = job.status() if fault is None else None
                if s and s.get("state") == "train" and s.get("step", 0) >= 5 and s["ranks"]:
                    fault = s["ranks"][-1]["pid"]
                    os.kill(fault, signal.SIGKILL)
                time.sleep(0.01)
            if job.process.returncode == 0:
                break
            assert job.process.returncode == -signal.SIGKILL, job.story()
            died += 1
            attempts = {p for p in job.processes(keepers=True)}
            assert job.start().wait() == 0, job.story()
            assert job.processes() == [], attempts
            got = job.losses()
            assert sorted(got) == list(range(60)), record
            assert harness.ok("tp-ckpt", "verify", job.ckpt).rc == 0
    else:
        raise AssertionError("the job has more than 60 journal records")
    figure("orchestrator killed after each of its journal records", died)
    assert died >= 10


def test_a_stale_job_that_wakes_up_cannot_write(tmp_path, tiny):
    """A job and its tp-run are frozen; another takes the root; the first wakes up."""
    with train_job(tmp_path, tiny, steps=3000, name="old") as old, \
            train_job(tmp_path, tiny, steps=3000, name="new") as new:
        old.start()
        old.await_event("save")
        frozen = [old.process.pid] + old.processes()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        new.start()
        new.await_event("save", 2)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        assert old.wait() == 3
        assert "a newer job" in old.events("failed")[-1]["reason"]
        new.verb("stop", "--wait")
        epochs = {json.loads((s / "manifest.json").read_text())["epoch"]
                  for s in harness.steps(new.ckpt)}
        assert epochs == {1, 2}
        assert harness.ok("tp-ckpt", "verify", new.ckpt).rc == 0


def test_the_wall_clock_may_jump_a_year(tmp_path, tiny):
    if harness.SANITIZE:
        pytest.skip("libfaketime and a sanitizer's library each have to be loaded first")
    lib = subprocess.run("ls /usr/lib/*/faketime/libfaketime.so.1", shell=True,
                         capture_output=True, text=True).stdout.strip()
    if not lib:
        pytest.skip("needs libfaketime (Debian: faketime)")
    stamp = tmp_path / "stamp"
    stamp.write_text("+0")
    with train_job(tmp_path, tiny, steps=300) as job:
        job.start({"LD_PRELOAD": lib, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                   "DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1",
                   "FAKETIME_TIMESTAMP_FILE": str(stamp)})
        for jump in ("+1y", "-1y", "+0"):
            s = job.await_step(10)
            stamp.write_text(jump)
            job.await_step(s["step"] + 30)
        assert job.wait() == 0
        times = [e["time"] for e in job.events()]
        assert max(times) - min(times) > 300 * 86400  # the clock did jump
        assert len(job.events("launch")) == 1 and not job.events("hang")


def test_under_mpirun(tmp_path, tiny, reference):
    with train_job(tmp_path, tiny, steps=STEPS, launcher="mpirun", allow="[tp2]",
                   nodes="[a, b]") as job:
        job.start()
        job.await_event("save", timeout=120)
        os.kill(job.rank_pid(1), signal.SIGKILL)
        assert job.await_event("rank_exit")["rank"] == 1, job.story()
        job.await_event("training", 2, timeout=120)
        assert job.wait(300) == 0
        assert_same_curve(job, reference, STEPS)
        assert job.processes() == []


# ---- many faults ----

@pytest.mark.long
def test_twenty_random_faults_in_one_run(tmp_path, figure):
    seed = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
    rng = random.Random(seed)
    figure("seed", seed)
    steps = 200
    model = harness.write_config(tmp_path / "model", hidden_size=256, intermediate_size=704,
                                 num_hidden_layers=4, head_dim=32, max_position_embeddings=256)
    log = tmp_path / "reference"
    harness.ok("tp-train", "--model", model, "--data", harness.TEXT, "--steps", steps, "--warmup",
               2, "--seq", 64, "--batch", 8, "--log", log)
    reference = dict(enumerate(harness.losses(log)))
    down, faults = set(), {}
    with train_job(tmp_path, model, steps=steps, options={"save-every": 5},
                   restart={"max": 1000, "blame": 1000, "settle": "0.1s", "backoff": "0.1s",
                            "no_progress": 20}) as job:
        job.start()
        job.await_event("save")
        while sum(faults.values()) < 20:
            job.await_step(0)
            time.sleep(rng.uniform(0.05, 0.3))
            s = job.await_step(0)
            rank = rng.choice(s["ranks"])
            kind = rng.choice(["kill", "stop", "node", "orchestrator", "keeper"])
            seen = len(job.events("training"))
            if down and rng.random() < 0.5:
                job.verb("node", "up", down.pop())  # no fault: it scales up again
                continue
            if kind == "node" and len(down) == 2:
                continue
            faults[kind] = faults.get(kind, 0) + 1
            if kind in ("kill", "stop"):
                os.kill(rank["pid"], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            elif kind == "keeper":
                os.kill(next(p for p in job.processes() if p not in
                             job.processes(keepers=False)), signal.SIGKILL)
            elif kind == "orchestrator":
                job.process.kill()
                job.process.wait()
                job.start()
            else:
                down.add(rank["node"])
                job.verb("node", "down", rank["node"])
            if kind != "orchestrator":
                job.await_event("training", seen + 1)
        figure("faults", faults)
        assert job.wait(300) == 0
        got = job.losses()
        assert sorted(got) == list(range(steps))
        figure("worst difference of a loss", max(abs(got[s] - reference[s]) for s in got))
        assert_same_curve(job, reference, steps)
        assert job.processes() == []
