"""tp-train saves to an S3-compatible store, and resumes from it.

needs: tp-ckpt tp-reshard tp-train tp-run
covers: ckpt/save
"""
import contextlib
import pathlib
import re
import threading
import time

import pytest

import harness
from object_store import ACCESS_KEY, SECRET_KEY, TOKEN, Fault, ObjectStore, fails, ok

ROOT = "s3://bucket/runs/train"
KEY = "bucket/runs/train/"


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


def test_a_slash_at_the_end_of_the_root_changes_nothing(store, tiny):
    first = harness.run(*argv(tiny, ROOT + "/", exit_step=3), env=store.environment())
    assert first.rc == 75, repr(first)
    assert {k.split("/")[0] for k in store.tree(KEY)} == {"epoch", "step-00000003"}
    ok(store, *argv(tiny, ROOT + "//", resume="must"))
    listed = ok(store, "tp-ckpt", "ls", ROOT).out
    assert "step-00000006" in listed and ok(store, "tp-ckpt", "ls", ROOT + "/").out == listed


def test_a_store_gets_the_same_compressed_shards_as_a_folder(store, tiny, tmp_path):
    ok(store, *argv(tiny, steps=2, ckpt_zstd="2"))
    harness.ok(*argv(tiny, tmp_path / "ckpt", steps=2, ckpt_zstd="2"))
    found = shards(store.tree(KEY))
    assert found == {str(p.relative_to(tmp_path / "ckpt")): p.read_bytes() for p in tmp_path.glob("ckpt/step-*/*.h5")}
    assert '"version": 3' in store.tree(KEY)["step-00000002/manifest.json"].decode() and store.uploads == {}
    assert ok(store, "tp-ckpt", "verify", ROOT).rc == 0


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


def test_a_store_that_compares_etags_without_quotes_has_epochs(store, tiny):
    store.is_old_ceph = True
    ok(store, *argv(tiny, steps=2))
    ok(store, *argv(tiny, steps=4, resume="must"))
    assert store.tree(KEY)["epoch"] == b"2\n"
    store.faults.append(Fault(lambda s: s.put(KEY + "epoch", b"9\n"), method="PUT", path="epoch"))
    ok(store, *argv(tiny, steps=6, resume="must"))
    assert store.tree(KEY)["epoch"] == b"10\n"


def test_an_epoch_that_was_not_written_is_an_error(store, tiny):
    """A proxy answers 200 for the store."""
    store.faults.append(Fault("page200", times=9999, method="PUT", path="epoch"))
    fails(store, *argv(tiny), says="epoch: .* has not written it")
    assert store.tree(KEY) == {} and store.uploads == {}


@pytest.mark.parametrize("before", (None, b"7\n"), ids=("first", "later"))
def test_two_jobs_that_claim_a_root_at_once_have_different_epochs(store, tiny, before):
    """The other job claims the root between two tries of this one, whose claim has the same text."""
    if before:
        store.put(KEY + "epoch", before)
    others = b"8\n" if before else b"1\n"
    store.faults += [Fault(503, method="PUT", path="epoch", code="SlowDown"),
                     Fault(lambda s: s.put(KEY + "epoch", others), method="PUT", path="epoch")]
    ok(store, *argv(tiny))
    assert store.tree(KEY)["epoch"] == b"%d\n" % (int(others) + 1)


def test_a_root_whose_epoch_is_zero_can_be_claimed(store, tiny):
    """Whoever writes the highest epoch of the manifests into a damaged file, as the message says, may write 0."""
    store.put(KEY + "epoch", b"0\n")
    ok(store, *argv(tiny))
    assert store.tree(KEY)["epoch"] == b"1\n"


def test_a_claim_whose_reply_is_lost_is_a_claim(store, tiny):
    store.faults.append(Fault("lost reply", method="PUT", path="epoch"))
    ok(store, *argv(tiny))
    assert store.tree(KEY)["epoch"] in (b"1\n", b"2\n")


def test_a_newer_job_stops_an_older_one(store, tiny):
    store.faults.append(Fault(lambda s: s.put(KEY + "epoch", b"9\n"), method="POST", path="step-00000004"))
    r = harness.run(*argv(tiny, save_every=2), env=store.environment())
    assert r.rc == 3 and re.search("belongs to a newer job .epoch 9", r.err), repr(r)
    assert "step-00000004/manifest.json" not in store.tree(KEY)
    assert not shards({k: v for k, v in store.tree(KEY).items() if "00000004" in k})


