"""Runs the programs of tests/fakecuda/planted*.cu, in which a mistake is planted or none."""
import os
import re
import subprocess

import pytest

SEEDS = range(4)


def run(program, name, seed, timeout=60, **environment):
    """One of them; the seed chooses the order in which the fake device runs what it may."""
    return subprocess.run([program, name], env={**os.environ, "FAKECUDA_SEED": str(seed), **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False)


def names(program):
    """Of all that it has."""
    return set(subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False).stdout.split())


def assert_passes(program, name, printed):
    """A correct program passes in every order."""
    for seed in SEEDS:
        p = run(program, name, seed)
        assert (p.returncode, p.stdout, p.stderr) == (0, printed + "ended: no error\n", ""), seed


def assert_found(program, name, message, place=""):
    """A mistake is found in every order; the report says this, and names the kernel or the line."""
    for seed in SEEDS:
        p = run(program, name, seed)
        assert p.returncode == 86, (seed, p.stdout, p.stderr)
        assert re.search("fakecuda: .*(?:" + message + ")", p.stderr), (seed, p.stderr)
        assert place in p.stderr, (seed, p.stderr)


def tests(program, correct, mistakes):
    """The three tests of a file, for its tables of programs: what a correct one prints, and the arguments of assert_found, or the
    first of them."""
    def every_planted_program_has_a_test():
        assert names(program) == set(correct) | set(mistakes)

    @pytest.mark.parametrize("name", correct)
    def correct_programs_pass_in_every_order(name):
        assert_passes(program, name, correct[name])

    @pytest.mark.parametrize("name", mistakes)
    def a_mistake_is_found_in_every_order(name):
        found = mistakes[name]
        assert_found(program, name, *([found] if isinstance(found, str) else found))

    return every_planted_program_has_a_test, correct_programs_pass_in_every_order, a_mistake_is_found_in_every_order
