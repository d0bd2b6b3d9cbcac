"""tp-run runs a job whose checkpoints are in an S3-compatible store as one whose checkpoints are in a folder.

needs: tp-run tp-train tp-ckpt
covers: orchestrator/run_root orchestrator/plan/checkpoint_selection
"""
import os
import signal
import time

import pytest

import harness
from object_store import ACCESS_KEY, SECRET_KEY, Fault, ok, run
from run_job import Job, train_job

ROOT = "s3://bucket/runs/job"
KEY = "bucket/runs/job/"


@pytest.fixture
def make(store, tiny, tmp_path):
    def make(folder="job", steps=40, **kw):
        kw.setdefault("options", {"save-every": 10})
        kw.setdefault("nodes", "[a, b]")
        kw.setdefault("allow", "[tp2, tp1]")
        return train_job(tmp_path / folder, tiny, steps=steps, ckpt=ROOT, **kw)
    return make


def steps_of(store):
    """The committed steps of the store."""
    return sorted(int(k.split("/")[0][5:]) for k in store.tree(KEY) if k.startswith("step-") and k.endswith("manifest.json"))


def resumed(job):
    return [e["resumed_at"] for e in job.events("launch")]


def clean(folder):
    """No file of the job has a secret, and nothing was written beside the store."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert not [p for p in files if secret.encode() in p.read_bytes()]
    assert not [p for p in files if p.name in ("manifest.json", "owner", "epoch") or p.suffix == ".h5"]


def test_it_resumes_at_the_layouts_that_fit_and_keeps_the_newest_steps(store, make, tmp_path):
    with make(steps=4000, options={"save-every": 10, "keep": 2}) as job:
        job.start(store.environment())
        saves = 1  # tp-run reports the newest save that it sees, so the one of step 20 may have no event
        while job.await_event("save", saves)["step"] < 20:
            saves += 1
        job.verb("node", "down", "b")
        second = job.await_event("training", 2)
        assert second["layout"] == "tp1" and second["resumed_at"] >= 20
        assert job.events("reshard")[-1]["reason"] == "store_not_converted"
        assert job.events("reshard")[-1]["how"] == "resume"
        job.await_step(second["resumed_at"] + 15)
        assert "tp1" in job.verb("status").out
        job.verb("stop", "--wait")
        assert job.wait() == 75
        assert steps_of(store)[-1] >= job.events("save")[-1]["step"] and len(steps_of(store)) <= 3
        assert store.tree(KEY)["epoch"] == b"%d\n" % len(job.events("launch"))
        assert ok(store, "tp-ckpt", "verify", ROOT).rc == 0
    clean(tmp_path)


def test_it_ends_and_says_so_again(store, make, tmp_path):
    with make() as job:
        assert job.start(store.environment()).wait() == 0, job.story()
        assert steps_of(store) == [10, 20, 30, 40]
        assert job.start(store.environment()).wait() == 0 and len(job.events("launch")) == 1
    clean(tmp_path)


def test_a_damaged_step_is_quarantined_and_the_one_before_is_used(store, make):
    with make(steps=40, options={"save-every": 10, "exit-step": 30}) as job:
        job.start(store.environment()).wait()
    assert steps_of(store) == [10, 20, 30]
    for key in [k for k in store.objects if "step-00000030" in k and k.endswith(".h5")]:
        data = bytearray(store.objects[key][0])
        data[len(data) // 2] ^= 1
        store.put(key, bytes(data))
    with make() as job:  # the same job without its early end
        assert job.start(store.environment()).wait() == 0, job.story()
        moved = job.events("quarantine")[0]
        assert moved["step"] == 30 and moved["to"] == ROOT + "/quarantine/step-00000030/manifest.json"
        assert resumed(job)[-1] == 20
    assert steps_of(store) == [10, 20, 30, 40] and "quarantine/step-00000030/manifest.json" in store.tree(KEY)
    for step in (30, 40):
        ok(store, "tp-ckpt", "verify", "%s/step-%08d" % (ROOT, step))


def test_if_no_step_is_good_it_does_not_begin_again(store, make):
    with make(options={"save-every": 10, "exit-step": 10}) as job:
        job.start(store.environment()).wait()
    store.put(KEY + "step-00000010/manifest.json", b"{")
    with make() as job:
        assert job.start(store.environment()).wait() == 3
        assert job.events("failed")[-1]["reason"] == "no_good_checkpoint"


def test_a_newer_job_has_the_root_and_the_older_one_ends(store, make):
    with make("old", steps=100000) as old, make("new") as new:
        old.start(store.environment())
        old.await_step(12)
        new.start(store.environment())
        assert old.wait() == 3 and old.events("failed")[-1]["reason"] == "newer_job", old.story()
        assert new.wait() == 0, new.story()
    ok(store, "tp-ckpt", "verify", ROOT)
    assert store.tree(KEY)["epoch"] == b"2\n"


def test_a_store_that_does_not_answer_is_asked_again_and_no_checkpoint_suffers(store, make):
    with make(steps=4000, restart={"settle": "0.2s", "backoff": "1s", "no_progress": 50, "max": 50}) as job:
        job.start(store.environment(TP_REMOTE_TIMEOUT="3"))
        job.await_event("save")
        store.faults += [Fault(503, times=10 ** 9, method=m, code="SlowDown") for m in ("GET", "HEAD", "PUT", "POST")]
        os.kill(job.rank_pid(0), signal.SIGKILL)
        job.await_event("restart", reason="store_failed")
        store.faults.clear()
        again = job.await_event("training", 2)
        assert again["resumed_at"] >= 10 and not job.events("quarantine")
        job.verb("stop", "--wait")
        assert job.wait() == 75, job.story()
    ok(store, "tp-ckpt", "verify", ROOT)


def test_a_killed_tp_run_takes_its_job_over(store, make):
    with make(steps=4000) as job:
        job.start(store.environment())
        job.await_step(12)
        job.process.kill()
        job.process.wait()
        job.start(store.environment())
        job.await_step(40)
        assert len(job.events("launch")) == 1
        job.verb("stop", "--wait")
        assert job.wait() == 75
    ok(store, "tp-ckpt", "verify", ROOT)


@pytest.mark.parametrize("change, says", [({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": "/nowhere"}, "no credentials"),
                                          ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch")],
                         ids=("none", "wrong"))
def test_without_rights_it_says_so_before_a_launch(store, make, change, says):
    with make() as job:
        r = run(store, "tp-run", job.path, **change)
        assert r.rc in (2, 3) and says in r.err and not job.events("launch"), repr(r)
    assert store.tree(KEY) == {}


def test_a_model_at_a_url_is_read_once_so_plans_do_not_depend_on_its_server(store, tiny, tmp_path):
    """tp-run ended when it had to plan and the server did not answer, and waited for it every second while ranks could be added."""
    store.put("bucket/model/config.json", open(tiny, "rb").read())
    command = ["tp-train", "--model", "s3://bucket/model/config.json", "--data", harness.TEXT, "--steps", 100000, "--batch", 8, "--seq", 32,
               "--save-every", 20]
    with Job(tmp_path / "job", command, nodes="[a, b]", allow="[]",
             restart={"no_progress": 99, "backoff": "0.1s", "settle": "0.1s", "worth": 1e12}) as job:
        job.start(store.environment(TP_REMOTE_TIMEOUT="4"))
        job.await_event("training")
        job.verb("node", "down", "b")
        job.await_event("training", 2)
        store.faults.append(Fault(503, times=10 ** 6, path="config.json"))
        job.verb("node", "up", "b")
        time.sleep(3)
        assert job.status()["state"] in ("train", "save") and store.faults[0].seen == 0, job.story()
        os.kill(job.rank_pid(0), signal.SIGKILL)
        job.await_event("launch", 4)  # tp-train does not start without its model
        store.faults.clear()
        job.await_event("training", 3)
        job.verb("stop", "--wait")


def test_ranks_that_wait_for_the_store_to_save_do_not_hang(store, make):
    """They were killed after a few seconds, though their saves would have been tried again for minutes."""
    with make(steps=100000, options={"save-every": 50}, watch={"factor": 2}) as job:
        job.start(store.environment(TP_REMOTE_TIMEOUT="60"))
        job.await_event("save", 10)  # the time of some was measured
        store.faults.append(Fault(503, times=10 ** 6, method="PUT", path="partNumber"))
        deadline = time.monotonic() + 60
        while job.status()["state"] != "save" and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(6)  # watch.floor is 3 s
        store.faults.clear()
        saves = len(job.events("save"))
        job.await_event("save", saves + 2)
        assert not job.events("hang") and not job.events("restart"), job.story()
        job.verb("stop", "--wait")
