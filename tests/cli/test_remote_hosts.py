"""Several processes and several jobs write one checkpoint in a store.

needs: tp-ckpt tp-reshard tp-train make_ckpt
covers: reshard/formats/checkpoint/shared_upload reshard/store_job ckpt/store_step ckpt/save storage/upload_sender
"""
import copy
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest

import harness
from object_store import Fault, ObjectStore, ok, run

OUT = "s3://bucket/out"
KEY = "bucket/out/step-00000001/"
PART = 5 << 20
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
LARGE = {"hidden_size": 256, "intermediate_size": 768, "head_dim": 32, "vocab_size": 2000}  # 35 MiB: 7 parts


class PatientStore(ObjectStore):
    """Many processes at once may be slow on a machine that does other work, too."""

    def environment(self, **changes):
        return super().environment(**{"TP_REMOTE_TIMEOUT": "120", **changes})


@pytest.fixture
def store():
    with PatientStore() as s:
        yield s


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    harness.ok(harness.built("make_ckpt"), harness.write_config(folder, **LARGE), "tp4", folder / "ckpt", 1, 5, "bf16")
    return folder / "ckpt"


@pytest.fixture(scope="module")
def expected(large, tmp_path_factory):
    """{spec: the shards of a local reshard of `large` to it}."""
    folder, seen = tmp_path_factory.mktemp("expected"), {}
    for spec in ("tp1", "tp2"):
        harness.ok("tp-reshard", large, "--to", spec, "--out", folder / spec)
        seen[spec] = {p.name: p.read_bytes() for p in (folder / spec / "step-00000001").glob("*.h5")}
    return seen


def shards(store, key=KEY):
    return {k: v for k, v in store.tree(key).items() if k.endswith(".h5")}


def on_ranks(n, folder, *argv):
    """argv under mpirun; each process writes its number to FOLDER/pid.RANK."""
    text = "echo $$ > %s/pid.$OMPI_COMM_WORLD_RANK; exec %s" % (
        shlex.quote(str(folder)), " ".join(shlex.quote(w) for w in harness.command(argv)))
    return [*MPIRUN, "-n", str(n), "sh", "-c", text]


