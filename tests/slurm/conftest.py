"""Fixtures of the tests on Slurm: the cluster and the model."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from _pytest.runner import runtestprotocol

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cli"))
import harness  # noqa: E402

CLUSTER = str(HERE / "cluster.sh")
MISSING = [p for p in ("slurmctld", "slurmd", "srun", "munged", "ip") if not shutil.which(p)]


def pytest_collection_modifyitems(items):
    why = "needs root (namespaces, munge)" if os.geteuid() != 0 else (
        "needs " + ", ".join(MISSING) if MISSING else "")
    for item in items if why else []:
        item.add_marker(pytest.mark.skip(reason=why))


# ---- crashes of MPI ----

# Open MPI 4.1.4 of Debian 12 below `srun --mpi=pmix`: a rank of any program jumps to address 0 in MPI_Init, in
# about 2 of 100 starts. tp-run restarts the job, as it must, but most tests expect a first start without faults.
MPI_CRASH = "Failing at address: (nil)"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call" and report.failed and "tmp_path" in item.funcargs:
        logs = item.funcargs["tmp_path"].rglob("attempt-*.log")
        report.mpi_crashed = MPI_CRASH in report.longreprtext or \
            any(MPI_CRASH in log.read_text(errors="replace") for log in logs)


def pytest_runtest_protocol(item, nextitem):
    """Run a test a second time if MPI has crashed in it. The second result counts."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(getattr(r, "mpi_crashed", False) for r in reports):
        print("\n%s: MPI crashed in MPI_Init, so the test runs again" % item.name)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return harness.write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cluster():
    """A cluster of three nodes of two processors. cluster("crash", "n1") and so on call cluster.sh."""
    subprocess.run([CLUSTER, "up", "3"], check=True, timeout=90, stdin=subprocess.DEVNULL)
    yield lambda *a: subprocess.run([CLUSTER, *a], check=True, timeout=60)
    subprocess.run([CLUSTER, "down"], timeout=60)


@pytest.fixture
def accounts(cluster):
    """The cluster with accounts (accounts.sh)."""
    missing = [p for p in ("slurmdbd", "mariadbd", "sacctmgr") if not shutil.which(p)]
    if missing:
        pytest.skip("needs " + ", ".join(missing))
    subprocess.run([HERE / "accounts.sh", "up"], check=True, timeout=120, stdin=subprocess.DEVNULL)
    yield cluster
    subprocess.run([HERE / "accounts.sh", "down"], timeout=60)
