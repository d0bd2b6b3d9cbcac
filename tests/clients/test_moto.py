"""Checkpoints in moto's S3 server, which checks each signature with botocore: reshard there and back, train, export.

needs: tp-ckpt tp-reshard tp-train make_ckpt
"""
import os
import pathlib
import re
import subprocess
import sys

import boto3
import pytest
from botocore.config import Config

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402

POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
SETUP_ACTIONS = 4  # before these have been done, moto checks nothing
ROOT = "s3://checkpoints/runs/a b+c"  # characters that are encoded, and signed so


def read_url(server):
    for line in server.stderr:
        found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", line)
        if found:
            return found[1]
    raise AssertionError("moto's server did not start")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """What programs need to use the store."""
    log = tmp_path_factory.mktemp("moto") / "log"
    code = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
    env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(SETUP_ACTIONS), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as server:
        try:
            url = read_url(server)
            with open(log, "w", encoding="utf-8") as sink, subprocess.Popen(["cat"], stdin=server.stderr, stdout=sink):
                yield make_user(url)
                server.terminate()
        finally:
            server.terminate()


def make_user(url):
    options = {"endpoint_url": url, "region_name": "us-east-1", "aws_access_key_id": "setup", "aws_secret_access_key": "setup"}
    iam = boto3.client("iam", **options)
    iam.create_user(UserName="tests")
    key = iam.create_access_key(UserName="tests")["AccessKey"]
    iam.put_user_policy(UserName="tests", PolicyName="all", PolicyDocument=POLICY)
    boto3.client("s3", config=Config(s3={"addressing_style": "path"}), **options).create_bucket(Bucket="checkpoints")
    return {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"], "TP_REMOTE_TIMEOUT": "60"}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return harness.make_large_shards(tmp_path_factory.mktemp("local"))


def ok(environment, *argv):
    r = harness.run(*argv, env=environment)
    assert r.rc == 0, repr(r)
    return r


def test_a_checkpoint_is_resharded_there_and_back(environment, local, tmp_path):
    digest = harness.ok("tp-ckpt", "digest", local).out
    ok(environment, "tp-reshard", local, "--to", "tp2", "--out", ROOT)
    ok(environment, "tp-ckpt", "verify", ROOT)
    assert ok(environment, "tp-ckpt", "digest", ROOT).out == digest
    ok(environment, "tp-reshard", ROOT, "--to", "tp2pp2", "--out", ROOT + "-2")
    ok(environment, "tp-reshard", ROOT + "-2", "--to", "tp4pp1", "--out", tmp_path / "back")
    for shard in (local / "step-00000001").glob("*.h5"):
        assert (tmp_path / "back/step-00000001" / shard.name).read_bytes() == shard.read_bytes()
    again = harness.run("tp-reshard", local, "--to", "tp2", "--out", ROOT, env=environment)
    assert again.rc == 2 and "exists already" in again.err, repr(again)


def test_an_export_from_the_store_is_that_of_the_folder(environment, local, tmp_path):
    ok(environment, "tp-reshard", local, "--to", "tp1", "--out", "s3://checkpoints/export")
    ok(environment, "tp-ckpt", "export", "s3://checkpoints/export", "-o", tmp_path / "there")
    harness.ok("tp-ckpt", "export", local, "-o", tmp_path / "here")
    for file in (tmp_path / "here").iterdir():
        assert (tmp_path / "there" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("format", ("safetensors", "dcp"))
def test_an_export_to_the_store_is_read_from_there(environment, local, tmp_path, format):
    there = "s3://checkpoints/to-" + format
    ok(environment, "tp-ckpt", "export", local, "-o", there, "--format", format)
    harness.ok("tp-ckpt", "export", local, "-o", tmp_path / "here", "--format", format)
    ok(environment, "tp-ckpt", "import", there, "-o", tmp_path / "a")
    harness.ok("tp-ckpt", "import", tmp_path / "here", "-o", tmp_path / "b")
    assert harness.digest(tmp_path / "a") == harness.digest(tmp_path / "b")
    again = harness.run("tp-ckpt", "export", local, "-o", there, env=environment)
    assert again.rc == 2 and "exists already" in again.err, repr(again)


def test_a_run_saves_there_and_resumes(environment, tmp_path):
    model = harness.write_config(tmp_path)
    whole = harness.train_args(model, tmp_path / "ckpt", steps=6, save_every=2, log=tmp_path / "whole")
    harness.ok(*whole)
    root = "s3://checkpoints/train"
    first = harness.run(*harness.train_args(model, root, steps=6, save_every=2, exit_step=4), env=environment)
    assert first.rc == 75, repr(first)
    ok(environment, *harness.train_args(model, root, steps=6, save_every=2, resume="must", log=tmp_path / "rest"))
    assert harness.losses(tmp_path / "rest") == harness.losses(tmp_path / "whole")[4:]
    ok(environment, "tp-ckpt", "verify", root)
    assert ok(environment, "tp-ckpt", "diff", root, tmp_path / "ckpt").rc == 0


def test_compressed_steps_an_import_and_a_prune(environment, local, tmp_path):
    root = "s3://checkpoints/packed"
    ok(environment, "tp-reshard", local, "--to", "tp2", "--out", root, "--zstd")
    harness.ok("tp-reshard", local, "--to", "tp2", "--out", tmp_path / "packed", "--zstd")
    assert ok(environment, "tp-ckpt", "digest", root).out == harness.ok("tp-ckpt", "digest", tmp_path / "packed").out
    harness.ok("tp-ckpt", "export", local, "-o", tmp_path / "hf")
    ok(environment, "tp-ckpt", "import", tmp_path / "hf", "-o", root)  # as step 0
    assert "delete step-00000000\n" in ok(environment, "tp-ckpt", "prune", root, "--keep", 1).out
    ok(environment, "tp-ckpt", "verify", root)
    assert "step-00000000" not in ok(environment, "tp-ckpt", "ls", root).out


def test_wrong_keys_are_refused(environment):
    wrong = {**environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    r = harness.run("tp-ckpt", "ls", ROOT, env=wrong)
    assert r.rc == 3 and "SignatureDoesNotMatch" in r.err and "wrong" not in r.err.replace("key is wrong", ""), repr(r)
