"""Checkpoints in Ceph's S3 gateway: save, resume, reshard, verify, list, export, import, prune; writers that race.

needs: tp-ckpt tp-reshard tp-train tp-run make_ckpt
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "cli"))
import harness  # noqa: E402
from object_store import ACCESS_KEY, SECRET_KEY, clean, s3_request  # noqa: E402

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool", "monmaptool", "curl")
MISSING = [p for p in PROGRAMS if not shutil.which(p)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason="needs " + ", ".join(MISSING))
ROOT = "s3://checkpoints/runs/a b+c"  # characters that are encoded, and signed so


@pytest.fixture(scope="module")
def url():
    cluster = str(HERE / "cluster.sh")
    up = subprocess.run([cluster, "up", ACCESS_KEY, SECRET_KEY], stdout=subprocess.PIPE, timeout=400, check=True, text=True)
    try:
        assert s3_request(up.stdout.strip(), "PUT", "/checkpoints").status == 200
        yield up.stdout.strip()
    finally:
        subprocess.run([cluster, "down"], timeout=60, check=True)


@pytest.fixture(scope="module")
def environment(url):
    return {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "TP_REMOTE_TIMEOUT": "60"}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return harness.make_large_shards(tmp_path_factory.mktemp("local"))


def ok(environment, *argv):
    r = clean(harness.run(*argv, env=environment))
    assert r.rc == 0, repr(r)
    return r


def test_a_checkpoint_is_resharded_from_store_to_store_and_back(environment, local, tmp_path):
    digest = harness.ok("tp-ckpt", "digest", local).out
    ok(environment, "tp-reshard", local, "--to", "tp2", "--out", ROOT)
    ok(environment, "tp-ckpt", "verify", ROOT)
    assert ok(environment, "tp-ckpt", "digest", ROOT).out == digest
    ok(environment, "tp-reshard", ROOT, "--to", "tp2pp2", "--out", ROOT + "-2", "--zstd")
    assert "step-00000001" in ok(environment, "tp-ckpt", "ls", ROOT + "-2").out
    ok(environment, "tp-reshard", ROOT + "-2", "--to", "tp4pp1", "--out", tmp_path / "back", "--no-compress")
    for shard in (local / "step-00000001").glob("*.h5"):
        assert (tmp_path / "back/step-00000001" / shard.name).read_bytes() == shard.read_bytes()
    again = harness.run("tp-reshard", local, "--to", "tp2", "--out", ROOT, env=environment)
    assert again.rc == 2 and "exists already" in again.err, repr(again)


@pytest.mark.parametrize("format", ("safetensors", "dcp"))
def test_an_export_is_imported_again(environment, local, tmp_path, format):
    there = "s3://checkpoints/to-" + format
    ok(environment, "tp-ckpt", "export", local, "-o", there, "--format", format)
    harness.ok("tp-ckpt", "export", local, "-o", tmp_path / "here", "--format", format)
    ok(environment, "tp-ckpt", "import", there, "-o", tmp_path / "a")
    harness.ok("tp-ckpt", "import", tmp_path / "here", "-o", tmp_path / "b")
    assert harness.digest(tmp_path / "a") == harness.digest(tmp_path / "b")


def test_a_run_saves_there_resumes_at_another_layout_and_prunes(environment, tmp_path):
    model = harness.write_config(tmp_path)
    harness.ok(*harness.train_args(model, tmp_path / "ckpt", steps=6, save_every=2, log=tmp_path / "whole"))
    root = "s3://checkpoints/train"
    first = harness.run(*harness.train_args(model, root, steps=6, save_every=2, exit_step=4), env=environment)
    assert first.rc == 75, repr(first)
    ok(environment, *harness.train_args(model, root, steps=6, save_every=2, resume="must", log=tmp_path / "rest"))
    assert harness.losses(tmp_path / "rest") == harness.losses(tmp_path / "whole")[4:]
    assert ok(environment, "tp-ckpt", "diff", root, tmp_path / "ckpt").rc == 0
    ok(environment, *harness.train_args(model, root, layout="pp2", steps=8, resume="must"))
    assert "pp2" in ok(environment, "tp-ckpt", "ls", root).out
    ok(environment, "tp-ckpt", "prune", root, "--keep", 1)
    assert ok(environment, "tp-ckpt", "ls", root).out.count("step-") == 1
    ok(environment, "tp-ckpt", "verify", root)


def test_tp_run_runs_a_job_there_and_continues_it_at_another_layout(environment, tmp_path):
    model, root = harness.write_config(tmp_path), "s3://checkpoints/job"
    for layout, options, code in (("tp2", ["--exit-step", 4], 75), ("tp1", [], 0)):
        command = [str(w) for w in (harness.train_args(model, root, layout=layout, steps=8, save_every=2) + options)]
        (tmp_path / "job.yaml").write_text("command: %s\nckpt: %s\nnodes: [a:2]\n" % (json.dumps(command), root))
        r = clean(harness.run("tp-run", tmp_path / "job.yaml", env=environment))
        assert r.rc == code, repr(r)
    assert "step-00000008" in ok(environment, "tp-ckpt", "ls", root).out
    ok(environment, "tp-ckpt", "verify", root)


def test_an_object_is_created_once_and_replaced_only_while_it_is_known(url):
    """What the commit and the epoch rest on."""
    path, never = "/checkpoints/once", {"if-none-match": "*"}
    assert s3_request(url, "PUT", path, b"one", never).status == 200
    assert s3_request(url, "PUT", path, b"two", never).status == 412
    tag = s3_request(url, "GET", path).headers["ETag"]
    assert s3_request(url, "PUT", path, b"three", {"if-match": "0" * 32}).status == 412
    for text in (tag, tag.strip('"')):  # this Ceph wants the second, newer ones and others the first
        s3_request(url, "PUT", path, b"four", {"if-match": text})
    assert s3_request(url, "GET", path).body == b"four"


def test_of_two_writers_of_one_step_at_most_one_commits(environment, local, tmp_path):
    for i in range(5):
        root = "s3://checkpoints/race-%d" % i
        env = {**os.environ, **environment}
        writers = [subprocess.Popen(harness.command(["tp-reshard", local, "--to", spec, "--out", root]), env=env,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                   for spec in ("tp2", "tp2pp2")]
        errors = [w.communicate(timeout=200)[1] for w in writers]
        codes = [w.returncode for w in writers]
        assert codes.count(0) <= 1 and set(codes) <= {0, 2, 3}, errors
        if 0 in codes:
            ok(environment, "tp-ckpt", "verify", root)
        else:
            ok(environment, "tp-reshard", local, "--to", "tp2", "--out", root)


def test_wrong_keys_and_buckets_are_refused(environment):
    wrong = {**environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    r = harness.run("tp-ckpt", "ls", ROOT, env=wrong)
    assert r.rc == 3 and "SignatureDoesNotMatch" in r.err, repr(r)
    r = harness.run("tp-ckpt", "ls", ROOT, env={**environment, "AWS_ACCESS_KEY_ID": "nobody"})
    assert r.rc == 3 and "InvalidAccessKeyId" in r.err, repr(r)
    r = harness.run("tp-ckpt", "ls", "s3://no-such-bucket/ckpt", env=environment)
    assert r.rc in (2, 3) and "no-such-bucket" in r.err, repr(r)
