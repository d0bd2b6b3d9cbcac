"""tp-run relay, which Slurm's step starts and which starts a rank. Here it is tested without Slurm.

needs: tp-run
covers: orchestrator/process/relay
"""
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

import harness

TRAINER = """
import sys, time
sys.path.insert(0, %r)
from tp_progress import Progress
p = Progress(0, 1)
p.phase(Progress.TRAIN)
for step in range(1, int(sys.argv[1]) + 1):
    p.step(step, 1 / step)
    time.sleep(0.002)
p.close()
""" % str(harness.REPO / "progress")


@pytest.fixture
def listener():
    """A socket that receives the relay's messages."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.settimeout(60)
        yield s


KEY = "0123456789abcdef" * 2


def message(data):
    """(id, node, rank, news) of a datagram; its key must be that of relay-port."""
    run, node, rank, news, key, _ = struct.unpack("<64s64sii33s7s", data)
    assert key.rstrip(b"\0").decode() == KEY
    return run.rstrip(b"\0"), node.rstrip(b"\0"), rank, news


def tell_port(folder, listener):
    new = folder / "relay-port.new"
    new.write_text("%d %s\n" % (listener.getsockname()[1], KEY))
    new.rename(folder / "relay-port")


def relay(folder, *command, run_id="%016x.1" % os.getpid()):
    env = {**os.environ, "SLURM_PROCID": "0", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
           "SLURMD_NODENAME": "node7", "TP_RUN_ID": run_id}
    return subprocess.Popen([str(harness.BIN / "tp-run"), "relay", "slurm", str(folder), *command], env=env,
                            stderr=subprocess.PIPE, text=True)


def finish(process, timeout=120):
    err = process.communicate(timeout=timeout)[1]
    return process.returncode, err


def losses(path):
    """{step: loss} of the history after the slot in a heartbeat file (core/heartbeat.h)."""
    data = path.read_bytes()
    entries = (struct.unpack_from("<qd", data, at) for at in range(256, len(data) - 15, 16))
    return {step: loss for step, loss in entries if step > 0}


def test_every_loss_and_the_slot_are_copied_to_the_shared_folder(tmp_path):
    """The relay looks five times per second, and the trainer does 500 steps per second."""
    code, err = finish(relay(tmp_path, sys.executable, "-c", TRAINER, "600"))
    assert code == 0, err
    assert losses(tmp_path / "rank-00000") == {s: 1 / s for s in range(1, 601)}


def test_messages_go_to_the_tp_run_that_listens_now(tmp_path, listener):
    tell_port(tmp_path, listener)
    p = relay(tmp_path, "sleep", "1000", run_id="a.7")
    assert message(listener.recv(1000)) == (b"a.7", b"node7", 0, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(60)
        tell_port(tmp_path, other)
        assert other.recv(1000)[:3] == b"a.7"
    p.terminate()
    assert finish(p)[0] == 128 + signal.SIGUSR1, "the rank is asked to save and stop"


def test_the_last_message_reaches_a_tp_run_that_has_just_taken_over(tmp_path):
    """The messages before it went to a port at which no process listens any more."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old:
        old.bind(("127.0.0.1", 0))
        old.settimeout(60)
        tell_port(tmp_path, old)
        p = relay(tmp_path, "sh", "-c", "while ! [ -e %s/die ]; do sleep 0.01; done; exit 3" % tmp_path)
        old.recv(1000)
    time.sleep(0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as new:
        new.bind(("127.0.0.1", 0))
        new.settimeout(60)
        tell_port(tmp_path, new)
        (tmp_path / "die").touch()
        assert finish(p)[0] == 3
        beats = []
        while not beats or beats[-1] == 0:
            beats.append(message(new.recv(1000))[3])
        assert beats[-1] == 2, "the last message does not report the end"


def test_the_stop_file_ends_the_rank_at_once(tmp_path):
    p = relay(tmp_path, "sh", "-c", "touch %s/up; exec sleep 1000" % tmp_path)
    while not (tmp_path / "up").exists():
        assert p.poll() is None
        time.sleep(0.02)
    (tmp_path / "stop").write_text("")
    code, err = finish(p)
    assert code == 128 + signal.SIGKILL and err == "", "an end on request is not reported"


def test_a_rank_that_fails_is_named(tmp_path):
    assert finish(relay(tmp_path, "sh", "-c", "kill -9 $$")) == (
        137, "tp-run relay: rank 0 was killed by signal 9\n")
    assert finish(relay(tmp_path, "sh", "-c", "exit 3")) == (
        3, "tp-run relay: rank 0 ended with exit code 3\n")
    assert finish(relay(tmp_path, "sh", "-c", "exit 75")) == (75, "")


def test_a_signal_is_forwarded(tmp_path):
    script = "trap 'exit 75' USR1; echo ready; while :; do sleep 0.05; done"
    p = subprocess.Popen([str(harness.BIN / "tp-run"), "relay", "slurm", str(tmp_path), "sh", "-c", script],
                         stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGUSR1)
    assert p.wait(60) == 75
    p.stdout.close()


def test_relays_that_start_at_the_same_time_do_not_remove_each_others_folders(tmp_path):
    """Each removes the folders of dead relays, and a folder that is not locked yet looks like one."""
    for _ in range(100 if harness.LONG else 10):
        started = [relay(tmp_path, "true") for _ in range(24)]
        assert [finish(p) for p in started] == [(0, "")] * len(started)
