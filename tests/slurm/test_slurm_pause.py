"""tp-run and a job that Slurm suspends, preempts or requeues.

covers: orchestrator/backend/slurm/slurm_pause
"""
import subprocess
import time

import pytest

from slurm_job import end_in, in_front, queue, slurm, slurm_job, wait_until


def test_a_suspended_job_is_waited_for_and_no_node_is_blamed(tmp_path, model, cluster):
    """The pause is longer than the limits for a lost node (2 s), a hang (3 s) and the grace (3 s)."""
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
        assert job.events("stopped")[0]["message"] == "saved and stopped"
        s = [e["event"] for e in job.events() if e["event"] in ("node_lost", "hang", "killed", "restart")]
        assert s == [], job.story()


def test_a_suspended_job_continues_and_the_pause_does_not_change_its_deadlines(tmp_path, model, cluster):
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
        # a deadline is 15 times the longest steps; the pause of 3 s must not count as a step
        assert s["deadline_seconds"] < 30, "the pause was learnt as a step"
        job.verb("stop", "--wait")


def test_in_a_suspended_batch_job_tp_run_is_stopped_too_and_continues(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=100000)
    this = job.verb("submit").out.strip()
    wait_until(lambda: job.events("training") and job.events("save"))
    attempt = job.events()[-1]["attempt"]
    slurm("scontrol", "suspend", this)
    time.sleep(6)
    slurm("scontrol", "resume", this)
    stood = wait_until(lambda: [e for e in job.events("allocation") if e["result"] == "stood_still"], 20)
    wait_until(lambda: job.status()["step"] > stood[0]["step"] + 20)
    s = job.status()
    assert s["attempt"] == attempt and not job.events("node_lost") + job.events("hang"), job.story()
    assert s["spent"]["waiting"] > 5
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)


# ---- nodes that are taken away ----

def preempt(seconds=3):
    """A job of higher priority gets all nodes for a while."""
    return subprocess.Popen(["srun", "-N3", "-p", "urgent", "--exclusive", "-J", "urgent", "sleep", str(seconds)],
                            stderr=subprocess.DEVNULL)


def no_step_is_lost(job, again):
    """The attempt after the preemption starts at the step where the previous one ended."""
    drained = [e for e in job.events() if e["event"] in ("save", "stopped") and e["time"] < again["time"]]
    steps = job.losses()
    return (again["resumed_at"] == max(e["step"] for e in drained) and not job.events("restart")
            and sorted(steps) == list(range(len(steps))))


def run_at_once(slurm_id, *changes):
    """Slurm starts a requeued job after two minutes. Start it earlier; at first its nodes refuse that."""
    time.sleep(3)
    wait_until(lambda: queue("%i|%T", states="all").count("%s|PENDING" % slurm_id), 60)
    slurm("scontrol", "update", "JobId=%s" % slurm_id, "StartTime=now", *changes)


def test_preempted_it_saves_within_the_grace_and_asks_for_another_allocation(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=100000, options="[--partition=cancelled]") as job:
        job.start()
        job.await_event("save", timeout=90)
        begin = time.time()
        urgent = preempt()
        taken = job.await_event("allocation", result="taken", timeout=20)
        given_back = job.await_event("allocation", result="given_back", timeout=20)
        assert taken["reason"] == "slurm_preempted" and given_back["time"] - begin < 9, job.story()
        again = job.await_event("training", 2, timeout=60)
        assert urgent.wait(20) == 0
        assert no_step_is_lost(job, again), job.story()
        job.verb("stop", "--wait")


@pytest.mark.parametrize("chain", ["true", "false"])
def test_a_preempted_batch_job_continues_in_the_next_job_or_requeued(tmp_path, model, cluster, chain):
    job = slurm_job(tmp_path, model, steps=100000, chain=chain, options="[--partition=requeued]")
    first = job.verb("submit").out.strip()
    wait_until(lambda: job.events("save"))
    urgent = preempt(1)
    if chain == "false":
        run_at_once(first)
    else:
        wait_until(lambda: job.events("stopped"), 30)
    again = wait_until(lambda: [e for e in job.events("training") if e["resumed_at"] > 0], 60)[0]
    assert urgent.wait(20) == 0
    assert no_step_is_lost(job, again), job.story()
    running = queue(states="RUNNING")
    assert (running == [first]) == (chain == "false") and len(running) == 1
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)


