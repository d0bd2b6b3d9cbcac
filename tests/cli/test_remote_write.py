"""Reshards whose result goes to an S3-compatible store: the whole step, or nothing.

needs: tp-ckpt tp-reshard make_ckpt
covers: storage/upload storage/store_object storage/upload_sender ckpt/shard_upload ckpt/store_step
    reshard/store_job reshard/output_root
"""
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time

import pytest

import harness
from object_store import ACCESS_KEY, SECRET_KEY, Fault, ObjectStore, fails, interrupt, ok, run

OUT = "s3://bucket/runs/out"
KEY = "bucket/runs/out/step-00000001/"
SMOOTH = 1 << 30  # a seed of make_ckpt with this bit gives numbers that compress (tests/unit/fixture.h)


@pytest.fixture(scope="module")
def expected(root, tmp_path_factory):
    """The shards that a reshard to tp4pp2 writes into a folder."""
    out = tmp_path_factory.mktemp("expected") / "out"
    harness.ok("tp-reshard", root, "--to", "tp4pp2", "--out", out)
    return {p.name: p.read_bytes() for p in (out / "step-00000001").glob("*.h5")}


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


def test_a_key_may_have_any_characters(store, root):
    out = "s3://bucket/a\nb\tc\rd\x01e%f&g<h>/out"
    ok(store, "tp-reshard", root, "--to", "tp4pp2", "--out", out)
    assert ok(store, "tp-ckpt", "verify", out).rc == 0
    assert ok(store, "tp-ckpt", "digest", out).out == harness.ok("tp-ckpt", "digest", root).out


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_store_without_a_place_for_a_key_is_no_missing_checkpoint(method, store, root):
    store.faults.append(Fault(404, times=9999, method=method, code=""))
    fails(store, *argv(root), says="the server answers 404 to %s; check AWS_ENDPOINT_URL, and whether the store allows" % method)


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


class Rotation:
    """Credentials in a file, whose token expires after `after` requests; then `renew` is called with this."""

    def __init__(self, store, folder, renew, after):
        self.store, self.path, self.renew = store, folder / "credentials", renew
        store.token = "token-1"
        self.write("token-1")
        store.faults.append(Fault(self.expire, method="PUT", after=after))
        self.env = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "",
                    "AWS_SHARED_CREDENTIALS_FILE": str(self.path)}

    def write(self, token):
        new = self.path.with_suffix(".new")
        new.write_text("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n" %
                       (ACCESS_KEY, SECRET_KEY, token))
        new.rename(self.path)

    def expire(self, store):
        store.expired.add(store.token)
        store.token = "token-2"
        self.renew(self)


@pytest.mark.parametrize("renew", [lambda r: r.write("token-2"), lambda r: threading.Timer(2.5, r.write, ["token-2"]).start()],
                         ids=["at-once", "later"])
def test_credentials_that_expire_are_read_again(renew, store, root, expected, tmp_path):
    ok(store, *argv(root), **Rotation(store, tmp_path, renew, after=3).env)
    assert is_whole(store, expected)
    assert {h["x-amz-security-token"] for _, _, h in store.requests} == {"token-1", "token-2"}


def test_credentials_that_expire_and_are_not_renewed_are_an_error(store, root, tmp_path):
    env = Rotation(store, tmp_path, lambda r: None, after=3).env
    begin = time.monotonic()
    fails(store, *argv(root), **env, TP_REMOTE_TIMEOUT="2", says="ExpiredToken.*expired: get new ones")
    assert time.monotonic() - begin < 30
    before = len(store.requests)
    fails(store, *argv(root), **env, says="ExpiredToken.*expired: get new ones")
    assert len(store.requests) == before + 1, "they were never valid in this run, so nothing is waited for"


