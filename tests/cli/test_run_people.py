"""tp-run as operators use it: without standard streams, on small terminals, in pipes that end, after the
job is done, and with trainers that print any bytes before they end.

needs: tp-run tp-train tp-ckpt
covers: cli/run/event_text cli/run/output_queue
"""
import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import signal
import stat
import struct
import subprocess
import termios
import time

import pytest

import harness
from run_job import Job, fake_job, train_job

TP_RUN = str(harness.BIN / "tp-run")


# ---- the streams that it writes to ----

def test_with_closed_standard_streams_its_files_are_intact(tmp_path):
    """Otherwise the next files would get the descriptors 0, 1 and 2, and messages would go into them."""
    with fake_job(tmp_path, "--steps", 10) as job:
        r = subprocess.run(["sh", "-c", 'exec "$0" "$1" <&- >&- 2>&-', TP_RUN, str(job.path)],
                           timeout=60)
        assert r.returncode == 0
        for line in (job.state / "events.jsonl").read_text().splitlines():
            assert json.loads(line)["event"]
        assert job.events("done")
        for record in job.journal():
            assert record["transition"]


def test_with_closed_standard_streams_a_checkpoint_is_intact(tmp_path, tiny):
    command = '"$0" --model "$1" --data "$2" --steps 2 --ckpt "$3" <&- >&- 2>&-'
    r = subprocess.run(["sh", "-c", command, str(harness.BIN / "tp-train"), str(tiny), harness.TEXT,
                        str(tmp_path / "ckpt")], timeout=60)
    assert r.returncode == 0
    assert harness.run("tp-ckpt", "verify", tmp_path / "ckpt").rc == 0


