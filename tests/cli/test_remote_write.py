"""Reshards whose result goes to an S3-compatible store: the whole step, or nothing.

needs: tp-ckpt tp-reshard make_ckpt
covers: storage/upload storage/upload_sender ckpt/shard_upload ckpt/store_step reshard/store_job reshard/output_root
"""
import os
import re
import signal
import subprocess
import time

import pytest

import harness
from object_store import Fault, ObjectStore, fails, ok, run

OUT = "s3://bucket/runs/out"
KEY = "bucket/runs/out/step-00000001/"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("write")
    harness.ok(harness.built("make_ckpt"), harness.write_config(folder), "tp2", folder / "ckpt", 1, 11, "bf16")
    return folder / "ckpt"


@pytest.fixture(scope="module")
def expected(root, tmp_path_factory):
    """The shards that a reshard to tp4pp2 writes into a folder."""
    out = tmp_path_factory.mktemp("expected") / "out"
    harness.ok("tp-reshard", root, "--to", "tp4pp2", "--out", out)
    return {p.name: p.read_bytes() for p in (out / "step-00000001").glob("*.h5")}


@pytest.fixture
def store():
    with ObjectStore() as s:
        yield s


def argv(root, *more):
    return ("tp-reshard", root, "--to", "tp4pp2", "--out", OUT + "/", *more)


def is_whole(store, expected):
    tree = store.tree(KEY)
    assert {k: v for k, v in tree.items() if k.endswith(".h5")} == expected and "manifest.json" in tree
    assert store.uploads == {}
    return True


def is_empty(store):
    assert store.tree(KEY) == {} and store.uploads == {}
    return True


def test_a_store_gets_the_same_bytes_as_a_folder(store, root, expected):
    ok(store, *argv(root))
    assert is_whole(store, expected)
    changes = [(m, p) for m, p, _ in store.requests if m != "GET"]
    assert changes[-1][0] == "PUT" and changes[-1][1].endswith("/manifest.json"), "the manifest is the commit"
    assert ok(store, "tp-ckpt", "verify", OUT).rc == 0
    assert ok(store, "tp-ckpt", "digest", OUT).out == harness.ok("tp-ckpt", "digest", root).out
    ok(store, "tp-reshard", OUT + "/", "--to", "tp1pp1")  # from the store to the store, by the default name
    assert ok(store, "tp-ckpt", "diff", OUT + "-tp1", root).rc == 0


def test_parts_are_streamed_within_the_memory(store, tmp_path):
    config = harness.write_config(tmp_path, hidden_size=256, intermediate_size=768, head_dim=32)
    harness.ok(harness.built("make_ckpt"), config, "tp4", tmp_path / "ckpt", 1, 5)
    before = sorted(tmp_path.rglob("*"))
    r = ok(store, "tp-reshard", tmp_path / "ckpt", "--to", "tp1", "--out", OUT, "--mem", "200M", "--json")
    assert '"peak_rss_bytes"' in r.out
    assert int(re.search(r'"peak_rss_bytes": (\d+)', r.out)[1]) <= 200 << 20
    assert sum("partNumber" in p for _, p, _ in store.requests) >= 3
    assert sorted(tmp_path.rglob("*")) == before, "a local copy was made"
    assert ok(store, "tp-ckpt", "diff", OUT, tmp_path / "ckpt").rc == 0


def test_one_thread_has_several_parts_in_flight(store, tmp_path):
    config = harness.write_config(tmp_path, hidden_size=256, intermediate_size=768, head_dim=32)
    harness.ok(harness.built("make_ckpt"), config, "tp4", tmp_path / "ckpt", 1, 5)

    def wait_for_another(s):  # the first part is not answered before the second one arrives
        deadline = time.monotonic() + 30
        while s.most_in_flight < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    store.faults.append(Fault(wait_for_another, method="PUT", path="partNumber"))
    ok(store, "tp-reshard", tmp_path / "ckpt", "--to", "tp1", "--out", OUT, "--jobs", "1", TP_REMOTE_TIMEOUT="120")
    assert store.most_in_flight >= 2
    assert ok(store, "tp-ckpt", "diff", OUT, tmp_path / "ckpt").rc == 0


PASSING = {
    "500": Fault(500, times=3, method="PUT"),
    "503": Fault(503, times=2, method="PUT", code="SlowDown", headers={"retry-after": "1"}),
    "begin": Fault(503, times=2, method="POST", code="SlowDown", path="uploads"),
    "reset": Fault("reset", times=3, method="PUT"),
    "lost_part": Fault("lost reply", times=2, method="PUT", path="partNumber"),
    "lost_completion": Fault("lost reply", times=2, method="POST", path="uploadId"),
    "lost_manifest": Fault("lost reply", method="PUT", path="manifest"),
    "completion_error200": Fault("error200", times=2, method="POST", path="uploadId"),
    "conflict": Fault(409, method="POST", path="uploadId", code="ConditionalRequestConflict"),
}


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_pass_change_no_byte(store, root, expected, name):
    store.faults.append(PASSING[name])
    ok(store, *argv(root))
    assert PASSING[name].seen > PASSING[name].times, "the request was not tried again"
    assert is_whole(store, expected)


