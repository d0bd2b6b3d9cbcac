"""A tree that `make install` has filled, for the tests of this folder."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402


def make(*words, code=0):
    """Run make in the repository with this run's build, which exits with `code`; its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    r = subprocess.run(["make", "-C", harness.REPO, *map(str, words)], env=env, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert r.returncode == code, r.stdout
    return r.stdout


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A prefix with everything installed."""
    prefix = tmp_path_factory.mktemp("installed") / "some prefix"
    make("install", "PREFIX=%s" % prefix)
    yield prefix
    shutil.rmtree(prefix)
