"""Helpers for the tests of tp-run: a job in its own folder, which runs in the background."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import harness
from test_faults import preload

FAKE = pathlib.Path(__file__).with_name("fake_trainer.py")
PICKY = pathlib.Path(__file__).with_name("picky_trainer.py")
JOURNAL_KILL = harness.BUILD / "tests/fault/journal_kill.so"
PACE = {"seq": 64, "batch": 8, "save-every": 10}  # tp-train needs 1 to 10 ms per step of the tiny model
SLOW = 32  # a batch with which the job still trains after a test has acted several times, on a fast machine too


def killed_after(record):
    """The environment in which SIGKILL ends tp-run after a record of its journal: the record's number, or
    STATE:K for the K-th transition to that state. See tests/fault/journal_kill.c."""
    return {"LD_PRELOAD": preload(JOURNAL_KILL), "TP_JOURNAL_KILL": str(record)}


class Job:
    """A job file and its tp-run. As a context manager it ends all processes of the job."""

    def __init__(self, folder, command, nodes="[a, b, c, d]", allow="[tp4, tp2, tp1]", name="job",
                 bin=harness.BIN, ckpt="ckpt", grace="20s", **sections):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / (name + ".yaml")
        self.ckpt = ckpt if str(ckpt).startswith("s3://") else self.folder / ckpt
        self.state = self.folder / (name + ".run")
        self.bin = pathlib.Path(bin)
        self.process, self.output = None, self.folder / (name + ".out")
        sections.setdefault("layouts", {}).setdefault("allow", allow)
        sections.setdefault("watch", {}).setdefault("floor", "3s")
        sections.setdefault("restart", {}).setdefault("settle", "0.2s")
        text = "name: %s\ncommand: %s\nckpt: %s\nnodes: %s\ngrace: %s\n" % (
            name, json.dumps([str(c) for c in command]), ckpt, nodes, grace)
        for key, value in sections.items():
            if isinstance(value, dict):
                text += "%s: {%s}\n" % (key, ", ".join("%s: %s" % kv for kv in value.items()))
            else:
                text += "%s: %s\n" % (key, value)
        self.path.write_text(text)

    @classmethod
    def of_file(cls, path, folder):
        """The job of a job file that exists. `folder` gets what tp-run prints."""
        job = cls(folder, ["true"], name="unused")
        job.path, job.state, job.output = path, path.with_suffix(".run"), job.folder / "job.out"
        return job

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, env=None, nohup=False):
        out = open(self.output, "a")
        self.process = subprocess.Popen([str(self.bin / "tp-run"), str(self.path)], stdout=out,
                                        stderr=out, stdin=subprocess.DEVNULL,
                                        preexec_fn=harness.ignore_hangup if nohup else None,
                                        env={**os.environ, **(env or {})})
        out.close()
        return self

    def wait(self, timeout=120):
        """Wait for tp-run. Returns its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError("tp-run has not ended\n" + self.story()) from None

    def verb(self, verb, *args):
        return harness.run("tp-run", verb, self.path, *args)

    def status(self):
        r = self.verb("status", "--json")
        return json.loads(r.out) if r.rc == 0 else None

    def events(self, kind=None):
        try:
            lines = (self.state / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = []
        for line in lines:
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        return [e for e in events if kind is None or e["event"] == kind]

    def await_event(self, kind, count=1, timeout=60, **fields):
        """Wait for the event number `count` of a kind (with these fields)."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            found = [e for e in self.events(kind) if all(e.get(k) == v for k, v in fields.items())]
            if len(found) >= count:
                return found[count - 1]
            if self.process.poll() is not None and time.monotonic() > end - timeout + 1:
                break
            time.sleep(0.02)
        raise AssertionError("no event %s %s\n%s" % (kind, fields, self.story()))

    def await_step(self, step, timeout=60):
        """Wait until every rank trains and the job has reached this step."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            s = self.status()
            if s and s.get("step", -1) >= step and s.get("state") in ("train", "save"):
                return s
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("step %d is not reached\n%s" % (step, self.story()))

    def rank_pid(self, rank):
        return self.status()["ranks"][rank]["pid"]

    def run_id(self):
        last = (self.state / "journal").read_bytes().splitlines()[-1]
        return json.loads(last[20:])["record"]["run_id"]

    def journal(self):
        return [json.loads(l[20:]) for l in (self.state / "journal").read_bytes().splitlines()]

    def processes(self, supervisors=True):
        """The pids whose environment shows that they belong to this job."""
        try:
            run_id = self.run_id()
        except (FileNotFoundError, IndexError, ValueError):
            return []
        names = [b"TP_RUN_ID=" + run_id.encode()]
        if supervisors:
            names.append(b"TP_SUPERVISOR_ID=" + run_id.encode())
            names.append(b"TP_HELPER_ID=" + run_id.encode())
        pids = []
        for p in pathlib.Path("/proc").iterdir():
            if p.name.isdigit():
                with contextlib.suppress(OSError):
                    env = (p / "environ").read_bytes()
                    state = (p / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state != "Z" and any(n in env for n in names):
                        pids.append(int(p.name))
        return pids

    def losses(self):
        """{step: loss}. If a step was logged twice, the last counts, because the run continued from it."""
        out = {}
        for line in (self.state / "steps.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that is incomplete because of a kill
                e = json.loads(line)
                out[e["step"]] = e["loss"]
        return out

    def story(self):
        text = "".join(e["event"] + " " + e.get("message", "") + "\n" for e in self.events()[-30:])
        text += self.output.read_text() if self.output.exists() else ""
        for log in sorted(self.state.glob("attempt-*.log"))[-2:]:
            text += "-- %s\n%s" % (log.name, log.read_text()[-1500:])
        return text[-6000:]


def train_job(folder, model, steps=200, program=harness.JOB_TRAIN, **kw):
    """A job of tp-train on the tiny model."""
    command = [program, "--model", model, "--data", harness.TEXT, "--steps", steps, "--warmup", 2]
    options = {**PACE, **kw.pop("options", {})}
    for name, value in options.items():
        command += ["--" + name, value]
    return Job(folder, command, **kw)


def picky_job(folder, model, steps=60, **kw):
    """A job of a trainer that writes this toolkit's checkpoints but reads only its own layout."""
    command = [sys.executable, PICKY, "{layout}", "{ckpt}", "--model", model, "--data", harness.TEXT,
               "--steps", steps, "--warmup", 2, "--log", "{state}/steps.jsonl"]
    for name, value in {**PACE, **kw.pop("options", {})}.items():
        command += ["--" + name, value]
    return Job(folder, command, checkpoints="tp", steps=steps, **kw)


def fake_job(folder, *args, nodes="[a, b]", allow="[dp2, dp1]", **kw):
    """A job of the fake trainer, which tp-run watches only through libtp-progress."""
    return Job(folder, [sys.executable, FAKE, "{ranks}", *args], nodes=nodes, allow=allow,
               checkpoints="none", **kw)


def alive(pid):
    try:
        return pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def await_file(job, name):
    """Wait until a file is in the folder of the job."""
    end = time.monotonic() + 60
    while not (job.folder / name).exists():
        assert time.monotonic() < end, job.story()
        time.sleep(0.02)


def assert_same_curve(job, reference):
    """Every step was logged, and the losses are those of a run without failures, within the tolerances of
    the oracle for 20 and for 200 steps. (The reference needs the same --steps, because the decay of the
    learning rate depends on it.)"""
    got = job.losses()
    assert sorted(got) == sorted(reference), "steps are missing"
    for s in got:
        assert abs(got[s] - reference[s]) <= (5e-6 if s < 20 else 2e-4), s
