"""tp-run with tp-train --device cuda, on the fake CUDA device of tests/fakecuda: which GPUs ranks use, and GPUs that fail or are
missing. Whether losses on GPUs are the CPU's is the subject of test_cuda.py; here they are after restarts.

needs: tp-run tp-train tp-ckpt tp-reshard libtp-cuda.so
covers: orchestrator/run_gpus
"""
import json
import os

import pytest

import cuda_runs
import harness
from console_page import blocks
from cuda_runs import SEED, on_fake
from run_job import Job

LAUNCH_FAILURE = 719  # cudaErrorLaunchFailure


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    cuda_runs.write_inputs(folder)
    return folder


def training(inputs, steps):
    return ["--model", inputs / "llama.json", "--data", inputs / "text", "--steps", steps, "--warmup", 1, "--seq", 8, "--batch", 4]


class Machine:
    """The GPUs of a machine, which can change while the job runs: a script sets them for each start of tp-train."""

    def __init__(self, folder):
        self.folder, self.program, self.list = folder, folder / "tp-train", folder / "used"
        self.has(GPUS=8)
        train = harness.JOB_TRAIN if os.path.isabs(harness.JOB_TRAIN) else harness.BIN / harness.JOB_TRAIN
        self.program.write_text('#!/bin/sh\n. "%s/machine"\nexec "%s" "$@"\n' % (folder, train))
        self.program.chmod(0o755)

    def has(self, **more):
        lines = ["export %s='%s'\n" % entry for entry in on_fake(USED=self.list, **more).items()]
        (self.folder / "machine.new").write_text("".join(lines))
        (self.folder / "machine.new").rename(self.folder / "machine")

    def used(self):
        """The numbers of the GPUs that the ranks of each attempt have used."""
        return [int(line.split()[1]) for line in self.list.read_text().splitlines()]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def gpu_job(machine, inputs, steps=6, device="cuda", nodes="[a:2, b:2]", **more):
    command = [machine.program, *training(inputs, steps), "--save-every", 2, "--device", device]
    more = {"allow": "[tp4, tp2, tp1]", "restart": {"settle": "0.1s", "backoff": "0.1s"}, **more}
    return Job(machine.folder, command, nodes=nodes, **more)


def assert_losses_are_the_cpus(job, inputs, steps):
    log = job.folder / "cpu"
    harness.ok("tp-train", *training(inputs, steps), "--log", log)
    want, got = harness.losses(log), job.losses()
    assert sorted(got) == list(range(steps))
    cuda_runs.assert_close([(got[s], 1) for s in range(steps)], [(loss, 1) for loss in want], "fp32")


def layouts(job):
    return [e["layout"] for e in job.events("launch")]


def test_a_job_continues_on_the_gpus_that_are_left_with_the_cpus_losses(tmp_path, machine, inputs):
    """Rank 1 is killed, node a is lost, a person changes the number of ranks, and node a comes back."""
    with gpu_job(machine, inputs, steps=12) as job:
        job.start()
        job.await_event("save")
        os.kill(job.rank_pid(1), 9)
        assert job.await_event("rank_exit")["reason"] == "rank_killed"
        job.await_event("training", 2)
        job.verb("node", "down", "a")
        job.await_event("training", 3)
        assert job.verb("resize", "tp1", "--wait").rc == 0
        assert job.verb("node", "up", "a").rc == 0
        assert job.verb("resize", "tp4", "--wait").rc == 0
        assert job.wait() == 0, (SEED, job.story())
        assert layouts(job) == ["tp4", "tp4", "tp2", "tp1", "tp4"], (SEED, job.story())
        used = machine.used()
        groups = [used[:4], used[4:8], used[8:10], used[10:11], used[11:]]
        assert [sorted(g) for g in groups] == [[0, 1, 2, 3], [0, 1, 2, 3], [2, 3], [2], [0, 1, 2, 3]], (SEED, used)
        assert_losses_are_the_cpus(job, inputs, 12)


def test_slots_are_the_gpus_that_tp_run_may_use(tmp_path, machine, inputs):
    """Also when mpirun starts the ranks."""
    with gpu_job(machine, inputs, steps=2, nodes="[a, b]", launcher="mpirun") as job:
        job.start(env={"CUDA_VISIBLE_DEVICES": "7,5"})
        assert job.wait() == 0, (SEED, job.story())
        assert sorted(machine.used()) == [5, 7]


