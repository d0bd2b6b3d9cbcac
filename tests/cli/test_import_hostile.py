"""Hostile pytorch_model.bin files: nothing in them is executed, and each is refused in one sentence, in
little memory and time.

With TP_FOREIGN=DIR, the files in DIR/hostile are read too.

needs: tp-ckpt
covers: torch/zip torch/pickle torch/pickle_instruction torch/pickle_machine torch/pickle_make torch/pickle_value
    torch/torch_file torch/torch_tensor torch/file_part
"""
import io
import os
import pathlib
import resource
import zipfile

import pytest

import harness
import hostile_torch
from harness import run

FOREIGN = os.environ.get("TP_FOREIGN")


def read(content, folder, config):
    """Import the bytes as a model. No file here is a whole model, so this fails: a tensor is missing, or the
    file is refused."""
    (folder / "hf").mkdir(exist_ok=True)
    (folder / "hf/pytorch_model.bin").write_bytes(content)
    r = run("tp-ckpt", "import", folder / "hf", "--config", config, "-o", folder / "ckpt", cwd=folder,
            timeout=20)
    assert r.rc in (2, 3) and len(r.lines) == 1 and not (folder / "ckpt").exists(), repr(r)
    assert not list(folder.rglob(hostile_torch.MARKER + "*")), "a pickle was executed"
    assert all(" " <= c or c == "\n" for c in r.err), repr(r.err)
    return r


def was_read(r):
    """Whether the failure is only that the file is not a whole model."""
    return any(word in r.err for word in ("is missing", "but the model of config.json has", "no part of"))


def test_hostile_files(tiny, tmp_path):
    for name, content in hostile_torch.cases().items():
        r = read(content, tmp_path, tiny)
        if name not in hostile_torch.MAY_READ:
            assert was_read(r) == name.startswith("ok_"), (name, r.err)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e8m0fnu", "bits16", "a_type_of_next_year"])
def test_a_tensor_of_a_type_that_is_not_read_is_no_damage(dtype, tiny, tmp_path):
    pickled = hostile_torch.P2 + b"}(" + hostile_torch.text("model.norm.weight") + hostile_torch.tensor() + \
        hostile_torch.text("x") + hostile_torch.untyped(hostile_torch.name("torch", dtype), 16) + b"u."
    r = read(hostile_torch.archive(pickled), tmp_path, tiny)
    assert "no part of a LlamaForCausalLM: x; " in r.err, repr(r)
    r = run("tp-ckpt", "verify", tmp_path / "hf")
    assert "types are not read: 1 of the tensors, first param/x" in r.err and "damaged" not in r.out, repr(r)


@pytest.mark.parametrize("n", [65534, 65535, 65536])
def test_archives_of_any_number_of_members_are_read(n, tiny, tmp_path):
    """Python's zipfile writes the ZIP64 record from 65,536 members on, torch.save always."""
    more = {"x/%d" % i: b"" for i in range(n - 2 - len(hostile_torch.DATA))}
    content = hostile_torch.archive(hostile_torch.weight(hostile_torch.tensor()), {**hostile_torch.DATA, **more})
    assert len(zipfile.ZipFile(io.BytesIO(content)).namelist()) == n
    r = read(content, tmp_path, tiny)
    assert was_read(r), repr(r)


def test_a_compressed_member_is_refused_with_what_to_do(tiny, tmp_path):
    content = hostile_torch.archive(hostile_torch.weight(hostile_torch.tensor()), method=zipfile.ZIP_DEFLATED)
    r = read(content, tmp_path, tiny)
    assert "pytorch_model.bin: member archive/data.pkl is compressed (method 8 of zip)" in r.err and "zip -0" in r.err, repr(r)


@pytest.mark.skipif(bool(harness.SANITIZE), reason="a sanitizer keeps what is freed")
def test_memory_is_bounded(tiny, tmp_path):
    many = b"\x80\x02]" + b"(" + b"N" * (1 << 20) + b"e."
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    read(hostile_torch.archive(many), tmp_path, tiny)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak <= max(before, 128 << 10), "%d KiB" % peak


@pytest.mark.skipif(not FOREIGN, reason="TP_FOREIGN is not set: no folder of real checkpoints")
def test_more_hostile_files(tiny, tmp_path):
    folder = pathlib.Path(FOREIGN) / "hostile"
    for line in (folder / "EXPECT.tsv").read_text().splitlines()[1:]:
        name, expected, _ = line.split("\t")
        r = read((folder / name).read_bytes(), tmp_path, tiny)
        if expected in ("read", "refuse"):
            assert was_read(r) == (expected == "read"), (name, r.err)
