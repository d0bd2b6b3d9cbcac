"""examples/fsdp2: FSDP2 on two ranks is killed, and continues on four under tp-run, with the losses of a run that was not killed.

needs: tp-run tp-ckpt tp-reshard tp-train libtp-progress.so
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from harness import ok  # noqa: E402
from run_job import Job  # noqa: E402

TRAIN = harness.REPO / "examples/fsdp2/train.py"
TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")
STEPS, KILLED_AFTER = 16, 7
PATHS = os.pathsep.join(str(harness.REPO / p) for p in ("python", "progress"))
ENV = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def options(folder, ckpt, steps=STEPS):
    return ["--model", folder / "model", "--data", harness.TEXT, "--ckpt", ckpt, "--steps", steps, "--save-every", 2]


def torchrun(folder, ranks, ckpt, losses, steps=STEPS):
    command = [TORCHRUN, "--standalone", "--nproc-per-node", ranks, TRAIN, *options(folder, ckpt, steps), "--losses", losses]
    return subprocess.Popen(list(map(str, command)), env=ENV, start_new_session=True)


def losses_of(path):
    """{step: loss}; the last run of a step counts."""
    return {line["step"]: line["loss"] for line in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("fsdp2")
    harness.write_config(top / "model")
    return top


@pytest.fixture(scope="module")
def whole(folder):
    """The losses of a run that is not killed."""
    assert torchrun(folder, 1, folder / "whole", folder / "whole.losses").wait(timeout=300) == 0
    return losses_of(folder / "whole.losses")


def test_two_ranks_are_killed_and_four_continue_under_tp_run(folder, whole):
    two = torchrun(folder, 2, folder / "ckpt", folder / "two.losses")
    end = time.monotonic() + 200
    while max(losses_of(folder / "two.losses"), default=0) < KILLED_AFTER:
        assert two.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    ranks = subprocess.run(["pgrep", "-P", str(two.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
    assert len(ranks) == 2
    for pid in [two.pid, *map(int, ranks)]:
        os.kill(pid, signal.SIGKILL)
    two.wait()
    saved = max(int(p.name[5:]) for p in harness.steps(folder / "ckpt"))
    assert KILLED_AFTER - 2 <= saved < STEPS

    command = [TORCHRUN, "--standalone", "--nproc-per-node", "{ranks}", TRAIN, *options(folder, folder / "ckpt"),
               "--losses", folder / "four.losses"]
    with Job(folder, command, allow="[dp4]", checkpoints="tp", reshard="never", watch={"floor": "60s"}) as job:
        job.start(env={k: ENV[k] for k in ("PYTHONPATH", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")})
        assert job.wait(timeout=300) == 0, job.story()
        launch = job.events("launch")[0]
        assert launch["layout"].endswith("dp4") and len(job.events("launch")) == 1, job.story()
    four = losses_of(folder / "four.losses")
    assert min(four) == saved + 1 and max(four) == STEPS
    for step, loss in {**losses_of(folder / "two.losses"), **four}.items():
        assert abs(loss - whole[step]) < 2e-4 * whole[step], (step, loss, whole[step])


def test_a_run_with_fewer_steps_than_are_saved_is_done(folder, whole):
    assert torchrun(folder, 1, folder / "whole", folder / "none.losses", steps=STEPS - 2).wait(timeout=300) == 0
    assert not losses_of(folder / "none.losses")


@pytest.mark.parametrize("ranks, words, message", [
    (3, [], "--batch 8 is not a multiple of the 3 ranks"), (1, ["--seq", "1000000"], "expected more than --seq, 1000000")])
def test_a_batch_or_a_text_that_does_not_fit_is_refused(folder, ranks, words, message):
    """Ranks would leave samples out, and the loss would be another one."""
    command = [TORCHRUN, "--standalone", "--nproc-per-node", ranks, TRAIN, *options(folder, folder / "none"), *words]
    p = subprocess.run(list(map(str, command)), env=ENV, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert p.returncode != 0 and message in p.stderr and not (folder / "none").exists(), p.stderr[-3000:]


def test_batches_are_on_the_device_of_the_model():
    program = """if True:
        import train
        train.DEVICE = "meta"  # there may be no GPU
        assert all(t.is_meta for t in train.samples(bytes(range(99)), 0, 2, 8))
        train.dist.all_reduce = lambda t: devices.append(t.device.type)
        train.torch.Tensor.item, devices = lambda t: 0, []
        assert not train.any_rank([]) and devices == ["meta"]
    """
    subprocess.run([sys.executable, "-c", program], env={**ENV, "PYTHONPATH": PATHS + os.pathsep + str(TRAIN.parent)}, check=True)


def test_the_other_programs_use_its_checkpoints(folder, whole):
    """tp-train continues with the loss that FSDP2 has."""
    ok("tp-ckpt", "verify", folder / "whole", "--step", 10)
    ok("tp-reshard", folder / "whole", "--to", "tp2pp2", "--step", 10, "-o", folder / "other")
    ok("tp-train", "--resume", "--ckpt", folder / "other", "--layout", "tp2pp2", "--data", harness.TEXT, "--steps", 12, "--batch", 8,
       "--seq", 64, "--lr", "1e-3", "--weight-decay", "0.01", "--log", folder / "log")
    first = harness.losses(folder / "log")[0]
    assert abs(first - whole[11]) < 2e-4, (first, whole[11])
    ok("tp-ckpt", "export", folder / "other", "-o", folder / "hf")
    back = torchrun(folder, 2, folder / "other", folder / "back.losses", steps=13)
    assert back.wait(timeout=200) == 0 and list(losses_of(folder / "back.losses")) == [13]
    ok("tp-ckpt", "verify", folder / "other")


def test_the_job_of_the_example_is_resized(tmp_path):
    """job.yaml as it is, and what README.md says of it."""
    folder = harness.copy(harness.REPO / "examples", tmp_path / "examples") / "fsdp2"
    with Job.of_file(folder / "job.yaml", tmp_path) as job:
        job.start(env={**{k: ENV[k] for k in ("PYTHONPATH", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")},
                       "PATH": "%s:%s" % (TORCHRUN.parent, os.environ["PATH"])})
        job.await_step(3, timeout=200)
        assert job.verb("resize", "dp2").rc == 0
        job.await_event("training", 2, timeout=200)
        launch = job.events("launch")[1]
        assert launch["layout"].endswith("dp2"), job.story()
        stopped_at = max(int(p.name[5:]) for p in harness.steps(folder / "ckpt"))
        assert stopped_at >= 3
        job.await_step(stopped_at + 2, timeout=200)
        assert job.verb("stop", "--wait").rc == 0 and job.wait() == 75
        assert not job.events("rank_exit") + job.events("killed") + job.events("restart"), job.story()
    ok("tp-ckpt", "verify", folder / "ckpt")
    assert max(int(p.name[5:]) for p in harness.steps(folder / "ckpt")) >= stopped_at + 2
