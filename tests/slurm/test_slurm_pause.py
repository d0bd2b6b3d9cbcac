"""tp-run and a job that Slurm stops for a while or takes its nodes from: suspended, preempted, requeued."""
import time

from slurm_job import queue, slurm, slurm_job, wait_until


def test_a_suspended_job_is_waited_for_and_nobody_is_blamed(tmp_path, model, cluster):
    """Longer than it takes to lose a node (2 s), to call it a hang (3 s) and for the grace (3 s)."""
    with slurm_job(tmp_path, model, steps=100000) as job:
        job.path.write_text(job.path.read_text().replace("grace: 20s", "grace: 3s"))
        job.start()
        job.await_event("save", timeout=90)
        slurm("scontrol", "suspend", queue()[0])
        job.await_event("allocation", result="suspended", timeout=10)
        assert "suspended" in job.verb("stop").out
        time.sleep(5)
        s = job.status()
        assert s["slurm"]["state"] == "SUSPENDED" and s["attempt"] == 1, job.story()
        slurm("scontrol", "resume", queue(states="SUSPENDED")[0])
        assert job.wait(30) == 75
        assert job.events("stopped")[0]["reason"] == "saved and stopped"
        s = [e["event"] for e in job.events() if e["event"] in ("node_lost", "hang", "killed", "restart")]
        assert s == [], job.story()


def test_a_suspended_job_trains_on_and_learns_nothing_from_the_pause(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=100000) as job:
        job.start()
        job.await_event("save", timeout=90)
        slurm("scontrol", "suspend", queue()[0])
        job.await_event("allocation", result="suspended", timeout=10)
        time.sleep(3)
        slurm("scontrol", "resume", queue(states="SUSPENDED")[0])
        job.await_event("allocation", result="resumed", timeout=10)
        s = job.await_step(job.status()["step"] + 20)
        assert s["attempt"] == 1 and s["spent"]["waiting"] > 3, job.story()
        assert s["deadline_seconds"] < 5, "a step of the length of the pause was learnt"
        job.verb("stop", "--wait")


def test_in_a_suspended_batch_job_tp_run_is_stopped_too_and_goes_on(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=100000)
    this = job.verb("submit").out.strip()
    wait_until(lambda: job.events("training") and job.events("save"))
    attempt = job.events()[-1]["attempt"]
    slurm("scontrol", "suspend", this)
    time.sleep(6)
    slurm("scontrol", "resume", this)
    stood = wait_until(lambda: [e for e in job.events("allocation") if e["result"] == "stood still"], 20)
    wait_until(lambda: job.status()["step"] > stood[0]["step"] + 20)
    s = job.status()
    assert s["attempt"] == attempt and not job.events("node_lost") + job.events("hang"), job.story()
    assert s["spent"]["waiting"] > 5
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)
