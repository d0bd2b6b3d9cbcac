"""tp-reshard --link: the new step consists of the source's files. Nothing writes into them, and they outlive the
source; what cannot be linked is copied.

needs: tp-reshard tp-ckpt make_ckpt fault/shim.so
covers: reshard/linked_shards
"""
import fcntl
import json
import os
import shutil
import subprocess

import pytest

import harness
from test_faults import Shim, died
from test_reshard import make, reshard, same_shards, step_dir

CONFIG = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "vocab_size": 100}


def inodes(root):
    return {p.name: p.stat().st_ino for p in step_dir(root).glob("rank-*")}


@pytest.mark.parametrize("start, to", [("tp2", "tp2pp2"), ("tp2", "tp2dp2zero1"), ("tp1dp2zero1", "tp1dp4zero3"),
                                       ("tp2pp2", "tp2dp2sp"), ("tp1pp2", "tp1pp2vpp2cp2")])
def test_pp_dp_and_zero_change_without_moving_bytes(tmp_path, start, to):
    root, out = make(tmp_path, start, CONFIG), tmp_path / "out"
    before, digest = harness.tree(root), harness.digest(root)
    found = reshard(root, to, out, "--link")
    assert inodes(out) == inodes(root) and found["linked_files"] == found["files"] == len(inodes(root))
    assert found["bytes_read"] == found["bytes_written"] == 0
    assert found["bytes_linked"] == sum(t["bytes"] for t in tensors(root)) > 0
    assert harness.tree(root) == before
    shutil.rmtree(root)  # the files outlive the source
    harness.ok("tp-ckpt", "verify", out)
    assert harness.digest(out) == digest
    reshard(out, "tp1", tmp_path / "tp1")  # it is a checkpoint of the new layout as any other
    assert harness.digest(tmp_path / "tp1") == digest


def tensors(root):
    """Name and size of each tensor."""
    sizes = {"f32": 4, "bf16": 2}
    manifest = json.loads((step_dir(root) / "manifest.json").read_text())
    for t in manifest["tensors"]:
        n = 1
        for length in t["shape"]:
            n *= length
        yield {"name": t["name"], "bytes": n * sizes[t["dtype"]]}


@pytest.mark.parametrize("to, options, why", [
    ("tp4", [], "tp changes from 2 to 4"), ("tp2pp1", [], "has 2 ranks, but the checkpoint has a file of rank 2"),
    ("tp2pp4", ["--no-optim"], "left out or cast"), ("tp2pp4", ["--dtype", "f32"], "left out or cast")])
def test_what_cannot_be_linked_is_copied(tmp_path, to, options, why):
    root = make(tmp_path, "tp2pp2", CONFIG)
    r = harness.ok("tp-reshard", root, "--to", to, "-o", tmp_path / "out", "--link", "--json", *options)
    assert why in r.err and "copying" in r.err and json.loads(r.out)["linked_files"] == 0
    assert not set(inodes(tmp_path / "out").values()) & set(inodes(root).values())
    reshard(root, to, tmp_path / "copy", *options)
    assert same_shards(step_dir(tmp_path / "out"), step_dir(tmp_path / "copy"))


def test_compressed_files_are_linked_unless_raw_ones_are_wanted(tmp_path):
    root, z = make(tmp_path, "tp2", CONFIG), tmp_path / "z"
    reshard(root, "tp2", z, "--zstd")
    assert reshard(z, "tp2dp2", tmp_path / "linked", "--link")["linked_files"] == 2
    r = harness.ok("tp-reshard", z, "--to", "tp2dp2", "--link", "--no-compress", "-o", tmp_path / "raw", "--json")
    assert "the files are compressed" in r.err and json.loads(r.out)["linked_files"] == 0
    assert "chunked" not in (step_dir(tmp_path / "raw") / "manifest.json").read_text()
    assert harness.digest(tmp_path / "raw") == harness.digest(root)


def test_a_dry_run_says_what_would_be_linked(tmp_path):
    root = make(tmp_path, "tp2", CONFIG)
    text = harness.ok("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "out", "--link", "--dry-run").out
    assert "2 files of the source to link" in text and not (tmp_path / "out").exists()
    text = harness.ok("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "out", "--link").out
    assert "in 2 linked files, nothing copied" in text and "Tensor data was not read" in text


def test_damage_outside_payloads_is_found_and_nothing_is_made(tmp_path):
    root = make(tmp_path, "tp2", CONFIG)
    shard = step_dir(root) / "rank-00001.h5"
    data = bytearray(shard.read_bytes())
    data[300] ^= 1  # in the HDF5 structures
    shard.write_bytes(data)
    r = harness.run("tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "out", "--link")
    assert r.rc == 3 and "rank-00001.h5" in r.err and not (tmp_path / "out").exists()


def test_a_step_of_its_own_root_is_replaced(tmp_path):
    root = make(tmp_path, "tp2", CONFIG)
    files, digest = inodes(root), harness.digest(root)
    reshard(root, "tp2pp2", root, "--link", "--force")
    assert inodes(root) == files and harness.digest(root) == digest
    harness.ok("tp-ckpt", "verify", root)


def test_files_of_a_step_that_was_replaced_meanwhile_are_not_linked(tmp_path):
    """Another program replaces the source's step while this one waits for the lock of its output."""
    root, out = make(tmp_path, "tp2", CONFIG), tmp_path / "out"
    other = make(tmp_path / "other", "tp2", CONFIG, seed=2)
    out.mkdir()
    with open(out / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        p = subprocess.Popen(harness.command(["tp-reshard", root, "--to", "tp2pp2", "-o", out, "--link"]),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert "waiting for the lock" in p.stderr.readline()
        step = step_dir(root)
        step.rename(tmp_path / "before")
        shutil.copytree(step_dir(other), step)
    err = p.communicate(timeout=120)[1]
    assert p.returncode == 3 and "was replaced by another program" in err
    assert not harness.steps(out) and not [p for p in os.listdir(out) if ".tmp" in p]
    harness.ok("tp-ckpt", "verify", root)


def test_a_run_that_died_never_lets_another_write_into_the_source(tmp_path):
    """Killed before each change of a file; then the same command, without --link in every second case."""
    root, out = make(tmp_path, "tp2", CONFIG), tmp_path / "out"
    before, digest = harness.tree(root), harness.digest(root)
    plain = ["tp-reshard", root, "--to", "tp2pp2", "-o", out]
    shim = Shim(tmp_path, out)
    assert shim.run([*plain, "--link"])[0] == 0
    calls = shim.points()
    assert calls.count("link") == 2
    for at in range(1, len(calls) + 1):
        shutil.rmtree(out)
        status, err = shim.run([*plain, "--link"], at, "kill")
        assert died(status), err
        made = out.exists() and harness.steps(out)
        r = harness.run(*plain, *(["--link"] if at % 2 else []), *(["--force"] if made else []))
        assert r.rc == 0, r.err
        assert harness.tree(root) == before and harness.digest(out) == digest
        assert not [p for p in os.listdir(out) if ".tmp" in p]
