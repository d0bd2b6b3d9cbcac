"""tp-run when Slurm does not answer, answers late, or refuses for a while."""
import os
import random
import signal
import time

import harness
from slurm_job import in_front, pids_of, queue, slurm, slurm_job, wait_until


def test_training_continues_while_the_controller_does_not_answer(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=100000) as job:
        job.start()
        job.await_event("save", timeout=90)
        cluster("freeze")
        step = job.status()["step"]
        job.await_event("allocation", result="slurm_unreachable", timeout=90)
        assert job.await_step(step + 20)["attempt"] == 1
        cluster("thaw")
        wait_until(lambda: job.events("allocation")[-1]["result"] == "slurm_reachable", 60)
        assert not job.events("node_lost") + job.events("hang") + job.events("restart"), job.story()
        job.verb("stop", "--wait")


def test_a_controller_that_is_restarted_does_not_disturb_the_training(tmp_path, model, cluster, figure):
    """After each start of the controller its nodes are unknown until they register."""
    seed, times = int(time.time()), 20 if harness.LONG else 3
    print("seed", seed)
    rng = random.Random(seed)
    with slurm_job(tmp_path, model, steps=10000000) as job:
        job.start()
        job.await_event("save", timeout=90)
        for _ in range(times):
            cluster("restart")
            step = job.status()["step"]
            time.sleep(rng.uniform(0.2, 3))
            job.await_step(step + 5)
        wait_until(lambda: set(slurm("sinfo", "-h", "-N", "-o", "%T").split()) <= {"idle", "allocated", "mixed"})
        disturbed = len(job.events("restart") + job.events("node_lost") + job.events("rescale"))
        figure("job restarts by %d restarts of Slurm's controller" % times, job.status()["attempt"] - 1)
        assert disturbed == 0 and job.status()["attempt"] == 1, job.story()
        assert len(queue()) == 1, "the allocation was given up"
        assert not [e for e in job.events("allocation") if e["result"] in ("over", "given_back")]
        job.verb("stop", "--wait")
        assert queue() == []


def test_a_rank_that_dies_while_the_controller_starts_costs_one_restart(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=10000000) as job:
        job.start()
        job.await_event("save", timeout=90)
        cluster("restart")
        os.kill(next(pids_of("tp-train", "layout=tp4")), signal.SIGKILL)
        again = job.await_event("training", 2, timeout=90)
        assert again["layout"] == "tp4" and not job.events("node_lost"), job.story()
        assert len(queue()) == 1
        job.verb("stop", "--wait")


def test_a_fault_while_the_controller_does_not_answer_uses_no_restarts(tmp_path, model, cluster):
    """The rank is at fault, not its node. Starts that fail because of the controller are not faults."""
    with slurm_job(tmp_path, model, steps=100000, restart={"no_progress": 1}) as job:
        job.start()
        job.await_event("save", timeout=90)
        cluster("freeze")
        os.kill(next(pids_of("tp-train", "layout=tp4")), signal.SIGKILL)
        job.await_event("launch", 2, timeout=60)
        job.await_event("allocation", result="slurm_unreachable", timeout=60)
        cluster("thaw")
        job.await_event("training", 2, timeout=60)
        assert not job.events("node_lost"), job.story()
        assert len(job.events("restart")) == 1
        job.verb("stop", "--wait")


def test_an_allocation_is_released_although_slurm_does_not_answer_at_first(tmp_path, model, cluster):
    env = in_front(tmp_path / "front", """echo >>$front/count
[ "$(wc -l <$front/count)" -gt 3 ] || { echo "scancel: error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
exec $program "$@"
""", "scancel")
    with slurm_job(tmp_path, model, steps=20) as job:
        job.start(env=env)
        assert job.wait(60) == 0
        assert len((tmp_path / "front/count").read_text()) == 4 and queue() == []


def test_a_program_of_slurms_that_hangs_delays_nothing(tmp_path, model, cluster):
    """Status, training and stop work while squeue and sinfo hang."""
    env = in_front(tmp_path / "front", '[ -e $front/hang ] && exec sleep 1000\nexec $program "$@"\n', "squeue", "sinfo")
    # Few saves: a rank that is stopped while it saves has more time.
    with slurm_job(tmp_path, model, steps=100000, train_options={"save-every": 5000}) as job:
        job.start(env=env)
        job.await_event("training", timeout=90)
        (tmp_path / "front/hang").touch()
        time.sleep(1)
        os.kill(next(pids_of("tp-train", "layout=tp4")), signal.SIGSTOP)
        hang = job.await_event("hang", timeout=30)
        assert hang["seconds"] < 15, "it waits at most 5 s for an answer"
        (tmp_path / "front/hang").unlink()
        assert job.verb("stop", "--wait").rc == 0 and job.wait(60) == 75


def test_srun_that_exits_with_0_but_started_nothing_is_not_a_success(tmp_path, model, cluster):
    """Slurm 22.05 does this when a launch is aborted, for instance in a job that was just requeued."""
    env = in_front(tmp_path / "front", """case "$*" in *--mpi=pmix*)
    mkdir $front/once 2>/dev/null && { echo "srun: launch/slurm: launch_p_step_launch: StepId=1.0 aborted before step \
completely launched." >&2; exit 0; } ;;
esac
exec $program "$@"
""", "srun")
    with slurm_job(tmp_path, model, steps=30) as job:
        job.start(env=env)
        assert job.wait(90) == 0
        assert (tmp_path / "front/once").exists() and sorted(job.losses()) == list(range(30)), job.story()
        assert "aborted" in job.events("restart")[0]["message"]
        again = job.start(env=env)
        assert again.wait(60) == 0, "a job that is done stays done"