@pytest.mark.parametrize("after", [0, 250])
def test_a_gpu_that_fails_again_and_again_is_left_out(tmp_path, machine, inputs, after):
    """At once, before the first step, or after some steps. The fault names rank, node and GPU; all other ranks end too."""
    machine.has(FAIL="1 %d %d" % (LAUNCH_FAILURE, after))
    with gpu_job(machine, inputs, nodes="3", allow="[tp2, tp1]", restart={"blame": 2, "backoff": "0.1s"}) as job:
        job.start()
        assert job.wait() == 0, (SEED, job.story())
        faults = job.events("rank_exit")
        assert [(f["reason"], f["rank"], f["node"]) for f in faults] == 2 * [("rank_failed", 1, "n1")], (SEED, job.story())
        assert all("rank 1: GPU 1: " in f["message"] and "unspecified launch failure" in f["message"] for f in faults), faults
        assert not any("signal" in f["message"] for f in faults), "tp-run ended the others; that is not the reason"
        assert [e["reason"] for e in job.events("node_lost")] == ["repeated_faults"]
        assert sorted(machine.used()[-2:]) == [0, 2] and layouts(job)[-1] == "tp2"
        assert sorted(job.losses()) == list(range(6))


def test_a_gpu_that_fails_before_every_first_step_is_left_out(tmp_path, machine, inputs):
    """restart.no_progress starts in a row without a step end a job, unless the next start has another GPU."""
    machine.has(FAIL="1 %d 0" % LAUNCH_FAILURE)
    restart = {"blame": 3, "no_progress": 3, "backoff": "0.1s"}
    with gpu_job(machine, inputs, nodes="3", allow="[tp2]", restart=restart) as job:
        job.start()
        assert job.wait() == 0, (SEED, job.story())
        assert len(job.events("launch")) == 4 and [e["reason"] for e in job.events("node_lost")] == ["repeated_faults"]
        assert sorted(machine.used()[-2:]) == [0, 2], (SEED, job.story())


def test_what_a_program_prints_does_not_make_it_a_fault_of_a_gpu(tmp_path, machine, inputs):
    """Only what the rank has reported does. So a program that fails everywhere is given up."""
    machine.program.write_text("#!/bin/sh\necho 'tp-train: rank 1: GPU 1: a launch failed: unspecified (CUDA error 719)' >&2; exit 3\n")
    restart = {"blame": 1, "no_progress": 2, "backoff": "0.1s"}
    with gpu_job(machine, inputs, nodes="4", allow="[tp2]", restart=restart) as job:
        assert job.start().wait() == 3, job.story()
        assert job.events("failed")[0]["reason"] == "no_progress" and len(job.events("launch")) == 2, job.story()


def test_a_rank_whose_nccl_fails_says_so(tmp_path, machine, inputs):
    """Also if it is not rank 0. The job continues on the other node."""
    machine.has(FAIL_NCCL="1 20")
    with gpu_job(machine, inputs, nodes="2", allow="[tp2, tp1]", restart={"blame": 1, "backoff": "0.1s"}) as job:
        job.start()
        fault = job.await_event("rank_exit")
        assert (fault["rank"], fault["node"]) == (1, "n1"), (SEED, job.story())
        assert "rank 1: NCCL: an all-reduce failed: unhandled system error" in fault["message"], (SEED, fault)
        assert job.wait() == 0 and layouts(job)[-1] == "tp1", (SEED, job.story())


def test_a_rank_whose_network_fails_says_so_and_the_job_starts_again(tmp_path, machine, inputs):
    """Inside of a collective, where only NCCL knows it. No deadline for a hang ends the job before. Then the network is back."""
    machine.has(LOSE_NCCL="1 120")
    with gpu_job(machine, inputs, nodes="2", allow="[tp2]", restart={"backoff": "0.1s"}, watch={"floor": "60s"}) as job:
        job.start()
        fault = job.await_event("rank_exit")
        machine.has()
        rank = fault["rank"]  # the other end of the connection is told too, and may be quicker
        assert (fault["reason"], fault["node"]) == ("rank_failed", "n%d" % rank), (SEED, job.story())
        sentence = "rank %d: GPU %d: a collective of NCCL failed: remote process exited or there was a network error" % (rank, rank)
        assert sentence in fault["message"], (SEED, fault)
        assert "exit code 3: " in fault["message"] and "Check this GPU and the network" in fault["message"], (SEED, fault)
        assert job.wait() == 0 and layouts(job) == ["tp2", "tp2"], (SEED, job.story())
        assert job.events("launch")[1]["step"] > 0, "it continues from a checkpoint"
        assert_losses_are_the_cpus(job, inputs, 6)


def test_a_job_whose_only_gpu_is_broken_fails_after_a_few_starts(tmp_path, machine, inputs):
    machine.has(FAIL="0 %d 0" % LAUNCH_FAILURE)
    with gpu_job(machine, inputs, nodes="1", allow="[tp1]") as job:
        assert job.start().wait() == 3, (SEED, job.story())
        assert len(job.events("launch")) == 3 and job.events("failed")[0]["reason"] == "no_progress"
        assert "GPU 0: " in job.events("failed")[0]["message"]


