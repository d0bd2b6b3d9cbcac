"""Runs the programs of tests/fakecuda/planted*.cu, in which a mistake is planted or none."""
import os
import subprocess


def run(program, name, seed, timeout=60, **environment):
    """One of them; the seed chooses the order in which the fake device runs what it may."""
    return subprocess.run([program, name], env={**os.environ, "FAKECUDA_SEED": str(seed), **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False)


def names(program):
    """Of all that it has."""
    return set(subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False).stdout.split())
