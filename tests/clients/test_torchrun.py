"""tp-run runs a trainer of PyTorch below torchrun: it stops, is resized, and its failures are understood."""
import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from run_job import Job  # noqa: E402

# On SIGTERM all ranks stop after the same step, and rank 0 stores its number.
TRAINER = '''
import os, signal, sys, time
sys.path.insert(0, %r)
import torch, torch.distributed as dist
from tp_progress import Progress

state, fail_at = sys.argv[1], int(sys.argv[2])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
progress = Progress(rank, world)
first = int(open(state).read()) if os.path.exists(state) else 0
progress.phase(Progress.TRAIN)
for step in range(first, 100000):
    time.sleep(0.02)
    if rank == 1 and step == fail_at:
        raise ValueError("the data is empty")
    stop = torch.tensor([len(asked)])
    with progress.collective():
        dist.all_reduce(stop)
    progress.step(step + 1, 1.0)
    if stop.item():
        if rank == 0:
            with open(state, "w") as f:
                f.write(str(step + 1))
        dist.barrier()
        progress.close()
        sys.exit(75)
''' % str(harness.REPO / "progress")

TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")


def torchrun_job(folder, fail_at=-1, **kw):
    trainer = folder / "trainer.py"
    trainer.write_text(TRAINER)
    return Job(folder, [TORCHRUN, "--standalone", "--nproc-per-node", "{ranks}", trainer, folder / "step", fail_at],
               nodes="[a, b]", allow="[dp2, dp1]", checkpoints="none", watch={"floor": "30s"}, **kw)


def test_it_saves_when_it_is_asked_to_stop_and_to_resize(tmp_path):
    with torchrun_job(tmp_path) as job:
        job.start()
        job.await_step(10, timeout=120)
        assert job.verb("resize", "dp1").rc == 0
        again = job.await_event("training", 2, timeout=120)
        assert again["layout"].endswith("dp1") or again["layout"] == "tp1", again
        assert int((tmp_path / "step").read_text()) >= 10
        step = job.await_step(int((tmp_path / "step").read_text()) + 10)["step"]
        assert job.verb("stop", "--wait").rc == 0 and job.wait() == 75
        assert int((tmp_path / "step").read_text()) >= step
        assert not job.events("rank_exit") + job.events("killed") + job.events("restart"), job.story()


@pytest.mark.parametrize("how", ["raises", "killed"])
def test_the_rank_at_fault_and_the_reason_are_found(tmp_path, how):
    with torchrun_job(tmp_path, fail_at=20 if how == "raises" else -1, restart={"max": 0}) as job:
        job.start()
        if how == "killed":
            job.await_step(10, timeout=120)
            os.kill(job.rank_pid(1), signal.SIGKILL)
        assert job.wait() == 3
        event = job.events("rank_exit")[0]
        assert event["rank"] == 1, event
        assert ("signal 9" if how == "killed" else "ValueError: the data is empty") in event["message"], event
