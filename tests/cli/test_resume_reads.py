"""Resuming at another layout reads little more than the ranks need.

needs: tp-train tp-reshard make_ckpt
"""
import re
import shutil

import pytest

import harness
from harness import TEXT, ok

# Tensors of at least 1 MiB, so that chunks and blocks of columns are like those of real models.
MODEL = dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=8, head_dim=64, vocab_size=1024)
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PAIRS = [("tp1", "tp2"), ("tp1", "tp8"), ("tp2", "tp1"), ("tp2", "tp4"), ("tp8", "tp2"), ("tp4", "pp2"),
         ("tp1", "dp2zero1"), ("dp2zero1", "tp4"), ("tp2", "tp2pp2dp2zero1"), ("tp2pp2dp2zero1", "tp1"),
         ("pp2dp2", "tp8"), ("tp2", "dp2zero3"), ("dp2zero3", "tp4")]


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """roots(layout) is a root that was written at this layout, and the model's config.json."""
    folder = tmp_path_factory.mktemp("reads")
    config = harness.write_config(folder, **MODEL)
    ok(harness.built("make_ckpt"), config, "tp1", folder / "tp1", 1, 1, "fp32")

    def get(layout):
        if not (folder / layout).exists():
            ok("tp-reshard", folder / "tp1", "--to", layout, "-o", folder / layout)
        return folder / layout, config
    return get


def number(text):
    value, unit = text.split()
    return float(value) * UNITS[unit]


@pytest.mark.parametrize("written, wanted", PAIRS)
def test_ranks_read_what_they_need(written, wanted, roots, tmp_path):
    root, config = roots(written)
    here = harness.copy(root, tmp_path / "ckpt")
    r = ok("tp-train", "--model", config, "--data", TEXT, "--steps", 2, "--layout", wanted, "--ckpt",
           here, "--resume=must", "--seq", 8, "--batch", 8)
    shutil.rmtree(here)
    size = r"([\d.]+ \w+)"
    found = re.search("read %s of %s needed .rank 0: %s of %s" % ((size,) * 4), r.err)
    assert found, r.err
    read, needed, read_0, needed_0 = map(number, found.groups())
    ranks = 1
    for degree in re.findall(r"(?<!v)(?:tp|pp|dp)(\d+)", wanted):
        ranks *= int(degree)
    whole = sum(p.stat().st_size for p in root.rglob("*.h5"))
    print("%s to %s: %.1f %% more than needed" % (written, wanted, 100 * (read / needed - 1)))
    assert read <= needed * 1.05 + ranks * (64 << 10)
    assert read_0 <= needed_0 * 1.05 + (64 << 10)
    # each replica needs everything once; under zero all replicas together need it once
    copies = 1 if "zero" in wanted else int((re.findall(r"dp(\d+)", wanted) or [1])[0])
    assert 0.98 * copies * whole <= needed <= 1.02 * copies * whole
