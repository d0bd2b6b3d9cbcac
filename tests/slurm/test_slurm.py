"""tp-run on a real Slurm of several nodes on this machine (cluster.sh): nodes crash and come back.

These tests need root and Debian's slurmctld, slurmd, slurm-client, munge and iproute2; if one is missing
they are skipped with a message. Only one cluster fits on a machine: do not run them twice at once.

covers: orchestrator/run_relays orchestrator/backend/slurm/slurm_nodes
covers: orchestrator/backend/slurm/slurm_growth orchestrator/backend/slurm/slurm_standby
covers: orchestrator/backend/slurm/slurm_verbs
"""
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest

import harness
from slurm_job import in_front, node_of, pids_of, queue, rank_of, slurm, slurm_job, wait_until, word_of


@pytest.mark.parametrize("fault", ["crash", "cut"])
def test_after_a_lost_node_the_other_nodes_continue(tmp_path, model, cluster, figure, fault):
    with slurm_job(tmp_path, model) as job:
        job.start()
        job.await_event("save", timeout=90)
        node, begin = node_of(job, 2), time.time()
        cluster(fault, node)
        lost = job.await_event("node_lost", timeout=60)
        again = job.await_event("training", 2, timeout=60)
        figure("seconds from the %s to training on the other nodes" % fault,
               round(again["time"] - begin, 2))
        assert lost["node"] == node, job.story()
        assert node not in {r["node"] for r in job.status()["ranks"]}
        assert again["resumed_at"] >= 10 and again["layout"] == "tp4"
        assert job.verb("stop", "--wait").rc == 0
        assert job.wait() == 75
        assert harness.ok("tp-ckpt", "verify", job.ckpt).rc == 0
        assert queue() == [], "the allocation was not released"


def start_and_take_over(job):
    """Start a job, kill its tp-run while it trains, and let another tp-run take over."""
    job.start()
    job.await_event("save", timeout=90)
    job.process.kill()
    job.process.wait()
    job.start()
    job.await_event("takeover", running=True)
    job.await_step(30)


def test_a_killed_rank_and_a_killed_tp_run(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=300) as job:
        start_and_take_over(job)
        os.kill(next(p for p in pids_of("tp-train", "layout=tp4")), signal.SIGKILL)
        job.await_event("rank_exit", timeout=60)
        job.await_event("training", 3, timeout=60)
        assert job.wait(180) == 0
        assert sorted(job.losses()) == list(range(300))


def test_the_node_of_each_rank_is_the_one_that_srun_chose(tmp_path, model, cluster):
    """tp-run expects ranks in blocks. With another order from the user's options, it blames the right node."""
    with slurm_job(tmp_path, model, steps=3000, step_options='["--distribution=cyclic"]') as job:
        job.start()
        job.await_step(20)
        where = {}
        for pid in pids_of("tp-train", "layout=tp4"):
            proc = pathlib.Path("/proc/%d" % pid)
            where[rank_of(proc)] = word_of(proc, "SLURMD_NODENAME")
        assert where[0] != where[1] and where[0] == where[2], "srun did not distribute them cyclically"
        wait_until(lambda: {r: node_of(job, r) for r in range(4)} == where, 10)
        cluster("crash", where[1])
        assert job.await_event("node_lost", timeout=60)["node"] == where[1]
        job.await_event("training", 2, timeout=60)
        assert job.verb("stop", "--wait").rc == 0


def test_with_too_few_nodes_a_new_allocation_is_requested(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, min_nodes=3) as job:
        job.start()
        job.await_event("save", timeout=90)
        node = node_of(job, 2)
        cluster("crash", node)
        job.await_event("node_lost", timeout=60)
        cluster("start", node)
        job.await_event("training", 2, timeout=120)
        assert len(queue(states="all")) == 2
        job.verb("stop", "--wait")


def test_a_lost_node_without_ranks_is_noticed_too(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, grow="off") as job:
        job.start()
        job.await_event("save", timeout=90)
        idle = ({"n1", "n2", "n3"} - {r["node"] for r in job.status()["ranks"]}).pop()
        cluster("crash", idle)
        lost = job.await_event("node_lost", timeout=60)
        assert lost["node"] == idle and lost["reason"].startswith("slurm_node_")
        step = job.status()["step"]
        job.await_step(step + 5)
        assert job.status()["attempt"] == 1, "the training was disturbed\n" + job.story()
        assert {n["node"]: n["state"] for n in job.status()["nodes"]}[idle] == "down"
        job.verb("stop", "--wait")


