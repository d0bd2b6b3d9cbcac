#!/usr/bin/env python3
"""tests/fuzz/run.py - run the fuzz harnesses, and print a line for each.

    run.py --programs build/san-.../fuzz --seconds 25 --jobs 2 [--only NAME]

A harness first gets the inputs of corpus.py and those that earlier runs found (build/fuzz/NAME), then new
ones until its time is over. The last line is `N passed, N failed`; exit 1 after a failure.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

import corpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "fuzz"

# Seconds for one input (many, because other work may run beside), MiB of the process, MiB of one allocation, bytes of
# an input.
LIMITS = ["-timeout=30", "-rss_limit_mb=1024", "-malloc_limit_mb=512", "-max_len=16384"]
CPU_SECONDS = 20  # for one input, in a process of its own


def write_seeds(name):
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed, data in corpus.SEEDS[name].items():
        (folder / ("seed-" + seed)).write_bytes(data)
    return folder


def is_slow(program, failed, env):
    """Whether an input that took long takes long by itself, too: a busy machine may have stopped the process."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))

    for i in failed.glob("timeout-*"):
        argv = ["timeout", str(20 * CPU_SECONDS), str(program), "-timeout=0", *LIMITS[1:], str(i)]
        if subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=False,
                          preexec_fn=limit).returncode:
            return True
        i.unlink()
    return False


def run(program, seconds):
    """(name, whether it passed, what to print)."""
    name = program.name
    failed = KEPT / (name + ".failed")
    failed.mkdir(parents=True, exist_ok=True)
    argv = [str(program), "-max_total_time=%d" % seconds, "-print_final_stats=1", *LIMITS,
            "-artifact_prefix=%s/" % failed, str(write_seeds(name))]
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:allocator_may_return_null=1",
           "UBSAN_OPTIONS": "print_stacktrace=1"}
    with tempfile.TemporaryDirectory(prefix="tp-fuzz-", dir="/dev/shm") as env["FUZZ_DIR"]:
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False,
                           text=True, errors="replace")
        if "ERROR: libFuzzer: timeout" in p.stdout and not is_slow(program, failed, env):
            return name, True, "stopped early: the machine was busy for longer than an input may take"
    runs = re.search(r"number_of_executed_units: (\d+)", p.stdout)
    cover = re.findall(r"cov: (\d+)", p.stdout)
    if p.returncode == 0 and runs:
        return name, True, "%9s inputs, %5s edges" % (runs.group(1), cover[-1] if cover else "?")
    return name, False, "\n".join(p.stdout.splitlines()[-60:]) + (
        "\nrepeat it with: %s FILE, where FILE is in %s" % (program, failed))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--programs", type=pathlib.Path, required=True)
    a.add_argument("--seconds", type=int, required=True)
    a.add_argument("--jobs", type=int, required=True)
    a.add_argument("--only", default="")
    a = a.parse_args()
    names = sorted(n for n in corpus.SEEDS if a.only in n)
    sources = {p.stem for p in (ROOT / "tests" / "fuzz").glob("*.c")}
    if set(corpus.SEEDS) != sources or not names:
        sys.exit("harnesses and seeds differ: %s" % (set(corpus.SEEDS) ^ sources or a.only))
    passed = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for name, ok, said in pool.map(lambda n: run((a.programs / n).resolve(), a.seconds), names):
            passed += ok
            print("%-20s %s%s" % (name, "" if ok else "FAILED\n", said), flush=True)
    print("%d passed, %d failed" % (passed, len(names) - passed))
    sys.exit(passed != len(names))


if __name__ == "__main__":
    main()