def test_the_keys_of_the_environment_are_not_read_again(store, root, tmp_path):
    rotation = Rotation(store, tmp_path, lambda r: r.write("token-2"), after=3)
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(rotation.path), "AWS_SESSION_TOKEN": "token-1"}
    fails(store, *argv(root), **env, says="ExpiredToken.*expired: get new ones")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of numbers that compress, whose compressed shards have several parts, and these shards."""
    folder = tmp_path_factory.mktemp("large")
    config = harness.write_config(folder, hidden_size=256, intermediate_size=1536, head_dim=32, vocab_size=4000)
    harness.ok(harness.built("make_ckpt"), config, "tp4", folder / "ckpt", 1, SMOOTH + 5)
    harness.ok("tp-reshard", folder / "ckpt", "--to", "tp2", "--out", folder / "out", "--zstd")
    return folder / "ckpt", {p.name: p.read_bytes() for p in (folder / "out/step-00000001").glob("*.h5")}


@pytest.mark.parametrize("jobs", (1, 5))
def test_compressed_shards_are_the_same_bytes_as_in_a_folder(store, large, jobs):
    root, shards = large
    store.faults.append(Fault(503, times=2, method="PUT", path="partNumber", code="SlowDown"))
    r = ok(store, "tp-reshard", root, "--to", "tp2", "--out", OUT, "--zstd", "--jobs", jobs, "--mem", "300M", "--json")
    if not harness.SANITIZE:
        assert int(re.search(r'"peak_rss_bytes": (\d+)', r.out)[1]) <= 300 << 20
    assert is_whole(store, shards)
    for name in shards:
        assert sum("partNumber" in p and name in p for _, p, _ in store.requests) >= 3
    assert ok(store, "tp-ckpt", "digest", OUT).out == harness.ok("tp-ckpt", "digest", root).out
    assert ok(store, "tp-ckpt", "verify", OUT).rc == 0


def test_progress_says_what_was_sent(store, large):
    """For scripts, and on a terminal, where the line is drawn again and again."""
    root, _ = large
    r = ok(store, "tp-reshard", root, "--to", "tp2", "--out", OUT, "--json")
    last = json.loads(r.err.splitlines()[-1])
    size = sum(len(data) for data in store.tree(KEY).values())
    assert last["bytes_copied"] == last["bytes_total"] < size <= last["bytes_sent"] < 1.01 * size + 4096
    store.delay = 0.2  # one part after the other, so that the copying waits for the sending
    line = shlex.join(map(str, harness.command(["tp-reshard", root, "--to", "tp4", "--out", OUT + "-2", "--jobs", 1])))
    out = subprocess.run(["script", "-qec", line, "/dev/null"], env={**os.environ, "TERM": "xterm", **store.environment(TP_REMOTE_CONNECTIONS="1")},
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=100).stdout
    assert re.search(r"copying .* of .*/s, [0-9.]+ s left, [0-9.]+ MiB sent", out), out


def test_small_compressed_shards_are_one_part_each(store, root):
    ok(store, *argv(root, "--zstd"))
    harness.ok("tp-reshard", root, "--to", "tp4pp2", "--out", root.parent / "zstd", "--zstd")
    assert is_whole(store, {p.name: p.read_bytes() for p in (root.parent / "zstd/step-00000001").glob("*.h5")})


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
    "part_error200": Fault("error200", times=2, method="PUT", path="partNumber"),
    "manifest_error200": Fault("error200", times=2, method="PUT", path="manifest"),
    "stall": Fault("stall", method="PUT", path="partNumber", seconds=3),
    "stall_of_the_manifest": Fault("stall", method="PUT", path="manifest", seconds=3),
    "conflict": Fault(409, method="POST", path="uploadId", code="ConditionalRequestConflict"),
}


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_pass_change_no_byte(store, root, expected, name):
    store.faults.append(PASSING[name])
    ok(store, *argv(root))
    assert PASSING[name].seen > PASSING[name].times, "the request was not tried again"
    assert is_whole(store, expected)


def test_an_upload_whose_begin_was_not_answered_stays_without_parts(store, root, expected):
    """Nobody knows its id; docs/REMOTE.md says how the bucket removes it."""
    store.faults.append(Fault("lost reply", times=2, method="POST", path="uploads="))
    ok(store, *argv(root))
    assert list(store.uploads.values()) == [{}, {}]
    store.uploads.clear()
    assert is_whole(store, expected)


LASTING = {
    "500": (Fault(500, times=9999, method="PUT"), "cannot write: the server answers 500"),
    "denied": (Fault(403, times=9999, method="POST", code="AccessDenied"), "AccessDenied"),
    "expired": (Fault(400, times=9999, method="PUT", code="ExpiredToken", after=2), "expired: get new ones"),
    "completion": (Fault(500, times=9999, method="POST", path="00003.h5.uploadId"), "answers 500"),
    "manifest": (Fault(403, times=9999, method="PUT", path="manifest", code="AccessDenied"), "AccessDenied"),
    "manifest_error200": (Fault("error200", times=9999, method="PUT", path="manifest", code="AccessDenied"), "AccessDenied"),
    "manifest_page200": (Fault("page200", times=9999, method="PUT", path="manifest"), "manifest.json: .* has not written it"),
    "part_page200": (Fault("page200", times=9999, method="PUT", path="partNumber"), "did not confirm part"),
    "completion_page200": (Fault("page200", times=9999, method="POST", path="uploadId"), "but the object does not exist"),
    "redirect": (Fault("redirect", times=9999, method="PUT", location="http://127.0.0.1:1"), "to another host"),
}


@pytest.mark.parametrize("name", LASTING)
def test_faults_that_stay_leave_nothing_in_the_store(store, root, name):
    fault, says = LASTING[name]
    store.faults.append(fault)
    fails(store, *argv(root), says=says)
    fails(store, *argv(root, "--zstd"), says=says)
    assert is_empty(store)


def test_of_two_writers_one_wins(store, root, expected):
    def another(s):
        if KEY + "manifest.json" not in s.objects:
            s.put(KEY + "manifest.json", b"of another writer")

    store.faults.append(Fault(another, method="PUT", path="manifest"))
    fails(store, *argv(root), says="another writer was faster", code=2)
    assert store.objects[KEY + "manifest.json"][0] == b"of another writer"
    assert store.uploads == {}


def test_a_shard_of_another_writer_is_not_taken_for_this_ones(store, root, expected):
    """It has the same length, and appears between two tries of the completion."""
    store.faults += [Fault(503, method="POST", path="00002.h5.uploadId", code="SlowDown"),
                     Fault(lambda s: s.put(KEY + "rank-00002.h5", bytes(len(expected["rank-00002.h5"]))),
                           method="POST", path="00002.h5.uploadId")]
    fails(store, *argv(root), says="another writer was faster", code=2)
    assert "manifest.json" not in store.tree(KEY) and store.uploads == {}


def test_an_upload_that_a_conflict_has_ended_is_not_taken_for_complete(store, root, expected):
    """Amazon's documentation says that a conflict ends it. Another writer's shard has the same length."""
    last = max(expected)

    def end(s):
        s.uploads.clear()
        s.put(KEY + last, bytes(len(expected[last])))

    store.faults += [Fault(409, method="POST", path=last + ".uploadId", code="ConditionalRequestConflict"),
                     Fault(end, method="POST", path=last + ".uploadId")]
    fails(store, *argv(root), says="NoSuchUpload")
    assert "manifest.json" not in store.tree(KEY) and not any(store.tree(KEY)[last])


def test_a_store_that_ignores_the_condition_of_a_completion_keeps_what_appeared_before(store, root):
    store.is_old_ceph = True
    store.faults.append(Fault(lambda s: s.put(KEY + "rank-00000.h5", b"of another writer"),
                              method="PUT", path="00000.h5.*partNumber"))
    fails(store, *argv(root), says="another writer was faster", code=2)
    assert store.objects[KEY + "rank-00000.h5"][0] == b"of another writer"
    assert KEY + "manifest.json" not in store.objects and store.uploads == {}


@pytest.mark.parametrize("first", (False, True), ids=("upload", "condition"))
def test_a_completion_whose_reply_is_lost_is_one(store, root, expected, first):
    """The next try finds no upload, or an object that exists already."""
    store.checks_condition_first = first
    store.faults.append(Fault("lost reply", times=2, method="POST", path="uploadId"))
    ok(store, *argv(root))
    assert is_whole(store, expected)


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


@pytest.mark.parametrize("options", ((), ("--zstd",)))
def test_an_interrupted_run_leaves_nothing(store, root, options):
    store.delay = 0.15
    p = subprocess.Popen(harness.command(argv(root, *options)), env={**os.environ, **store.environment()},
                         stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any("partNumber" in path for _, path, _ in store.requests) and time.monotonic() < deadline:
        time.sleep(0.02)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=60)
    assert (p.returncode, is_empty(store)) == (75, True) and "nothing was kept" in err, err


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("options", ((), ("--zstd",)))
def test_a_signal_while_the_store_does_not_take_parts_ends_the_run(store, root, method, options):
    """It does not wait for the store."""
    store.faults.append(Fault(503, times=10 ** 6, method=method, path="partNumber" if method == "PUT" else "uploads="))
    code, err, seconds = interrupt(store, argv(root, *options))
    assert code == 75 and "nothing was kept" in err, err
    assert seconds < 20 and is_empty(store)


def test_a_signal_while_nothing_of_the_store_answers_ends_the_run_too(store, root):
    """Nor when unfinished uploads cannot be ended."""
    store.faults.append(Fault(503, times=10 ** 6, method="DELETE"))
    store.faults.append(Fault(503, times=10 ** 6, method="PUT"))
    code, err, seconds = interrupt(store, argv(root))
    assert code == 75 and "nothing was kept" in err and seconds < 20, (err, seconds)


def test_a_signal_while_the_source_cannot_be_read_ends_a_run_to_a_store(store, root):
    ok(store, *argv(root))
    store.faults.append(Fault(503, times=10 ** 6, path="rank-00000.h5", after=1))  # after its index
    code, err, seconds = interrupt(store, ("tp-reshard", OUT, "--to", "tp1", "--out", OUT + "-1"))
    assert code == 75 and "nothing was kept" in err and seconds < 20, err
    assert store.tree("bucket/runs/out-1") == {} and store.uploads == {}


@pytest.fixture(scope="module")
def foreign(root):
    harness.ok("tp-ckpt", "export", root, "-o", root.parent / "foreign")
    harness.ok("tp-ckpt", "export", root, "-o", root.parent / "dcp", "--format", "dcp")
    return root.parent


@pytest.mark.parametrize("kind, options", [("foreign", ()), ("dcp", ("--zstd",))])
def test_an_import_writes_the_same_shards_as_into_a_folder(store, foreign, tmp_path, kind, options):
    argv = ("tp-ckpt", "import", foreign / kind, "--layout", "tp2pp2", *options)
    harness.ok(*argv, "-o", tmp_path / "ckpt")
    assert "imported" in ok(store, *argv, "-o", OUT + "/").out
    here = {str(p.relative_to(tmp_path / "ckpt")): p.read_bytes() for p in tmp_path.glob("ckpt/step-*/*.h5")}
    assert {k: v for k, v in store.tree("bucket/runs/out/").items() if k.endswith(".h5")} == here and store.uploads == {}
    assert ok(store, "tp-ckpt", "diff", OUT, tmp_path / "ckpt").rc == 0
    fails(store, *argv, "-o", OUT, code=2, says="exists already")
    fails(store, *argv, "-o", OUT, "--force", code=2, says="remove the step first")


def test_an_import_that_fails_or_is_of_another_model_leaves_nothing_in_the_store(store, root, foreign, tmp_path):
    argv = ("tp-ckpt", "import", foreign / "foreign", "-o", OUT)
    store.faults.append(Fault(403, times=9999, method="PUT", path="manifest", code="AccessDenied"))
    fails(store, *argv, says="AccessDenied")
    assert store.tree("bucket/runs/out/") == {} and store.uploads == {}
    store.faults.clear()
    harness.ok(harness.built("make_ckpt"), harness.write_config(tmp_path, hidden_size=128), "tp1", tmp_path / "other", 1, 1)
    store.add_tree("bucket/runs/out", tmp_path / "other")
    fails(store, *argv, code=2, says="is of another model")


def test_a_conversion_of_a_foreign_folder_writes_to_a_store(store, foreign):
    ok(store, "tp-reshard", foreign / "foreign", "--to", "tp2", "--format", "tp", "--out", OUT)
    assert ok(store, "tp-ckpt", "verify", OUT).rc == 0
    ok(store, "tp-reshard", foreign / "foreign", "--to", "tp2", "--format", "dcp", "--no-optim", "--out", OUT + "2")
    assert ".metadata" in store.tree("bucket/runs/out2/")


def test_the_default_place_is_never_another_bucket(store, root):
    """BUCKET-SPEC may be anyone's."""
    ok(store, "tp-reshard", root, "--to", "tp1", "--out", "s3://bucket")
    for ckpt in "s3://bucket", "s3://bucket/", "s3://bucket/step-00000001":
        fails(store, "tp-reshard", ckpt, "--to", "tp2", says="--out is missing.*the whole bucket bucket", code=2)
    assert all(key.startswith("bucket/") for key in store.objects)


def test_places_that_cannot_be_written_to_are_refused(root, tmp_path):
    with ObjectStore(public=True) as web:
        url = web.url + "/out"
        fails(web, "tp-reshard", root, "--to", "tp1", "--out", url, code=2, says="are only read")
        fails(web, "tp-ckpt", "export", root, "-o", url, code=2, says="a web server cannot be written to")
        harness.ok("tp-ckpt", "export", root, "-o", root.parent / "hf")
        fails(web, "tp-ckpt", "import", root.parent / "hf", "-o", url, code=2, says="are only read")
        fails(web, "tp-ckpt", "prune", url, "--keep", "1", code=2, says="are only read")
        r = run(web, "tp-reshard", url, "--to", "tp1")
        assert r.rc == 2, repr(r)
        assert all(m == "GET" for m, _, _ in web.requests)
