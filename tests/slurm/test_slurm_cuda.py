"""tp-train --device cuda under Slurm, alone and with tp-run. Each node has two fake GPUs (tests/fakecuda), which Slurm gives to
ranks as it would NVIDIA's (gres.conf of cluster.sh). The losses are the CPU's."""
import os

import pytest

import cuda_runs
import harness
from cuda_runs import LIBRARY, assert_close, on_fake, train
from run_job import Job
from slurm_job import node_of, pids_of, queue, slurm, wait_until

LAYOUT = "tp2dp2zero1"
SRUN = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
LAUNCH_FAILURE = 719  # cudaErrorLaunchFailure

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="needs %s (make tests)" % LIBRARY)


@pytest.mark.parametrize("options", [[], ["--gpus-per-node=2"], ["--gpus-per-task=1"]])
def test_losses_are_the_cpus_below_srun(tmp_path, cluster, options):
    """A rank's GPU is the one of its place on its node: no node has four. Slurm may show it all GPUs of the node, or its own
    only. The nodes have /dev/shm of their own."""
    cuda_runs.write_inputs(tmp_path)
    want = train(tmp_path, tmp_path / "cpu", "llama", LAYOUT)
    got = train(tmp_path, tmp_path / "cuda", "llama", LAYOUT, "--device", "cuda", launcher=SRUN + options,
                env=on_fake(GPUS=2, SHARED=tmp_path, USED=tmp_path / "used"))
    assert len(got) > 1
    assert_close(got, want, "fp32")
    assert sorted(line.split()[1] for line in (tmp_path / "used").read_text().splitlines()) == ["0", "0", "1", "1"]


# ---- jobs of tp-run ----

STEPS = 8


class Nodes:
    """The GPUs of each node, which can change while a job runs: a script sets them for each start of tp-train."""

    def __init__(self, folder):
        self.folder, self.program, self.list = folder, folder / "tp-train", folder / "used"
        cuda_runs.write_inputs(folder)
        train_program = harness.JOB_TRAIN if os.path.isabs(harness.JOB_TRAIN) else harness.BIN / harness.JOB_TRAIN
        self.program.write_text('#!/bin/sh\n. "%s/gpus-$SLURMD_NODENAME"\nexec "%s" "$@"\n' % (folder, train_program))
        self.program.chmod(0o755)
        for node in ("n1", "n2", "n3"):
            self.has(node, GPUS=2)

    def has(self, node, **more):
        env = on_fake(SHARED=self.folder, USED=self.list, **more)
        (self.folder / "new").write_text("".join("export %s='%s'\n" % entry for entry in env.items()))
        (self.folder / "new").rename(self.folder / ("gpus-" + node))

    def used(self):
        """The numbers of the GPUs that the ranks of each attempt have used."""
        return [int(line.split()[1]) for line in self.list.read_text().splitlines()]


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path)


def training(nodes, steps):
    return ["--model", nodes.folder / "llama.json", "--data", nodes.folder / "text", "--steps", steps, "--warmup", 1,
            "--seq", 8, "--batch", 4]


def gpu_job(nodes, steps=STEPS, allow="[tp4, tp2]", restart=None, **more):
    command = [nodes.program, *training(nodes, steps), "--save-every", 2, "--device", "cuda"]
    more = {"nodes": 2, "options": "[--gpus-per-node=2]", "poll": "0.5s", "grow": "off", **more}
    return Job(nodes.folder, command, nodes="1", allow=allow, backend="slurm", slurm=more,
               restart={"settle": "0.1s", "backoff": "0.1s", **(restart or {})})


def layouts(job):
    return [e["layout"] for e in job.events("launch")]


def assert_losses_are_the_cpus(job, nodes, steps=STEPS):
    log = job.folder / "cpu"
    harness.ok("tp-train", *training(nodes, steps), "--log", log)
    want, got = harness.losses(log), job.losses()
    assert sorted(got) == list(range(steps))
    assert_close([(got[s], 1) for s in range(steps)], [(loss, 1) for loss in want], "fp32")


