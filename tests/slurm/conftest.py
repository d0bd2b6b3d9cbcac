"""Fixtures of the tests on Slurm: the cluster and the model."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

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
