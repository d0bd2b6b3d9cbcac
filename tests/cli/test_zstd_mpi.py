"""tp-reshard --zstd under mpirun: each process compresses shards of its own, and the files are those of one process.

needs: tp-reshard tp-ckpt make_ckpt
covers: reshard/formats/checkpoint/target_owners
"""
import json
import os
import random

import pytest

import harness
from test_reshard import make, mpirun, random_config, random_spec, reshard, same_shards, step_dir

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
SMOOTH = 1 << 30  # a seed of make_ckpt with this bit gives numbers that compress (tests/unit/fixture.h)
CONFIG = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 3000,
          "num_attention_heads": 8, "num_key_value_heads": 8}


def together(n, ckpt, spec, out, *more):
    return json.loads(harness.ok(*mpirun(n, "tp-reshard", ckpt, "--to", spec, "-o", out, "--zstd", "--json", *more)).out)


@pytest.mark.parametrize("n", range(30 if harness.LONG else 5))
def test_random_layouts_give_the_bytes_of_one_process(n, tmp_path):
    """From raw and from compressed shards, with a cast, with more processes than shards, with other memory."""
    rng = random.Random(SEED + n)
    config = random_config(rng)
    a, b = random_spec(rng, config), random_spec(rng, config)
    processes, options = rng.randint(2, 4), ["--dtype", "bf16"] if n % 3 == 1 else []
    print("TP_SEED=%d: %s -> %s of %s, %d processes %s" % (SEED + n, a, b, config, processes, options))
    root = make(tmp_path, a, config, seed=n + (SMOOTH if n % 4 else 0), dtype="fp32")
    if n % 2:
        reshard(root, a, tmp_path / "packed", "--zstd=2")
        root = tmp_path / "packed"
    one = reshard(root, b, tmp_path / "one", "--zstd", *options)
    many = together(processes, root, b, tmp_path / "many", "--mem", "256M", "--jobs", rng.randint(1, 2), *options)
    assert many["processes"] == processes
    for key in ("bytes_written", "bytes_stored", "digests_equal", "casts", "boxes", "splits", "merges"):
        assert many[key] == one[key], key
    assert same_shards(step_dir(tmp_path / "one"), step_dir(tmp_path / "many"))
    harness.ok("tp-ckpt", "verify", tmp_path / "many")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return make(tmp_path_factory.mktemp("large"), "tp4", CONFIG, seed=SMOOTH + 1)


@pytest.mark.parametrize("spec,options", [("tp4", []), ("tp2pp2", ["--dtype", "bf16"]), ("tp8zero1dp2", ["--no-optim"])])
def test_tensors_of_many_tiles_give_the_bytes_of_one_process(large, spec, options, tmp_path):
    reshard(large, spec, tmp_path / "one", "--zstd=2", *options)
    for n in (2, 3):
        out = tmp_path / str(n)
        harness.ok(*mpirun(n, "tp-reshard", large, "--to", spec, "-o", out, "--zstd=2", "--mem", "128M", *options))
        assert same_shards(step_dir(tmp_path / "one"), step_dir(out))
        harness.ok("tp-ckpt", "verify", out)


def test_a_dry_run_of_several_plans_the_same_as_one(large, tmp_path):
    argv = ["tp-reshard", large, "--to", "tp2pp2", "-o", tmp_path / "out", "--zstd", "--dry-run", "--json"]
    one, many = json.loads(harness.ok(*argv).out), json.loads(harness.ok(*mpirun(3, *argv)).out)
    for key in ("bytes_written", "splits", "merges", "copies", "boxes", "boxes_from"):
        assert many[key] == one[key], key
    assert not (tmp_path / "out").exists()


def test_processes_without_a_shard_are_announced(large, tmp_path):
    r = harness.ok(*mpirun(3, "tp-reshard", large, "--to", "tp2", "-o", tmp_path / "out", "--zstd"))
    assert r.err.count("1 of 3 processes have nothing to do") == 1, r.err
    assert "nothing to do" not in harness.ok(*mpirun(2, "tp-reshard", large, "--to", "tp2", "-o", tmp_path / "b", "--zstd")).err


def test_damage_that_one_process_reads_fails_all(large, tmp_path):
    """Of raw and of compressed shards; the shard is named, and nothing is left."""
    reshard(large, "tp4", tmp_path / "packed", "--zstd")
    for root in (harness.copy(large, tmp_path / "raw"), tmp_path / "packed"):
        shard = sorted(step_dir(root).glob("rank-*"))[3]
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 4
        shard.write_bytes(data)
        r = harness.run(*mpirun(2, "tp-reshard", root, "--to", "tp4", "-o", tmp_path / "out", "--zstd"))
        assert r.rc == 3 and shard.name in r.err, repr(r)
        assert not (tmp_path / "out").exists()


def test_wrong_requests_are_refused_once(large, tmp_path):
    for options, text in ((["--zstd=20"], "from 1 to 19"), (["--zstd", "--link"], "excludes --zstd"),
                          (["--zstd", "--mem", "8M"], "at least")):
        r = harness.run(*mpirun(2, "tp-reshard", large, "--to", "tp2", "-o", tmp_path / "out", *options))
        assert r.rc == 2 and text in r.err and not (tmp_path / "out").exists(), repr(r)
