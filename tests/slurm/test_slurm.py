"""tp-run on a real Slurm of several nodes on this machine (cluster.sh): crash, cut, batch job.

Needs root and Debian's slurmctld, slurmd, slurm-client, munge, iproute2; skipped, saying so, where
they are missing. Not to be run beside itself: one cluster a machine.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cli"))
import harness  # noqa: E402
from run_job import train_job  # noqa: E402

CLUSTER = str(HERE / "cluster.sh")
MISSING = [p for p in ("slurmctld", "slurmd", "srun", "munged", "ip") if not shutil.which(p)]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root (namespaces, munge)"),
    pytest.mark.skipif(bool(MISSING), reason="needs %s" % ", ".join(MISSING)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return harness.write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cluster():
    subprocess.run([CLUSTER, "up", "3"], check=True, timeout=90, stdin=subprocess.DEVNULL)
    yield lambda *a: subprocess.run([CLUSTER, *a], check=True, timeout=60)
    subprocess.run([CLUSTER, "down"], timeout=60)


def slurm_job(folder, model, steps=3000, **slurm):
    return train_job(folder, model, steps=steps, nodes="1", backend="slurm",
                     slurm={"nodes": 3, "tasks_per_node": 2, **slurm},
                     watch={"floor": "3s"})


def node_of(job, rank):
    return job.status()["ranks"][rank]["node"]


@pytest.mark.parametrize("fault", ["crash", "cut"])
def test_a_lost_node_means_the_survivors_go_on(tmp_path, model, cluster, figure, fault):
    with slurm_job(tmp_path, model) as job:
        job.start()
        job.await_event("save", timeout=90)
        node, begin = node_of(job, 2), time.time()
        cluster(fault, node)
        lost = job.await_event("node_lost", timeout=60)
        again = job.await_event("training", 2, timeout=60)
        figure("seconds from the %s to training on the survivors" % fault,
               round(again["time"] - begin, 2))
        assert lost["node"] == node, job.story()
        assert node not in {r["node"] for r in job.status()["ranks"]}
        assert again["resumed_at"] >= 10 and again["layout"] == "tp4"
        assert job.verb("stop", "--wait").rc == 0
        assert job.wait() == 75
        assert harness.ok("tp-ckpt", "verify", job.ckpt).rc == 0
        queue = subprocess.run(["squeue", "-h", "-t", "RUNNING"], capture_output=True, text=True)
        assert queue.stdout.strip() == "", "the allocation was not given back"


def test_a_killed_rank_and_a_killed_orchestrator(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=300) as job:
        job.start()
        job.await_event("save", timeout=90)
        job.process.kill()
        job.process.wait()
        job.start()
        job.await_event("takeover", running=True)
        job.await_step(30)
        os.kill(next(p for p in pids_of("tp-train", "layout=tp4")), signal.SIGKILL)
        job.await_event("rank_exit", timeout=60)
        job.await_event("training", 3, timeout=60)
        assert job.wait(180) == 0
        assert sorted(job.losses()) == list(range(300))


def pids_of(program, word):
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                line = (p / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if line[0].endswith(program) and word in " ".join(line):
                yield int(p.name)


def test_too_few_nodes_ask_for_a_new_allocation(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, min_nodes=3) as job:
        job.start()
        job.await_event("save", timeout=90)
        node = node_of(job, 2)
        cluster("crash", node)
        job.await_event("node_lost", timeout=60)
        cluster("start", node)
        job.await_event("training", 2, timeout=120)
        assert len({a for a in allocations(job)}) == 2
        job.verb("stop", "--wait")


def allocations(job):
    out = subprocess.run(["squeue", "-h", "-t", "all", "-n", "job", "-o", "%i"],
                         capture_output=True, text=True).stdout
    return out.split()


def test_inside_a_batch_job_it_uses_that_allocation(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=60)
    script = tmp_path / "batch.sh"
    script.write_text("#!/bin/bash\nexec %s %s\n" % (harness.BIN / "tp-run", job.path))
    out = subprocess.run(["sbatch", "--wait", "-N3", "--ntasks-per-node=2", "-o",
                          str(tmp_path / "out"), str(script)], timeout=150)
    assert out.returncode == 0, (tmp_path / "out").read_text() + job.story()
    assert sorted(job.losses()) == list(range(60))
