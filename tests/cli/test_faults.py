"""Crashes and errors at every change of a file, during a save and during a reshard.

tests/fault/shim.c numbers the calls that change files. Each test runs a program once to count these
calls (the points). Then it runs the program once for each point, and there the shim kills it or makes the
call fail. Afterwards the old or the new checkpoint must be complete, and a second run must succeed. By
default only some points are tried, to save time; TP_LONG=1 tries all.

needs: tp-train tp-reshard tp-ckpt fault/shim.so
"""
import os
import random
import re
import signal
import subprocess

import pytest

import harness
from harness import train_args

SEED = 7
SHIM = harness.built("fault/shim.so")
# The name of each system call in the log of the shim.
KERNEL_NAMES = {
    "openat": "open", "open": "open", "creat": "open", "write": "write", "pwrite64": "pwrite",
    "writev": "writev", "pwritev": "pwritev", "copy_file_range": "copy_file_range",
    "fsync": "fsync", "fdatasync": "fsync", "ftruncate": "ftruncate", "fallocate": "fallocate",
    "close": "close", "mkdir": "mkdir", "mkdirat": "mkdir", "unlink": "unlink",
    "unlinkat": "unlink", "rmdir": "rmdir", "rename": "rename", "renameat": "rename",
    "renameat2": "rename", "symlink": "symlink", "symlinkat": "symlink", "link": "link",
}


def preload(library=SHIM):
    """The value of LD_PRELOAD for a library. A sanitizer's runtime must come first."""
    if harness.BUILD in library.parents:  # the loader only warns about a library that nobody has built
        harness.check_declared(str(library.relative_to(harness.built(""))))
    first = []
    if "address" in harness.SANITIZE:
        first = [subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()]
    return ":".join(first + [str(library)])


