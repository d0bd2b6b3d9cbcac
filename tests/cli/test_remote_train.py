"""tp-train saves to an S3-compatible store, and resumes from it.

needs: tp-ckpt tp-train
covers: ckpt/save
"""
import re

import pytest

import harness
from object_store import Fault, ObjectStore, fails, ok

ROOT = "s3://bucket/runs/train"
KEY = "bucket/runs/train/"


@pytest.fixture
def store():
    with ObjectStore() as s:
        yield s


def argv(model, root=ROOT, **options):
    return harness.train_args(model, root, **{"steps": 6, **options})


@pytest.fixture(scope="module")
def local(tmp_path_factory, tiny):
    """The root and the losses of a run that saves into a folder."""
    folder = tmp_path_factory.mktemp("local")
    harness.ok(*argv(tiny, folder / "ckpt", save_every=2, log=folder / "log"))
    return folder / "ckpt", harness.losses(folder / "log")


def shards(tree):
    return {k: v for k, v in tree.items() if k.endswith(".h5")}


def test_a_store_gets_the_same_shards_as_a_folder(store, tiny, local):
    ok(store, *argv(tiny, save_every=2))
    root, _ = local
    assert shards(store.tree(KEY)) == {str(p.relative_to(root)): p.read_bytes()
                                       for p in root.glob("step-*/*.h5")}
    assert ok(store, "tp-ckpt", "verify", ROOT).rc == 0
    assert store.uploads == {}


def test_a_run_that_resumes_from_a_store_goes_on_with_the_same_losses(store, tiny, local, tmp_path):
    first = harness.run(*argv(tiny, save_every=2, exit_step=4), env=store.environment())
    assert first.rc == 75, repr(first)
    ok(store, *argv(tiny, resume="must", log=tmp_path / "log"))
    assert harness.losses(tmp_path / "log") == local[1][4:]
    # from an older step, at another layout: later steps are replaced
    ok(store, *argv(tiny, resume="must", step=2, layout="tp1"))
    found = ok(store, "tp-ckpt", "show", ROOT + "/step-00000006", "--json").out
    assert '"tp1"' in found and store.uploads == {}
    assert ok(store, "tp-ckpt", "verify", ROOT).rc == 0


def test_a_save_that_fails_leaves_the_older_steps(store, tiny):
    store.faults.append(Fault(403, times=9999, method="PUT", path="step-00000004.*partNumber", code="AccessDenied"))
    r = harness.run(*argv(tiny, save_every=2), env=store.environment())
    assert r.rc == 3 and "AccessDenied" in r.err, repr(r)
    assert {k.split("/")[0] for k in store.tree(KEY)} == {"epoch", "step-00000002"}
    assert store.uploads == {}


def test_a_newer_job_stops_an_older_one(store, tiny):
    store.faults.append(Fault(lambda s: s.put(KEY + "epoch", b"9\n"), method="POST", path="step-00000004"))
    r = harness.run(*argv(tiny, save_every=2), env=store.environment())
    assert r.rc == 3 and re.search("belongs to a newer job .epoch 9", r.err), repr(r)
    assert "step-00000004/manifest.json" not in store.tree(KEY)
    assert not shards({k: v for k, v in store.tree(KEY).items() if "00000004" in k})


def test_what_a_store_cannot_do_is_refused_at_the_start(store, tiny, local):
    fails(store, *argv(tiny, save_every=2, keep=1), says="--keep is for local folders", code=2)
    store.add_tree("bucket/runs/train", local[0])
    fails(store, *argv(tiny), says="already has checkpoints", code=2)
    fails(store, *argv(tiny, root="https://127.0.0.1:1/x"), says="in local folders only", code=2)
