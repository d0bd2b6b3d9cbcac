#!/usr/bin/env python3
"""tests/runner/run.py - run the tests, count them, print the slowest; `make test` calls this.

    run.py --targets          select the tests and print what make has to build for them
    run.py                    run the tests that were selected
    run.py --folder FOLDER    run the pytest files of another folder; T is an expression of pytest -k

Unit programs (Criterion), programs for mpirun and checks run side by side, then pytest. The last
line is `N passed, N failed` (and `, N skipped` if any were); exit 1 if any failed.

From the environment: T (a pattern, see selection.py), BUILD, BIN (where the programs are), PYTHON,
JOBS, SANITIZE, LONG=1 (also the long tests), TP_TESTS_UNTIL (tests that have not begun at that second since
1970 are skipped).

A few tests that fail run once more, one after the other, because a test of a time limit can fail on
a busy machine. Those that pass then are counted as passed and listed.

Under a sanitizer a report counts as a failure even if the program exits with 0, because Criterion
runs every test in a process of its own and does not notice how that process ends.
"""
import concurrent.futures
import dataclasses
import glob
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

import selection

PATTERN = os.environ.get("T", "")
BUILD = os.environ.get("BUILD", "build/plain")
BIN = os.environ.get("BIN", "bin")
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")
JOBS = int(os.environ.get("JOBS", "2"))
SANITIZE = os.environ.get("SANITIZE", "")
LONG = bool(os.environ.get("LONG"))
UNTIL = int(os.environ.get("TP_TESTS_UNTIL") or 0)
FOLDER = sys.argv[-1] if "--folder" in sys.argv else None
# Those of several folders may run at the same time.
OUT = os.path.join(selection.ROOT, BUILD, "-".join(["test-results", *([os.path.basename(FOLDER)] if FOLDER else [])]))
SELECTED = os.path.join(selection.ROOT, BUILD, "selected-tests.json")
SLOWEST = 20
LAST = 25  # lines of a failure of pytest that are printed at the end
LIMIT = 8 * 3600 if LONG else 5000  # seconds of pytest
RUN_AGAIN = 10  # more failures than this have a common cause
# The files with the longest run time first, so that all workers of pytest end at about the same time.
LONGEST = ["parallel", "deferred", "reshard_triples", "run_self", "run", "faults", "run_reshard",
           "train", "samebits"]
if LONG:
    LONGEST = list(dict.fromkeys(["cuda_matrix", "faults", "cuda", "stop", "reshard_resume", *LONGEST]))


@dataclasses.dataclass
class Outcome:
    """What one program, check or pytest did. tests: [seconds, name] of each test."""
    name: str
    passed: int
    failed: int
    skipped: int = 0
    tests: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    failures: list = dataclasses.field(default_factory=list)  # [name, text]; text of pytest only

    def line(self):
        text = "  %-40s %d passed" % (self.name, self.passed)
        text += ", %d FAILED" % self.failed if self.failed else ""
        return text + (", %d skipped" % self.skipped if self.skipped else "")


# ---- one program -----------------------------------------------------------------------------

def environment(name):
    """The environment of a test; a sanitizer writes its reports into OUT."""
    reports = "log_path=%s/%s.san" % (OUT, name)
    env = dict(os.environ, ASAN_OPTIONS=reports + ":detect_leaks=1:abort_on_error=0",
               TSAN_OPTIONS=reports + ":suppressions=%s/tests/tsan.supp" % selection.ROOT,
               UBSAN_OPTIONS=reports + ":print_stacktrace=1",
               LSAN_OPTIONS="suppressions=%s/tests/lsan.supp:print_suppressions=0" % selection.ROOT,
               OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
               OMPI_MCA_mpi_yield_when_idle="1",
               OMPI_MCA_btl_vader_single_copy_mechanism="none", OMP_WAIT_POLICY="passive",
               PYTHONDONTWRITEBYTECODE="1", TP_BIN=os.path.abspath(BIN),
               TP_BUILD=os.path.abspath(BUILD), TP_SANITIZE=SANITIZE)
    if os.geteuid() == 0:
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if LONG:
        env["TP_LONG"] = "1"
    return env


