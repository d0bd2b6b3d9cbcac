"""tp-reshard on file systems that share blocks between files: what need not move is cloned, and the result is byte
for byte that of a copy. tests/fault/clone.c is such a file system; TP_LONG=1 as root also mounts XFS and btrfs.

needs: tp-reshard tp-ckpt make_ckpt fault/clone.so fault/shim.so
covers: reshard/clone_job ckpt/shard_clone
"""
import contextlib
import json
import os
import random
import re
import shutil
import subprocess

import pytest

import harness
from test_faults import Shim, died, preload
from test_reshard import make, same_shards, step_dir

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
CLONE = harness.built("fault/clone.so")
# rows of 512 bytes and more: cuts fall on blocks of 4 KiB
CONFIG = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1000,
          "num_attention_heads": 8, "num_key_value_heads": 8}


def cloning():
    """The environment of a program whose file system has clones."""
    return {"LD_PRELOAD": preload(CLONE)}


def reshard(root, to, out, *options, env=None):
    return json.loads(harness.ok("tp-reshard", root, "--to", to, "-o", out, "--json", *options, env=env or cloning()).out)


def compare(tmp_path, root, to, out, env=None):
    """Clone, and compare with a copy. Returns the share of the bytes that was cloned."""
    before = harness.tree(root)
    found = reshard(root, to, out, env=env)
    plain = reshard(root, to, tmp_path / "plain", "--no-clone", env=env)
    assert plain["bytes_cloned"] == 0
    assert found["bytes_cloned"] + found["bytes_written"] == plain["bytes_written"]
    assert found["digests_equal"] == plain["digests_equal"] == found["tensors"]
    assert same_shards(step_dir(out), step_dir(tmp_path / "plain"))
    assert harness.tree(root) == before
    harness.ok("tp-ckpt", "verify", out)
    return found["bytes_cloned"] / plain["bytes_written"]


@pytest.mark.parametrize("start, to, least", [("tp2", "tp2pp2", 0.9), ("tp4pp2", "tp2", 0.5), ("tp1dp4zero1", "tp1", 0.6),
                                              ("tp1", "tp4", 0)])
def test_what_need_not_move_is_cloned(tmp_path, start, to, least):
    root = make(tmp_path, start, CONFIG)
    assert compare(tmp_path, root, to, tmp_path / "out") >= least


