"""tests/bench: every benchmark starts, and one that fails does not end the others.

needs: tp-reshard tp-ckpt make_ckpt fault/slow_storage.so bench/bench_train
"""
import os
import subprocess
import sys

import pytest

import harness

FOLDER = harness.REPO / "tests/bench"
BENCHMARKS = sorted(path.name for path in FOLDER.glob("bench_*.py"))
pytestmark = pytest.mark.sanitized(0)  # the scripts are tested; other tests run their programs

# Those that take seconds with their smallest sizes, and what their last line has.
SMALL = [("bench_formats.py", ["--width", "64", "--rounds", "1", "--only", "tp,dcp"], "cp -r "),
         ("bench_formats.py", ["--width", "64", "--rounds", "1", "--only", "safetensors,tp"], "cp -r "),
         ("bench_reshard.py", ["--width", "64", "--rounds", "1", "--only", "tp8,tp4"], "cp -r, cksum of both "),
         ("bench_hosts.py", ["--width", "64", "--hosts", "2", "--rate", "100", "--total", "100"], "2 hosts "),
         ("bench_hosts.py", ["--width", "64", "--hosts", "2", "--rate", "100", "--total", "100", "--shared"], "2 hosts ")]


def run(*argv):
    env = {**os.environ, "TP_BIN": str(harness.BIN), "TP_BUILD": str(harness.BUILD)}
    return subprocess.run([sys.executable, "-B", *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_starts_and_says_what_it_measures(name):
    r = run(FOLDER / name, "--help")
    about = (FOLDER / name).read_text().split('"""')[1].splitlines()[0]
    assert r.returncode == 0 and about[:40] in r.stdout, r.stdout


@pytest.mark.parametrize("name,options,last", SMALL)
def test_a_small_run_prints_its_table(name, options, last):
    r = run(FOLDER / name, *options)
    assert r.returncode == 0 and r.stdout.strip().splitlines()[-1].startswith(last), r.stdout


@pytest.mark.parametrize("options,code,said", [(["--bogus"], 2, "bench_train: unknown option '--bogus'"), (["--help"], 0, "usage: bench_train"),
                                               (["--rows", "1", "--vocab", "9000000", "--dim", "1", "--layers", "0"], 0, "")])
def test_the_benchmark_of_sgemm_takes_any_shape(options, code, said):
    r = subprocess.run([harness.BUILD / "bench/bench_train", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert r.returncode == code and r.stdout.startswith(said), r
    assert said or float(r.stdout) > 0, r


def test_a_benchmark_that_fails_does_not_end_the_others(tmp_path):
    for name, text in (("a", "#!/bin/sh\nexit 1\n"), ("b.py", "print(1 / 0)\n"), ("c", "#!/bin/sh\nkill -9 $$\n"), ("d.py", "print('measured')\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name.endswith(".py") else 0o755)
    r = run(FOLDER / "run.py", *(tmp_path / name for name in ("a", "b.py", "none", "c", "d.py")))
    assert r.returncode == 1 and "measured\n" in r.stdout and "c: signal 9\n" in r.stdout, r.stdout
    assert r.stdout.splitlines()[-1] == "bench: 4 of 5 benchmarks failed: a b.py none c", r.stdout


def test_make_bench_runs_all_of_them():
    said = harness.ok("make", "-n", "-C", harness.REPO, "bench").out.splitlines()
    (line,) = [line for line in said if "tests/bench/run.py" in line]
    assert all("tests/bench/" + name in line for name in BENCHMARKS), line
    assert all("/bench/%s " % path.stem in line for path in FOLDER.glob("*.c")), line