def is_finding(report):
    """Not: the file is empty, of a process that was killed; or LeakSanitizer could not stop the threads to look for
    leaks, of which the exit code tells."""
    with open(report, encoding="utf-8", errors="replace") as f:
        text = f.read()
    return bool(text.strip()) and ("LeakSanitizer has encountered a fatal error" not in text or "ERROR: " in text)


def sanitizer_reports(name):
    return [path for path in glob.glob("%s/%s.san.*" % (glob.escape(OUT), name)) if is_finding(path)]


def execute(name, command, limit, env):
    """Run to the end, output into OUT/NAME.log; (exit status, seconds)."""
    started = time.monotonic()
    with open("%s/%s.log" % (OUT, name), "w", encoding="utf-8") as log:
        status = subprocess.run(["timeout", str(limit), *command], env=env, stdout=log,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                check=False).returncode
        if status:
            log.seek(0, os.SEEK_END)
            log.write("%s ended with status %d\n" % (name, status))
    return status, time.monotonic() - started


def read_tap(path, name, filtered):
    """The outcome that Criterion reports: its lines are `ok - SUITE::TEST  (0.01s)`."""
    o = Outcome(name, 0, 0)
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = f.read().splitlines()
    for line in lines:
        m = re.match(r"(not )?ok - (\w+)::(\w+)(.*)", line)
        if not m:
            continue
        if "# SKIP" in m[4]:
            if not (filtered and "test was skipped" in m[4]):  # Criterion lists those left out too
                o.skipped += 1
                o.notes.append("skipped: %s/%s:%s" % (m[2], m[3], m[4].split("# SKIP")[1]))
            continue
        o.failed += bool(m[1])
        o.failures += [["%s/%s" % (m[2], m[3]), ""]] if m[1] else []
        o.passed += not m[1]
        seconds = re.search(r"\(([0-9.]+)s\)", m[4])
        o.tests.append([float(seconds[1]) if seconds else 0.0, "%s/%s" % (m[2], m[3])])
    return o


def run_unit(name, test_filter):
    tap = "%s/%s.tap" % (OUT, name)
    command = ["%s/tests/%s" % (BUILD, name), "--jobs", "1", "--tap=" + tap]
    command += ["--filter=" + test_filter] if test_filter else []
    status, whole = execute(name, command, 900, environment(name))
    o = read_tap(tap, name, test_filter) if os.path.exists(tap) else Outcome(name, 0, 0)
    for test in o.tests:  # Criterion's times are of a clock that a test may set
        test[0] = min(test[0], whole)
    if not o.failed and (status or sanitizer_reports(name) or not (o.passed or o.skipped)):
        o.failed = 1
    return o


def run_mpi(program, ranks):
    name = "mpi-%s-%d" % (program, ranks)
    status, seconds = execute(
        name, ["mpirun", "-n", str(ranks), "%s/tests/mpi/%s" % (BUILD, program)], 300,
        environment(name))
    good = not status and not sanitizer_reports(name)
    return Outcome(name, int(good), int(not good), tests=[[seconds, name]])


def run_check(check):
    name = "check-" + check
    command = next(command for n, command, _ in selection.CHECKS if n == check)
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    status, seconds = execute(name, command, 7200, env)
    return Outcome(name, int(not status), int(bool(status)), tests=[[seconds, name]])


# ---- pytest ----------------------------------------------------------------------------------

def read_junit(path):
    o = Outcome("pytest", 0, 0)
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        module = case.get("classname").replace(".", "/") + ".py"
        name = case.get("name").split("@")[0]  # without the group of --dist loadgroup
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            o.failed += 1
            o.failures.append(["%s::%s" % (module, name), failure.text or ""])
        elif case.find("skipped") is not None:
            o.skipped += 1
        else:
            o.passed += 1
        o.tests.append([float(case.get("time")), "%s::%s" % (os.path.basename(module), name)])
    return o


