"""The job file in the Slurm part of docs/tp-run/guide.md runs in a batch job and can be stopped."""
import shutil

import harness
from console_page import blocks
from run_job import Job
from slurm_job import queue, wait_until

PAGE = harness.REPO / "docs/tp-run/guide.md"


def test_the_job_file_of_the_guide_runs_in_a_batch_job(tmp_path, cluster):
    first, slurm = blocks(PAGE, "yaml")[:2]
    shutil.copytree(harness.REPO / "examples/llama-tiny", tmp_path / "llama-tiny")
    job = Job(tmp_path, ["unused"])
    job.path.write_text("".join(line + "\n" for line in first.splitlines()
                                if not line.startswith("nodes")) + slurm)
    slurm_id = int(job.verb("submit").out)
    again = job.verb("submit")
    assert again.rc == 2 and "Slurm job %d of this job is " % slurm_id in again.err, repr(again)
    wait_until(lambda: job.events("save"), 90)
    again = job.verb("submit")
    assert again.rc == 2 and "tp-run runs this job already" in again.err, repr(again)
    assert "slurm       job " in job.verb("status").out
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(name="gpl"), 30)
    assert job.events("stopped")[0]["reason"] == "saved"
