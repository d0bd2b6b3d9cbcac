"""Every command of docs/tp-run/guide.md runs and prints what the page shows. tests/slurm/test_slurm_guide.py
runs the commands under Slurm. docs/tp-run/reference.md lists all verbs, options and fields;
tests/unit/orchestrator_event.c compares its tables of keys and codes.

needs: tp-run tp-train tp-ckpt tp-reshard libtp-progress.so
"""
import json
import os
import re

import harness
from console_page import blocks, run_page
from run_job import fake_job

PAGE = harness.REPO / "docs/tp-run/guide.md"
REFERENCE = (harness.REPO / "docs/tp-run/reference.md").read_text()


def test_every_command_of_the_guide(tmp_path):
    """The commands run in a folder that replaces the clone."""
    (tmp_path / "examples").symlink_to(harness.REPO / "examples")
    (tmp_path / "bin").symlink_to(harness.BIN)
    (tmp_path / "try").mkdir()
    (tmp_path / "try/job.yaml").write_text(blocks(PAGE, "yaml")[0])
    assert len(blocks(PAGE, "yaml")[0].splitlines()) == 6
    assert run_page(PAGE, tmp_path, dict(os.environ)) > 15


def test_every_job_file_of_the_guide_can_be_read(tmp_path):
    first, slurm, other = blocks(PAGE, "yaml")
    slurm = "".join(line + "\n" for line in first.splitlines() if not line.startswith("nodes")) + slurm
    for name, text, ranks in (("slurm", slurm, 4), ("other", other, 16)):
        (tmp_path / "llama-tiny").exists() or (tmp_path / "llama-tiny").symlink_to(
            harness.REPO / "examples/llama-tiny")
        (tmp_path / (name + ".yaml")).write_text(text)
        plan = harness.ok("tp-run", "plan", tmp_path / (name + ".yaml")).out
        assert "for up to %d ranks" % ranks in plan


def section(heading):
    """The reference from a heading to the next one of its level."""
    return REFERENCE.split("\n## %s\n" % heading)[1].split("\n## ")[0]


def test_the_reference_lists_every_verb_option_and_exit_code():
    help_text = harness.ok("tp-run", "--help").out
    verbs = re.findall(r"^  ([a-z]+) +JOB", help_text, re.M)
    rows = re.findall(r"^\| `tp-run ([a-z]+) JOB.yaml(.*)` \|", section("Verbs"), re.M)
    assert sorted(verbs) == sorted(name for name, _ in rows) and len(verbs) > 5
    for name, shown in rows:
        options = set(re.findall(r"--[a-z]+", harness.ok("tp-run", name, "--help").out))
        missing = options - {"--help", "--version"} - set(re.findall(r"--[a-z]+", shown))
        assert not missing, (name, missing)
    codes = re.findall(r"\b(\d+) [a-z]", help_text.split("exit: ")[1])
    assert codes == re.findall(r"^\| (\d+) \|", section("Verbs"), re.M)


def test_the_reference_lists_every_field_of_status_and_events(tmp_path):
    with fake_job(tmp_path, "--steps", 20) as job:
        job.start()
        job.await_event("training")
        running = job.status()
        assert job.wait() == 0
        over = job.status()
        fields = set(running) | set(over)
        for one in running["ranks"] + running["nodes"]:
            fields |= set(one)
        listed = re.findall(r"`(\w+)`", section("Status"))
        assert sorted(fields - set(listed)) == []
        common = set(re.findall(r"`(\w+)`", section("Events").split("###")[0]))
        assert {"time", "event", "attempt", "layout", "step"} <= common
        for line in (job.state / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            assert ("`%s`" % event["event"]) in section("Events")
            assert ("reason" in event) == ("message" in event) and set(event) >= {"time", "event", "attempt"}