def test_the_report_says_what_was_cloned(tmp_path):
    root = make(tmp_path, "tp2", CONFIG)
    argv = ["tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "out"]
    assert re.search(r"^cloned +[0-9.]+ MiB to share", harness.ok(*argv, "--dry-run", env=cloning()).out, re.M)
    out = harness.ok(*argv, env=cloning()).out
    assert re.search(r"^cloned +[0-9.]+ MiB", out, re.M) and "checksum of what was read" in out
    assert re.search(r"digests are those\s+of its index", out)


def test_the_progress_of_cloning_is_an_action_of_its_own(tmp_path):
    root = make(tmp_path, "tp2", CONFIG)
    r = harness.ok("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "out", "--json", env=cloning())
    lines = [json.loads(line) for line in r.err.splitlines() if line.startswith("{")]
    assert [p["action"] for p in lines][-1] == "cloning" and "copying" in {p["action"] for p in lines}
    assert lines[-1]["bytes_done"] == lines[-1]["bytes_total"] == lines[-1]["bytes_cloned"] == json.loads(r.out)["bytes_cloned"]
    assert lines[-1]["bytes_copied"] == json.loads(r.out)["bytes_written"]


def test_a_file_system_that_refuses_gets_copies_that_were_checked(tmp_path):
    root, env = make(tmp_path, "tp2", CONFIG), {**cloning(), "TP_CLONE": "refuse"}
    found = reshard(root, "tp2pp2", tmp_path / "out", env=env)
    plain = reshard(root, "tp2pp2", tmp_path / "plain", "--no-clone")
    assert found["bytes_cloned"] == 0 and same_shards(step_dir(tmp_path / "out"), step_dir(tmp_path / "plain"))
    assert found["bytes_read"] == found["bytes_written"] == plain["bytes_written"]
    damage(root)
    r = harness.run("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "new", env=env)
    assert r.rc == 3 and "the bytes are damaged" in r.err and not (tmp_path / "new").exists()


def damage(root):
    """Flip a bit in the middle of a file, where a large tensor is."""
    shard = step_dir(root) / "rank-00000.h5"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    r = harness.run("tp-ckpt", "verify", root)
    assert r.rc == 1 and "the bytes are damaged" in r.out + r.err


def test_damage_that_was_cloned_is_found_by_verify(tmp_path):
    """The checksums are those of the source, so a clone never hides its damage."""
    root = make(tmp_path, "tp2", CONFIG)
    damage(root)
    assert harness.run("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "copy", "--no-clone", env=cloning()).rc == 3
    r = harness.run("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "out", env=cloning())
    assert r.rc == 0, r.err
    assert harness.run("tp-ckpt", "verify", tmp_path / "out").rc == 1


def test_it_resumes_when_it_was_killed(tmp_path):
    """Killed before a change of a file, the same command ends with the same bytes."""
    root, out = make(tmp_path, "tp2", {**CONFIG, "num_hidden_layers": 1}), tmp_path / "out"
    argv = ["tp-reshard", root, "--to", "tp2pp1dp2zero1", "-o", out, "--journal", 0, "--jobs", 1]
    whole = tmp_path / "whole"
    assert reshard(root, "tp2dp2zero1", whole)["bytes_cloned"] > 0
    before, shim, rng = harness.tree(root), Shim(tmp_path, out), random.Random(SEED)
    shim.env = lambda at=0, do="", env=shim.env: {**env(at, do), "LD_PRELOAD": env(at, do)["LD_PRELOAD"] + ":" + str(CLONE)}
    assert shim.run(argv)[0] == 0
    calls = len(shim.points())
    for at in range(1, calls) if harness.LONG else sorted(rng.sample(range(calls // 2, calls), 6)):
        shutil.rmtree(out)
        status, err = shim.run(argv, at, "kill")
        assert died(status), "seed %d: %s" % (SEED, err)
        r = harness.run(*argv, env=cloning())
        assert r.rc == 0 or "exists already" in r.err, "seed %d, point %d: %s" % (SEED, at, r.err)
        assert same_shards(step_dir(out), step_dir(whole)), "seed %d, point %d of %d" % (SEED, at, calls)
        assert harness.tree(root) == before


@contextlib.contextmanager
def mounted(tmp_path, kind):
    """A folder that is an image of a file system."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with open(image, "wb") as f:
        f.truncate(400 << 20)
    subprocess.run(["mkfs." + kind, "-q", image], check=True)
    r = subprocess.run(["mount", "-o", "loop", image, disk], stderr=subprocess.PIPE, text=True)
    if r.returncode:
        pytest.skip("no image can be mounted here: " + r.stderr)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount images")
@pytest.mark.parametrize("kind", ("xfs", "btrfs"))
def test_real_file_systems(tmp_path, kind):
    """Clones share blocks, and links files: what is allocated does not grow by what was cloned or linked."""
    if not shutil.which("mkfs." + kind):
        pytest.skip("mkfs.%s is missing" % kind)
    with mounted(tmp_path, kind) as disk:
        root = make(disk / "a", "tp2", CONFIG)
        assert compare(disk, root, "tp2pp2", disk / "out", env={"TP_CLONE": ""}) > 0.9
        for name, options in (("again", []), ("linked", ["--link"])):
            os.sync()
            before = os.statvfs(disk)
            found = reshard(root, "tp2pp2", disk / name, *options, env={"TP_CLONE": ""})
            os.sync()
            after = os.statvfs(disk)
            size = found["bytes_cloned"] + found["bytes_linked"] + found["bytes_written"]
            assert found["bytes_linked"] == (size if options else 0)
            assert (before.f_bfree - after.f_bfree) * before.f_frsize < size / 4, name
            harness.ok("tp-ckpt", "verify", disk / name)
        assert harness.digest(disk / "linked") == harness.digest(disk / "again") == harness.digest(root)
