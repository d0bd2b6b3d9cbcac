"""Which tests a pattern T means, and what has to be built for them.

Tests are found in the sources, so that nothing has to be built to select one:

    tests/unit/NAME.c        a Criterion program; its tests are SUITE/TEST
    tests/mpi/NAME.c         a program for mpirun, called mpi-NAME; its head says `ranks: 2 4`
    tests/cli/test_NAME.py   pytest; its head says `needs: tp-train make_ckpt`: what to build
    check-NAME               CHECKS below
"""
import dataclasses
import fnmatch
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PYTEST = ["-c", "tests/pytest.ini", "--rootdir=.", "-p", "no:cacheprovider"]

# Checks that count as tests: name, command, whether only `make test-long` runs it.
CHECKS = [
    ("deps", ["make", "--no-print-directory", "check-deps"], False),
    ("fresh-debian", ["tests/check/fresh-debian.sh"], True),
    ("fresh-debian-13", ["env", "RELEASE=trixie", "tests/check/fresh-debian.sh"], True),
    ("debian-packages", ["tests/check/debian-packages.sh"], True),
]

# The fake CUDA device, the kernels on it, and the programs with planted mistakes are built without sanitizers: it checks
# kernels itself. So what runs nothing else, or no program of ours at all, would only repeat the plain tests.
UNSANITIZED = ["libtp-cuda.so", "fakecuda_planted*", "kernels_cuda*"]

# Programs that a test of pytest runs, with all their tests, and counts what they do.
RUN_BY_PYTEST = ["kernels_cuda_shapes"]  # test_kernel_traffic.py


@dataclasses.dataclass
class Selection:
    """The tests of one run. pytest: the files that have selected tests; None: no pytest."""
    units: dict    # program -> Criterion's --filter, "" for all of its tests
    mpi: list      # [program, ranks]
    checks: list   # names
    pytest: list
    keywords: str  # for pytest -k
    targets: list  # what make has to build

    def empty(self):
        return not (self.units or self.mpi or self.checks or self.pytest)

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(dataclasses.asdict(self), f)

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as f:
            return cls(**json.load(f))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def programs(folder):
    """Names of the programs of tests/FOLDER, sorted."""
    found = glob.glob(os.path.join(ROOT, "tests", folder, "*.c"))
    return sorted(os.path.basename(f)[:-2] for f in found)


def head(path, key):
    """The words after each `key:` in the comment or docstring at the head of a test, None without."""
    text = read(path)
    end = '"""' if path.endswith(".py") else "*/"
    start = text[:text.find(end, 3)]
    found = re.findall(r"^[ *]*%s:(.*(?:\n[ *]+   \S.*)*)" % key, start, re.M)
    return re.findall(r"[^\s*]+", " ".join(found)) if found else None


def unit_tests(name):
    """SUITE/TEST of every test of a Criterion program."""
    return ["/".join(m) for m in
            re.findall(r"^Test\(\s*(\w+),\s*(\w+)", read("tests/unit/%s.c" % name), re.M)]


def unit_filter(name, pattern):
    """Criterion's --filter for the tests of a program that the pattern means; None: it has none."""
    if "/" in pattern:
        return pattern if fnmatch.filter(unit_tests(name), pattern) else None
    if pattern in name:
        return ""
    if any(pattern in test for test in unit_tests(name)):
        return "@(*%s*/*|*/*%s*)" % (pattern, pattern)
    return None


def select_mpi(pattern):
    return [[name, int(n)] for name in programs("mpi") if pattern in "mpi-" + name
            for n in head("tests/mpi/%s.c" % name, "ranks")]


def collect(python, keywords, marks):
    """The pytest files that have tests of these keywords."""
    command = [python, "-B", "-m", "pytest", "--collect-only", "-q", *PYTEST, *marks,
               "-k", keywords, "tests/cli"]
    r = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, check=False)
    if r.returncode not in (0, 5):
        sys.exit("pytest cannot collect the tests:\n" + r.stdout)
    return sorted(set(re.findall(r"^(tests/cli/\w+\.py)::", r.stdout, re.M)))


def keywords_of(pattern):
    """The pattern as an expression for pytest -k: all of its words."""
    return " and ".join(re.findall(r"[^/*?\[\]:, ]+", pattern))


def path_of(name, build, bin_folder):
    """The make target of a name in a `needs:` line."""
    if glob.glob(os.path.join(ROOT, "cli", "*", name.replace("-", "_") + ".c")):
        return "%s/%s" % (bin_folder, name)
    if name == "libtp-progress.so":
        return os.path.join(os.path.dirname(bin_folder), "lib", name)
    if name.startswith("bench/"):
        return "%s/%s" % (build, name)
    return "%s/tests/%s" % (build, name)


def targets_of(s, build, bin_folder):
    needed = set()
    for path in ["tests/unit/%s.c" % u for u in s.units] + s.pytest:
        needed.update(head(path, "needs") or [])
    needed.update(s.units)
    needed.update("mpi/" + name for name, _ in s.mpi)
    return sorted(path_of(name, build, bin_folder) for name in needed)


def is_unsanitized(needed):
    return all(any(fnmatch.fnmatch(name, u) for u in UNSANITIZED) for name in needed or [])


def leave_out_unsanitized(s):
    """Of all tests, those for which a sanitizer changes nothing."""
    s.units = {name: f for name, f in s.units.items() if not is_unsanitized([name])}
    s.pytest = [path for path in s.pytest if not is_unsanitized(head(path, "needs"))]


def leave_out_without_threads(s):
    """What cannot run with ThreadSanitizer: Criterion wants addresses that are the sanitizer's, and the fake device defines
    the sanitizer's functions itself."""
    s.units = {}
    s.pytest = [path for path in s.pytest if not any(is_unsanitized([name]) for name in head(path, "needs") or [])]


def select(pattern, long, python, build, bin_folder):
    marks = [] if long else ["-m", "not long"]
    checks = [name for name, _, only_long in CHECKS if long or not only_long]
    if not pattern:
        files = sorted(glob.glob("tests/cli/test_*.py", root_dir=ROOT))
        units = dict.fromkeys((name for name in programs("unit") if name not in RUN_BY_PYTEST), "")
        s = Selection(units, select_mpi(""), checks, files, "", [])
        benches = [path for path in targets_of(s, build, bin_folder) if path.startswith(build + "/bench/")]
        s.targets = ["tests", *benches]  # benchmarks are no part of `make tests`
        return s
    filters = {name: unit_filter(name, pattern) for name in programs("unit")}
    s = Selection({name: f for name, f in filters.items() if f is not None}, select_mpi(pattern),
                  [name for name in checks if pattern in "check-" + name], [],
                  keywords_of(pattern), [])
    if pattern not in s.units and s.keywords:  # the name of a program means that alone
        s.pytest = collect(python, s.keywords, marks)
    s.targets = targets_of(s, build, bin_folder)
    return s
