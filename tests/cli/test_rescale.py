"""examples/rescale.sh, which tp-run starts before trainers of other frameworks: the newest checkpoint is at the layout of the launch,
whatever was there before, and wherever it was killed.

needs: tp-run tp-train tp-ckpt tp-reshard
"""
import os
import shutil
import subprocess

import pytest

import harness

SCRIPT = harness.REPO / "examples/rescale.sh"
FORMATS = {"deepspeed": "latest_universal", "megatron": "latest_checkpointed_iteration.txt"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{format: {step: what a trainer at tp2 has saved}}"""
    top = tmp_path_factory.mktemp("saved")
    model = harness.write_config(top / "model", num_hidden_layers=2)
    harness.train(model, top / "ckpt", steps=10, save_every=9)
    for fmt in FORMATS:
        for step in 9, 10:
            harness.ok("tp-ckpt", "export", top / "ckpt", "--step", step, "--format", fmt, "-o", top / fmt / str(step))
    return {fmt: {step: top / fmt / str(step) for step in (9, 10)} for fmt in FORMATS}


def rescale(root, layout, fmt, path=harness.BIN):
    return subprocess.run([SCRIPT, root, layout, "--format", fmt], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "PATH": "%s:%s:%s" % (path, harness.BIN, os.environ["PATH"])})


def put(source, root, layout):
    shutil.copytree(source, root / layout)


def assert_is(folder, source):
    harness.ok("tp-ckpt", "diff", folder, source)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_newest_checkpoint_is_converted_once(fmt, saved, tmp_path):
    put(saved[fmt][10], tmp_path, "tp2")  # 10 is newer than 9, although its text is not
    put(saved[fmt][9], tmp_path, "tp1")
    put(saved[fmt][9], tmp_path, "pp2")
    r = rescale(tmp_path, "pp2", fmt)
    assert r.returncode == 0 and "step 10" in r.stdout, r
    assert_is(tmp_path / "pp2", saved[fmt][10])
    assert (tmp_path / "pp2" / FORMATS[fmt]).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pp2", "tp1", "tp2"]
    r = rescale(tmp_path, "pp2", fmt)
    assert r.returncode == 0 and not r.stdout, "it was converted again"


def test_without_a_newer_one_nothing_happens(saved, tmp_path):
    assert rescale(tmp_path / "none", "tp2", "megatron").returncode == 0 and not (tmp_path / "none").exists()
    put(saved["megatron"][10], tmp_path, "tp2")
    put(saved["megatron"][9], tmp_path, "tp1")
    before = harness.tree(tmp_path)
    assert rescale(tmp_path, "tp2", "megatron").returncode == 0
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("program", ["tp-reshard", "mv"])
def test_it_continues_after_a_kill(program, saved, tmp_path):
    root, programs = tmp_path / "root", tmp_path / "programs"
    put(saved["megatron"][10], root, "tp2")
    put(saved["megatron"][9], root, "pp2")
    programs.mkdir()
    (programs / program).write_text("#!/bin/sh\nkill -9 $PPID\n")
    (programs / program).chmod(0o755)
    assert rescale(root, "pp2", "megatron", path=programs).returncode == -9
    assert_is(root / "tp2", saved["megatron"][10])
    assert rescale(root, "pp2", "megatron").returncode == 0
    assert_is(root / "pp2", saved["megatron"][10])


def test_what_cannot_be_converted_is_an_error_and_nothing_changes(saved, tmp_path):
    put(saved["megatron"][10], tmp_path, "tp2")
    put(saved["megatron"][9], tmp_path, "pp2")
    for path in (tmp_path / "tp2").rglob("mp_rank_01/*.pt"):
        path.unlink()
    before = harness.tree(tmp_path)
    r = rescale(tmp_path, "pp2", "megatron")
    assert r.returncode == 3 and "mp_rank_01" in r.stderr, r
    assert harness.tree(tmp_path) == before
    assert subprocess.run([SCRIPT], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("job, ranks", [("deepspeed", 4), ("megatron", 8)])
def test_the_jobs_of_the_examples_can_be_read(job, ranks, tmp_path):
    folder = harness.copy(harness.REPO / "examples", tmp_path / "examples") / job
    assert "for up to %d ranks" % ranks in harness.ok("tp-run", "plan", folder / "job.yaml").out
