"""The allocation of a tp-run on Slurm: it waits in the queue, gets its options, and ends at its time
limit.

covers: orchestrator/backend/slurm/slurm_allocation orchestrator/backend/slurm/slurm_ending
covers: orchestrator/backend/slurm/slurm_status
covers: orchestrator/backend/slurm/slurm_next
"""
import json
import subprocess
import time

import pytest

import harness
from run_job import killed_after
from slurm_job import end_in, in_front, queue, slurm, slurm_job, wait_until


def occupy():
    """Give all nodes to another Slurm job. Returns its id."""
    err = subprocess.run(["salloc", "--no-shell", "-N3", "--exclusive", "-J", "other"],
                         capture_output=True, text=True, check=True).stderr
    return err.split()[-1]


# Its arguments are appended to NAME.calls. Accounts and containers are not passed on, because this cluster has none.
LISTS_CALLS = """printf '%s\\n' "$*" >>$front/$name.calls
args=()
for a in "$@"; do [[ $a == --container* || $a == --account* ]] || args+=("$a"); done
exec $program "${args[@]}"
"""


def kept_curve(job):
    steps = job.losses()
    return sorted(steps) == list(range(len(steps)))


# ---- the queue ----

def test_status_and_stop_answer_while_the_request_is_queued(tmp_path, model, cluster):
    occupy()
    with slurm_job(tmp_path, model) as job:
        job.start()
        s = wait_until(lambda: (job.status() or {}).get("slurm", {}).get("state") == "PENDING"
                       and job.status())
        assert s["slurm"]["reason"] == "Resources" and s["state"] == "plan"
        assert "PENDING (Resources)" in job.verb("status").out
        assert job.verb("stop", "--wait").rc == 0
        assert job.wait(20) == 75
        assert wait_until(lambda: not queue()), "the request was left in the queue"


def test_killed_while_queued_it_keeps_its_place_in_the_queue(tmp_path, model, cluster):
    other = occupy()
    with slurm_job(tmp_path, model, steps=40) as job:
        for _ in range(2):
            job.start()
            wait_until(lambda: (job.status() or {}).get("slurm", {}).get("state") == "PENDING")
            job.process.kill()
            job.process.wait()
        job.start()
        slurm("scancel", other)
        assert job.wait(90) == 0, job.story()
        assert len(queue(states="all")) == 1, "it requested nodes twice"
        assert kept_curve(job) and len(job.losses()) == 40


def test_a_request_that_slurm_refuses_is_reported_in_one_sentence(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, options="[--partition=absent]") as job:
        job.start()
        assert job.wait(30) == 3
        reason = job.events("failed")[0]["message"]
        assert "salloc" in reason and "nvalid partition" in reason, reason


def test_a_user_who_cancels_the_allocation_ends_the_run(tmp_path, model, cluster):
    """tp-run replaces an allocation that Slurm ends, but not one that a user cancels."""
    with slurm_job(tmp_path, model) as job:
        job.start()
        job.await_event("save", timeout=90)
        slurm("scancel", queue()[0])
        assert job.wait(60) == 75
        assert job.events("stopped")[0]["reason"] == "slurm_allocation_over"
        assert "CANCELLED" in job.events("stopped")[0]["message"]
        assert len(queue(states="all")) == 1 and queue() == []
        job.start()
        assert job.await_event("training", 2, timeout=60)["resumed_at"] >= 10, "a new run may continue"
        r = job.verb("node", "down", "n1")
        assert r.rc == 2 and "scontrol" in r.err
        job.verb("stop", "--wait")


# ---- options ----