def test_with_chain_requeue_other_jobs_can_depend_on_one_job_id(tmp_path, model, cluster):
    """The margin is as long as what is left, so that the first run ends at once, and has a minute to do so on a slow
    machine. Slurm keeps the short limit for the second run, which would not end in it there."""
    job = slurm_job(tmp_path, model, steps=300, chain="requeue", margin="60s", options="[--time=60]")
    first = job.verb("submit").out.strip()
    after = slurm("sbatch", "--parsable", "-J", "after", "-o", "/dev/null", "--dependency=afterok:" + first,
                  "--wrap=true")
    wait_until(lambda: job.events("save"), 120)
    end_in(first, 60)
    wait_until(lambda: job.events("stopped"), 60)
    assert "job %s, which continues" % first in job.events("stopped")[0]["message"], job.story()
    run_at_once(first, "TimeLimit=60")
    wait_until(lambda: job.events("training")[1:], 120)
    assert queue("%i|%T", states="all", name="after") == [after + "|PENDING"]
    assert queue(states="all") == [first] and not job.events("chain")
    wait_until(lambda: job.events("done"), 600)
    wait_until(lambda: queue("%i|%T", states="all", name="after") == [after + "|COMPLETED"], 60)
    assert queue("%i|%T", states="all") == [first + "|COMPLETED"]


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_the_batch_job_is_requeued_although_slurm_does_not_answer_at_first(tmp_path, model, cluster, monkeypatch, lost):
    """scontrol fails three times because the controller does not answer, or once although it has requeued the job."""
    before = in_front(tmp_path / "front", """[ "$1" = requeue ] || exec $program "$@"
echo >>$front/count
if [ %s = answer ]; then $program "$@" && false
else [ "$(wc -l <$front/count)" -gt 3 ]; fi ||
    { echo "slurm_requeue error: Socket timed out on send/recv operation" >&2; exit 1; }
exec $program "$@"
""" % lost, "scontrol")
    monkeypatch.setenv("PATH", before["PATH"])
    job = slurm_job(tmp_path, model, steps=100000, chain="requeue", margin="60s", options="[--time=60]")
    first = job.verb("submit").out.strip()
    wait_until(lambda: job.events("save"), 120)
    end_in(first, 60)
    wait_until(lambda: job.events("stopped"), 60)
    assert job.events("stopped")[0]["reason"] == "slurm_requeued", job.story()
    if lost == "request":
        assert len((tmp_path / "front/count").read_text()) >= 4
    run_at_once(first, "TimeLimit=60")
    wait_until(lambda: job.events("training")[1:], 120)
    assert queue(states="all") == [first]
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)


def test_a_requeued_batch_job_continues_under_its_id(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=100000, options="[--time=60]")
    first = job.verb("submit").out.strip()
    wait_until(lambda: job.events("save") and job.events("chain"))
    slurm("scontrol", "requeue", first)
    wait_until(lambda: job.events("stopped"), 30)
    assert job.events("stopped")[0]["reason"] == "slurm_requeued"
    assert queue(states="PENDING") in ([], [first]), "another job is in the queue"
    run_at_once(first)
    again = wait_until(lambda: [e for e in job.events("training") if e["resumed_at"] > 0], 60)[0]
    assert no_step_is_lost(job, again), job.story()
    assert queue(states="RUNNING") == [first]
    assert len([e for e in job.events("allocation") if e["result"] == "held"]) == 2
    assert "batch job was submitted" in (job.state / ("slurm-%s.out" % first)).read_text(), "the output of the first run is lost"
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)