def start(store, argv, **env):
    return subprocess.Popen(argv, env={**os.environ, **store.environment(**env)}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


# ---- the processes of one job ----

@pytest.mark.parametrize("n,spec", [(2, "tp1"), (3, "tp2"), (5, "tp1")])
def test_several_processes_upload_each_byte_of_a_shard_once(store, large, expected, n, spec):
    """Also where a shard has fewer parts than there are processes, and pieces of parts are combined."""
    r = ok(store, *MPIRUN, "-n", n, harness.BIN / "tp-reshard", large, "--to", spec, "--out", OUT, "--json")
    assert json.loads(r.out)["processes"] == n
    assert shards(store) == expected[spec] and store.uploads == {}
    changes = [(m, p) for m, p, _ in store.requests if m != "GET"]
    assert sum("partNumber" in p for _, p in changes) == sum(-(-len(v) // PART) for v in expected[spec].values())
    assert changes[-1][0] == "PUT" and changes[-1][1].endswith("/manifest.json")
    assert sum("manifest.json" in p for _, p in changes) == 1, "the manifest is committed once"
    assert ok(store, "tp-ckpt", "diff", OUT, large).rc == 0


@pytest.mark.parametrize("n,spec", [(2, "tp4"), (3, "tp2")])
def test_several_processes_upload_compressed_shards_of_their_own(store, large, tmp_path, n, spec):
    """Also when one of them has no shard. The objects have the bytes of files that one process writes."""
    harness.ok("tp-reshard", large, "--to", spec, "--out", tmp_path / "one", "--zstd")
    ok(store, *MPIRUN, "-n", n, harness.BIN / "tp-reshard", large, "--to", spec, "--out", OUT, "--zstd", "--mem", "512M")
    assert shards(store) == {p.name: p.read_bytes() for p in (tmp_path / "one/step-00000001").glob("*.h5")}
    assert store.uploads == {}
    assert sum("manifest.json" in p for m, p, _ in store.requests if m != "GET") == 1, "the manifest is committed once"
    assert ok(store, "tp-ckpt", "diff", OUT, large).rc == 0


def test_every_process_sends_parts(store, large):
    def wait_for_another(s):  # the first part is not answered before a second one is on its way
        deadline = time.monotonic() + 100
        while s.most_in_flight < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    store.faults.append(Fault(wait_for_another, method="PUT", path="partNumber"))
    ok(store, *MPIRUN, "-n", 2, harness.BIN / "tp-reshard", large, "--to", "tp1", "--out", OUT, "--jobs", 1,
       TP_REMOTE_CONNECTIONS="1")
    assert store.most_in_flight == 2, "each process has one connection"


@pytest.mark.parametrize("fault,code,says", [
    (Fault(403, times=9999, method="PUT", path="partNumber", code="AccessDenied"), 3, "AccessDenied"),
    (Fault(403, times=9999, method="POST", path="uploadId", code="AccessDenied"), 3, "AccessDenied"),
    (Fault(lambda s: s.put("bucket/out/epoch", b"7\n"), method="PUT", path="partNumber"), 3, "newer job .epoch 7"),
    (Fault(lambda s: s.put(KEY + "manifest.json", b"another's"), method="PUT", path="partNumber"), 2, "exists already"),
], ids=["part", "completion", "epoch", "another"])
@pytest.mark.parametrize("options", [[], ["--zstd", "--mem", "512M"]], ids=["raw", "zstd"])
def test_after_a_failure_of_any_process_nothing_of_the_job_is_in_the_store(store, large, fault, code, says, options):
    store.faults.append(copy.copy(fault))  # it counts how often it acted
    r = run(store, *MPIRUN, "-n", 3, harness.BIN / "tp-reshard", large, "--to", "tp2", "--out", OUT, *options)
    assert r.rc == code and re.search(says, r.err), repr(r)
    assert shards(store) == {} and store.uploads == {}
    assert store.tree(KEY).get("manifest.json", b"another's") == b"another's"


@pytest.mark.parametrize("rank,method,path", [(1, "PUT", "partNumber"), (0, "POST", "00001.h5.uploadId")],
                         ids=["while_it_uploads", "while_shards_appear"])
def test_a_process_that_dies_leaves_nothing_committed_and_the_next_run_cleans_up(store, large, expected, tmp_path, rank,
                                                                                  method, path):
    argv = on_ranks(2, tmp_path, "tp-reshard", large, "--to", "tp2", "--out", OUT)
    store.faults.append(Fault(lambda s: os.kill(int((tmp_path / ("pid.%d" % rank)).read_text()), signal.SIGKILL),
                              method=method, path=path))
    assert start(store, argv).wait(timeout=100) != 0
    assert "manifest.json" not in store.tree(KEY)
    ok(store, *argv)
    assert shards(store) == expected["tp2"]
    assert ok(store, "tp-ckpt", "verify", OUT).rc == 0


# ---- several jobs ----

def test_a_job_that_was_overtaken_leaves_the_shards_of_the_other_alone(store, root):
    """Their names are the same, and the other job has removed those of this one."""
    def overtake(s):
        s.put("bucket/out/epoch", b"7\n")
        s.put(KEY + "cleaner", b"another")
        s.put(KEY + "rank-00000.h5", b"of the other job")

    store.faults.append(Fault(overtake, method="POST", path="00001.h5.uploadId"))
    r = run(store, "tp-reshard", root, "--to", "tp4", "--out", OUT, TP_REMOTE_CONNECTIONS="1")  # one shard after another
    assert r.rc == 3 and "newer job (epoch 7" in r.err, repr(r)
    assert store.tree(KEY)["rank-00000.h5"] == b"of the other job" and "manifest.json" not in store.tree(KEY)


def test_a_job_that_claims_the_root_while_another_commits_does_not_find_its_step_later(store, root):
    store.faults.append(Fault(lambda s: s.put("bucket/out/epoch", b"7\n"), method="PUT", path="manifest"))
    r = run(store, "tp-reshard", root, "--to", "tp4", "--out", OUT)
    assert r.rc == 3 and "newer job (epoch 7" in r.err, repr(r)
    assert store.tree(KEY) == {}


def test_the_first_of_two_jobs_that_remove_leftovers_notices_the_second(store, root):
    store.put(KEY + "rank-00000.h5", b"left by a job that died")
    store.faults.append(Fault(lambda s: s.put(KEY + "cleaner", b"the second"), method="DELETE", path="00000.h5"))
    r = run(store, "tp-reshard", root, "--to", "tp4", "--out", OUT)
    assert r.rc == 2 and "another writer of this step" in r.err, repr(r)
    assert "manifest.json" not in store.tree(KEY)


REFUSED = (r"exists already|another writer|belongs to a newer job|another program|another launch|a newer job owns it|"
           r"already has checkpoints|there is no such object|is missing|not complete")


def is_one_of(store, root, spec, want):
    """The step is whole, and all of it of one job."""
    shown = json.loads(ok(store, "tp-ckpt", "show", root, "--json").out)
    r = run(store, "tp-ckpt", "verify", root)
    assert r.rc == 0, repr(r)
    assert ok(store, "tp-ckpt", "digest", root).out.splitlines()[-1] == want
    return shown["layout"] in spec


def test_of_jobs_that_race_for_one_step_one_or_none_commits_and_nothing_is_mixed(root, figure):
    """Different layouts have other shards of the same names. Half of the races begin with a dead job's leftovers."""
    races, seed = 60 if harness.LONG else 4, random.randrange(1 << 30)
    print("seed", seed)
    rng, want = random.Random(seed), harness.ok("tp-ckpt", "digest", root).out.splitlines()[-1]
    won = none = 0
    for number in range(races):
        with PatientStore() as store:
            if number % 2:
                store.put(KEY + "rank-00000.h5", b"left by a job that died")
            store.delay = rng.choice([0, 0, 0.002, 0.02])
            jobs = []
            for spec, n in (("tp4", 1), ("tp2", 2) if number % 3 == 0 else ("tp2", 1), ("tp4pp2", 1)):
                argv = harness.command(["tp-reshard", root, "--to", spec, "--out", OUT])
                jobs.append(start(store, [*MPIRUN, "-n", "2", *argv] if n > 1 else argv))
                time.sleep(rng.choice([0, 0.01, 0.1]))
            errors = [j.communicate(timeout=200)[1] for j in jobs]
            codes = [j.returncode for j in jobs]
            store.delay = 0
            assert codes.count(0) <= 1 and set(codes) <= {0, 2, 3}, (codes, errors)
            for code, text in zip(codes, errors):
                assert code == 0 or re.search(REFUSED, text), (code, text)
            assert store.uploads == {}, (codes, errors)
            if 0 in codes:
                won += 1
                assert is_one_of(store, OUT, ["tp4", "tp2", "tp4pp2"][codes.index(0)], want), errors
            else:
                none += 1
                assert "manifest.json" not in store.tree(KEY), errors
                ok(store, "tp-reshard", root, "--to", "tp4", "--out", OUT)  # what is left does no harm
                assert is_one_of(store, OUT, "tp4", want)
    figure("races of three jobs for one step of a store: nothing mixed in %d of %d; one committed in" % (won + none, races), won)


def test_of_training_jobs_that_race_for_one_root_the_newest_epoch_saves_all_steps(tiny, figure):
    races, seed = 20 if harness.LONG else 2, random.randrange(1 << 30)
    print("seed", seed)
    rng, finished = random.Random(seed), 0
    for _ in range(races):
        with PatientStore() as store:
            store.delay = rng.choice([0, 0.01])
            argv = harness.command(harness.train_args(tiny, "s3://bucket/t", steps=6, save_every=1, resume="auto"))
            jobs = []
            for _ in range(2):
                jobs.append(start(store, argv))
                time.sleep(rng.choice([0, 0.2, 0.5]))
            errors = [j.communicate(timeout=200)[1] for j in jobs]
            codes = [j.returncode for j in jobs]
            store.delay = 0
            assert set(codes) <= {0, 2, 3}, (codes, errors)
            for code, text in zip(codes, errors):
                assert code == 0 or re.search(REFUSED, text), (code, text)
            assert store.uploads == {}, (codes, errors)
            steps = sorted(k.split("/")[0] for k in store.tree("bucket/t/") if k.endswith("manifest.json"))
            for step in steps:
                r = run(store, "tp-ckpt", "verify", "s3://bucket/t/" + step)
                assert r.rc == 0, (repr(r), codes, errors)
            epochs = [json.loads(store.tree("bucket/t/")[s + "/manifest.json"])["epoch"] for s in steps]
            assert epochs == sorted(epochs), "a step of an older job follows one of a newer job"
            if 0 in codes:
                finished += 1
                assert steps and steps[-1] == "step-00000006"
    figure("races of two training jobs for one root: every step whole in %d of %d; one trained to its end in" % (races, races),
           finished)


# ---- training on hosts that share no folder ----

def test_ranks_that_share_no_folder_save_and_resume_as_in_one_folder(store, tiny, tmp_path):
    """Each rank is a host of its own, with its own home, model and data."""
    def hosts(n, layout, log, **options):
        commands = []
        for rank in range(n):
            home = tmp_path / ("host%d" % rank)
            if not home.exists():
                shutil.copytree(tiny.parent, home / "model")
                shutil.copyfile(harness.TEXT, home / "data")
            words = harness.train_args("model/config.json", "s3://bucket/t", steps=6, layout=layout, **options)
            words[words.index(harness.TEXT)] = "data"
            commands.append(["env", "-C", home, "HOME=%s" % home, "TMPDIR=%s" % home, *harness.command([*words, "--log", log])])
        return [*MPIRUN, "-n", str(n), *harness.of_each_rank(*commands)]

    local = tmp_path / "local"
    local.mkdir()
    harness.ok(*harness.train_args(tiny, local / "ckpt", steps=6, save_every=2, log=local / "log"))
    first = run(store, *hosts(2, "tp2", tmp_path / "log", save_every=2, exit_step=4), TP_HOST_RANKS="1")
    assert first.rc == 75 or "75" in first.err, repr(first)
    want = {str(p.relative_to(local / "ckpt")): p.read_bytes() for p in (local / "ckpt").glob("step-*/*.h5")}
    got = shards(store, "bucket/t/")
    assert got == {k: want[k] for k in got} and len(got) == 4
    ok(store, *hosts(4, "tp2dp2", tmp_path / "log", save_every=2, resume="must"), TP_HOST_RANKS="1")
    assert ok(store, "tp-ckpt", "verify", "s3://bucket/t").rc == 0
    assert [pytest.approx(x, rel=1e-4) for x in harness.losses(local / "log")] == harness.losses(tmp_path / "log")
    for rank in range(4):
        left = {p.name for p in (tmp_path / ("host%d" % rank)).iterdir()} - {"model", "data"}
        assert not [n for n in left if n.startswith("step-") or n.endswith(".h5")], left
