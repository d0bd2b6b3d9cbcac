"""tp-run: which job file a state folder belongs to.

needs: tp-run
covers: orchestrator/state/state_owner
"""
import os

import pytest

import harness
from harness import run


@pytest.fixture
def folder(tmp_path):
    """job.yaml has run in it, and job.yml is another job."""
    write(tmp_path / "job.yaml", "echo one")
    write(tmp_path / "job.yml", "echo two")
    start(tmp_path / "job.yaml")
    assert said(tmp_path / "job.run") == ["one"]
    return tmp_path


def write(path, command, more=""):
    path.write_text("command: %s\nckpt: ckpt\ncheckpoints: none\n%s" % (command, more))
    return path


def start(path):
    r = run("tp-run", path, cwd=path.parent, timeout=60)
    assert r.rc == 0, repr(r)
    return r


def said(state):
    """What the command of each attempt has printed."""
    return [word for p in sorted(state.glob("attempt-*.log")) for word in p.read_text().split()]


def assert_refused(folder, *argv):
    before = harness.tree(folder)
    r = run("tp-run", *argv, cwd=folder)
    assert r.rc == 2 and len(r.lines) == 1 and r.out == "", repr(r)
    assert "job.yml: its state folder %s belongs to the job file job.yaml beside it" % (folder / "job.run") in r.err, repr(r)
    assert "rename one" in r.err and '"state: FOLDER"' in r.err, repr(r)
    assert harness.tree(folder) == before


def test_the_default_folder_belongs_to_one_job_file(folder):
    assert_refused(folder, "job.yml")
    assert_refused(folder, folder / "job.yml")
    start(folder / "job.yaml")
    write(folder / "job.yml", "echo two", "state: two.run\n")
    start(folder / "job.yml")
    assert said(folder / "two.run") == ["two"] and said(folder / "job.run") == ["one"]


@pytest.mark.parametrize("verb", [["status"], ["events"], ["stop"], ["resize", "tp1"], ["plan"]], ids=lambda v: v[0])
def test_no_verb_takes_another_job_for_its_own(folder, verb):
    assert_refused(folder, verb[0], "job.yml", *verb[1:])
    (folder / "job.yml").write_text("}")  # the state of a damaged file is looked for at its default place
    if verb[0] in ("status", "events", "stop"):
        assert_refused(folder, verb[0], "job.yml")


def test_a_job_file_that_is_renamed_keeps_its_state(folder):
    (folder / "job.yaml").rename(folder / "job.yml")
    r = start(folder / "job.yml")
    assert "job.yml continues the job of job.yaml, which is gone" in r.err and "done already" in r.err, repr(r)
    assert said(folder / "job.run") == ["one"]
    assert "continues" not in start(folder / "job.yml").err


def test_a_folder_that_is_moved_with_its_job_file_keeps_its_state(folder):
    moved = folder.parent / (folder.name + "-moved")
    folder.rename(moved)
    assert "done already" in start(moved / "job.yaml").err
    assert_refused(moved, "job.yml")


def test_a_folder_that_is_named_may_be_shared_and_gets_no_owner(tmp_path):
    """Two files of one job: the second finds it done. Neither becomes the owner of job.yaml's default folder."""
    for name in ("a.yaml", "b.yaml"):
        r = start(write(tmp_path / name, "echo shared", "state: job.run\n"))
    assert "done already" in r.err and said(tmp_path / "job.run") == ["shared"]
    assert not (tmp_path / "job.run/job-file").exists()
    start(write(tmp_path / "job.yaml", "echo own"))
    assert (tmp_path / "job.run/job-file").read_text() == "job.yaml\n"
    assert "done already" in start(tmp_path / "a.yaml").err
    assert (tmp_path / "job.run/job-file").read_text() == "job.yaml\n"


def test_a_job_that_is_submitted_has_its_folder_before_it_runs(tmp_path):
    """tp-run submit writes the batch script there."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 123\n")
    (tmp_path / "sbatch").chmod(0o755)
    for name in ("job.yaml", "job.yml"):
        (tmp_path / name).write_text("command: tp-train --model m\nckpt: ckpt\nsteps: 5\nbackend: slurm\nlayouts: {allow: [tp1]}\n")
    env = {"PATH": "%s:%s" % (tmp_path, os.environ["PATH"])}
    r = run("tp-run", "submit", "job.yaml", cwd=tmp_path, env=env)
    assert r.rc == 0 and r.out == "123\n", repr(r)
    assert_refused(tmp_path, "submit", "job.yml")