def test_when_a_gpu_is_gone_the_layout_fits_those_that_are_left(tmp_path, machine, inputs):
    """tp-run that takes over knows it too, and `node up` says that the GPU is back."""
    with gpu_job(machine, inputs, steps=400, nodes="[a:4]") as job:
        job.start()
        job.await_event("save")
        machine.has(GPUS=3)
        os.kill(job.rank_pid(3), 9)
        job.await_event("training", 2)
        lost, = job.events("gpus_lost")
        assert (lost["reason"], lost["node"], lost["slots"]) == ("gpus_missing", "a", 3)
        assert "1 of 4 cannot be used any more" in lost["message"]
        assert layouts(job) == ["tp4", "tp4", "tp2"], (SEED, job.story())
        assert "4 ranks are on this machine, which has 3 usable GPUs" in job.events("restart")[-1]["message"]
        job.process.kill()
        job.process.wait()
        job.start()
        job.await_event("takeover")
        assert job.status()["nodes"][0]["slots"] == 3
        machine.has(GPUS=8)
        assert job.verb("node", "up", "a").rc == 0
        assert job.await_event("launch", attempt=4)["layout"] == "tp4"
        job.verb("stop", "--wait")
        assert "node a has lost GPUs: 1 of 4 cannot be used any more" in job.output.read_text()