def test_tp_run_leaves_checkpoints_in_a_store_to_the_command(store, tiny, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("command: %s\nckpt: %s\ncheckpoints: none\nnodes: [a:2]\n" %
                   (" ".join(map(str, harness.train_args(tiny, steps=4, save_every=2))), ROOT))
    run_job = harness.run("tp-run", job, env=store.environment())
    assert run_job.rc == 0, repr(run_job)
    assert {k.split("/")[0] for k in store.tree(KEY)} == {"epoch", "step-00000002", "step-00000004"}
    assert not list(tmp_path.glob("s3:*")) and ok(store, "tp-ckpt", "verify", ROOT).rc == 0
    for secret in (SECRET_KEY, ACCESS_KEY):  # neither the journal nor a log has one
        assert not [p for p in tmp_path.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]


@pytest.fixture(scope="module")
def hf(local, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "hf"
    harness.ok("tp-ckpt", "export", local[0], "-o", folder, "--dtype", "f32")
    return folder


def start(model, **options):
    return harness.train_args(model, None, **{"steps": 3, **options})


@pytest.mark.parametrize("place", ("s3://bucket/hf", "s3://bucket/hf/", "http"))
def test_a_model_with_weights_elsewhere_is_the_start_as_a_folder_is(store, hf, tmp_path, place):
    store.add_tree("bucket/hf", hf)
    store.public = place == "http"
    harness.ok(*start(hf, log=tmp_path / "here"))
    r = ok(store, *start(store.url + "/bucket/hf" if place == "http" else place, log=tmp_path / "there"))
    assert harness.losses(tmp_path / "there") == harness.losses(tmp_path / "here")
    assert harness.losses(tmp_path / "here")[0] < 5.3  # these weights are trained; random ones have 5.55
    assert "bucket/hf" in r.out + r.err


def test_a_config_in_a_store_is_a_random_start(store, tiny, tmp_path):
    store.put("bucket/config.json", tiny.read_bytes())
    harness.ok(*start(tiny, log=tmp_path / "here"))
    ok(store, *start("s3://bucket/config.json", log=tmp_path / "there"))
    assert harness.losses(tmp_path / "there") == harness.losses(tmp_path / "here")


def test_a_model_that_is_not_there_is_named(store, hf, tmp_path):
    fails(store, *start("s3://bucket/nothing"), says="--model: s3://bucket/nothing/config.json: there is no such object", code=2)
    store.put("bucket/half/config.json", (hf / "config.json").read_bytes())
    fails(store, *start("s3://bucket/half"), says="s3://bucket/half: contains neither model.safetensors nor "
          "model.safetensors.index.json; name its config.json to start with random weights", code=2)
    store.add_tree("bucket/hf", hf)
    store.faults.append(Fault(403, times=9999, path="safetensors", code="AccessDenied"))
    fails(store, *start("s3://bucket/hf"), says="AccessDenied", code=3)


def test_tp_run_plans_and_runs_a_model_in_a_store(store, hf, tmp_path):
    store.add_tree("bucket/hf", hf)
    job = tmp_path / "job.yaml"
    job.write_text("command: %s\nckpt: %s\nnodes: [a:2]\n" % (
        " ".join(map(str, start("s3://bucket/hf", save_every=2, layout="tp2"))), ROOT))
    assert "tp2" in ok(store, "tp-run", "plan", job).out
    ok(store, "tp-run", job)
    assert "step-00000003/manifest.json" in store.tree(KEY)


def test_training_goes_on_while_a_step_is_sent(store, tiny, tmp_path):
    """The store answers to a part of step 2 only after step 3 is in the log."""
    log = tmp_path / "log"

    def wait_for_the_next_step(_):
        deadline = time.monotonic() + 60
        while len(log.read_text().splitlines()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(len(log.read_text().splitlines()))

    seen = []
    store.faults.append(Fault(wait_for_the_next_step, method="PUT", path="step-00000002.*partNumber"))
    ok(store, *argv(tiny, save_every=2, log=log), TP_REMOTE_TIMEOUT="240")
    assert seen[0] >= 3 and ok(store, "tp-ckpt", "verify", ROOT).rc == 0


def test_no_argument_list_or_file_has_a_credential(tiny, local, tmp_path):
    """Also not those of ranks, supervisors and processes of mpirun."""
    secrets, found, ended = [s.encode() for s in (ACCESS_KEY, SECRET_KEY, TOKEN)], [], threading.Event()

    def watch():
        while not ended.wait(0.01):
            for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    line = entry.read_bytes()
                    found.extend(line for s in secrets if s in line)

    job = tmp_path / "job.yaml"
    job.write_text("command: %s\nckpt: %s\ncheckpoints: none\nnodes: [a:2]\n" %
                   (" ".join(map(str, harness.train_args(tiny, steps=4, save_every=2))), ROOT))
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", harness.BIN / "tp-reshard"]
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ObjectStore(token=TOKEN) as store:
            store.delay = 0.02
            store.add_tree("bucket/runs/local", local[0])
            ok(store, "tp-run", job)
            ok(store, *mpirun, "s3://bucket/runs/local", "--to", "tp1", "--out", "s3://bucket/runs/one")
            ok(store, "tp-ckpt", "export", "s3://bucket/runs/local", "-o", "s3://bucket/runs/hf", TMPDIR=str(tmp_path))
    finally:
        ended.set()
        watcher.join()
    assert not found
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and any(s in p.read_bytes() for s in secrets)]


def test_what_a_store_cannot_do_is_refused_at_the_start(store, tiny, local):
    store.add_tree("bucket/runs/train", local[0])
    fails(store, *argv(tiny), says="already has checkpoints", code=2)
    fails(store, *argv(tiny, root="https://127.0.0.1:1/x"), says="are only read", code=2)