def test_options_are_passed_on(tmp_path, model, cluster):
    """Options go to salloc and sbatch; containers go to srun."""
    front = tmp_path / "front"
    env = in_front(front, LISTS_CALLS, "salloc", "sbatch", "srun")
    options = ["--partition=main", "--time=7", "--account=phys", "--comment=of mine",
               "--container=/images/x"]
    with slurm_job(tmp_path, model, steps=20, options=json.dumps(options),
                   step_options="[--cpu-bind=none]") as job:
        job.start(env=env)
        job.await_event("training", timeout=60)
        assert queue("%P|%l|%k") == ["main|7:00|of mine"]
        assert job.wait(60) == 0
        calls = (front / "salloc.calls").read_text()
        assert all(o in calls for o in options), calls
        step = next(s for s in (front / "srun.calls").read_text().splitlines() if "--mpi=pmix" in s)
        assert "--container=/images/x" in step and "--cpu-bind=none" in step
        assert "--partition" not in step
    with slurm_job(tmp_path / "b", model, steps=20, options=json.dumps(options)) as job:
        r = harness.run("tp-run", "submit", job.path, env=env)
        assert r.rc == 0, repr(r)
        calls = (front / "sbatch.calls").read_text()
        assert all(o in calls for o in options[:-1]) and "--container" not in calls, calls
        assert queue("%P|%l|%k") == ["main|7:00|of mine"]
        wait_until(lambda: job.events("done"), 60)


def refused(folder, model, option, message):
    with slurm_job(folder, model, options="[%s]" % option) as job:
        job.start()
        assert job.wait(30) == 3
        reason = job.events("failed")[0]["message"]
        assert "salloc" in reason and message in reason, reason
        r = job.verb("submit")
        assert r.rc == 3 and message in r.err and len(r.err.strip().splitlines()) == 1, repr(r)


def test_accounts_and_qos_are_used_and_a_refusal_has_slurms_message(tmp_path, model, accounts):
    """All in one test, because starting the accounts takes ten seconds."""
    refused(tmp_path / "account", model, "--account=nobody", "nvalid account")
    refused(tmp_path / "qos", model, "--qos=fast", "nvalid qos")
    options = "[--account=phys, --qos=slow]"
    with slurm_job(tmp_path / "mine", model, steps=20, options=options) as job:
        this = job.verb("submit").out.strip()
        wait_until(lambda: job.events("done"))
    booked = ["sacct", "-X", "-n", "-P", "-j", this, "-o", "account,qos,state"]
    wait_until(lambda: slurm(*booked) == "phys|slow|COMPLETED", 20)


# ---- the time limit ----

def test_outside_of_slurm_another_allocation_follows(tmp_path, model, cluster, figure):
    with slurm_job(tmp_path, model, steps=100000, options="[--time=60]", margin="12s") as job:
        job.start()
        job.await_event("save", timeout=90)
        end_in(queue()[0], 14)
        ends = job.await_event("allocation", result="ends", timeout=30)
        again = job.await_event("training", 2, timeout=60)
        figure("seconds without training", round(again["time"] - ends["time"], 2))
        assert again["resumed_at"] >= ends["step"], "steps were lost"
        assert len(queue(states="RUNNING")) == 1 and len(queue(states="all")) == 2
        assert not job.events("restart"), "the end of the time limit counts as a fault"
        job.verb("stop", "--wait")
        assert kept_curve(job) and job.wait() == 75 and queue() == []


def test_batch_jobs_follow_each_other(tmp_path, model, cluster, figure):
    job = slurm_job(tmp_path, model, steps=100000, options="[--time=60]", margin="12s")
    first = json.loads(job.verb("submit", "--json").out)["slurm_job"]
    wait_until(lambda: job.events("save"))
    wait_until(lambda: job.events("chain"))
    waiting = queue("%i|%E", states="PENDING")
    assert len(waiting) == 1 and "afterany:%d" % first in waiting[0]
    end_in(first, 14)
    most = 0

    def trains_again():
        nonlocal most
        most = max(most, len(queue(states="RUNNING")))
        return job.events("training")[1:]
    again = wait_until(trains_again, 90)[0]
    assert most == 1, "two jobs ran at once"
    ends = [e for e in job.events("allocation") if e["result"] == "ends"][0]
    figure("seconds without training", round(again["time"] - ends["time"], 2))
    assert again["resumed_at"] >= ends["step"], "steps were lost"
    assert job.events("stopped")[0]["reason"] == "slurm_job_continues"
    wait_until(lambda: len(job.events("chain")) == 2)
    assert (job.state / "home").read_text().split()[2] in ("n1", "n2", "n3")
    front = in_front(tmp_path / "front", LISTS_CALLS, "srun")
    harness.run("tp-run", "status", job.path, env=front)
    assert " ask " in (tmp_path / "front/srun.calls").read_text()
    s = job.status()  # srun asks on the job's node, because this host is not a node of Slurm
    assert s["slurm"]["job"] == int(waiting[0].split("|")[0]) and s["slurm"]["next"]
    assert job.verb("resize", "tp3").rc == 2, "the refusal is passed on with its exit code"
    assert harness.run("tp-run", "stop", job.path).rc == 0
    wait_until(lambda: not queue(), 30)
    assert kept_curve(job)


