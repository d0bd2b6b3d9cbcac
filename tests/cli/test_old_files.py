"""Files that an earlier version left are read, continued, or refused with a clear sentence.

The programs of an earlier version, with other source folders, wrote tests/fixture/old_files.tar.xz:
    ckpt    4 of 6 steps of a one-layer Llama in bf16 at tp2dp2zero1 (tp-train, format version 2)
    out     the files that `tp-reshard ckpt --to tp1` left when SIGTERM stopped it after 1 of 44 tiles

needs: tp-train tp-reshard tp-ckpt
"""
import json
import re
import subprocess
import sys
import tarfile

import pytest

import harness
from harness import ok

ARCHIVE = harness.REPO / "tests/fixture/old_files.tar.xz"
DIGEST = "1672edfc00d5b8d3583e4ba145f67c54f6a3a9f9422e99ebe1dd2b5935df502a"
LOSSES = [5.52053225, 5.55140558]  # of steps 4 and 5, resumed at tp1 by the earlier version


@pytest.fixture
def old(tmp_path):
    """The folder with ckpt and out."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_an_old_checkpoint_has_the_digest_that_its_writer_printed(old):
    assert ok("tp-ckpt", "verify", old / "ckpt").out.startswith("intact: ")
    assert harness.digest(old / "ckpt") == DIGEST
    reader = [sys.executable, harness.REPO / "tests/reader/read_ckpt.py", old / "ckpt/step-00000004"]
    assert subprocess.run(reader, stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_training_continues_from_an_old_checkpoint(old):
    manifest = json.loads((old / "ckpt/step-00000004/manifest.json").read_text())
    (old / "config.json").write_text(manifest["model_config"])
    ok("tp-train", "--model", old / "config.json", "--data", harness.TEXT, "--steps", 6, "--seq", 16,
       "--batch", 2, "--warmup", 1, "--layout", "tp1", "--dtype", "bf16", "--ckpt", old / "ckpt",
       "--resume=must", "--log", old / "log")
    assert harness.losses(old / "log") == pytest.approx(LOSSES, rel=1e-5)


def test_an_old_checkpoint_is_resharded_and_exported(old):
    ok("tp-reshard", old / "ckpt", "--to", "tp2pp1", "-o", old / "new")
    assert harness.digest(old / "new") == DIGEST
    ok("tp-ckpt", "export", old / "ckpt", "--format", "safetensors", "-o", old / "hf")


def test_the_journal_of_an_old_reshard_is_resumed(old):
    r = ok("tp-reshard", old / "ckpt", "--to", "tp1", "-o", old / "out", "--json")
    assert "resuming an interrupted run: 1 of 44 tiles are complete" in r.err
    assert json.loads(r.out)["windows_before"] == 1
    assert harness.digest(old / "out") == DIGEST
    assert len(list((old / "out").glob("step-*"))) == 1


def test_with_a_journal_of_another_size_a_reshard_starts_over_and_reports_it(old):
    """Another version could have written it: the head has one more byte."""
    progress, = (old / "out").glob("step-*/progress")
    data = bytearray(progress.read_bytes())
    data[8] += 1
    progress.write_bytes(data)
    r = ok("tp-reshard", old / "ckpt", "--to", "tp1", "-o", old / "out")
    assert re.search(r"tmp-[0-9a-f]+: cannot be resumed: .*; starting over", r.err), r
    assert harness.digest(old / "out") == DIGEST
    assert len(list((old / "out").glob("step-*"))) == 1
