"""Checkpoints of thousands of ranks: each file is small, but there are many of them, and all are open.

needs: tp-reshard tp-ckpt make_ckpt
covers: cli/open_files
"""
import json

import pytest

import harness

RANKS = 16384 if harness.LONG else 2048
MAKE = harness.built("make_ckpt")
PROGRAM_BYTES = 36 << 20  # code, libraries, and what --mem sets aside for libhdf5
READ_BYTES, WRITE_BYTES = 2560, 24 << 10  # of memory for each shard


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Every rank has a row of the embedding's optimizer state."""
    folder = tmp_path_factory.mktemp("many")
    config = harness.write_config(folder, vocab_size=RANKS, hidden_size=8, num_hidden_layers=1)
    harness.ok(MAKE, config, "dp%dzero1" % RANKS, folder / "ckpt", 1, 1, "fp32")
    assert len(list((folder / "ckpt/step-00000001").glob("rank-*.h5"))) == RANKS
    return folder / "ckpt"


def reshard(ckpt, to, out, memory):
    r = json.loads(harness.ok("tp-reshard", ckpt, "--to", to, "-o", out, "--mem", memory, "--json").out)
    assert r["peak_rss_bytes"] <= memory
    return r


@pytest.mark.skipif(bool(harness.SANITIZE), reason="a sanitizer needs more memory than the bound")
def test_memory_of_many_shards_is_bounded(many, tmp_path, figure):
    read = reshard(many, "dp1zero0", tmp_path / "one", PROGRAM_BYTES + RANKS * READ_BYTES)
    write = reshard(tmp_path / "one", "dp%dzero1" % RANKS, tmp_path / "back", PROGRAM_BYTES + RANKS * WRITE_BYTES)
    assert harness.digest(tmp_path / "back") == harness.digest(many) == harness.digest(tmp_path / "one")
    figure("peak memory of tp-reshard that reads %d shards, and that writes them" % RANKS,
           "%.0f and %.0f MiB" % (read["peak_rss_bytes"] / 2**20, write["peak_rss_bytes"] / 2**20))


def limited(option, *argv):
    """Run a program after `ulimit OPTION 256`: -Sn is the limit at its start, -n also how far it may be raised."""
    return harness.run("bash", "-c", 'ulimit %s 256 && exec "$@"' % option, "bash", *argv)


COMMANDS = {"verify": ["tp-ckpt", "verify"], "digest": ["tp-ckpt", "digest"],
            "reshard": ["tp-reshard", "--to", "dp1zero0", "--dry-run"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_more_shards_than_the_soft_limit_of_open_files(name, many):
    r = limited("-Sn", *COMMANDS[name], many)
    assert r.rc == 0, repr(r)


@pytest.mark.parametrize("name", COMMANDS)
def test_more_shards_than_the_hard_limit_are_an_error_that_says_what_to_do(name, many):
    r = limited("-n", *COMMANDS[name], many)
    assert r.rc == 3 and "rank-" in r.err and "ulimit -n" in r.err, repr(r)