LASTING = {
    "500": (Fault(500, times=9999, method="PUT"), "cannot write: the server answers 500"),
    "denied": (Fault(403, times=9999, method="POST", code="AccessDenied"), "AccessDenied"),
    "expired": (Fault(400, times=9999, method="PUT", code="ExpiredToken", after=2), "expired: get new ones"),
    "completion": (Fault(500, times=9999, method="POST", path="00003.h5.uploadId"), "answers 500"),
    "manifest": (Fault(403, times=9999, method="PUT", path="manifest", code="AccessDenied"), "AccessDenied"),
}


@pytest.mark.parametrize("name", LASTING)
def test_faults_that_stay_leave_nothing_in_the_store(store, root, name):
    fault, says = LASTING[name]
    store.faults.append(fault)
    fails(store, *argv(root), says=says, TP_REMOTE_TIMEOUT="2")
    assert is_empty(store)


def test_of_two_writers_one_wins(store, root, expected):
    def another(s):
        if KEY + "manifest.json" not in s.objects:
            s.put(KEY + "manifest.json", b"of another writer")

    store.faults.append(Fault(another, method="PUT", path="manifest"))
    fails(store, *argv(root), says="another writer was faster", code=2)
    assert store.objects[KEY + "manifest.json"][0] == b"of another writer"
    assert store.uploads == {}


def test_of_two_writers_at_the_same_time_one_wins(store, root, expected):
    """Both have sent all parts before the store lets the first shard of either appear."""
    def wait_for_both(s):
        deadline = time.monotonic() + 60
        while sum(m == "POST" and "00000.h5?uploadId" in p for m, p, _ in s.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    store.faults.append(Fault(wait_for_both, times=2, method="POST", path="00000.h5.uploadId"))
    env = {**os.environ, **store.environment(TP_REMOTE_TIMEOUT="120")}
    writers = [subprocess.Popen(harness.command(argv(root)), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                text=True) for _ in range(2)]
    errors = [w.communicate(timeout=200)[1] for w in writers]
    assert sorted(w.returncode for w in writers) == [0, 2], errors
    assert "another writer was faster" in "".join(errors)
    assert is_whole(store, expected)
    assert ok(store, "tp-ckpt", "verify", OUT).rc == 0


def test_a_writer_that_removes_leftovers_and_one_that_commits_notice_each_other(store, root):
    # another one begins to remove leftovers, and sees no manifest yet
    store.faults.append(Fault(lambda s: s.put(KEY + "cleaner", b"another"), method="PUT", path="manifest"))
    fails(store, *argv(root), says="another writer of this step began while its shards appeared", code=2)
    assert "manifest.json" not in store.tree(KEY) and store.uploads == {}
    # there is a manifest when this one has begun to remove leftovers
    before = store.tree(KEY)
    assert "rank-00000.h5" in before
    store.faults[:] = [Fault(lambda s: s.put(KEY + "manifest.json", b"of another writer"), method="PUT", path="cleaner")]
    fails(store, *argv(root), says="exists already", code=2)
    assert store.tree(KEY).items() >= {k: v for k, v in before.items() if k != "cleaner"}.items()


def test_a_newer_job_keeps_an_older_one_from_committing(store, root):
    store.faults.append(Fault(lambda s: s.put("bucket/runs/out/epoch", b"7\n"), method="PUT"))
    fails(store, *argv(root), says="belongs to a newer job .epoch 7")
    assert is_empty(store)


def test_a_step_is_not_replaced_but_leftovers_of_a_dead_writer_are(store, root, expected):
    store.put(KEY + "rank-00000.h5", b"left by a writer that died")
    ok(store, *argv(root))
    assert is_whole(store, expected)
    fails(store, *argv(root), says="exists already", code=2)
    fails(store, *argv(root, "--force"), says="remove the step first", code=2)
    assert is_whole(store, expected)


def test_an_interrupted_run_leaves_nothing(store, root):
    store.delay = 0.15
    p = subprocess.Popen(harness.command(argv(root)), env={**os.environ, **store.environment()},
                         stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any("partNumber" in path for _, path, _ in store.requests) and time.monotonic() < deadline:
        time.sleep(0.02)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=60)
    assert (p.returncode, is_empty(store)) == (75, True) and "nothing was kept" in err, err


def test_places_that_cannot_be_written_to_are_refused(root, tmp_path):
    with ObjectStore(public=True) as web:
        url = web.url + "/out"
        fails(web, "tp-reshard", root, "--to", "tp1", "--out", url, code=2, says="in local folders only")
        fails(web, "tp-ckpt", "export", root, "-o", url, code=2, says="in local folders only")
        harness.ok("tp-ckpt", "export", root, "-o", root.parent / "hf")
        for out in (url, OUT):
            fails(web, "tp-ckpt", "import", root.parent / "hf", "-o", out, code=2, says="local folders only")
        fails(web, "tp-ckpt", "prune", url, "--keep", "1", code=2, says="in local folders only")
        r = run(web, "tp-reshard", url, "--to", "tp1")
        assert r.rc == 2, repr(r)
        assert all(m == "GET" for m, _, _ in web.requests)