def test_a_verb_whose_answer_cannot_be_written_fails(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        assert job.start().wait() == 0
        for words in (["status", job.path], ["events", job.path], ["plan", job.path, "--json"], ["--example"]):
            r = harness.run("sh", "-c", 'exec "$@" > /dev/full', "sh", "tp-run", *words)
            assert r.rc == 3 and r.lines[-1].startswith("tp-run: standard output: "), repr(r)


def test_a_job_whose_events_cannot_be_printed_completes_and_fails(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        r = harness.run("sh", "-c", 'exec "$@" > /dev/full', "sh", "tp-run", job.path, "--json")
        assert r.rc == 3 and "the job is done, but some of its events could not be printed" in r.lines[-1], repr(r)
        assert job.events()[-1]["event"] == "done"


def test_control_characters_in_an_event_do_not_reach_the_terminal(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        job.start().wait()
        with open(job.state / "events.jsonl", "a") as f:
            print(json.dumps({"time": 1, "event": "failed", "node": "b", "message": "a\x1b]0;x\x07\n\x9bJ"}), file=f)
            print(json.dumps({"time": 1, "event": "oth\x1ber", "fi\x1beld": "\x1b[31m"}), file=f)
        last, other = on_terminal(job, 80, "dumb", "events", str(job.path)).splitlines()[-2:]
        assert last.endswith(r"failed: a\x1b]0;x\x07\n\xc2\x9bJ"), last
        assert other.endswith(r"oth\x1ber, fi\x1beld \x1b[31m"), other


def test_a_damaged_time_of_an_event_is_printed_as_a_dash(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        job.start().wait()
        times = 1e300, 1e18, -1e18, "x", None
        with open(job.state / "events.jsonl", "a") as f:
            for time_ in times:
                print(json.dumps({"time": time_, "event": "failed"}), file=f)
        shown = on_terminal(job, 80, "dumb", "events", str(job.path)).splitlines()
        assert shown[-len(times):] == ["-  failed"] * len(times), shown


def on_terminal(job, columns, term, *words):
    """The output of tp-run, with these words, on a terminal of this width."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = term
        os.execv(TP_RUN, [TP_RUN, *(words or [str(job.path)])])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    out = b""
    try:
        while True:
            out += os.read(fd, 65536)
    except OSError:  # EIO: tp-run has ended
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out
    return out.decode()


def test_the_live_line_fits_the_terminal(tmp_path):
    with fake_job(tmp_path, "--steps", 60) as job:
        text = on_terminal(job, 40, "xterm")
        live = [l for l in re.findall(r"\r\x1b\[K([^\r\n]*)(?=\r\x1b)", text) if l]
        assert live and all(len(l) <= 39 for l in live), text
        assert "status page: http://127.0.0.1" in re.sub(r"[^\n]*\r\x1b\[K", "", text), "the line is erased"
        assert "attempt 1 starts: " in text and "from the beginning" not in text, "only the command knows"


def test_on_a_terminal_events_are_sentences(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=400) as job:
        text = on_terminal(job, 200, "xterm")
        assert "selected tp4: 4 of 4 free ranks" in text and "attempt 1 starts: tp4, 4 ranks, from the beginning" in text
        assert "every rank trains" in text and "done: all steps are done" in text
        assert "saved step" not in text, "a save is shown by the live line"
        live = [l for l in re.findall(r"\r\x1b\[K([^\r\n]*)", text) if "step" in l]
        assert any("tokens/s" in l and " left" in l for l in live), live
        assert any(", saved " in l for l in live), live
        shown = on_terminal(job, 200, "xterm", "events", str(job.path))
        assert "saved step 400" in shown and "{" not in shown and "step -1" not in shown
        assert json.loads(on_terminal(job, 200, "xterm", "events", "--json", str(job.path)).splitlines()[0])
        assert json.loads(job.verb("events").out.splitlines()[0])["step"] == -1


def test_a_dumb_terminal_gets_no_escape_sequences(tmp_path):
    with fake_job(tmp_path, "--steps", 40) as job:
        assert "\x1b" not in on_terminal(job, 80, "dumb")


def test_tp_run_continues_when_the_reader_of_its_output_ends(tmp_path):
    with fake_job(tmp_path, "--steps", 60) as job:
        r = subprocess.run(["bash", "-c", '"$0" "$1" 2>&1 | head -1; exit ${PIPESTATUS[0]}', TP_RUN,
                            str(job.path)], capture_output=True, timeout=60)
        assert r.returncode == 0
        assert job.events("done")


def stand_still(kind):
    """A stream whose reader does not read: (the reader's end, the writer's end, what lets the writer go on)."""
    if kind == "terminal":
        reader, writer = pty.openpty()
        termios.tcflow(writer, termios.TCOOFF)  # Ctrl-S
        return reader, writer, lambda: termios.tcflow(writer, termios.TCOON)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    return reader, writer, lambda: None


@pytest.mark.parametrize("kind", ["terminal", "pipe", "json"])
def test_a_reader_that_stands_still_does_not_stop_tp_run(tmp_path, kind):
    reader, writer, go_on = stand_still(kind)
    options = ["--json", "--quiet"] if kind == "json" else []
    with fake_job(tmp_path, "--steps", 100000) as job:
        job.process = subprocess.Popen([TP_RUN, str(job.path), *options], stdin=subprocess.DEVNULL,
                                       stdout=writer if kind == "json" else subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL if kind == "json" else writer,
                                       env={**os.environ, "TERM": "xterm"})
        job.await_event("training", timeout=20)
        os.kill(job.rank_pid(1), signal.SIGKILL)
        job.await_event("training", 2)
        assert job.verb("stop").rc == 0
        job.await_event("stopped")
        if kind == "pipe":
            assert job.process.wait(30) == 75, "it waits some seconds for the reader"
        go_on()
        os.close(writer)
        out = b""
        with contextlib.suppress(OSError):  # EIO: the terminal has no writer any more
            while data := os.read(reader, 65536):
                out += data
        assert job.process.wait() == 75
        if kind == "json":
            assert [json.loads(l) for l in out.splitlines() if l] == [*job.events(), {"error": "saved and stopped", "exit": 75}]
        elif kind == "terminal":
            assert b"the job starts again: " in out and out.rstrip().endswith(b"saved and stopped"), out
        os.close(reader)


def test_an_event_that_a_crash_has_cut_does_not_damage_the_next(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        job.state.mkdir()
        (job.state / "events.jsonl").write_text('{"time": 1, "event": "save"}\n{"time": 2, "ev')
        assert job.start().wait() == 0
        assert [e["event"] for e in job.events()][:3] == ["save", "plan", "launch"]


def train_until_events_do_not_fit(job):
    """Start a job; when it trains, let its file of events grow no more. Returns the file."""
    job.state.mkdir()
    path = job.state / "events.jsonl"
    path.write_text('{"event": "old"}\n' * 50000)  # so that only this file exceeds the limit
    job.start()
    job.await_event("training")
    resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 20, resource.RLIM_INFINITY))
    return path


def test_events_that_a_full_disk_refused_are_written_when_it_has_room(tmp_path):
    with fake_job(tmp_path, "--steps", 4000) as job:
        path = train_until_events_do_not_fit(job)
        assert job.verb("resize", "dp1").rc == 0
        end = time.monotonic() + 60
        while "events wait until they can be written" not in job.output.read_text():
            assert time.monotonic() < end, "no event failed\n" + job.story()
            time.sleep(0.05)
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        job.await_event("training", 2)
        kinds = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        assert "drain" in kinds and "launch" in kinds[kinds.index("drain"):], kinds


@pytest.mark.parametrize("has_room", [True, False], ids=["room", "full"])
def test_at_its_end_tp_run_tries_for_some_seconds_to_write_events(tmp_path, has_room):
    with fake_job(tmp_path, "--steps", 4000) as job:
        path = train_until_events_do_not_fit(job)
        begin = time.monotonic()
        assert job.verb("stop", "--wait").rc == 0  # it returns before the last tries
        if has_room:
            time.sleep(1)
            resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert job.wait() == 75
        kinds = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        lost = re.search(r"events.jsonl: cannot append.*; (\d+) events are lost", job.output.read_text())
        assert ("stopped" in kinds) == has_room and bool(lost) != has_room, job.output.read_text()
        assert has_room or (int(lost[1]) >= 2 and 2 < time.monotonic() - begin)


def test_events_skips_a_line_that_is_not_whole(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        job.state.mkdir()
        (job.state / "events.jsonl").write_text('{"event": "save"}\n{"ev\n{"event": "done"}\n{"event": "fai')
        for words in (["--json"], []):
            lines = job.verb("events", *words).out.splitlines()
            assert [json.loads(line)["event"] for line in lines] == ["save", "done"]


def test_tp_run_stays_with_a_job_that_trains_when_the_journal_cannot_be_written(tmp_path, tiny):
    # With a save at each step, tp-run sees one in progress, and that is what it writes to the journal.
    with train_job(tmp_path, tiny, steps=4000, options={"save-every": 1}) as job:
        job.start()
        job.await_event("save", 2)
        size = (job.state / "journal").stat().st_size
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        for name in ("timeline.jsonl", "curve.jsonl"):
            (job.state / name).unlink(missing_ok=True)  # so that only the journal exceeds the limit
        end = time.monotonic() + 60
        while "journal: cannot write" not in job.output.read_text():
            assert time.monotonic() < end, "no record failed\n" + job.story()
            time.sleep(0.05)
        job.await_step(job.status()["step"] + 60)
        assert job.process.poll() is None, "tp-run left the job"
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        job.await_event("journal_recovered")
        assert job.verb("stop", "--wait").rc == 0
        assert job.wait() == 75 and job.journal()[-1]["transition"] == "stopped"


# ---- answers as JSON ----

def test_status_has_the_same_fields_when_the_job_is_over(tmp_path):
    with fake_job(tmp_path, "--steps", 3000) as job:
        job.start()
        runs = job.await_step(5)
        assert runs["running"] is True
        job.verb("stop", "--wait")
        over = job.status()
        assert set(over) == set(runs) - {"loss", "deadline_seconds"}
        assert over["running"] is False and over["state"] == "stopped" and over["step"] >= 5
        assert over["nodes"] and over["spent"]["training"] > 0 and over["goodput"] > 0
        text = job.verb("status").out
        assert "stopped: saved and stopped (tp-run is not running)" in text and "goodput" in text
        assert over["checkpoint_reported"] is runs["checkpoint_reported"] is False and over["checkpoint"] == -1
        assert ", checkpoint not reported by the program" in text


def test_status_says_how_tp_run_itself_has_ended(tmp_path):
    with fake_job(tmp_path, "--steps", 100000) as job:
        job.start()
        s = job.await_step(5)
        assert s["tp_run"] == "running" and s["tp_run_message"] == ""
        job.process.kill()
        job.wait()
        s = job.status()
        assert s["tp_run"] == "killed" and s["running"] is False and s["state"] in ("train", "save")
        assert s["tp_run_message"] == "it was killed; the ranks run on; the same command takes them over"
        assert job.verb("stop").rc == 2 and "but its ranks run on" in job.verb("stop").err
        while job.processes():
            for pid in job.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        text = job.verb("status").out
        assert "\ntp-run      it was killed; the same command continues the job\n" in text, text
        assert job.verb("stop").err.endswith("no tp-run is running this job\n")
        home = job.state / "home"
        home.write_text(home.read_text().replace(os.uname().nodename, "elsewhere"))
        text = job.verb("status").out
        assert " (tp-run does not answer)\ntp-run      it was started on host elsewhere and" in text, text
        home.unlink()

        job.start()
        job.await_event("training", 2)
        limit = (job.state / "journal").stat().st_size
        (job.state / "events.jsonl").write_text("")  # so that only the journal exceeds the limit
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        job.verb("resize", "dp1")
        assert job.wait() == 3
        s = job.status()
        assert s["tp_run"] == "failed", s
        assert re.match("it could not continue: .*/journal: cannot write ", s["tp_run_message"]), s


def test_status_says_which_signal_has_stopped_the_job(tmp_path):
    with fake_job(tmp_path, "--steps", 100000) as job:
        job.start()
        job.await_step(5)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 75
        s = job.status()
        assert s["tp_run"] == "ended" and s["message"] == "saved and stopped by SIGTERM", s
        assert "stopped by SIGTERM (tp-run is not running)\nlayout" in job.verb("status").out


def shortest(text):
    """A number of a JSON text, which has no more digits than it needs."""
    assert len(text) <= len(repr(float(text))) + 2, text
    return float(text)


def test_every_verb_answers_as_json(tmp_path):
    with fake_job(tmp_path, "--steps", 3000) as job:
        job.start()
        job.await_step(3)
        for verb in (["node", "up", "a"], ["resize", "dp2"], ["status"], ["plan"], ["stop"]):
            r = job.verb(verb[0], *verb[1:], "--json")
            assert r.rc == 0 and len(r.out.splitlines()) == 1, repr(r)
            assert json.loads(r.out, parse_float=shortest), repr(r)
        for line in job.verb("events", "--json").out.splitlines():
            assert json.loads(line)
        job.wait()
        for verb in (["node", "sideways", "a"], ["node", "up", "a"], ["resize", "dp2"], ["stop"], ["submit"]):
            r = job.verb(verb[0], *verb[1:], "--json")
            assert r.rc == 2 and json.loads(r.out) == {"error": r.lines[-1][len("tp-run: "):], "exit": 2}, repr(r)


def test_a_name_that_is_not_utf8_is_refused_by_the_job(tmp_path):
    with fake_job(tmp_path, "--steps", 3000) as job:
        job.start()
        job.await_step(3)
        for verb in ["node", "up", b"a\xff"], ["resize", b"dp\xff"]:
            r = job.verb(*[os.fsdecode(word) for word in verb])
            assert r.rc == 2 and "?'" in r.err, repr(r)
        assert job.verb("stop").rc == 0


def test_status_shows_speed_time_left_and_the_last_fault(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=30000, options={"save-every": 20}) as job:
        job.start()
        job.await_step(30)
        os.kill(job.rank_pid(3), 9)
        job.await_event("training", 2)
        end = time.monotonic() + 60
        while not (s := job.status())["step_seconds"] and time.monotonic() < end:  # not yet measured
            time.sleep(0.05)
        assert s["tokens_per_second"] == pytest.approx(8 * 64 / s["step_seconds"], rel=0.01)
        assert s["left_seconds"] == pytest.approx((30000 - s["step"]) * s["step_seconds"], rel=0.01)
        fault = s["last_fault"]
        assert fault["reason"] == "rank_killed" and "signal 9" in fault["message"]
        assert fault["seconds"] == pytest.approx(job.events("training")[1]["seconds"]) and fault["repeated_steps"] >= 0
        text = job.verb("status").out
        assert " tokens per second, " in text and "signal 9" in text.split("last fault")[1]
        assert "; training again after " in text
        assert s["checkpoint_reported"] is True and re.search(", checkpoint (none|[0-9]+), loss", text)
        assert job.verb("resize", "tp2", "--wait").out == "the job trains at tp2\n"
        s = job.status()
        assert s["layout"] == "tp2" and s["state"] in ("train", "save")
        assert job.verb("resize", "tp2", "--wait", "--json").rc == 0
        job.verb("stop", "--wait")
        assert job.status()["message"] == "saved and stopped"
        job.start()
        job.await_event("training", 4)
        assert job.status()["message"] == "" and "saved and stopped" not in job.verb("status").out
        job.verb("stop", "--wait")


def test_resize_wait_reports_a_job_that_ends(tmp_path):
    with fake_job(tmp_path, "--steps", 100000, "--ignore-signals") as job:
        job.start()
        job.await_step(3)
        p = subprocess.Popen([TP_RUN, "resize", "--wait", str(job.path), "dp1"], stderr=subprocess.PIPE, text=True)
        job.await_event("drain")
        job.verb("stop")
        job.process.send_signal(15)  # the second request kills the ranks
        job.wait()
        assert p.wait(20) == 3 and "has ended before it trained at tp1" in p.stderr.read()


def test_words_that_are_no_verb(tmp_path):
    for program, word, verb in (("tp-run", "staus", "status"), ("tp-run", "event", "events"),
                                ("tp-ckpt", "verfy", "verify"), ("tp-ckpt", "exprot", "export")):
        r = harness.run(program, word, "x")
        assert r.rc == 2 and "did you mean '%s'?" % verb in r.err, repr(r)
    assert harness.run("tp-run").rc == 2
    assert "no such file" in harness.run("tp-run", "status.yaml").err


def test_options_before_the_verb_or_the_job_file(tmp_path):
    with fake_job(tmp_path, "--steps", 5) as job:
        r = harness.ok("tp-run", "--json", job.path)
        assert json.loads(r.out.splitlines()[-1])["event"] == "done"
        assert json.loads(harness.ok("tp-run", "--json", "status", job.path).out)["state"] == "done"
        r = harness.run("tp-run", "--json", "staus", job.path)
        assert r.rc == 2 and "did you mean 'status'?" in json.loads(r.out)["error"], repr(r)
        r = harness.run("tp-run", "--jsn", job.path)
        assert r.rc == 2 and "unknown option '--jsn'" in r.err, repr(r)
    assert harness.ok("tp-run", "--json", "--version").out.startswith("tp-run ")
    assert harness.ok("tp-run", "--quiet", "--example").out == harness.ok("tp-run", "--example").out
    r = harness.run("tp-ckpt", "--step", 5, "show", tmp_path)  # 5 is its value
    assert r.rc == 2 and "'--step' comes before the verb; write the verb first" in r.err, repr(r)


# ---- a job file that is damaged or removed while its job runs ----

@pytest.mark.parametrize("state", [None, "elsewhere"])
def test_without_its_job_file_a_job_is_shown_and_stopped(tmp_path, state):
    with fake_job(tmp_path, "--steps", 100000) as job:
        whole = job.path.read_text()
        assert "state:" not in whole
        folder = tmp_path / state if state else job.state
        job.path.write_text(whole + ("state: %s\n" % state if state else ""))
        job.state = folder
        job.start()
        job.await_step(5)
        job.path.write_text(job.path.read_text() + "]: [\n")
        r = job.verb("status", "--json")
        assert json.loads(r.out)["running"] and "using the state folder %s" % folder in r.err, repr(r)
        assert job.verb("events").rc == 0
        job.path.unlink()
        r = job.verb("status")
        if state:
            assert r.rc == 2 and "no such file; if its job runs, give the state folder" in r.err, repr(r)
        else:
            assert r.rc == 0 and "state       train" in r.out, repr(r)
        for verb in ("status", "stop"):
            r = harness.run("tp-run", verb, folder if state else job.path)
            assert r.rc == 0 and (not state or not r.err), repr(r)
        assert job.wait() == 75
        over = harness.ok("tp-run", "status", folder).out
        assert "stopped" in over and "nodes" not in over, "only the job file names them"


# ---- after the job is done ----

def test_a_job_that_is_done_reports_it_and_continues_for_more_steps(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=20) as job:
        assert job.start().wait() == 0
        r = harness.run("tp-run", job.path)
        assert r.rc == 0 and "all steps are done already" in r.err and len(job.events("launch")) == 1, repr(r)
        job.path.write_text(job.path.read_text().replace('"20"', '"40"'))
        assert job.start().wait() == 0
        assert [e["resumed_at"] for e in job.events("launch")] == [-1, 20]
        assert sorted(job.losses()) == list(range(40))


def test_another_program_that_is_done_is_not_run_again_by_accident(tmp_path):
    with fake_job(tmp_path, "--steps", 20, "--state", "at") as job:
        assert job.start().wait() == 0
        r = harness.run("tp-run", job.path)
        assert r.rc == 0 and "the command has ended with exit code 0, so the job is done already" in r.err, repr(r)
        assert "move %s and its checkpoints away" % job.state in r.err and len(job.events("launch")) == 1, repr(r)
        job.path.write_text(job.path.read_text().replace('"20"', '"40"') + "steps: 20\n")
        assert job.start().wait() == 0 and len(job.events("launch")) == 1, "20 steps were reported"
        job.path.write_text(job.path.read_text().replace("steps: 20\n", "steps: 40\n"))
        assert job.start().wait() == 0 and len(job.events("launch")) == 2, job.story()
        assert (tmp_path / "at").read_text() == "40"


# ---- submit ----

def stand_ins(folder):
    """Programs in place of Slurm's: sbatch counts its calls and prints 7, squeue prints the state of a job, when it was
    submitted and its command, from the file `state`. Returns the environment with them."""
    for name, script in (("sbatch", "echo $* >> %s/sbatch.calls; echo 7" % folder),
                         ("squeue", 'read answer < %s/state || exit 1\ncase "$*" in *%%T*%%V*%%o) echo "$answer" ;; esac' % folder)):
        (folder / name).write_text("#!/bin/sh\n%s\n" % script)
        (folder / name).chmod(0o755)
    return {"PATH": "%s:%s" % (folder, os.environ["PATH"])}


def submissions(folder):
    calls = folder / "sbatch.calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def test_a_job_that_is_queued_or_runs_is_not_submitted_again(tmp_path):
    with fake_job(tmp_path, "--steps", 100000) as job:
        local = job.path.read_text()
        job.path.write_text(local.replace("nodes: [a, b]\n", "backend: slurm\n"))
        env = stand_ins(tmp_path)
        submit = ["tp-run", "submit", job.path]
        assert harness.run(*submit, env=env).out == "7\n"
        script = job.state / "batch.sh"
        for state in ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED"):
            (tmp_path / "state").write_text("%s|2099-01-01T00:00:00|%s\n" % (state, script))
            r = harness.run(*submit, env=env)
            assert r.rc == 2 and "Slurm job 7 of this job is %s already, so nothing is submitted" % state in r.err, repr(r)
        assert submissions(tmp_path) == 1
        for state in ("CANCELLED", "COMPLETED"):
            (tmp_path / "state").write_text("%s|2099-01-01T00:00:00|%s\n" % (state, script))
            assert harness.run(*submit, env=env).out == "7\n"
        (tmp_path / "state").unlink()
        assert harness.run(*submit, env=env).rc == 0 and submissions(tmp_path) == 4, "Slurm has forgotten the job"

        slurm = job.path.read_text()
        job.path.write_text(local)
        job.start()
        job.await_step(3)
        job.path.write_text(slurm)
        r = harness.run(*submit, env=env)
        assert r.rc == 2 and "tp-run runs this job already (state " in r.err, repr(r)
        assert submissions(tmp_path) == 4


def test_another_job_that_got_the_same_number_does_not_prevent_a_submission(tmp_path):
    with fake_job(tmp_path, "--steps", 100000) as job:
        job.path.write_text(job.path.read_text().replace("nodes: [a, b]\n", "backend: slurm\n"))
        env = stand_ins(tmp_path)
        submit = ["tp-run", "submit", job.path]
        assert harness.run(*submit, env=env).out == "7\n"
        for command in ("/home/other/train.sh", "(null)", "/a|b/batch.sh"): # (null): of salloc
            (tmp_path / "state").write_text("RUNNING|2099-01-01T00:00:00|%s\n" % command)
            (job.state / "home").write_text("gone 7 n1\n") # a tp-run in this job was killed
            assert harness.run(*submit, env=env).out == "7\n", command
        assert submissions(tmp_path) == 4
        for submitted in ("2020-01-01T00:00:00", "N/A"): # before the number was written down: perhaps by another script
            (tmp_path / "state").write_text("RUNNING|%s|/home/me/own.sh\n" % submitted)
            assert harness.run(*submit, env=env).rc == 2, submitted
        assert submissions(tmp_path) == 4


# ---- what trainers print ----

def failing_job(folder, words):
    """A job whose command prints these bytes and fails."""
    (folder / "words").write_bytes(words)
    script = folder / "fail.sh"
    script.write_text("#!/bin/sh\ncat words\nexit 1\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return Job(folder, ["./fail.sh"], nodes="[a]", allow="[tp1]",
               restart={"no_progress": 2, "backoff": "0.1s"})


@pytest.mark.parametrize("words, line", [
    (b"caf\xe9 is closed\n", "caf? is closed"),
    (b"\x1b[31mred\x1b[0m alert\n", "?[31mred?[0m alert"),
    ("x‘quoted’ ".encode() * 100 + b"\n", "x‘quoted’ x‘quoted’"),  # cut, perhaps within a character
    (b" 10%|#   |\r 20%|##  |\r\n", "20%|##  |"),
], ids=["latin1", "colours", "cut", "progress-bar"])
def test_the_last_line_of_a_failed_command_is_reported(tmp_path, words, line):
    with failing_job(tmp_path, words) as job:
        assert job.start().wait() == 3
        assert line in job.events("rank_exit")[0]["message"]
        assert line in job.events("failed")[0]["message"]
        assert line in job.output.read_text() and "\x1b" not in job.output.read_text()
        r = job.verb("status")
        assert r.rc == 0 and line in r.out, repr(r)


def test_folder_names_may_have_any_bytes(tmp_path):
    folder = tmp_path / os.fsdecode(b"s p\xe9ce")
    folder.mkdir()
    with failing_job(folder, b"no\n") as job:
        assert job.start().wait() == 3
        assert "exit code 1: no" in job.events("failed")[0]["message"]


def test_a_refused_command_line_is_not_tried_again_although_a_rank_ends_first(tmp_path):
    with fake_job(tmp_path, "--exit-at", 0, 2, "--step-ms", 500,
                  restart={"no_progress": 3, "backoff": "0.1s"}) as job:
        assert job.start().wait() == 2
        assert len(job.events("launch")) == 1
        assert job.events("failed")[0]["reason"] == "command_refused"


def test_an_option_that_tp_train_refuses_ends_tp_run_with_its_sentence_and_2(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=5, options={"beta1": 1.5}) as job:
        assert job.start().wait() == 2
        assert len(job.events("launch")) == 1
        assert "--beta1 1.5" in job.events("failed")[0]["message"]


def test_events_follow_ends_when_its_reader_ends(tmp_path):
    """For example `tp-run events --follow | grep -m 1 done`. There may be no later event to write."""
    with fake_job(tmp_path, "--steps", 5) as job:
        assert job.start().wait() == 0
        follow = subprocess.Popen([harness.BIN / "tp-run", "events", "--follow", job.path],
                                  stdout=subprocess.PIPE)
        assert b'"event"' in follow.stdout.readline()
        follow.stdout.close()
        assert follow.wait(20) == 0