def test_stopped_between_two_batch_jobs_it_stays_stopped(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=100000, options="[--time=60]", margin="12s")
    first = int(job.verb("submit").out)
    wait_until(lambda: job.events("chain"))
    slurm("scontrol", "hold", queue(states="PENDING")[0])
    end_in(first, 14)
    wait_until(lambda: job.events("stopped"), 60)
    wait_until(lambda: not queue(states="RUNNING,COMPLETING"))
    assert "cancelled" in job.verb("stop").out
    assert queue() == []


def test_a_next_batch_job_that_was_cancelled_is_submitted_again(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=100000, options="[--time=60]", margin="12s")
    first = int(job.verb("submit").out)
    wait_until(lambda: job.events("chain") and job.events("save"))
    slurm("scancel", queue(states="PENDING")[0])
    end_in(first, 14)
    wait_until(lambda: job.events("training")[1:], 90)
    assert queue(states="RUNNING") == [str(first + 2)]
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)


def test_one_wrong_answer_about_the_next_batch_job_is_not_believed(tmp_path, model, cluster):
    front = tmp_path / "front"
    env = in_front(front, """out=$($program "$@") || exit
[[ $out != *PENDING* ]] || ! rmdir $front/lie 2>/dev/null || out=${out//PENDING/CANCELLED}
echo "$out"
""", "squeue")
    job = slurm_job(tmp_path, model, steps=100000, options="[--time=60]", margin="12s")
    first = int(harness.run("tp-run", "submit", job.path, env=env).out)
    wait_until(lambda: job.events("chain") and job.events("save"))
    (front / "lie").mkdir()
    end_in(first, 14)
    wait_until(lambda: job.events("training")[1:], 90)
    assert not (front / "lie").exists(), "nobody asked"
    assert [e["next"] for e in job.events("chain") if e["slurm_job"] == first] == [first + 1]
    assert queue(states="RUNNING") == [str(first + 1)]
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)


def test_allocations_without_progress_end_the_run(tmp_path, model, cluster):
    """Each allocation ends before the first step. After restart.no_progress of them tp-run gives up."""
    with slurm_job(tmp_path, model, restart={"no_progress": 2}, options="[--time=60]") as job:
        text = job.path.read_text()
        command = text[text.index("command:"):text.index("\nckpt")]
        job.path.write_text(text.replace(command, "command: sleep 600\ncheckpoints: none"))
        job.start()
        for n in range(1, 4):
            wait_until(lambda: [e for e in job.events("allocation") if e["result"] == "held"][n - 1:]
                       or job.process.poll() is not None)
            if job.process.poll() is not None:
                break
            wait_until(lambda: job.events("launch")[n - 1:] or job.process.poll() is not None)
            for i in queue(states="RUNNING"):
                end_in(i, 4)
        assert job.wait(60) == 3
        assert job.events("failed")[0]["reason"] == "slurm_no_progress"
        time.sleep(0.5)
        assert queue() == []


# ---- tp-run is killed ----

@pytest.mark.parametrize("n", range(1, 13) if harness.LONG else [1, 2, 3, 5])
def test_killed_after_any_record_it_has_one_allocation_and_none_at_the_end(tmp_path, model,
                                                                           cluster, n):
    with slurm_job(tmp_path, model, steps=30) as job:
        job.start(env=killed_after(n))
        assert job.wait(60) in (-9, 0)
        job.start()
        assert job.wait(90) == 0, job.story()
        assert len(queue(states="all")) == 1, "it requested nodes twice"
        assert wait_until(lambda: not queue())
        assert kept_curve(job) and len(job.losses()) == 30
