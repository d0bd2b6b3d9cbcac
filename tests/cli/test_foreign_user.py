"""Another user, who may read a checkpoint root and not write to it, cannot delay its writers; and waits for
a lock are announced and end on a signal.

Tests of other users need root.

needs: tp-train tp-reshard tp-ckpt
"""
import fcntl
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import harness

NOBODY = 65534

# Opens everything below a folder that it can, locks it, prints how many it holds, and waits.
LOCK_ALL = """
import fcntl, os, sys, time
held = []
def take(path):
    try:
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(fd)
    except OSError:
        pass
seen = set()
while True:
    for folder, dirs, files in os.walk(sys.argv[1]):
        for path in [folder] + [os.path.join(folder, name) for name in files]:
            if path not in seen and (seen.add(path) or True):
                take(path)
    print(len(held), flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def root(trained):
    """A root that every user can read, in a folder that every user can enter."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tp-foreign-"))
    folder.chmod(0o755)
    yield harness.copy(trained, folder / "ckpt")
    shutil.rmtree(folder)


@pytest.fixture
def locker(root):
    """A process of user nobody that holds every lock that it can get in the root, also of new files."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with subprocess.Popen([sys.executable, "-c", LOCK_ALL, str(root)], stdout=subprocess.PIPE, text=True,
                          user=NOBODY, group=NOBODY, extra_groups=[], cwd="/") as p:
        assert int(p.stdout.readline()) > 0, "nobody can read no file of the root"
        yield p
        p.kill()


def holds(path):
    """Whether some process has locked a file."""
    with open(path, "rb") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_reader_cannot_lock_the_root(locker, root, tiny, figure):
    (root / "lock").chmod(0o600)  # as every writer leaves it
    assert not holds(root / "lock")
    began = time.monotonic()
    r = harness.train(tiny, root, steps=6, layout="tp2", resume=True, save_every=1, keep=2)
    seconds = time.monotonic() - began
    assert "waiting" not in r.err, r.err
    assert [p.name for p in harness.steps(root)] == ["step-00000005", "step-00000006"]
    for argv in (["tp-reshard", root, "--to", "tp1", "-o", root, "--force"],
                 ["tp-ckpt", "prune", root, "--keep", 1]):
        r = harness.ok(*argv)
        assert "waiting" not in r.err, r.err
    assert locker.poll() is None
    figure("seconds for six saves beside a user who locks all that can be read", round(seconds, 2))


def test_a_lock_of_an_earlier_version_is_closed_to_readers(root, tiny):
    (root / "lock").chmod(0o644)
    harness.train(tiny, root, steps=3, layout="tp2", resume=True)
    assert (root / "lock").stat().st_mode & 0o777 == 0o600
    assert (root / "step-00000003").stat().st_mode & 0o777 == 0o777 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_until(process, text, seconds):
    """What a process writes to stderr up to this text, and when it came."""
    began, seen = time.monotonic(), ""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stderr, selectors.EVENT_READ)
        while text not in seen:
            assert ready.select(began + seconds - time.monotonic()), "no '%s' in: %s" % (text, seen)
            got = os.read(process.stderr.fileno(), 65536).decode()
            assert got, "it ended without '%s': %s" % (text, seen)
            seen += got
    return seen, time.monotonic() - began


@pytest.mark.parametrize("program", ["tp-train", "tp-reshard"])
def test_a_wait_is_announced_and_ends_on_a_signal(program, trained, tiny, tmp_path, figure):
    root = harness.copy(trained, tmp_path / "ckpt")
    argv = {"tp-train": harness.train_args(tiny, root, steps=4, layout="tp2", resume=True),
            "tp-reshard": ["tp-reshard", root, "--to", "tp1", "-o", root, "--force"]}[program]
    before = harness.tree(root, but=["lock"])
    with open(root / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(harness.command(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE) as p:
            said, seconds = read_until(p, "waiting for the lock", 60)
            assert "process %d" % os.getpid() in said and "lock: " in said, said
            began = time.monotonic()
            p.send_signal(signal.SIGTERM)
            rest = p.stderr.read().decode()
            assert p.wait(60) == 75, rest
        assert "stopped on request while waiting for a lock" in rest, rest
    assert harness.tree(root, but=["lock"]) == before
    figure("seconds until %s says that it waits; from SIGTERM to its end" % program,
           "%.2f; %.2f" % (seconds, time.monotonic() - began))


@pytest.mark.parametrize("verb", ["import", "prune"])
def test_every_program_announces_its_wait(verb, ckpt, tmp_path):
    argv = ["tp-ckpt", "prune", ckpt, "--keep", 1]
    if verb == "import":
        harness.ok("tp-ckpt", "export", ckpt, "-o", tmp_path / "hf")
        argv = ["tp-ckpt", "import", tmp_path / "hf", "-o", ckpt]
    with open(ckpt / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(harness.command(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE) as p:
            read_until(p, "waiting for the lock", 60)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert p.wait(60) == 0, p.stderr.read().decode()
