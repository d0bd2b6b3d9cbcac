"""Helpers of the tests on Slurm: a job on the cluster, and questions to Slurm."""
import os
import pathlib
import shutil
import subprocess
import time

from run_job import train_job


def slurm_job(folder, model, steps=3000, allow="[tp4, tp2, tp1]", restart=None, train_options=None,
              **slurm):
    return train_job(folder, model, steps=steps, options=train_options or {}, nodes="1", allow=allow, backend="slurm",
                     slurm={"nodes": 3, "tasks_per_node": 2, "poll": "0.5s", **slurm},
                     watch={"floor": "3s"}, restart={"settle": "0.2s", **(restart or {})})


def slurm(*argv):
    """Run one of Slurm's programs. Returns its output."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def in_front(folder, script, *names):
    """Put a bash script before each of Slurm's programs of these names in PATH. In it $program is the real one, $name its
    name, and $front the folder of the scripts. Returns the environment."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text("#!/bin/bash\nfront=%s name=%s program=%s\n%s" % (folder, name, shutil.which(name), script))
        program.chmod(0o755)
    return {"PATH": "%s:%s" % (folder, os.environ["PATH"])}


def queue(form="%i", states="PENDING,RUNNING", name="job"):
    """A line for every Slurm job of this name in these states."""
    return slurm("squeue", "-h", "-t", states, "-n", name, "-o", form).splitlines()


def node_of(job, rank):
    return job.status()["ranks"][rank]["node"]


def end_in(slurm_id, seconds):
    """Let Slurm end the job in this many seconds. (Time limits are whole minutes; an end time is not.)"""
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
    slurm("scontrol", "update", "JobId=%s" % slurm_id, "EndTime=" + end)


def wait_until(what, timeout=60, every=0.1):
    """Wait until what() is true. Returns its value."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(every)
    raise AssertionError("it did not become true within %s s" % timeout)


def word_of(proc, name):
    """The value of a variable of the environment that a process was started with; "" if it is not set."""
    for word in (proc / "environ").read_bytes().decode(errors="replace").split("\0"):
        if word.startswith(name + "="):
            return word[len(name) + 1:]
    return ""


def rank_of(proc):
    return int(word_of(proc, "SLURM_PROCID") or -1)


def pids_of(program, word, rank=None):
    """The pids of processes that Slurm has started. Other tests may run processes at the same time."""
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                line = (p / "cmdline").read_bytes().decode(errors="replace").split("\0")
                is_it = line[0].endswith(program) and word in " ".join(line) and (
                    rank_of(p) >= 0 if rank is None else rank_of(p) == rank)
            except OSError:
                continue
            if is_it:
                yield int(p.name)
