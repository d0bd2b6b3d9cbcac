"""docs/tp-run/guide.md is true: every command in it runs, and prints what the page shows. The commands
under Slurm are run by tests/slurm/test_slurm_guide.py."""
import os
import time

import harness
from console_page import blocks, run_page

PAGE = harness.REPO / "docs/tp-run/guide.md"


def test_every_command_of_the_guide(tmp_path):
    """In a folder that stands for the clone."""
    (tmp_path / "examples").symlink_to(harness.REPO / "examples")
    (tmp_path / "bin").symlink_to(harness.BIN)
    (tmp_path / "try").mkdir()
    (tmp_path / "try/job.yaml").write_text(blocks(PAGE, "yaml")[0])
    assert len(blocks(PAGE, "yaml")[0].splitlines()) == 6
    events = tmp_path / "try/job.run/events.jsonl"

    def before(command):
        """The job was started in the background: wait until it has begun."""
        deadline = time.monotonic() + 30
        while command.startswith("tp-run events") and not events.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    assert run_page(PAGE, tmp_path, dict(os.environ), before=before) > 15


def test_every_job_file_of_the_guide_can_be_read(tmp_path):
    first, slurm, other = blocks(PAGE, "yaml")
    slurm = "".join(line + "\n" for line in first.splitlines() if not line.startswith("nodes")) + slurm
    for name, text, ranks in (("slurm", slurm, 4), ("other", other, 16)):
        (tmp_path / "llama-tiny").exists() or (tmp_path / "llama-tiny").symlink_to(
            harness.REPO / "examples/llama-tiny")
        (tmp_path / (name + ".yaml")).write_text(text)
        plan = harness.ok("tp-run", "plan", tmp_path / (name + ".yaml")).out
        assert "for up to %d ranks" % ranks in plan
