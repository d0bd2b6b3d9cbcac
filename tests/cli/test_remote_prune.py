"""Old steps of a root in an S3-compatible store are removed, while jobs write to it.

needs: tp-ckpt tp-train make_ckpt
covers: ckpt/store_prune ckpt/step_cleaner
"""
import json
import os
import random
import re
import subprocess
import time

import pytest

import harness
from object_store import Fault, ObjectStore, fails, ok, run
from test_ckpt import damage_step

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
ROOT = "s3://bucket/runs/ckpt"
KEY = "bucket/runs/ckpt/"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A root of five steps."""
    folder = tmp_path_factory.mktemp("prune")
    config = harness.write_config(folder)
    for step in range(10, 60, 10):
        harness.ok(harness.built("make_ckpt"), config, "tp2", folder / "ckpt", step, step, "bf16")
    return folder / "ckpt"


@pytest.fixture
def store(local):
    with ObjectStore() as s:
        s.add_tree(KEY[:-1], local)
        for key in [k for k in s.objects if "/latest/" in k]:
            del s.objects[key]
        yield s


def steps(store):
    return sorted({int(k.split("/")[0][5:]) for k in store.tree(KEY) if k.startswith("step-")})


def prune(store, *argv, **changes):
    return ok(store, "tp-ckpt", "prune", ROOT, "--keep", *argv, **changes)


def changes_of(store):
    return [(m, p) for m, p, _ in store.requests if m != "GET"]


def flip(store, key, at=-5000):
    data = bytearray(store.objects[KEY + key][0])
    data[at] ^= 1
    store.put(KEY + key, bytes(data))


def test_the_newest_steps_and_every_kth_stay_and_the_others_leave_nothing(store):
    before = store.tree(KEY)
    r = prune(store, 1, "--keep-every", 20, "--dry-run")
    assert re.findall("would delete step-000000(..)", r.out) == ["30", "10"] and not changes_of(store)
    r = prune(store, 1, "--keep-every", 20)
    assert "kept 3 intact steps: every checksum verified" in r.out
    assert store.tree(KEY) == {k: v for k, v in before.items() if not re.match("step-000000[13]0/", k)}
    assert all(re.search("step-000000[13]0/", p) for _, p in changes_of(store))
    for step in ("10", "30"):  # no reader opens half of a step
        assert next(p for m, p in changes_of(store) if m == "DELETE" and step in p).endswith("/manifest.json")


def test_a_root_may_end_with_a_slash(store):
    ok(store, "tp-ckpt", "prune", ROOT + "/", "--keep", 2)
    assert steps(store) == [40, 50]


def test_damaged_steps_are_named_do_not_count_and_stay(store, local, figure):
    """As in a folder, whatever is damaged."""
    rng, tries, same = random.Random(SEED), 40 if harness.LONG else 4, 0
    print("TP_SEED=%d" % SEED)
    for n in range(tries):
        root = harness.copy(local, local.parent / ("try-%d-%d" % (SEED, n)))
        for step in harness.steps(root):
            if rng.random() < 0.5:
                damage_step(rng, step)
        store.objects.clear()
        for step in harness.steps(root):
            store.add_tree(KEY + step.name, step)
        keep = rng.randint(1, 3)
        there = run(store, "tp-ckpt", "prune", ROOT, "--keep", keep, "--json")
        here = harness.run("tp-ckpt", "prune", root, "--keep", keep, "--json")
        assert there.rc == here.rc, (there.out, here.out)
        assert steps(store) == [int(p.name[5:]) for p in harness.steps(root)]
        if here.rc == 0:
            a, b = json.loads(there.out), json.loads(here.out)
            assert [d["name"] for d in a["damaged"]] == [d["name"] for d in b["damaged"]]
            assert (a["kept"], a["deleted"], a["left"]) == (b["kept"], b["deleted"], [])
        same += 1
    figure("roots in a store that prune left as those in a folder", "%d of %d" % (same, tries))


def test_without_an_intact_step_nothing_is_deleted(store):
    for step in range(10, 60, 10):
        flip(store, "step-%08d/rank-00000.h5" % step)
    r = run(store, "tp-ckpt", "prune", ROOT, "--keep", 1)
    assert r.rc == 3 and "no step is intact, so nothing was deleted" in r.err and not changes_of(store)


def test_a_store_that_does_not_answer_is_no_damage(store):
    store.faults.append(Fault(500, times=9999, path="step-00000050/manifest"))
    fails(store, "tp-ckpt", "prune", ROOT, "--keep", 1, says="answers 500", TP_REMOTE_TIMEOUT="1")
    assert not changes_of(store)


def test_a_job_that_claims_the_root_meanwhile_keeps_its_steps(store):
    store.faults.append(Fault(lambda s: s.put(KEY + "epoch", b"9\n"), method="PUT", path="cleaner", after=1))
    r = run(store, "tp-ckpt", "prune", ROOT, "--keep", 2)
    assert r.rc == 3 and re.search("step-00000020: stays, because a job has claimed the root", r.err), repr(r)
    assert "delete step-00000030" in r.out and "step-00000020" not in r.out
    assert steps(store) == [10, 20, 40, 50]
    assert ok(store, "tp-ckpt", "verify", ROOT + "/step-00000020").rc == 0


def test_steps_that_the_owner_may_write_again_stay(store):
    store.put(KEY + "epoch", b"3\n")  # a job has begun, perhaps from step 10, and has saved nothing
    r = prune(store, 1)
    assert r.out.count("left step-") == 4 and "may write this one" in r.out and not changes_of(store)


def test_a_step_that_is_replaced_meanwhile_stays(store, tmp_path):
    config = harness.write_config(tmp_path)
    harness.ok(harness.built("make_ckpt"), config, "tp2", tmp_path / "again", 10, 10, "bf16")  # with another save id
    store.faults.append(Fault(lambda s: s.add_tree(KEY + "step-00000010", tmp_path / "again/step-00000010"),
                              method="PUT", path="step-00000010/cleaner"))
    r = prune(store, 4)
    assert "0 entries deleted" in r.out and steps(store) == [10, 20, 30, 40, 50]
    assert not [p for m, p in changes_of(store) if m == "DELETE"]


def test_what_an_interrupted_removal_left_is_removed_by_the_next(store):
    store.faults.append(Fault(403, times=9999, method="DELETE", path="rank", code="AccessDenied"))
    fails_with = run(store, "tp-ckpt", "prune", ROOT, "--keep", 4)
    assert fails_with.rc == 3 and "AccessDenied" in fails_with.err
    assert "step-00000010/manifest.json" not in store.tree(KEY) and 10 in steps(store)
    store.faults.clear()
    assert "delete step-00000010" in prune(store, 4).out
    assert steps(store) == [20, 30, 40, 50]


def test_shards_without_a_manifest_are_a_writers(store):
    del store.objects[KEY + "step-00000030/manifest.json"]
    before = store.tree(KEY)
    r = prune(store, 4)
    assert "left step-00000030: it has no manifest: its writer is at work, or died" in r.out
    assert store.tree(KEY) == before


def argv(model, **options):
    return harness.train_args(model, "s3://bucket/train", **{"steps": 4, "save_every": 1, **options})


def test_a_job_that_replaces_later_steps_keeps_all_that_it_may_need(store, tiny):
    ok(store, *argv(tiny))
    r = run(store, *argv(tiny, resume="must", step=1, exit_step=2))
    assert r.rc == 75, repr(r)
    r = ok(store, "tp-ckpt", "prune", "s3://bucket/train", "--keep", 1)
    # 4 and 3 are of the earlier job; 2 is the newest of the one that owns the root
    assert "kept 2 intact steps" in r.out and "left step-00000003" in r.out and "delete step-00000001" in r.out


def test_a_job_prunes_its_root_while_another_program_does_too(store, tiny):
    env = {**os.environ, **store.environment()}
    job = subprocess.Popen(harness.command(argv(tiny, steps=8, keep=2)), env=env, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    while job.poll() is None and not any(p.endswith("manifest.json") for m, p, _ in list(store.requests) if m == "PUT"):
        time.sleep(0.02)
    while job.poll() is None:
        r = run(store, "tp-ckpt", "prune", "s3://bucket/train", "--keep", 1)
        assert r.rc == 0 or r.rc == 3 and "another program" in r.err, repr(r)
    assert job.returncode == 0, job.stderr.read()
    job.communicate()
    tree = store.tree("bucket/train/")
    assert "step-00000008/manifest.json" in tree and len({k.split("/")[0] for k in tree if k.startswith("step")}) <= 2
    assert ok(store, "tp-ckpt", "verify", "s3://bucket/train").rc == 0 and store.uploads == {}
