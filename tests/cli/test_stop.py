"""A request to stop, at any moment from exec to exit.

The exit code is 75 and everything was saved, or 0 because the work was complete, or the signal has its
default effect, because nothing had begun. Nothing else may happen: no error, nothing half-written.
needs: tp-train tp-reshard tp-ckpt fault/handles_hangup.so
"""
import os
import pty
import random
import shutil
import signal
import subprocess
import time

import pytest

import harness
from test_faults import preload

SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP]
STEPS = 6
SEED = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))


def start(argv):
    return subprocess.Popen(harness.command(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def blocks(pid, number):
    """Whether a process blocks this signal, as the launcher does from before it forks its ranks. While a process
    starts, it may block all signals for a moment."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii") as f:
            for line in f:
                if line.startswith("SigBlk:"):
                    mask = int(line.split()[1], 16)
                    return mask >> (number - 1) & 1 and not mask >> (signal.SIGALRM - 1) & 1
    except OSError:
        pass
    return False


def has_lines(path, n):
    try:
        return path.read_bytes().count(b"\n") >= n
    except OSError:
        return False


def wait_for(process, condition):
    while not condition() and process.poll() is None:
        pass


def send_at(process, moment, number, log):
    """Send the signal at a moment: seconds after exec, or ("forking" | "ending", seconds after that)."""
    if isinstance(moment, tuple):
        name, moment = moment
        wait_for(process, (lambda: blocks(process.pid, number)) if name == "forking"
                 else lambda: has_lines(log, STEPS))
    time.sleep(moment)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def moments(rng, seconds, tries):
    """Half of them at any time, the others around the start of the ranks and the end of the run."""
    for i in range(tries):
        yield (rng.uniform(0, seconds) if i % 2 == 0
               else ("forking" if i % 4 == 1 else "ending", rng.choice([0, 0, rng.uniform(0, 0.02)])))


def check_trained(root, log, rc, err, number):
    """What the run left agrees with its exit code. Returns how it ended."""
    complete = [p.name for p in harness.steps(root)] if root.exists() else []
    if number and rc == -number:
        assert not complete and not has_lines(log, 1), "killed after it had begun: %s" % err
        return "default effect"
    assert rc in (0, 75), "exit %d: %s" % (rc, err)
    assert complete, "exit %d, and nothing was saved: %s" % (rc, err)
    assert rc == 0 or "saved and stopped" in err, err
    assert rc == 75 or complete[-1] == "step-%08d" % STEPS, (complete, err)
    harness.ok("tp-ckpt", "verify", root)
    return "saved" if rc else "complete"


def test_training_stops_with_75_at_any_moment(tiny, tmp_path, figure):
    tries = 500 if harness.LONG else 20
    rng = random.Random(SEED)
    args = dict(steps=STEPS, layout="tp2", threads=1)
    began = time.monotonic()
    harness.train(tiny, tmp_path / "whole", **args)
    seconds = time.monotonic() - began
    ended = {}

    print("seed", SEED, "seconds", seconds)
    for i, moment in enumerate(moments(rng, seconds, tries)):
        root, log, number = tmp_path / ("ckpt%d" % i), tmp_path / ("log%d" % i), SIGNALS[i % 4]
        p = start(harness.train_args(tiny, root, log=log, **args))
        rc, _, err = send_at(p, moment, number, log)
        print(i, number.name, moment, rc)
        how = check_trained(root, log, rc, err, number)
        ended[how] = ended.get(how, 0) + 1
    assert sum(ended.values()) == tries and ended.get("saved", 0) > 0
    figure("signals at any moment of tp-train: right exit code", "%d of %d (%s)" % (
        tries, tries, ", ".join("%d %s" % (n, how) for how, n in sorted(ended.items()))))


def test_a_signal_to_every_process_of_the_job_stops_it_with_75(tiny, tmp_path):
    """As a scheduler or a terminal sends it: to the launcher and all ranks at once."""
    rng = random.Random(SEED)
    print("seed", SEED)
    for i in range(60 if harness.LONG else 6):
        root, log = tmp_path / ("ckpt%d" % i), tmp_path / ("log%d" % i)
        argv = harness.command(harness.train_args(tiny, root, steps=STEPS, log=log, threads=1))
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE, start_new_session=True) as p:
            wait_for(p, lambda p=p: blocks(p.pid, signal.SIGTERM))
            time.sleep(rng.uniform(0, 0.05))
            if p.poll() is None:  # not reaped, so the group exists
                os.killpg(p.pid, rng.choice(SIGNALS))
            _, err = p.communicate(timeout=120)
        assert check_trained(root, log, p.returncode, err, None) in ("saved", "complete")


def in_terminal(argv, screen):
    """Run a program in a terminal of its own that closes when `screen`, a function, has seen enough output.
    Returns the exit code."""
    argv = harness.command(argv)
    pid, master = pty.fork()
    if pid == 0:
        os.execv(shutil.which(argv[0]), argv)
    seen = b""
    while not screen(seen):
        seen += os.read(master, 4096)
    os.close(master)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_training_saves_when_its_terminal_closes(tiny, tmp_path):
    """Its messages are lost then. With SIGHUP ignored, as nohup does it, it trains to its end, also when a
    library handles the signal (UCX of Open MPI 5)."""
    nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    handled = ["env", "LD_PRELOAD=" + preload(harness.built("fault/handles_hangup.so"))]
    for i, words in enumerate([[], nohup, nohup + handled]):
        root, log = tmp_path / ("ckpt%d" % i), tmp_path / ("log%d" % i)
        steps = 60 if words else 100000
        argv = words + harness.train_args(tiny, root, steps=steps, layout="tp2", log=log, threads=1)
        rc = in_terminal(argv, lambda seen: seen.count(b"loss") > 3)
        saved = [p.name for p in harness.steps(root)]
        assert (rc, len(saved)) == (0 if words else 75, 1), (rc, saved)
        assert (saved[0] == "step-%08d" % steps) == bool(words)


@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_training_goes_on_when_the_reader_of_its_output_ends(both, tiny, tmp_path):
    """`tp-train ... | head -1`, and with 2>&1, where nothing can be said any more."""
    argv = harness.train_args(tiny, tmp_path / "ckpt", steps=40, save_every=20)
    with open(tmp_path / "err", "wb") as err:
        p = subprocess.Popen(harness.command(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT if both else err)
        p.stdout.readline()
        p.stdout.close()
        assert p.wait(timeout=300) == 0
    assert [s.name for s in harness.steps(tmp_path / "ckpt")] == ["step-00000020", "step-00000040"]
    harness.ok("tp-ckpt", "verify", tmp_path / "ckpt")
    said = (tmp_path / "err").read_text()
    assert both or said.count("warning: standard output: Broken pipe: training goes on without it") == 1, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_resharding_stops_with_75_at_any_moment(number, trained, tmp_path):
    """Then the same command completes it."""
    tries = 60 if harness.LONG else 5
    rng = random.Random(SEED + number)
    argv = ["tp-reshard", trained, "--to", "tp4", "--journal", 0, "--jobs", 1]
    began = time.monotonic()
    harness.ok(*argv, "-o", tmp_path / "whole")
    seconds = time.monotonic() - began
    expected = harness.digest(tmp_path / "whole")

    print("seed", SEED, "seconds", seconds)
    for i in range(tries):
        out = tmp_path / ("out%d" % i)
        p = start(argv + ["-o", out])
        time.sleep(rng.uniform(0, seconds))
        p.send_signal(number)
        _, err = p.communicate(timeout=120)
        print(i, p.returncode)
        if p.returncode == -number:
            assert not out.exists(), "killed after it had begun: %s" % err
        assert p.returncode in (0, 75, -number), err
        if p.returncode:
            assert not harness.steps(out)
            harness.ok(*argv, "-o", out)
        assert harness.digest(out) == expected


def stopped_before_exec(argv):
    """Run a program for which a request to stop is already waiting when it begins."""
    def request():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
    return subprocess.run(harness.command(argv), preexec_fn=request, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)


@pytest.mark.parametrize("what", ["export", "export dcp", "import", "import --zstd", "reshard dcp"])
def test_export_and_import_stop_with_75_at_any_moment_and_the_same_command_completes_them(what, trained, tmp_path, figure):
    tries, work = 60 if harness.LONG else 4, tmp_path / "work"
    rng = random.Random(SEED)
    print("seed", SEED)
    source = tmp_path / "source"
    harness.ok("tp-ckpt", "export", trained, "-o", source, *(["--format", "dcp"] if "reshard" in what else []))
    argv = {"export": ["tp-ckpt", "export", trained], "export dcp": ["tp-ckpt", "export", trained, "--format", "dcp"],
            "import": ["tp-ckpt", "import", source], "import --zstd": ["tp-ckpt", "import", source, "--zstd"],
            "reshard dcp": ["tp-reshard", source, "--to", "tp4"]}[what]
    began = time.monotonic()
    harness.ok(*argv, "-o", tmp_path / "whole")
    seconds = time.monotonic() - began
    work.mkdir()
    argv += ["-o", work / "out"]
    r = stopped_before_exec(argv)
    assert r.returncode == 75 and "the same command" in r.stderr, r
    for i in range(tries):
        number, out = rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]), work / "out"
        p = start(argv)
        time.sleep(rng.uniform(0, seconds))
        p.send_signal(number)
        _, err = p.communicate(timeout=120)
        assert p.returncode in (0, 75, -number), err
        if p.returncode:
            harness.ok(*argv)
        assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in (tmp_path / "whole").iterdir())
        shutil.rmtree(out)
        assert not harness.tree(work), "try %d" % i
    figure("signals at any moment of %s: the same command completed it" % what, "%d of %d" % (tries, tries))