@pytest.mark.parametrize("grow", ["expand", "new"])
def test_a_lost_node_is_replaced_by_another(tmp_path, model, cluster, grow):
    wordy = "for i in {1..8}; do echo 'salloc: read the rules of this site before you use it' >&2; done; exec $program \"$@\""
    with slurm_job(tmp_path, model, steps=100000, nodes=2, allow="[tp4, tp2]", grow=grow) as job:
        job.start(in_front(tmp_path / "front", wordy, "salloc"))
        job.await_event("save", timeout=90)
        cluster("crash", node_of(job, 2))
        job.await_event("node_lost", timeout=60)
        small = job.await_event("training", 2, timeout=60)
        assert small["layout"] == "tp2"
        wide = job.await_event("training", 3, timeout=90)
        assert wide["layout"] == "tp4" and not wide["after_fault"]
        drain = job.events("drain")[-1]
        assert wide["resumed_at"] >= drain["step"], "steps were lost by scaling up"
        assert len(queue(states="RUNNING")) == 1, "more than one allocation is held"
        one = len({e["slurm_job"] for e in job.events("allocation") if e["result"] == "held"})
        assert one == (1 if grow == "expand" else 2), job.story()
        if grow == "expand":
            assert job.events("node_back")[0]["node"] == "n3"
        job.verb("stop", "--wait")
        assert queue() == []


def test_a_node_that_was_cut_off_is_used_again(tmp_path, model, cluster):
    """Slurm does not notice. The node counts as back when it can start a process."""
    with slurm_job(tmp_path, model, steps=100000, nodes=2, allow="[tp4, tp2]", grow="off") as job:
        job.start()
        job.await_event("save", timeout=90)
        node = node_of(job, 2)
        cluster("cut", node)
        assert job.await_event("node_lost", timeout=30)["node"] == node
        job.await_event("training", 2, timeout=60)
        assert job.events("node_back") == [], "it counts as back while it is disconnected"
        cluster("join", node)
        assert job.await_event("node_back", timeout=60)["node"] == node
        assert job.await_event("training", 3, timeout=60)["layout"] == "tp4"
        assert queue("%i|%D") == ["1|2"]
        job.verb("stop", "--wait")


def test_a_node_at_fault_is_drained(tmp_path, model, cluster):
    with slurm_job(tmp_path, model, steps=100000, allow="[tp4, tp2]", drain="true",
                   restart={"blame": 1, "exclude_for": "1h"}) as job:
        job.start()
        job.await_event("save", timeout=90)
        node, pid = node_of(job, 3), next(pids_of("tp-train", "layout=tp4", 3))
        os.kill(pid, signal.SIGKILL)
        assert job.await_event("rank_exit", timeout=30)["node"] == node, job.story()
        done = job.await_event("node_drained", timeout=30)
        assert done["node"] == node and done["ok"], done
        state = wait_until(lambda: slurm("sinfo", "-h", "-N", "-n", node, "-o", "%T %E"))
        assert state.startswith("drain") and "tp-run job" in state, state
        job.await_event("training", 2, timeout=60)
        assert node not in {r["node"] for r in job.status()["ranks"]}
        job.verb("stop", "--wait")


def test_after_a_takeover_nodes_are_watched_again(tmp_path, model, cluster, figure):
    with slurm_job(tmp_path, model) as job:
        start_and_take_over(job)
        time.sleep(2)
        node, begin = node_of(job, 2), time.time()
        cluster("cut", node)
        lost = job.await_event("node_lost", timeout=12)
        assert lost["node"] == node and lost["reason"] == "no_heartbeat", lost
        figure("seconds until the loss is noticed", round(lost["time"] - begin, 2))
        job.await_event("training", 3, timeout=60)
        job.verb("stop", "--wait")


def test_inside_a_batch_job_it_uses_that_allocation(tmp_path, model, cluster):
    job = slurm_job(tmp_path, model, steps=60)
    script = tmp_path / "batch.sh"
    script.write_text("#!/bin/bash\nexec %s %s\n" % (harness.BIN / "tp-run", job.path))
    out = subprocess.run(["sbatch", "--wait", "-N3", "--ntasks-per-node=2", "-o",
                          str(tmp_path / "out"), str(script)], timeout=150)
    assert out.returncode == 0, (tmp_path / "out").read_text() + job.story()
    assert sorted(job.losses()) == list(range(60))


