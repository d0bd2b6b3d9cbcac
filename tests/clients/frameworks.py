"""Runs programs of this folder that need packages of requirements-frameworks.txt, which are in a folder of their own: other
programs would import them where they find them."""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def megatron_versions():
    """Those of requirements-megatron.txt, the newest one last."""
    lines = (HERE / "requirements-megatron.txt").read_text().splitlines()
    return [line.split()[0].split("==")[1] for line in lines if "==" in line]


NEWEST_MEGATRON = megatron_versions()[-1]


def run(program, *argv, megatron=None, transformers=None, torchtitan=None, meta=None):
    """Run it and return what it printed. The end of a failure's output is shown. megatron, transformers: the version of Megatron-core
    or transformers, if it is another than that of requirements-frameworks.txt or requirements.txt; torchtitan, meta: its version."""
    folders = [os.environ["TP_FRAMEWORKS"]]
    for name, version in (("megatron-core", megatron), ("transformers", transformers), ("torchtitan", torchtitan), ("meta", meta)):
        if version:
            folders.insert(0, os.path.join(os.environ["TP_FRAMEWORKS"], name, version))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(folders), PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1")
    r = subprocess.run([sys.executable, "-B", HERE / program, *map(str, argv)], env=env, text=True, timeout=1200,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]
    return r.stdout
