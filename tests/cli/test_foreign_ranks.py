"""Checkpoints of other frameworks with many ranks: more files than may be open, and more pieces than --mem has room for.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/pieces/file_table reshard/formats/safetensors/safetensors_source
"""
import pickle

import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from state import digests

MIB = 1 << 20
RANKS, FILES = 160, 96
PIECES = 32768


def limited(*argv):
    """Run a program that may open 96 files."""
    return harness.run("bash", "-c", 'ulimit -n %d && exec "$@"' % FILES, "bash", *argv)


def test_more_files_of_ranks_are_read_and_written_than_may_be_open(bf16, tmp_path):
    groups = ("param", "master", "exp_avg", "exp_avg_sq")
    foreign_files.zero3(tmp_path / "zero", {g: bf16.group(g) for g in groups}, 3, RANKS)
    r = limited("tp-reshard", tmp_path / "zero", "--to", "tp1", "--config", bf16.config, "-o", tmp_path / "universal")
    assert r.rc == 0 and len(list((tmp_path / "universal").rglob("fp32.pt"))) > 8, repr(r)
    r = limited("tp-ckpt", "import", tmp_path / "universal", "--config", bf16.config, "-o", tmp_path / "ckpt")
    assert r.rc == 0, repr(r)
    assert digests(tmp_path / "ckpt") == digests(bf16.root)


def test_more_safetensors_files_are_read_than_may_be_open(f32, tmp_path):
    harness.ok("tp-ckpt", "export", f32.root, "-o", tmp_path / "hf", "--max-shard-size", "1K")
    n = len(list((tmp_path / "hf").glob("*.safetensors")))
    r = harness.run("bash", "-c", 'ulimit -n %d && exec "$@"' % (n + 3), "bash", "tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "ckpt")
    assert r.rc == 0, repr(r)
    assert digests(tmp_path / "ckpt") == f32.digests("param")


def many_pieces(folder):
    """A tensor whose rows are all pieces, which lie in one place."""
    make, meta = torch_files._make, torch_files.META
    one, name = torch_files.saved(torch_files.Tensor(np.zeros((1, 8), "f4"))), "model.embed_tokens.weight"
    places, chunks = {}, []
    for row in range(PIECES):
        at, size = torch_files._size((row, 0)), torch_files._size((1, 8))
        places[make(meta.MetadataIndex, fqn=name, index=row, offset=at)] = make(
            torch_files.FILES._StorageInfo, relative_path="__0_0.distcp", offset=0, length=len(one))
        chunks.append(make(meta.ChunkStorageMetadata, offsets=at, sizes=size))
    entry = make(meta.TensorStorageMetadata, size=torch_files._size((PIECES, 8)), chunks=chunks, properties=make(
        meta.TensorProperties, dtype=torch_files.torch.float32, requires_grad=False))
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(one)
    (folder / ".metadata").write_bytes(pickle.dumps(make(
        meta.Metadata, state_dict_metadata={name: entry}, storage_data=places, planner_data=None, version="1.0.0"), protocol=4))
    return folder


@pytest.mark.skipif(bool(harness.SANITIZE), reason="a sanitizer needs more memory than the bound")
def test_tables_of_pieces_stay_within_the_memory_or_are_refused(tiny, tmp_path, figure):
    source, said = many_pieces(tmp_path / "dcp"), []
    for memory in range(40, 84, 4):
        code, peak, _, text = harness.measure(tmp_path, "tp-ckpt", "import", source, "--config", tiny, "-o", tmp_path / "out",
                                              "--mem", "%dM" % memory)
        assert code in (2, 3) and peak <= memory * MIB, "%.1f MiB with --mem %dM: %s" % (peak / MIB, memory, text)
        said.append(text)
    assert "need about" in said[0] and "--mem" in said[0] and "embed_tokens" in said[-1], said
    figure("least --mem for %d pieces" % PIECES, "%dM" % next(m for m, t in zip(range(40, 84, 4), said) if "embed_tokens" in t))