def test_in_a_batch_job_another_node_takes_over_from_a_lost_tp_run(tmp_path, model, cluster, figure):
    job = slurm_job(tmp_path, model, steps=100000, allow="[tp4, tp2]", grow="off")
    job.verb("submit")
    wait_until(lambda: job.events("save"))
    home = (job.state / "home").read_text().split()[2]
    wait_until(lambda: list_steps("standby"), 30)
    begin = time.time()
    cluster("crash", home)
    again = wait_until(lambda: job.events("training")[1:], 90)[0]
    figure("seconds to training, including Slurm's 10 to 17 to notice", round(again["time"] - begin, 1))
    assert again["resumed_at"] >= 10
    assert (job.state / "home").read_text().split()[2] != home
    assert len(queue(states="RUNNING")) == 1
    assert home not in {r["node"] for r in job.status()["ranks"]}
    assert job.verb("stop").rc == 0
    wait_until(lambda: not queue(), 30)
    assert job.events("stopped")[0]["message"] == "saved and stopped"
    steps = job.losses()
    assert sorted(steps) == list(range(len(steps)))


def list_steps(name):
    """The pids of tp-run processes of this kind on all nodes, which share this machine."""
    return list(pids_of("tp-run", name))


# ---- faults of all kinds in one run ----

STEPS = 300


@pytest.fixture(scope="session")
def reference(tmp_path_factory, model):
    """{step: loss} of a run without failures."""
    log = tmp_path_factory.mktemp("reference") / "log"
    harness.ok("tp-train", "--model", model, "--data", harness.TEXT, "--steps", STEPS, "--warmup", 2,
               "--seq", 64, "--batch", 8, "--log", log)
    return dict(enumerate(harness.losses(log)))


class Faults:
    """Faults of a job on the cluster. Each method causes one."""

    def __init__(self, job, cluster, rng):
        self.job, self.cluster, self.rng, self.away = job, cluster, rng, {}

    def signal_rank(self, number):
        pids = list(pids_of("tp-train", "layout=" + self.job.status()["layout"]))
        if pids:
            os.kill(self.rng.choice(pids), number)

    def kill(self):
        self.signal_rank(signal.SIGKILL)

    def stop(self):
        self.signal_rank(signal.SIGSTOP)

    def tp_run(self):
        self.job.process.kill()
        self.job.process.wait()
        self.job.start()

    def node(self):
        """Take one node away, or bring it back. Two of three nodes are always available."""
        if self.away:
            node, how = self.away.popitem()
            self.cluster({"crash": "start", "cut": "join"}[how], node)
            return
        how, node = self.rng.choice(["crash", "cut"]), self.rng.choice(["n1", "n2", "n3"])
        self.away[node] = how
        self.cluster(how, node)


@pytest.mark.parametrize("faults", [12 if harness.LONG else 4])
def test_the_curve_is_that_of_a_run_without_failures(tmp_path, model, cluster, reference, figure,
                                                     faults):
    seed = int(os.environ.get("TP_SEED", 0)) or random.randrange(1 << 30)
    print("seed %d" % seed)
    rng, done = random.Random(seed), []
    with slurm_job(tmp_path, model, steps=STEPS, restart={"blame": 100}) as job:
        job.start()
        happen = Faults(job, cluster, rng)
        for i in range(faults):
            job.await_step((i + 1) * STEPS // (faults + 2), timeout=120)
            done.append(rng.choice(["kill", "stop", "tp_run", "node", "node"]))
            getattr(happen, done[-1])()
        assert job.wait(200) == 0, "seed %d %s\n%s" % (seed, done, job.story())
        got = job.losses()
        assert sorted(got) == list(range(STEPS)), "seed %d %s" % (seed, done)
        worst = max(abs(got[s] - reference[s]) for s in got)
        figure("worst difference of a loss after %s (seed %d)" % (" ".join(done), seed), worst)
        assert worst <= 2e-4 and max(abs(got[s] - reference[s]) for s in range(20)) <= 5e-6, seed
        assert queue() == []
