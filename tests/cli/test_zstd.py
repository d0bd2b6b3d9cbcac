"""Compressed checkpoints: every program reads them, both ways keep every bit, the same state gives the same bytes,
and damage is found.

needs: tp-reshard tp-ckpt tp-train make_ckpt
covers: reshard/formats/checkpoint/chunk_cache ckpt/shard_pack
"""
import json
import os
import pathlib
import random
import sys

import pytest

import harness
from test_reshard import make, random_config, random_spec, reshard, same_shards, step_dir

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
SMOOTH = 1 << 30  # a seed of make_ckpt with this bit gives numbers that compress (tests/unit/fixture.h)
READER = pathlib.Path(__file__).resolve().parents[1] / "reader" / "read_ckpt.py"
CONFIG = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1000,
          "num_attention_heads": 8, "num_key_value_heads": 8}


def size(root):
    return sum(p.stat().st_size for p in step_dir(root).glob("rank-*"))


def version(root):
    return json.loads((step_dir(root) / "manifest.json").read_text())["version"]


@pytest.mark.parametrize("n", range(40 if harness.LONG else 4))
def test_random_layouts_keep_every_bit_both_ways(n, tmp_path):
    """raw -> zstd -> zstd -> raw, each at another layout, with other threads and memory."""
    rng = random.Random(SEED + n)
    config = random_config(rng)
    a, b, c, d = (random_spec(rng, config) for _ in range(4))
    print("TP_SEED=%d: %s -> %s -> %s -> %s of %s" % (SEED + n, a, b, c, d, config))
    root = make(tmp_path, a, config, seed=n + (SMOOTH if n % 4 else 0), dtype=rng.choice(["fp32", "bf16"]))
    before = harness.digest(root)
    for name, spec, source, options in (("b", b, root, ["--zstd=%d" % rng.randint(1, 6)]),
                                        ("c", c, tmp_path / "b", ["--zstd", "--mem", "128M", "--jobs", 3]),
                                        ("d", d, tmp_path / "c", ["--jobs", 1]), ("e", a, tmp_path / "d", [])):
        out = tmp_path / name
        result = reshard(source, spec, out, *options)
        assert result["digests_equal"] == result["tensors"]
        assert version(out) == (3 if "--zstd" in str(options) else 2)
        harness.ok("tp-ckpt", "verify", out)
        assert harness.digest(out) == before
    harness.ok(sys.executable, READER, step_dir(tmp_path / "c"))
    reshard(root, a, tmp_path / "straight")
    assert same_shards(step_dir(tmp_path / "e"), step_dir(tmp_path / "straight"))


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A raw root of numbers that compress, and a compressed one of the same state at the same layout."""
    folder = tmp_path_factory.mktemp("zstd")
    root = make(folder, "tp4", CONFIG, seed=SMOOTH + 1)
    reshard(root, "tp4", folder / "zstd", "--zstd")
    return root


@pytest.fixture
def packed(raw):
    return raw.parent / "zstd"


def test_the_report_says_what_was_saved(raw, packed, tmp_path):
    out = harness.ok("tp-reshard", raw, "--to", "tp2", "-o", tmp_path / "a", "--zstd=2").out
    assert "zstd     level 2: " in out and "times less" in out
    result = reshard(raw, "tp2", tmp_path / "b", "--zstd=2")
    assert result["zstd"] == 2 and 0 < result["bytes_stored"] < result["bytes_written"] * 0.6
    assert result["bytes_stored"] < size(tmp_path / "b") < result["bytes_stored"] * 1.2
    assert size(packed) < size(raw) * 0.6
    harness.ok(sys.executable, READER, step_dir(packed))


def test_the_bytes_depend_on_the_state_alone(raw, packed, tmp_path):
    """Neither on threads and memory, nor on the layout that the state came from, or whether it was compressed."""
    reshard(raw, "tp1", tmp_path / "tp1", "--zstd=5")
    for i, (source, options) in enumerate([(raw, ["--jobs", 1]), (raw, ["--jobs", 5, "--mem", "128M"]),
                                           (packed, []), (tmp_path / "tp1", ["--jobs", 3])]):
        reshard(source, "tp4", tmp_path / str(i), "--zstd", *options)
        assert same_shards(step_dir(tmp_path / str(i)), step_dir(packed)), options


def test_memory_is_bounded(tmp_path, figure):
    """Tensors are cut by rows and by columns, and are together larger than the memory."""
    root = make(tmp_path, "tp8", {**CONFIG, "hidden_size": 384, "vocab_size": 9000, "num_hidden_layers": 1}, seed=SMOOTH + 1)
    there = reshard(root, "tp2pp1", tmp_path / "out", "--mem", "96M", "--zstd", "--jobs", 2)
    back = reshard(tmp_path / "out", "tp4", tmp_path / "back", "--mem", "96M", "--jobs", 2)
    assert size(root) > 96 << 20
    if not harness.SANITIZE:  # sanitizers use memory themselves
        assert max(there["peak_rss_bytes"], back["peak_rss_bytes"]) <= 96 << 20
    r = harness.run("tp-reshard", root, "--to", "tp2", "-o", tmp_path / "x", "--mem", "24M", "--zstd=19")
    assert r.rc == 2 and "at least" in r.err and not (tmp_path / "x").exists()
    for name, result in (("to", there), ("from", back)):
        figure("resident, reshard of %d MiB %s zstd within 96M" % (size(root) >> 20, name),
               "%.0f MiB" % (result["peak_rss_bytes"] / 2 ** 20))


@pytest.mark.skipif(bool(harness.SANITIZE), reason="sanitizers use memory themselves")
def test_memory_is_bounded_with_many_shards(tmp_path, figure):
    """Tensors are cut by rows into many shards, one after another: each of them collects chunks, and gives the memory back."""
    config = {**CONFIG, "hidden_size": 384, "vocab_size": 16000}
    root = make(tmp_path, "tp2", config, seed=SMOOTH + 1)
    done = reshard(root, "tp2dp32zero1", tmp_path / "out", "--mem", "64M", "--zstd", "--jobs", 2)
    assert done["peak_rss_bytes"] <= 64 << 20 < size(root) / 2
    figure("resident, reshard of %d MiB to 64 compressed shards within 64M" % (size(root) >> 20),
           "%.0f MiB" % (done["peak_rss_bytes"] / 2 ** 20))


def test_damage_is_found_and_named(packed, tmp_path):
    """A flipped bit anywhere is found; one in a chunk names its tensor, and nothing is written."""
    rng, bad = random.Random(SEED), harness.copy(packed, tmp_path / "bad")
    print("TP_SEED=%d" % SEED)
    for n in range(60 if harness.LONG else 8):
        shard = rng.choice(sorted(step_dir(bad).glob("rank-*")))
        good = shard.read_bytes()
        at = rng.randrange(4096, len(good))
        data = bytearray(good)
        data[at] ^= 1 << rng.randrange(8)
        shard.write_bytes(data)
        r = harness.run("tp-ckpt", "verify", bad)
        assert r.rc == 1 and shard.name in r.out + r.err, at
        if "the bytes are damaged" in r.out + r.err:
            r = harness.run("tp-reshard", bad, "--to", "tp2", "-o", tmp_path / "out")
            assert r.rc == 3 and "tensor " in r.err and "box [" in r.err, r.err
            assert not (tmp_path / "out").exists()
        shard.write_bytes(good)
    harness.ok("tp-ckpt", "verify", bad)


def test_wrong_requests_are_refused(raw, packed, tmp_path):
    for options, text in ((["--zstd=0"], "from 1 to 19"), (["--zstd=20"], "from 1 to 19"), (["--zstd=x"], "from 1 to 19"),
                          (["--zstd", "--no-compress"], "exclude"), (["--zstd", "--link"], "excludes --zstd")):
        r = harness.run("tp-reshard", raw, "--to", "tp2", "-o", tmp_path / "out", *options)
        assert r.rc == 2 and text in r.err and not (tmp_path / "out").exists(), r.err


def test_links_keep_files_compressed(packed, tmp_path):
    result = reshard(packed, "tp4dp2", tmp_path / "out", "--link")
    assert result["linked_files"] == 4 and version(tmp_path / "out") == 3
    harness.ok("tp-ckpt", "verify", tmp_path / "out")


def test_tp_train_saves_compressed_and_resumes(tiny, tmp_path):
    """The losses are those of a run that saves raw, and the files those of tp-reshard."""
    harness.train(tiny, tmp_path / "raw", steps=4, layout="tp2", **{"save-every": 2, "log": tmp_path / "raw.log"})
    harness.train(tiny, tmp_path / "zstd", steps=4, layout="tp2", **{"save-every": 2, "log": tmp_path / "zstd.log", "ckpt-zstd": 2})
    assert harness.losses(tmp_path / "raw.log") == harness.losses(tmp_path / "zstd.log")
    assert harness.digest(tmp_path / "raw") == harness.digest(tmp_path / "zstd")
    reshard(tmp_path / "raw", "tp2", tmp_path / "same", "--zstd=2")
    assert same_shards(step_dir(tmp_path / "same"), step_dir(tmp_path / "zstd"))
    logs = []
    for name in ("raw", "zstd"):
        logs.append(tmp_path / (name + "-resumed.log"))
        harness.train(tiny, tmp_path / name, steps=6, layout="tp1", resume="must", step=2, log=logs[-1])
    assert harness.losses(logs[0]) == harness.losses(logs[1])
    r = harness.run(*harness.train_args(tiny, tmp_path / "no", **{"ckpt-zstd": 99}))
    assert r.rc == 2 and "--ckpt-zstd=99: the level is from 1 to 19" in r.err


def test_import_and_export(packed, raw, tmp_path):
    harness.ok("tp-ckpt", "export", packed, "--format", "safetensors", "-o", tmp_path / "hf")
    harness.ok("tp-ckpt", "export", raw, "--format", "safetensors", "-o", tmp_path / "raw")
    assert (tmp_path / "hf/model.safetensors").read_bytes() == (tmp_path / "raw/model.safetensors").read_bytes()
    out = json.loads(harness.ok("tp-ckpt", "import", tmp_path / "hf", "--layout", "tp2", "-o", tmp_path / "in", "--zstd", "--json").out)
    assert 0 < out["bytes_stored"] < out["bytes_written"] * 0.6
    assert "zstd     level 1" in harness.ok("tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "in1", "--zstd").out
    harness.ok("tp-ckpt", "verify", tmp_path / "in")
    harness.ok("tp-ckpt", "diff", tmp_path / "in", tmp_path / "in1")
    harness.ok("tp-reshard", tmp_path / "hf", "--format", "tp", "--to", "tp2", "-o", tmp_path / "in2", "--zstd")
    assert same_shards(step_dir(tmp_path / "in2"), step_dir(tmp_path / "in"))
    r = harness.run("tp-reshard", packed, "--format", "safetensors", "--to", "tp1", "-o", tmp_path / "no", "--zstd")
    assert r.rc == 2 and "--zstd" in r.err and not (tmp_path / "no").exists()
    lines = harness.ok("tp-ckpt", "show", packed, "param/model.embed_tokens.weight").out.splitlines()
    assert len(lines) >= 5