def read_pytest(report, status):
    """The outcome that pytest wrote to REPORT before it ended with STATUS."""
    try:
        o = read_junit(report)
    except (OSError, xml.etree.ElementTree.ParseError) as e:
        o = Outcome("pytest", 0, 1, failures=[["pytest", "E   its report: %s" % e]])
    if status and not o.failed:
        o.failed = 1
        o.failures.append(["pytest", "E   ended with status %d, and no test failed" % status])
    return o


def run_again(o, command, env):
    """Run the tests of O that failed once more, alone, and count those that pass now as passed. They are few, so the time for
    tests may be over."""
    report = OUT + "/pytest-again.xml"
    env = {name: value for name, value in env.items() if name != "TP_TESTS_UNTIL"}
    print("these tests failed; they run again alone:", *(n for n, _ in o.failures), sep="\n  ")
    status = subprocess.run([*command, "--junitxml=" + report, *(n for n, _ in o.failures)], env=env,
                            stdin=subprocess.DEVNULL, check=False).returncode
    again = read_pytest(report, status)
    failed = {name for name, _ in again.failures}
    if again.failed != len(failed) or again.passed + again.failed != len(o.failures):
        return
    o.notes += ["%s: failed beside other tests, passed alone" % n for n, _ in o.failures
                if n not in failed]
    o.failures = [f for f in o.failures if f[0] in failed]
    o.passed += again.passed
    o.failed -= again.passed


def longest_first(files):
    rank = {"tests/cli/test_%s.py" % name: i for i, name in enumerate(LONGEST)}
    return sorted(files, key=lambda f: rank.get(f, len(rank)))


def order(files):
    """The longest first. Under a sanitizer and in FOLDER the time may be over before the last (TP_TESTS_UNTIL), so
    each run begins with another file, and several runs reach all of them."""
    files = longest_first(files)
    first = int(UNTIL * 0.618 % 1 * len(files)) if SANITIZE or FOLDER else 0
    return files[first:] + files[:first]


def run_pytest(files, keywords, jobs):
    report = OUT + "/pytest.xml"
    env = environment("pytest")
    pytest = ["timeout", str(LIMIT), PYTHON, "-m", "pytest", "-q", "-rs", *selection.PYTEST]
    command = [*pytest, "--junitxml=" + report]
    command += ["-n", str(jobs), "--dist", "loadgroup"] if jobs > 1 else []
    command += ["-k", keywords] if keywords else []
    command += [] if LONG else ["-m", "not long"]
    status = subprocess.run([*command, *order(files)], env=env, stdin=subprocess.DEVNULL,
                            check=False).returncode
    o = read_pytest(report, status)
    named = all(name.startswith("tests/") for name, _ in o.failures)
    if 0 < o.failed == len(o.failures) <= RUN_AGAIN and named:
        run_again(o, pytest, env)
    if sanitizer_reports("pytest") and not o.failed:
        o.failed = 1
        o.failures.append(["a program that a test started", ""])
    return o


# ---- all of them -----------------------------------------------------------------------------

def run_programs(jobs):
    """Run programs and checks side by side; those that fail run once more, alone."""
    outcomes, job_of = [], {}
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        running = {pool.submit(*job): job for job in jobs}
        for done in concurrent.futures.as_completed(running):
            outcomes.append(done.result())
            job_of[outcomes[-1].name] = running[done]
            print(outcomes[-1].line(), flush=True)
    failed = [i for i, o in enumerate(outcomes) if o.failed and not sanitizer_reports(o.name)]
    for i in failed if len(failed) <= RUN_AGAIN else []:
        name = outcomes[i].name
        print("---- %s failed; it runs again alone" % name)
        print_lines("%s/%s.log" % (OUT, name), 0, 60)
        function, *arguments = job_of[name]
        outcomes[i] = function(*arguments)
        print(outcomes[i].line(), flush=True)
        if not outcomes[i].failed:
            outcomes[i].notes.append("%s: failed beside other tests, passed alone" % name)
    return outcomes


