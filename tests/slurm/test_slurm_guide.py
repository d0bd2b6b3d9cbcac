"""The job file and the batch script in the Slurm part of docs/tp-run/guide.md run and can be stopped."""
import os
import shutil
import subprocess

import harness
from console_page import blocks
from run_job import Job
from slurm_job import queue, slurm, wait_until

PAGE = harness.REPO / "docs/tp-run/guide.md"


def guide_job(folder):
    """The job of the guide's Slurm part."""
    first, lines = blocks(PAGE, "yaml")[:2]
    job = Job(folder, ["unused"])
    shutil.copytree(harness.REPO / "examples/llama-tiny", folder / "llama-tiny")
    job.path.write_text("".join(line + "\n" for line in first.splitlines()
                                if not line.startswith("nodes")) + lines)
    return job


def test_the_job_file_of_the_guide_runs_in_a_batch_job(tmp_path, cluster):
    job = guide_job(tmp_path / "50%j%%")  # sbatch replaces %j in --output
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
    assert "status page" in (job.state / ("slurm-%d.out" % slurm_id)).read_text()


def test_the_batch_script_of_the_guide_runs_and_a_signal_stops_it(tmp_path, cluster):
    (script,) = blocks(PAGE, "bash")
    job = guide_job(tmp_path)
    (tmp_path / "job.sh").write_text(script)
    env = {**os.environ, "PATH": "%s:%s" % (harness.BIN, os.environ["PATH"])}
    said = subprocess.run(["sbatch", "job.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout
    slurm_id = said.split()[-1]
    wait_until(lambda: job.events("save"), 90)
    assert job.status()["world"] == 4 and job.status()["slurm"]["job"] == int(slurm_id)
    slurm("scancel", "--batch", "--signal=TERM", slurm_id)
    wait_until(lambda: not queue(name="gpl"), 30)
    assert job.events("stopped")[0]["reason"] == "saved"
    assert "saved and stopped" in (tmp_path / ("gpl-%s.out" % slurm_id)).read_text()
