#!/usr/bin/env python3
"""tests/bench/run.py - run benchmarks one after the other; `make bench` runs it with all of them.

    run.py PROGRAM...

Programs of Python run with this Python, which must have pytest. One that fails does not end the others. The last line names those
that failed; exit 1 if there are any.
"""
import pathlib
import subprocess
import sys


def ends_well(program):
    print("== %s" % program, flush=True)
    argv = [sys.executable, "-B", program] if program.suffix == ".py" else [program]
    try:
        code = subprocess.run(argv, check=False).returncode
    except OSError as e:
        print(e, file=sys.stderr)
        return False
    if code:
        print("%s: %s" % (program, "exit %d" % code if code > 0 else "signal %d" % -code), file=sys.stderr, flush=True)
    return code == 0


def main():
    programs = [pathlib.Path(name).resolve() for name in sys.argv[1:]]
    failed = [p.name for p in programs if not ends_well(p)]
    if failed:
        sys.exit("bench: %d of %d benchmarks failed: %s" % (len(failed), len(programs), " ".join(failed)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