def run_all(s):
    """Run what is selected; print a line for each program."""
    # These checks take many minutes, so they run beside everything else, one after the other.
    beside = [name for name, _, only_long in selection.CHECKS if only_long and name in s.checks]
    jobs = [(run_check, name) for name in s.checks if name not in beside]
    jobs += [(run_unit, *unit) for unit in s.units.items()]
    jobs += [(run_mpi, *job) for job in s.mpi]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        checks = pool.map(run_check, beside)
        outcomes = run_programs(jobs)
        if s.pytest:
            # one worker more than processors, because many tests of programs wait most of their time
            outcomes.append(run_pytest(s.pytest, s.keywords, JOBS + 1))
            print(outcomes[-1].line())
        for outcome in checks:
            outcomes.append(outcome)
            print(outcome.line())
    return outcomes


def print_lines(path, first, last):
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = f.read().splitlines()
    print("\n".join(lines[:first] if first else lines[-last:]))


def print_failures(outcomes):
    """Everything that went wrong, once more and in one place."""
    for o in outcomes:
        for note in o.notes:
            print("  " + note)
    for o in outcomes:
        if not o.failed:
            continue
        print("\n---- %s failed" % o.name)
        for name, text in o.failures:
            print("\n".join(["FAILED " + name, *text.splitlines()[-LAST:]]))
        if o.name != "pytest":
            print_lines("%s/%s.log" % (OUT, o.name), 0, 60)
        for report in sanitizer_reports(o.name)[:3]:
            print("-- " + report)
            print_lines(report, 40, 0)


def gist(report):
    """What a sanitizer reports and the first place in this tree, in one line."""
    with open(report, encoding="utf-8", errors="replace") as f:
        lines = f.read().splitlines()
    what = [line for line in lines if "ERROR: " in line or "WARNING: " in line or "runtime error: " in line]
    place = [line.strip() for line in lines if re.search(r"^ *#[0-9]+ .*%s/" % re.escape(selection.ROOT), line)]
    return " ".join([*(what or lines)[:1], *place[:1]])


def print_slowest(outcomes):
    tests = sorted((t for o in outcomes for t in o.tests), reverse=True)
    if len(tests) <= SLOWEST:
        return
    print("\nslowest tests, of %.0f s in all:" % sum(seconds for seconds, _ in tests))
    for seconds, name in tests[:SLOWEST]:
        print("  %6.1f s  %s" % (seconds, name))


def print_names_of_failed(outcomes):
    """A few lines for each test that failed, before the sum: the end of a long log shows them."""
    for o in outcomes:
        for name, text in (o.failures or [[o.name, ""]]) if o.failed else []:
            print("FAILED " + name)
            reason = [line for line in text.splitlines() if line.startswith("E  ")]
            for line in reason[-1:]:
                print("    " + line[:200])
        for report in sanitizer_reports(o.name)[:3]:
            print("FAILED in %s: %s" % (o.name, gist(report)))


def main():
    os.chdir(selection.ROOT)
    if "--targets" in sys.argv:
        s = selection.select(PATTERN, LONG, PYTHON, BUILD, BIN)
        if SANITIZE and not PATTERN:
            s.checks = []  # they check the tree and the plain build
            if not LONG:
                selection.leave_out_unsanitized(s)
        if SANITIZE == "thread":
            selection.leave_out_without_threads(s)
        if s.empty():
            sys.exit("no test matches T='%s'" % PATTERN)
        os.makedirs(BUILD, exist_ok=True)
        s.save(SELECTED)
        print(" ".join(s.targets))
        return
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    if FOLDER:
        outcomes = [run_pytest(sorted(glob.glob(FOLDER + "/test_*.py")), PATTERN, 1)]
    else:
        outcomes = run_all(selection.Selection.load(SELECTED))
    print_failures(outcomes)
    print_slowest(outcomes)
    print_names_of_failed(outcomes)
    passed, failed, skipped = (sum(getattr(o, k) for o in outcomes)
                               for k in ("passed", "failed", "skipped"))
    print("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % skipped if skipped else ""))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