class Shim:
    """Runs a command under the shim, in a process group of its own."""

    def __init__(self, folder, under):
        self.counter, self.log, self.under = folder / "counter", folder / "log", under

    def env(self, at=0, do=""):
        self.counter.write_bytes(bytes(8))
        self.log.write_bytes(b"")
        return {**os.environ, "LD_PRELOAD": preload(), "TP_FAULT_UNDER": str(self.under),
                "TP_FAULT_COUNTER": str(self.counter), "TP_FAULT_LOG": str(self.log),
                "TP_FAULT_AT": str(at), "TP_FAULT_DO": do}

    def line(self, program, at, do):
        """A line of a shell script that runs a program under the shim."""
        env = ["%s='%s'" % n for n in self.env(at, do).items() if n[0] == "LD_PRELOAD" or n[0].startswith("TP_FAULT")]
        return " ".join(env) + " '%s' \"$@\"" % program

    def run(self, argv, at=0, do=""):
        """(status, stderr). A negative status is the signal that ended the program."""
        p = subprocess.Popen(harness.command(argv), env=self.env(at, do), start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        try:
            _, err = p.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            raise AssertionError("the program hangs at point %d (%s): %s" % (at, do, argv))
        return p.returncode, err

    def points(self):
        """[call, ...]: the calls of the last run, in order."""
        return [line.split(" ", 2)[1] for line in self.log.read_text().splitlines()]

    def calls_from(self, call, path, last):
        """The calls of the last run from the only `call` of a path that ends so up to the next `last`."""
        lines = [line.split(" ", 2) for line in self.log.read_text().splitlines()]
        at = [i for i, line in enumerate(lines) if line[1] == call and line[2].endswith(path)]
        assert len(at) == 1, (call, path, lines)
        calls = [line[1] for line in lines[at[0]:]]
        return calls[:calls.index(last)]


class Save:
    """tp-train resumes at step 1 and saves step 2."""

    def __init__(self, tmp_path, tiny):
        self.root, self.tiny = tmp_path / "root", tiny
        self.argv = train_args(tiny, self.root, steps=2, layout="tp1", save_every=1, resume=True)
        harness.train(tiny, self.root, steps=1, layout="tp1", exit_step=1)
        self.old = {harness.digest(self.root)}
        self.start = tmp_path / "start"
        harness.copy(self.root, self.start)
        self.before = harness.tree(self.start)

    def reset(self):
        harness.ok("rm", "-rf", self.root)
        harness.copy(self.start, self.root)

    def assert_old_or_new(self, new):
        """The newest complete step must verify, and be the old or the new one."""
        harness.ok("tp-ckpt", "verify", self.root)
        found = harness.digest(self.root)
        assert found in self.old or found == new
        return found

    def assert_again(self, new):
        harness.ok(*self.argv)
        assert harness.digest(self.root) == new
        self.assert_nothing_left(self.root)

    @staticmethod
    def assert_nothing_left(root):
        left = [p for p in os.listdir(root) if ".tmp" in p]
        assert left == [], "temporary directories were left: %s" % left


class Reshard(Save):
    """tp-reshard from tp2 to tp4 into another root. It must not change the source."""

    def __init__(self, tmp_path, tiny, force=False):
        self.source, self.root = tmp_path / "source", tmp_path / "root"
        harness.train(tiny, self.source, steps=1, layout="tp2")
        self.argv = ["tp-reshard", self.source, "--to", "tp4", "-o", self.root]
        self.source_tree = harness.tree(self.source)
        self.old, self.force, self.start = set(), force, tmp_path / "start"
        if force:
            other = tmp_path / "other"
            harness.train(tiny, other, steps=1, layout="tp1", seed=99)
            harness.ok("tp-reshard", other, "--to", "tp1", "-o", self.start)
            self.old = {harness.digest(self.start)}
            self.argv.append("--force")

    def reset(self):
        harness.ok("rm", "-rf", self.root)
        if self.force:
            harness.copy(self.start, self.root)

    def assert_old_or_new(self, new):
        assert harness.tree(self.source) == self.source_tree, "the source was written to"
        if not self.force and not (self.root.exists() and harness.steps(self.root)):
            return None
        return super().assert_old_or_new(new)

    def assert_again(self, new):
        argv = self.argv + ([] if self.force else ["--force"])
        harness.ok(*argv)
        assert harness.digest(self.root) == new
        self.assert_nothing_left(self.root)


@pytest.fixture
def save(tmp_path, tiny):
    return Save(tmp_path, tiny)


@pytest.fixture(params=["new", "over"])
def reshard(request, tmp_path, tiny):
    return Reshard(tmp_path, tiny, force=request.param == "over")


def spread(calls, share, rng):
    """The points of 1 .. n to try: all with TP_LONG, else about `share` of them, fewer with a sanitizer.
    These always include the last two (only a link is changed after them) and the first of each kind of call."""
    n = len(calls)
    if harness.LONG or n <= share:
        return list(range(1, n + 1))
    firsts = {calls.index(kind) + 1 for kind in calls}
    share = 4 if harness.SANITIZE else share
    return sorted(firsts | {n - 1, n} | set(rng.sample(range(2, n - 1), share - 3)))


def enumerate_points(job, tmp_path, do, share, after, figure):
    """Run job with `do` at each point, and call after(status, stderr, new digest, call) each time."""
    rng = random.Random(SEED)
    shim = Shim(tmp_path, job.root)
    job.reset()
    status, err = shim.run(job.argv)
    assert status == 0, err
    new, calls = harness.digest(job.root), shim.points()
    assert len(calls) > 10, "the shim logged too few calls: %s" % calls
    tried = spread(calls, share, rng)
    for at in tried:
        job.reset()
        status, err = shim.run(job.argv, at, do)
        try:
            after(status, err, new, calls[at - 1])
        except AssertionError as e:
            raise AssertionError("%s at point %d of %d (%s), seed %d, exit %d\n%s\n%s" % (
                do, at, len(calls), calls[at - 1], SEED, status, err, e)) from e
    figure("points tried, %s" % do, "%d of %d" % (len(tried), len(calls)))


def died(status):
    return status == -signal.SIGKILL


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("do", ["kill", "torn"])
def test_a_save_killed_at_any_point_leaves_old_or_new(save, tmp_path, do, figure):
    def after(status, err, new, call):
        assert died(status)
        save.assert_old_or_new(new)
        save.assert_again(new)
    enumerate_points(save, tmp_path, do, 10, after, figure)


def test_a_save_whose_rank_is_killed_reports_it(save, tmp_path, figure):
    def after(status, err, new, call):
        assert status == 3 and "tp-train" in err, err
        save.assert_old_or_new(new)
        save.assert_again(new)
    enumerate_points(save, tmp_path, "kill-self", 5, after, figure)


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("do", ["kill", "torn"])
def test_a_reshard_killed_at_any_point_leaves_old_or_new(reshard, tmp_path, do, figure):
    def after(status, err, new, call):
        assert died(status)
        reshard.assert_old_or_new(new)
        reshard.assert_again(new)
    enumerate_points(reshard, tmp_path, do, 10, after, figure)


# A save may succeed although these calls fail: they update the link `latest`, close a lock or clean up.
HARMLESS = {"symlink", "close", "unlink", "rmdir"}


def failing(job, do):
    def after(status, err, new, call):
        found = job.assert_old_or_new(new)
        if status == 0:
            assert call in HARMLESS or found == new, "exit 0, but the new checkpoint is missing"
        else:
            assert status == 3, "exit %d" % status
            sentences = [line for line in err.splitlines() if line.startswith("tp-")]
            assert sentences, "it failed without a message"
        job.assert_again(new)
    return after


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("do", ["enospc", "eio"])
def test_a_save_that_fails_at_any_point_reports_it_and_keeps_the_old(save, tmp_path, do, figure):
    enumerate_points(save, tmp_path, do, 10, failing(save, do), figure)


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("do", ["enospc", "eio"])
def test_a_reshard_that_fails_at_any_point_reports_it_and_keeps_the_old(reshard, tmp_path, do, figure):
    enumerate_points(reshard, tmp_path, do, 10, failing(reshard, do), figure)


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("do", ["enospc", "kill"])
def test_compressed_files_keep_these_promises(tmp_path, tiny, do, figure):
    job = Reshard(tmp_path, tiny)
    job.argv.append("--zstd")

    def killed(status, err, new, call):
        job.assert_old_or_new(new)
    enumerate_points(job, tmp_path, do, 5, failing(job, do) if do == "enospc" else killed, figure)


def test_what_exists_is_replaced_where_names_cannot_be_exchanged(tmp_path, tiny):
    """NFS and many file systems in user space have no RENAME_EXCHANGE."""
    env = {"LD_PRELOAD": preload(), "TP_FAULT_PLAIN": "1"}
    root, out, hf = tmp_path / "root", tmp_path / "out", tmp_path / "hf"
    harness.train(tiny, root, steps=2, layout="tp1", save_every=1)
    new = harness.digest(root)
    for argv in (["tp-reshard", root, "--to", "tp2", "-o", out, "--force"],
                 ["tp-ckpt", "export", root, "-o", hf, "--force"]):
        harness.ok(*argv, env=env)
        harness.ok(*argv, env=env)
    assert harness.digest(out) == new
    with open(root / "step-00000002/rank-00000.h5", "r+b") as f:
        f.truncate(1000)
    # the job goes back to step 1, and saves step 2 again in place of what is damaged
    harness.ok(*train_args(tiny, root, steps=2, layout="tp1", save_every=1, resume=True), env=env)
    harness.ok("tp-ckpt", "verify", root)
    assert harness.digest(root) == new
    for folder in root, out, tmp_path:
        assert not [p for p in os.listdir(folder) if ".tmp" in p or ".replaced" in p]


def test_an_old_step_that_cannot_be_removed_ends_no_run(tmp_path, tiny):
    """On NFS a file that is read by another process of the machine stays, under the name .nfs*. It is removed when it can be."""
    root = tmp_path / "root"
    harness.train(tiny, root, steps=2, layout="tp2", save_every=1)
    (root / "step-00000001/.nfs01").touch()
    argv = train_args(tiny, root, steps=6, layout="tp2", save_every=1, keep=2, resume=True)
    env = {"LD_PRELOAD": preload(), "TP_FAULT_BUSY": ".nfs01"}
    r = harness.ok(*argv, env=env)
    assert r.err.count("warning: --keep: ") == r.err.count("cannot remove .nfs01") == 1, r.err
    (left,) = [p.name for p in root.iterdir() if ".tmp" in p.name]
    assert left.startswith("step-00000001.tmp-") and [p.name for p in harness.steps(root)] == ["step-00000005", "step-00000006"]
    r = harness.run("tp-ckpt", "prune", root, "--keep", 1, env=env)
    assert r.rc == 3 and "cannot remove .nfs01" in r.err and [p.name for p in harness.steps(root)] == ["step-00000006"], r
    harness.ok("tp-ckpt", "prune", root, "--keep", 1)
    assert not [p for p in root.iterdir() if ".tmp" in p.name]


def test_a_reshard_that_fails_at_its_start_reports_it(tmp_path, tiny):
    """The first calls create root, lock and temporary directory. The tests above may skip some of them."""
    job = Reshard(tmp_path, tiny)
    shim = Shim(tmp_path, job.root)
    for at in range(1, 11):
        job.reset()
        status, err = shim.run(job.argv, at, "eio")
        call = shim.points()[at - 1]
        assert status == 3 and err.startswith("tp-reshard: ") or call in HARMLESS, (at, call, err)
        assert status == 0 or not harness.steps(job.root), (at, call)


@pytest.mark.parametrize("program", ["tp-train", "tp-reshard", "tp-ckpt"])
def test_a_limit_on_the_size_of_files_is_an_error_like_a_full_disk(tmp_path, ckpt, tiny, program):
    out = tmp_path / "out"
    argv = {"tp-train": train_args(tiny, out), "tp-reshard": ["tp-reshard", ckpt, "--to", "tp1", "-o", out],
            "tp-ckpt": ["tp-ckpt", "export", ckpt, "-o", out]}[program]
    r = harness.run("bash", "-c", 'ulimit -f 40 && exec "$@"', "bash", *argv)
    assert r.rc == 3 and r.lines[-1].startswith(program + ": ") and "File too large" in r.lines[-1], repr(r)
    assert not list(tmp_path.glob("out/step-*")) and not list(tmp_path.glob("*tmp*")) and not (out / "config.json").exists()


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("do", ["short", "eintr"])
def test_short_and_interrupted_writes_are_continued(reshard, tmp_path, do, figure):
    def after(status, err, new, call):
        assert status == 0, err
        harness.ok("tp-ckpt", "verify", reshard.root)
        assert harness.digest(reshard.root) == new
    enumerate_points(reshard, tmp_path, do, 10, after, figure)


def kernel_calls(trace, under):
    """{call: number}: the calls that change files below `under`, in the output of strace."""
    counts = {}
    for line in trace.splitlines():
        m = re.match(r"(?:\d+ +)?(\w+)\((.*)", line)
        if not m or m[1] not in KERNEL_NAMES or str(under) not in line.split(" = ")[0]:
            continue
        name, args = KERNEL_NAMES[m[1]], m[2]
        if name == "open" and not re.search(r"O_CREAT|O_TRUNC", args):
            continue
        if name == "unlink" and "AT_REMOVEDIR" in args:
            name = "rmdir"
        counts[name] = counts.get(name, 0) + 1
    return counts


def test_the_shim_counts_every_call_that_strace_counts(save, tmp_path, figure):
    """If the shim missed calls, they would never be tested. Both count in the same run."""
    shim, trace = Shim(tmp_path, save.root), tmp_path / "trace"
    save.reset()
    argv = ["strace", "-f", "-y", "-qq", "-s", "0", "-o", trace,
            "-e", "trace=" + ",".join(KERNEL_NAMES)]
    env = shim.env()
    # the leak checker does not work under strace
    env["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    for name in [n for n in env if n.startswith("TP_FAULT") or n in ("LD_PRELOAD", "ASAN_OPTIONS")]:
        argv += ["-E", "%s=%s" % (name, env[name])]
    harness.ok(*argv, *harness.command(save.argv))
    kernel = kernel_calls(trace.read_text(), save.root)
    seen = {}
    for call in shim.points():
        seen[call] = seen.get(call, 0) + 1
    # strace also counts close calls of files that were only read
    kernel.pop("close", None)
    seen.pop("close", None)
    assert seen == kernel
    figure("calls counted by both", sum(seen.values()))
