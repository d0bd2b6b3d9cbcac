"""tp-run among other users: before, during and after a run, `nobody` does what any user may do on the host.

needs: tp-run tp-train libtp-progress.so
covers: core/private_dir orchestrator/attempt orchestrator/process/relay
"""
import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

import pytest

import harness
from run_job import fake_job

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

SHM = pathlib.Path("/dev/shm")


@pytest.fixture
def folder():
    """A folder like /tmp: every user can make files in it, and only their owner can remove them."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="tp-users-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def as_nobody(action):
    """Call action() in a process of the user nobody. Returns "done", or the name of its exception."""
    nobody = pwd.getpwnam("nobody")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        result = "done"
        try:
            os.setgroups([])
            os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
            os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
            action()
        except BaseException as e:  # noqa: B902
            result = type(e).__name__
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as f:
        return f.read()


def squat(path):
    """As nobody: make a folder of this name into which every user may write, with a heartbeat in it."""
    os.mkdir(path)
    os.chmod(path, 0o777)
    (path / "rank-00000").write_bytes(b"\xff" * 256)


def heartbeats(job):
    """The folders of heartbeats that the journal names."""
    return [pathlib.Path(p) for p in
            dict.fromkeys(r["record"].get("heartbeats") for r in job.journal()) if p]


def tree(path):
    return sorted((str(p.relative_to(path)), p.lstat().st_mode, p.lstat().st_size)
                  for p in path.rglob("*"))


# ---- before a run ----

def test_a_state_folder_of_another_user_is_refused_and_not_touched(folder):
    job = fake_job(folder)
    assert as_nobody(lambda: squat(job.state)) == "done"
    before = tree(job.state)
    r = harness.run("tp-run", job.path)
    assert r.rc == 2 and len(r.lines) == 1 and "belongs to user" in r.err, repr(r)
    assert tree(job.state) == before


def test_a_state_folder_that_others_can_write_to_is_refused(folder):
    job = fake_job(folder)
    job.state.mkdir()
    job.state.chmod(0o777)
    assert as_nobody(lambda: (job.state / "journal").write_text("x")) == "done"
    r = harness.run("tp-run", job.path)
    assert r.rc == 2 and "other users can write to it" in r.err and "chmod go-w" in r.err, repr(r)
    job.state.chmod(0o755)  # the journal in it still is another user's
    r = harness.run("tp-run", job.path)
    assert r.rc == 2 and "journal: expected a regular file of user 0" in r.err, repr(r)


def test_a_link_in_place_of_the_state_folder_is_not_followed(folder):
    job, other = fake_job(folder), folder / "other"
    other.mkdir()
    assert as_nobody(lambda: os.symlink(other, job.state)) == "done"
    r = harness.run("tp-run", job.path)
    assert r.rc == 2 and "symbolic link" in r.err, repr(r)
    assert tree(other) == []


def test_status_does_not_believe_another_users_socket(folder):
    job = fake_job(folder)
    assert as_nobody(lambda: squat(job.state)) == "done"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(job.state / "control"))
        s.listen()
        for verb in ("status", "stop"):
            r = job.verb(verb)
            assert r.rc == 2 and "belongs to user" in r.err, repr(r)


# ---- during a run ----

def test_during_a_run_no_other_user_can_see_or_change_anything(folder, figure):
    with fake_job(folder, "--steps", 100000) as job:
        job.start()
        job.await_step(5)
        (slots,) = heartbeats(job)
        assert slots.parent == SHM and stat.S_IMODE(slots.stat().st_mode) == 0o700
        assert stat.S_IMODE(job.state.stat().st_mode) == 0o700
        assert stat.S_IMODE((job.state / "control").stat().st_mode) == 0o600
        record = job.journal()[-1]["record"]
        assert record["heartbeats_ino"] == slots.stat().st_ino
        denied = {
            "list": lambda: os.listdir(slots),
            "write": lambda: (slots / "rank-00000").write_bytes(b""),
            "remove": lambda: shutil.rmtree(slots),
            "rename": lambda: slots.rename(str(slots) + "-mine"),
            "chmod": lambda: slots.chmod(0o777),
            "journal": lambda: (job.state / "journal").read_bytes(),
            "ask": lambda: socket.socket(socket.AF_UNIX).connect(str(job.state / "control")),
        }
        results = {k: as_nobody(f) for k, f in denied.items()}
        assert results == dict.fromkeys(denied, "PermissionError")
        job.state.chmod(0o755)  # as its owner may do, so that others can read the events
        assert as_nobody(lambda: (job.state / "events.jsonl").read_bytes()) == "done"
        assert as_nobody(denied["ask"]) == "PermissionError"
        (job.state / "control").chmod(0o666)  # even then, nobody gets no answer
        def ask():
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(5)
            s.connect(str(job.state / "control"))
            s.sendall(b'{"verb": "stop"}\n')
            assert s.recv(100) == b""
        assert as_nobody(ask) in ("done", "BrokenPipeError", "ConnectionResetError")
        job.await_step(job.status()["step"] + 10)
        assert len(job.events("launch")) == 1 and not job.events("drain")
        figure("what nobody tried with a running job, and was refused", "%d of %d" % (len(results), len(denied)))
        job.verb("stop", "--wait")


def test_when_a_cleaner_takes_the_slots_nobody_cannot_stand_in_for_them(folder):
    """nobody makes a folder of the same name. tp-run still reads its own files, which have no name any more,
    does not enter the other folder, and does not remove it."""
    victim = folder / "victim"
    (victim / "deep").mkdir(parents=True)
    (victim / "deep/file").write_text("keep")
    with fake_job(folder, "--steps", 100000) as job:
        job.start()
        job.await_step(5)
        (slots,) = heartbeats(job)
        shutil.rmtree(slots)

        def stand_in():
            squat(slots)
            os.symlink(victim, slots / "deep")
        assert as_nobody(stand_in) == "done"
        try:
            before = tree(slots)
            job.await_step(job.status()["step"] + 100)
            assert len(job.events("launch")) == 1 and not job.events("hang")
            job.process.kill()
            job.process.wait()
            job.start()  # it does not find its own files any more, and does not use these
            job.await_event("takeover", running=True)
            time.sleep(0.5)
            assert [r["state"] for r in job.status()["ranks"]] == ["starting", "starting"]
            job.verb("stop", "--wait")
            assert job.wait() == 75
            assert tree(slots) == before and (victim / "deep/file").read_text() == "keep"
        finally:
            shutil.rmtree(slots)


# ---- after a run ----

@pytest.mark.parametrize("how", ["done", "failed", "stopped", "killed", "killed at the end"])
def test_a_job_that_is_over_leaves_nothing_in_memory(folder, how):
    options = {"failed": ("--exit-at", 5, 9), "done": ("--steps", 20)}.get(how, ("--steps", 100000))
    with fake_job(folder, *options, restart={"no_progress": 1}) as job:
        job.start()
        if how in ("done", "failed"):
            assert job.wait() == (0 if how == "done" else 3)
        else:
            job.await_step(5)
        if how.startswith("killed"):
            kept = heartbeats(job)
            job.process.kill()
            job.process.wait()
            if how == "killed at the end":  # the ranks end while no tp-run watches
                for pid in job.processes(supervisors=False):
                    with contextlib.suppress(ProcessLookupError):  # the first one may have ended the others
                        os.kill(pid, signal.SIGUSR1)
                end = time.monotonic() + 60
                while job.processes() and time.monotonic() < end:
                    time.sleep(0.05)
            assert all(p.exists() for p in kept), "the next tp-run needs them"
            job.start()
            job.await_event("takeover")
        if how != "done" and how != "failed":
            job.verb("stop", "--wait")
            job.wait()
        names = heartbeats(job)
        assert names and not any(p.exists() for p in names), names
        assert all(p.name.startswith("tp-run-") and len(p.name) == 23 for p in names)


def test_the_folder_of_a_killed_job_is_removed_by_the_next_tp_run_when_nobody_uses_it(folder):
    """tp-run of another job. It stays while the supervisor lives, which a tp-run that takes over needs."""
    def run_another(name):
        with fake_job(folder / name, "--steps", 5) as other:
            assert other.start().wait() == 0, other.story()

    with fake_job(folder / "killed", "--steps", 100000) as job:
        job.start()
        job.await_step(5)
        left, = heartbeats(job)
        job.process.kill()
        job.process.wait()
        for file in left.iterdir():
            file.unlink()
        os.utime(left, (1, 1))  # as after an hour without a step
        run_another("one")
        assert left.is_dir(), "the folder of an attempt that runs was removed"
        for pid in job.processes():
            os.kill(pid, signal.SIGKILL)
        assert left.is_dir()
        end = time.monotonic() + 60
        while job.processes() and time.monotonic() < end:
            time.sleep(0.05)
        run_another("two")
        assert not left.exists()


# ---- relays ----

def relay(shared, *command):
    shared.mkdir(exist_ok=True, mode=0o700)
    env = {**os.environ, "SLURM_PROCID": "0", "TP_RUN_ID": "users.1"}
    return subprocess.Popen([str(harness.BIN / "tp-run"), "relay", "slurm", str(shared), *command], env=env,
                            stdout=subprocess.PIPE, text=True)


def test_a_relays_folder_is_private_and_has_a_random_name(folder):
    guessed = SHM / "tp-relay-users.1"
    assert as_nobody(lambda: squat(guessed)) == "done"
    try:
        before = tree(guessed)
        p = relay(folder / "shared", "sh", "-c", "stat -c '%a %u' $TP_PROGRESS_DIR; echo $TP_PROGRESS_DIR")
        mode, path = p.communicate(timeout=60)[0].splitlines()
        assert p.returncode == 0 and mode == "700 0"
        assert path.startswith("/dev/shm/tp-relay-") and path != str(guessed)
        assert not os.path.exists(path), "the relay has not removed its folder"
        assert tree(guessed) == before
    finally:
        shutil.rmtree(guessed)


def test_the_next_relay_removes_what_a_killed_one_has_left(folder):
    p = relay(folder / "shared", "sh", "-c", "echo $TP_PROGRESS_DIR; exec sleep 60")
    left = pathlib.Path(p.stdout.readline().strip())
    assert left.is_dir()
    q = relay(folder / "shared", "true")
    assert q.wait(20) == 0 and left.is_dir(), "the folder of a relay that runs was removed"
    p.kill()
    p.wait()
    assert left.is_dir()
    assert relay(folder / "shared", "true").wait(20) == 0
    assert not left.exists()


def test_a_relay_does_not_use_a_shared_folder_of_another_user(folder):
    shared = folder / "shared"
    assert as_nobody(lambda: squat(shared)) == "done"
    r = harness.run("tp-run", "relay", "slurm", shared, "true", env={"SLURM_PROCID": "0"})
    assert r.rc == 2 and "belongs to user" in r.err, repr(r)
