"""Compressed shards, read by h5py with the package hdf5plugin: the numbers are those of the raw shards.

needs: tp-reshard tp-ckpt make_ckpt
"""
import json
import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  (registers the filter)
import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from test_reshard import make, reshard, step_dir  # noqa: E402

SMOOTH = 1 << 30  # numbers that compress (tests/unit/fixture.h)
# 1031 rows of 4 KiB are more than a chunk, and no chunks of equal length
CONFIG = {"hidden_size": 1024, "intermediate_size": 344, "num_hidden_layers": 1, "vocab_size": 1031,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}


def datasets(path):
    """{name: dataset} of a file."""
    found = {}
    f = h5py.File(path, "r")
    f.visititems(lambda name, o: found.update({name: o}) if isinstance(o, h5py.Dataset) else None)
    return found


@pytest.mark.parametrize("seed, spec, level", [(SMOOTH + 1, "tp2", 1), (1, "tp1", 1), (SMOOTH + 2, "tp4dp2zero1", 9)])
def test_h5py_reads_the_same_numbers(seed, spec, level, tmp_path):
    root = make(tmp_path, "tp1", CONFIG, seed=seed)
    reshard(root, spec, tmp_path / "raw")
    reshard(root, spec, tmp_path / "zstd", "--zstd=%d" % level)
    masks, short = set(), 0
    for shard in json.loads((step_dir(tmp_path / "zstd") / "manifest.json").read_text())["shards"]:
        assert shard["chunked"] is True
        raw, packed = (datasets(step_dir(tmp_path / name) / shard["file"]) for name in ("raw", "zstd"))
        assert raw.keys() == packed.keys()
        for name in raw.keys() - {"index"}:
            assert packed[name][()].tobytes() == raw[name][()].tobytes(), name
            assert dict(packed[name].attrs).keys() == dict(raw[name].attrs).keys()
            plist = packed[name].id.get_create_plist()
            assert [plist.get_filter(i)[0] for i in range(plist.get_nfilters())] == [2, 32015]
            masks |= {packed[name].id.get_chunk_info(i).filter_mask for i in range(packed[name].id.get_num_chunks())}
            short += any(n % c for n, c in zip(packed[name].shape, packed[name].chunks))
    assert 0 in masks, "no chunk was compressed"
    assert short > 0 or spec == "tp4dp2zero1", "no chunk is shorter than the others of its dataset"
    harness.ok("tp-ckpt", "verify", tmp_path / "zstd")
