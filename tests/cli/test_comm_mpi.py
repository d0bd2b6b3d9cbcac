"""How failures end a job that mpirun has started (tests/mpi/comm_fail.c).

needs: mpi/comm_fail
"""
import os
import subprocess
import time

import pytest

import harness

FAIL = harness.built("mpi/comm_fail")


def mpirun(how, **env):
    return subprocess.run(["mpirun", "-n", "4", FAIL, how], env={**os.environ, **env}, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=300)


def remaining(tag):
    """Processes that have `tag` in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as f:
                if tag.encode() in f.read():
                    found.append(pid)
        except OSError:
            pass  # the process belongs to another user or has ended
    return found


@pytest.mark.parametrize("host_ranks", ["4", "1"])  # shared memory, messages
def test_an_agreed_failure_is_printed_once_and_gives_its_code(host_ranks):
    p = mpirun("agreed", TP_HOST_RANKS=host_ranks)
    assert p.returncode == 3, p
    assert p.stderr.count("rank 3: the disk is full") == 1, p.stderr


@pytest.mark.parametrize("how,code", [("alone", 2), ("killed", None)])
@pytest.mark.parametrize("host_ranks", ["4", "1"])
def test_the_other_ranks_end_when_one_dies(how, code, host_ranks):
    tag = "TP_TEST_TAG=%s-%s-%d" % (how, host_ranks, os.getpid())
    p = mpirun(how, TP_HOST_RANKS=host_ranks, TP_TEST_TAG=tag.split("=")[1])
    assert p.returncode != 0 and code in (None, p.returncode), p
    deadline = time.time() + 60
    while remaining(tag) and time.time() < deadline:
        time.sleep(0.05)
    assert not remaining(tag)


def test_ranks_that_mpi_does_not_connect_print_what_to_do():
    """srun without --mpi=pmix starts tasks that MPI does not connect."""
    env = {**os.environ, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    p = subprocess.run([FAIL], env=env, text=True, capture_output=True, timeout=60)
    assert p.returncode == 3, p
    assert "4 ranks were started, and MPI knows of 1" in p.stderr, p.stderr
    assert "srun --mpi=pmix" in p.stderr