@pytest.mark.parametrize("options", ["[]", "[--gpus-per-task=1]"])
def test_a_job_that_loses_a_node_continues_on_the_gpus_of_the_other(nodes, cluster, options):
    """A node holds as many ranks as slurm.options ask for GPUs. Slurm shows ranks all GPUs of a node, or with step_options one."""
    with gpu_job(nodes, step_options=options) as job:
        job.start()
        job.await_event("save", timeout=90)
        cluster("crash", node_of(job, 2))
        job.await_event("node_lost", timeout=60)
        assert job.wait() == 0, job.story()
        # On a busy machine more nodes may seem lost later; the losses stay the same.
        assert layouts(job)[:2] == ["tp4", "tp2"], job.story()
        used = nodes.used()
        assert [sorted(used[:4]), sorted(used[4:6])] == [[0, 0, 1, 1], [0, 1]], used
        assert_losses_are_the_cpus(job, nodes)


def test_a_node_whose_gpu_fails_is_left_out(nodes, cluster):
    """And drained, if the job file says so."""
    with gpu_job(nodes, restart={"blame": 1}, drain="true") as job:
        nodes.has("n2", GPUS=2, FAIL="1 %d 250" % LAUNCH_FAILURE)
        job.start()
        assert job.wait() == 0, job.story()
        fault = job.events("rank_exit")[0]
        assert (fault["reason"], fault["rank"], fault["node"]) == ("rank_failed", 3, "n2"), job.story()
        assert "rank 3: GPU 1: " in fault["message"], fault
        assert layouts(job) == ["tp4", "tp2"], job.story()
        assert slurm("sinfo", "-h", "-N", "-p", "main", "-n", "n2", "-o", "%T").startswith("drain")
        assert_losses_are_the_cpus(job, nodes)


@pytest.mark.parametrize("options,gone", [("[]", {"GPUS": 1}), ("[]", {"DRIVER": 0}), ("[--gpus-per-task=1]", {"GPUS": 1})])
def test_a_node_whose_gpus_are_missing_at_a_restart_is_left_out(nodes, cluster, options, gone):
    """tp-train refuses to start there, which is no fault of the command line."""
    with gpu_job(nodes, step_options=options) as job:
        job.start()
        job.await_event("save", timeout=90)
        nodes.has("n2", **{"GPUS": 2, **gone})
        os.kill(next(pids_of("tp-train", "layout=tp4", rank=1)), 9)
        assert job.wait() == 0, job.story()
        lost, = job.events("gpus_lost")
        assert (lost["reason"], lost["node"]) == ("gpus_missing", "n2"), job.story()
        assert [(e["node"], e["reason"]) for e in job.events("node_lost")] == [("n2", "gpus_missing")], job.story()
        assert layouts(job) == ["tp4", "tp4", "tp2"], job.story()
        assert_losses_are_the_cpus(job, nodes)


def test_in_a_batch_job_a_lost_node_is_not_asked_for(nodes, cluster):
    """Slurm would grant it, but not add it to a job with GPUs. It puts its options into the environment of a batch job
    (SLURM_GPUS_PER_NODE), where srun reads them."""
    with gpu_job(nodes, steps=1000, grow="expand") as job:
        assert harness.run("tp-run", "submit", job.path).rc == 0
        wait_until(lambda: job.events("save"), 90)
        home = (job.state / "home").read_text().split()[2]
        cluster("crash", ({"n1", "n2"} - {home}).pop())
        assert wait_until(lambda: job.events("training")[1:], 60)[0]["layout"] == "tp2", job.story()
        said = wait_until(lambda: [e for e in job.events("allocation") if e["result"] == "cannot_grow"], 60)
        assert len(said) == 1 and "slurm.grow: new" in said[0]["message"], job.story()
        assert job.verb("stop", "--wait").rc == 0
        assert max(int(i) for i in queue(states="all")) <= 2, "a job was requested"


def test_a_new_allocation_replaces_a_lost_node(nodes, cluster):
    with gpu_job(nodes, steps=1000, grow="new") as job:
        job.start()
        job.await_event("save", timeout=90)
        cluster("crash", node_of(job, 2))
        assert job.await_event("training", 2, timeout=60)["layout"] == "tp2", job.story()
        assert job.await_event("training", 3, timeout=60)["layout"] == "tp4", job.story()
        job.verb("stop", "--wait")