REFUSED = {
    "no library": ({"TP_CUDA_LIBRARY": "/nowhere/libtp-cuda.so"}, 2, "/nowhere/libtp-cuda.so"),
    "no driver": (on_fake(DRIVER=0), 2, "no NVIDIA driver"),
    "old driver": (on_fake(DRIVER=12040), 2, "supports CUDA 12.4, and 13.0 is needed"),
    "few GPUs": (on_fake(GPUS=3), 2, "4 ranks are on this machine, which has 3 usable GPUs"),
    "little memory": (on_fake(MEMORY=100000), 2, "GPU 0 is out of memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_job_that_cannot_begin_fails_once_and_names_the_reason(tmp_path, inputs, name):
    env, code, message = REFUSED[name]
    command = [harness.JOB_TRAIN, *training(inputs, 6), "--device", "cuda"]
    with Job(tmp_path, command, nodes="[a:2, b:2]", allow="[tp4, tp2]", restart={"backoff": "0.1s"}) as job:
        job.start(env=env)
        assert job.wait() == code, job.story()
        assert message in job.events("failed")[0]["message"] and message in job.verb("status").out
        assert len(job.events("launch")) == 1, "what is refused is not tried again"
        errors = [line for line in job.output.read_text().splitlines() if line.startswith("tp-run: ")]
        assert len(errors) == 1 and message in errors[0], errors


# ---- memory ----

FITTED = [("llama", "tp1", "fp32"), ("llama", "dp2zero1", "bf16"), ("gpt2", "tp2sp", "bf16"), ("gpt2", "pp2", "fp32"),
          ("mixtral", "ep2dp2", "bf16"), ("qwen3", "cp2", "bf16"), ("llama", "dp2zero3", "fp32")]
WORKSPACE = (32 << 20) + (64 << 10)  # kernels/cuda/blas.cuh


def plan(tmp_path, command, layout, **more):
    job = Job(tmp_path, [*command, "--recompute", "none"], nodes="8", allow="[%s]" % layout, name="plan-" + layout, **more)
    return json.loads(harness.ok("tp-run", "plan", "--json", job.path).out)[0]


def taken(calls):
    """The bytes of device memory that each process has taken with each call, and its pinned memory."""
    out = {}
    for pid, name, used, pinned, _ in (line.split() for line in calls.read_text().splitlines()):
        p = out.setdefault(pid, {"cudaMalloc": 0, "cudaMallocAsync": 0, "pinned": 0, "before": 0})
        if name in p:
            p[name] += max(int(used) - p["before"], 0)
        p["pinned"], p["before"] = max(p["pinned"], int(pinned)), int(used)
    return [p for p in out.values() if p["cudaMalloc"]]


@pytest.mark.parametrize("model,layout,dtype", FITTED)
def test_tp_run_plans_with_the_gpu_memory_that_ranks_take(tmp_path, inputs, model, layout, dtype):
    """Tensors to the byte, but for the bytes that open lanes between ranks. What CUDA and NCCL take is not on the fake device."""
    command = [harness.JOB_TRAIN, "--model", inputs / (model + ".json"), "--data", inputs / "text", "--steps", 1, "--seq", 8,
               "--batch", 4, "--micro", 1, "--dtype", dtype, "--device", "cuda"]
    planned = plan(tmp_path, command, layout)
    harness.ok(*command, "--quiet", "--layout", layout, "--ckpt", tmp_path / "ckpt", env=on_fake(HOST_CALLS=tmp_path / "calls"))
    ranks = taken(tmp_path / "calls")
    tensors = max(p["cudaMalloc"] for p in ranks)
    assert 0 <= tensors - planned["tensor_bytes"] <= 2 * 64, (planned, ranks)
    assert WORKSPACE <= max(p["cudaMallocAsync"] for p in ranks) <= planned["scratch_bytes"], (planned, ranks)
    assert max(p["pinned"] for p in ranks) <= planned["host_bytes"] + (64 << 10) < planned["memory_bytes"], (planned, ranks)
    assert planned["memory_bytes"] == sum(planned[part + "_bytes"] for part in ("tensor", "scratch", "cuda", "nccl"))


def test_a_restart_selects_a_layout_that_fits_the_gpus_that_ranks_have_reported(tmp_path, machine, inputs):
    """dp4 needs more than 2 GiB, by the estimate of what CUDA and NCCL take, and has trained nevertheless. pp2 needs still more."""
    machine.has(MEMORY=2 << 30)
    with gpu_job(machine, inputs, steps=12, allow="[dp4, pp2, tp1]") as job:
        assert "* tp1dp4 " in job.verb("plan").out
        job.start()
        assert job.await_event("training")["gpu_bytes"] == 2 << 30
        job.verb("node", "down", "b")
        assert job.await_event("launch", 2)["layout"] == "tp1", job.story()
        shown = job.verb("plan").out
        assert "tp1pp2" in shown.split("  may not fit its GPU")[0].splitlines()[-1] and "the smallest GPU has 2.00 GiB" in shown, shown
        assert job.verb("node", "up", "b").rc == 0 and job.verb("resize", "dp4", "--wait").rc == 0
        assert job.wait() == 0 and layouts(job) == ["tp1dp4", "tp1", "tp1dp4"], (SEED, job.story())
        assert_losses_are_the_cpus(job, inputs, 12)


def test_after_a_start_that_ran_out_of_gpu_memory_a_smaller_microbatch_is_selected(tmp_path, machine, inputs):
    """The job file says more than the GPU has. No node is blamed."""
    command = [machine.program, *training(inputs, 1)[:-1], 16, "--device", "cuda", "--recompute", "none"]
    sizes = [plan(tmp_path, [*command, "--micro", micro], "tp1")["tensor_bytes"] for micro in (8, 16)]
    machine.has(MEMORY=WORKSPACE + sum(sizes) // 2)
    with Job(machine.folder, command, nodes="1", layouts={"allow": "[tp1]", "memory": "80G"},
             restart={"backoff": "0.1s", "blame": 1}) as job:
        job.start()
        assert job.wait() == 0, (SEED, job.story())
        assert layouts(job) == ["tp1", "tp1"] and not job.events("node_lost"), (SEED, job.story())
        fault, = job.events("rank_exit")
        assert fault["reason"] == "gpu_memory" and "GPU 0 is out of memory" in fault["message"], (SEED, fault)
        assert "2 microbatches of 8" in (job.state / "attempt-0002.log").read_text()


@pytest.mark.parametrize("gpus,chosen", [(2, "cuda, because each rank has a GPU"), (1, "cpu, because of: --device cuda: 2 ranks ")])
def test_an_event_says_what_device_auto_has_chosen(tmp_path, machine, inputs, gpus, chosen):
    machine.has(GPUS=gpus)
    with gpu_job(machine, inputs, steps=100000, device="auto", nodes="[a:2]", allow="[tp2]") as job:
        job.start()
        assert job.await_event("training")["device"].startswith(chosen)
        job.verb("stop", "--wait")
        assert "; device: " + chosen in job.output.read_text()


def test_the_job_files_of_the_page_about_gpus_can_be_read(tmp_path):
    (tmp_path / "llama-tiny").symlink_to(harness.REPO / "examples/llama-tiny")
    local, slurm = blocks(harness.REPO / "docs/GPU.md", "yaml")
    (tmp_path / "job.yaml").write_text(local)
    assert "* tp2dp4 " in harness.ok("tp-run", "plan", tmp_path / "job.yaml").out
    common = "".join(line + "\n" for line in local.splitlines() if not line.startswith(("nodes", "layouts")))
    (tmp_path / "job.yaml").write_text(common + slurm)
    assert "for up to 16 ranks" in harness.ok("tp-run", "plan", tmp_path / "job.yaml").out
