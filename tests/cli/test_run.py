"""tp-run on one machine: restarts, scaling, stopping, taking over.

needs: tp-run tp-train tp-ckpt tp-reshard libtp-progress.so fault/shim.so
covers: cli/run/cmd_change cli/run/cmd_job cli/run/cmd_worker cli/run/run_context
covers: orchestrator/run_watch orchestrator/run_ranks
"""
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import harness
from run_job import SLOW, Job, alive, assert_same_curve, await_file, fake_job, train_job
from test_faults import Shim

STEPS = 250


# ---- the job file ----

def test_example_is_a_job_file_that_plans(tmp_path, tiny):
    text = harness.ok("tp-run", "--example").out.replace("model/", str(tiny))
    (tmp_path / "x.yaml").write_text(text)
    assert "tp4" in harness.ok("tp-run", "plan", tmp_path / "x.yaml").out


@pytest.mark.parametrize("text, sentence", [
    ("command: x\n", 'the key "ckpt" is missing'),
    ("command: x\nckpt: y\nwatch: {flor: 1}\n", 'x.yaml:3: there is no key "watch.flor"'),
    ("command: x\nckpt: y\npage: {listen: '0.0.0.0:0'}\n", "set page.token_file"),
    ("command: x\nckpt: y\npage: {listen: nowhere}\n", "expected address:port"),
    ("command: tp-train --steps 1\nckpt: https://host/ckpt\n", "a web server cannot be written to, but ckpt is https://host/ckpt"),
    ("command: tp-train --steps 1\nckpt: s3://bucket/ckpt\nreshard: always\n", "not converted in place; leave it out"),
    ("command: x\nckpt: s3://bucket/ckpt\ncheckpoints: tp\n", 'not converted in place; set "reshard: never"'),
    ("command: tp-train --steps 1\nckpt: s3://user:secret@bucket/ckpt\n", "the name of the bucket after s3://"),
    ("command: x\nckpt: https://host/ckpt\ncheckpoints: tp\n", "a web server cannot be written to, but ckpt is https://host/ckpt"),
    ("command: tp-train --ckpt s3://bucket/a\nckpt: b\n", "the command has --ckpt s3://bucket/a, but ckpt is"),
    ("command: x\nckpt: y\nstate: s3://bucket/state\n", "expected a path"),
])
def test_a_wrong_job_file_gives_one_sentence(tmp_path, text, sentence):
    (tmp_path / "x.yaml").write_text(text)
    r = harness.run("tp-run", tmp_path / "x.yaml")
    assert r.rc == 2 and len(r.lines) == 1 and sentence in r.err, repr(r)


def test_requests_without_a_running_job_are_refused(tmp_path, tiny):
    job = train_job(tmp_path, tiny)
    for verb in (["status"], ["stop"], ["resize", "2"], ["node", "down", "a"], ["events"]):
        r = job.verb(*verb)
        assert r.rc == 2 and len(r.lines) == 1, repr(r)
    r = harness.run("tp-run", "status", tmp_path / "absent.yaml")
    assert r.rc == 2 and "absent.yaml" in r.err
    r = harness.run("tp-run", "plan", tmp_path)
    assert r.rc == 2 and "is a folder, expected a regular file" in r.err, repr(r)


# ---- faults ----

def test_after_a_killed_rank_the_next_layout_has_the_same_curve(tmp_path, tiny, curve, figure):
    with train_job(tmp_path, tiny, steps=STEPS, restart={"blame": 1, "exclude_for": "1h"}) as job:
        job.start()
        job.await_event("save")
        os.kill(job.rank_pid(2), signal.SIGKILL)
        exit_event = job.await_event("rank_exit")
        assert exit_event["rank"] == 2 and exit_event["node"] == "c"
        assert exit_event["reason"] == "rank_killed" and "signal 9" in exit_event["message"]
        again = job.await_event("training", 2)
        figure("seconds from kill to training at tp2", round(again["seconds"], 2))
        assert again["layout"] == "tp2" and again["resumed_at"] >= 10
        assert job.wait() == 0
        assert_same_curve(job, curve(STEPS))
        assert job.processes() == []


def test_a_stopped_rank_is_named_and_the_job_continues(tmp_path, tiny, figure):
    with train_job(tmp_path, tiny, steps=2000) as job:
        job.start()
        job.await_step(30)
        pid = job.rank_pid(1)
        os.kill(pid, signal.SIGSTOP)
        hang = job.await_event("hang")
        assert hang["rank"] == 1 and hang["reason"] == "rank_stuck", job.story()
        again = job.await_event("training", 2)
        figure("seconds to the verdict", round(hang["seconds"], 2))
        figure("seconds from SIGSTOP to training", round(again["seconds"], 2))
        assert not alive(pid)
        assert (job.state / "attempt-0001.stacks").exists()
        assert job.verb("stop", "--wait").rc == 0
        assert job.wait() == 75


@pytest.mark.parametrize("phase", ["start", "train", "save", "drain"])
def test_a_rank_that_is_stopped_in_any_phase_is_named_within_its_deadline(tmp_path, phase, figure):
    limits = {"init": "10s" if phase == "start" else "60s", "save": "4s" if phase == "save" else "60s"}
    with fake_job(tmp_path, "--steps", 100000, "--freeze", 1, phase, "{attempt}", grace="60s", watch={"floor": "1s", **limits}) as job:
        job.start()
        if phase == "drain":
            job.await_step(5)
            assert job.verb("stop").rc == 0
        begin = time.time()
        hang = job.await_event("hang")
        assert hang["rank"] == 1 and hang["reason"] == "rank_stuck", job.story()
        assert "process stopped" in hang["message"]
        figure("seconds until a rank that was stopped in %s is named" % phase, round(hang["seconds"], 2))
        if phase == "drain":
            assert job.wait() == 75 and time.time() - begin < 50, "all of the grace has passed"
            assert "rank 1 made no progress" in job.events("stopped")[0]["message"]
        else:
            job.await_event("training", 1 if phase == "start" else 2)
            job.verb("stop", "--wait")


def test_a_program_before_the_launch_that_is_stopped_is_killed_and_run_again(tmp_path):
    with fake_job(tmp_path, "--steps", 20, watch={"floor": "1s"},
                  prepare=json.dumps(["sh", "-c", "if [ ! -e again ]; then touch again; kill -STOP $$; fi"])
                  ) as job:
        assert job.start().wait() == 0
        hang = job.events("hang")
        assert len(hang) == 1 and hang[0]["reason"] == "helper_stuck" and "the prepare command" in hang[0]["message"]
        assert job.events("restart")[0]["reason"] == "helper_stuck"


@pytest.mark.parametrize("who", ["the command", "what a shell has started"])
def test_prepare_that_is_killed_runs_again(who, tmp_path):
    kill = "kill -9 $$" if who == "the command" else "sh -c 'kill -9 $$'"
    with fake_job(tmp_path, "--steps", 5, prepare=json.dumps(["sh", "-c", "[ -e again ] || { touch again; %s; }" % kill])) as job:
        assert job.start().wait() == 0, job.story()
        restart, = job.events("restart")
        assert restart["reason"] == "prepare_failed" and "the prepare command was killed by signal 9" in restart["message"], restart


@pytest.mark.parametrize("end,words,restarts", [("kill -9 $$", ["2 starts", "was killed by signal 9", "prepare.log"], 1),
                                                ("exit 7", ["the prepare command ended with exit code 7; see ", "prepare.log"], 0),
                                                ("exit 255", ["exit code 255"], 0)])
def test_prepare_that_fails_ends_the_job(end, words, restarts, tmp_path):
    with fake_job(tmp_path, "--steps", 5, prepare=json.dumps(["sh", "-c", end]), restart={"no_progress": 2}) as job:
        assert job.start().wait() == 3, job.story()
        failed, = job.events("failed")
        assert all(w in failed["message"] for w in words) and len(job.events("restart")) == restarts, job.story()
        assert not job.events("launch")


WAITS_ONCE = "touch began; while [ ! -e go ]; do sleep 0.02; done"


@pytest.mark.parametrize("asked", [["resize", "dp1"], ["node", "down", "b"]], ids=["resize", "node"])
@pytest.mark.parametrize("end", ["exit 0", "[ {layout} = tp1 ]"], ids=["done", "failed"])
def test_a_layout_that_changes_while_prepare_runs_is_prepared_again(tmp_path, asked, end):
    with fake_job(tmp_path, "--steps", 5, prepare=json.dumps(["sh", "-c", "echo {layout}; %s; %s" % (WAITS_ONCE, end)])) as job:
        job.start()
        await_file(job, "began")
        assert job.verb(*asked).rc == 0
        (job.folder / "go").touch()
        assert job.wait() == 0, job.story()
        assert [e["layout"] for e in job.events("launch")] == ["tp1"], job.story()
        assert (job.state / "prepare.log").read_text().split() == ["tp1dp2", "tp1"]


def test_a_request_that_comes_before_tp_train_handles_the_signal_is_no_fault(tmp_path):
    program = tmp_path / "tp-train"
    program.write_text("#!/bin/sh\n[ -e began ] && exit 0\ntouch began\nexec sleep 1000\n")
    program.chmod(0o755)
    with Job(tmp_path, [program, "--steps", 5], nodes="[a, b]", allow="[dp2, dp1]", restart={"no_progress": 1}) as job:
        job.start()
        await_file(job, "began")
        assert job.verb("resize", "dp1").rc == 0
        assert job.wait() == 0, job.story()
        assert [e["layout"] for e in job.events("launch")] == ["tp1dp2", "tp1"] and not job.events("restart")


def test_the_second_interrupt_ends_prepare_at_once_also_after_a_restart(tmp_path):
    script = "if [ {attempt} = 2 ]; then trap '' INT TERM; echo > began; while :; do sleep 0.1; done; fi"
    with fake_job(tmp_path, "--steps", 100000, grace="60s", prepare=json.dumps(["sh", "-c", script])) as job:
        job.start()
        job.await_event("launch")
        assert job.verb("resize", "dp1").rc == 0
        await_file(job, "began")
        begin = time.monotonic()
        for _ in range(2):
            job.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert job.wait() == 75 and time.monotonic() - begin < 50, "all of the grace has passed"


LEAVES_A_PROCESS = "sleep 1000 & echo $! > left; setsid sh -c 'sleep 1000 & echo $! > away'; %s"


def left_by_prepare(job):
    """The processes that the prepare command has started in the background."""
    end = time.monotonic() + 60
    while not all((job.folder / name).exists() and (job.folder / name).read_text() for name in ("left", "away")):
        assert time.monotonic() < end, job.story()
        time.sleep(0.02)
    return [int((job.folder / name).read_text()) for name in ("left", "away")]


def test_processes_that_prepare_leaves_are_killed_when_it_ends(tmp_path):
    with fake_job(tmp_path, "--steps", 5, prepare=json.dumps(["sh", "-c", LEAVES_A_PROCESS % "true"])) as job:
        job.start()
        pids = left_by_prepare(job)
        job.await_event("launch")
        assert not any(alive(pid) for pid in pids), job.story()
        assert job.wait() == 0
        assert "has left 2 processes in the background, which are killed" in job.output.read_text()


@pytest.mark.parametrize("how", ["SIGTERM", "twice", "grace", "SIGKILL"])
def test_processes_of_prepare_are_killed_when_tp_run_is_asked_to_stop_or_killed(tmp_path, how):
    script = "trap '' TERM; " + LEAVES_A_PROCESS % "while :; do sleep 0.1; done"
    script = script if how in ("twice", "grace") else script[len("trap '' TERM; "):]
    with fake_job(tmp_path, "--steps", 5, prepare=json.dumps(["sh", "-c", script])) as job:
        if how == "grace":
            job.path.write_text(job.path.read_text().replace("grace: 20s", "grace: 0.5s"))
        job.start()
        pids = left_by_prepare(job)
        assert all(alive(pid) for pid in pids)
        if how == "SIGKILL":
            job.process.kill()
            job.wait()
            assert all(alive(pid) for pid in pids), "nothing ends them"
            job.path.write_text(job.path.read_text().replace("while :; do", "while false; do"))
            assert job.start().wait() == 0
        else:
            job.process.send_signal(signal.SIGTERM)
            if how == "twice":
                time.sleep(0.3)
                job.process.send_signal(signal.SIGTERM)
            assert job.wait() == 75 and job.events("stopped"), job.story()
        assert not any(alive(pid) for pid in pids), job.story()


def test_after_a_killed_supervisor_no_process_is_left(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=2000) as job:
        job.start()
        job.await_step(20)
        before = job.processes()
        supervisor = [p for p in before if p not in job.processes(supervisors=False)]
        assert len(supervisor) == 1
        os.kill(supervisor[0], signal.SIGKILL)
        job.await_event("training", 2)
        assert not any(alive(p) for p in before)
        job.verb("stop", "--wait")


def test_a_lost_node_is_replaced_by_a_spare_and_used_again_later(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=3000, nodes="[a, b, c]", allow="[tp2, tp1]",
                   restart={"spares": 1, "settle": "0.2s"}) as job:
        job.start()
        job.await_step(15)
        assert {r["node"] for r in job.status()["ranks"]} == {"a", "b"}
        assert job.verb("node", "down", "b").rc == 0
        again = job.await_event("training", 2)
        assert again["layout"] == "tp2"
        assert {r["node"] for r in job.status()["ranks"]} == {"a", "c"}
        assert job.verb("node", "down", "c").rc == 0
        assert job.await_event("training", 3)["layout"] == "tp1"
        assert job.verb("node", "up", "b").rc == 0
        assert job.await_event("training", 4)["layout"] == "tp2"  # tp-run scales up without a request
        back = job.events("node_back")[0]
        assert back["node"] == "b" and back["reason"] == "node_given_back"
        assert {e["reason"] for e in job.events("node_lost")} == {"node_taken_away"}
        assert job.verb("node", "down", "c").out == "node c is down already\n"
        assert job.verb("node", "up", "a").out == "node a is up already\n"
        assert len(job.events("node_lost")) == 2 and len(job.events("node_back")) == 1
        unknown = job.verb("node", "down", "nowhere")
        assert unknown.rc == 2 and "the job has no node 'nowhere'; its nodes are a, b, c" in unknown.err, repr(unknown)
        job.verb("stop", "--wait")


def test_without_nodes_it_waits_for_one(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=3000, nodes="[a]", allow="[tp1]") as job:
        job.start()
        job.await_step(15)
        job.verb("node", "down", "a")
        job.await_event("plan", result="waiting_for_nodes")
        assert job.status()["state"] == "plan"
        job.verb("node", "up", "a")
        job.await_event("training", 2)
        job.verb("stop", "--wait")
        assert job.wait() == 75


def test_a_crash_loop_backs_off_and_stops_with_the_reason(tmp_path):
    with fake_job(tmp_path, "--never-start", restart={"no_progress": 3, "backoff": "0.4s"}) as job:
        begin = time.monotonic()
        assert job.start().wait() == 3
        assert time.monotonic() - begin >= 0.4
        assert len(job.events("launch")) == 3
        assert job.events("failed")[0]["reason"] == "no_progress"
        failed = job.events("failed")[0]["message"]
        assert "3 starts in a row" in failed and "fake: cannot start" in failed


def test_when_a_failed_job_is_started_again_all_nodes_count_again(tmp_path):
    """The faults that they were blamed for were the job's, for example a full disk."""
    with fake_job(tmp_path, "--exit-at", 5, 9, "--step-ms", 50,
                  restart={"no_progress": 1, "blame": 1, "exclude_for": "1h"}) as job:
        assert job.start().wait() == 3
        assert job.events("node_lost")[0]["reason"] == "repeated_faults"
        assert "excluded" in {n["state"] for n in job.status()["nodes"]}
        job.path.write_text(job.path.read_text().replace('"--exit-at", "5"', '"--exit-at", "500"'))
        launches = len(job.events("launch"))
        assert job.start().wait() == 0
        assert job.events("launch")[launches]["ranks"] == 2


def silent_job(tmp_path, script, **restart):
    """A job whose command does not use libtp-progress."""
    return Job(tmp_path, ["sh", "-c", script], nodes="[a]", allow="[tp1]",
               watch={"init": "0.5s", "floor": "0.5s"}, restart={"backoff": "0.1s", **restart})


def test_a_command_that_reports_nothing_has_no_time_limit(tmp_path):
    with silent_job(tmp_path, "sleep 3", no_progress=1) as job:
        assert job.start().wait() == 0
        assert not job.events("hang")
        assert job.events("training")[0]["reason"] == "unreported"
        assert job.status()["spent"]["training"] > 1


def test_for_a_command_that_reports_nothing_running_long_is_progress(tmp_path):
    script = "echo >> lives; [ $(wc -l < lives) -ge 5 ] && exit 0; sleep 1.5; exit 2"
    with silent_job(tmp_path, script, no_progress=2) as job:
        assert job.start().wait() == 0
        assert len(job.events("launch")) == 5
        (job.state / "journal").unlink()
        (job.folder / "lives").unlink()
        job.path.write_text(job.path.read_text().replace("sleep 1.5; exit 2", "exit 1").replace("init: 0.5s", "init: 30s"))
        assert job.start().wait() == 3
        assert "2 starts in a row without a step" in job.events("failed")[0]["message"]


def test_repeated_failures_at_the_same_step_are_no_progress(tmp_path):
    """Each attempt trains but does not get further than the one before."""
    with fake_job(tmp_path, "--exit-at", 5, 9, restart={"no_progress": 3,
                                                        "backoff": "0.1s"}) as job:
        assert job.start().wait() == 3
        assert len(job.events("launch")) == 4  # the first got to step 5
        assert "3 starts in a row without a step beyond 5" in job.events("failed")[0]["message"]


@pytest.mark.parametrize("sig, reason", [(signal.SIGKILL, "too_many_restarts"), (signal.SIGSEGV, "no_progress")])
def test_a_rank_that_others_killed_at_the_same_step_again_does_not_count_as_failing_there(tmp_path, sig, reason):
    """SIGKILL comes from the kernel or a person, a segmentation fault from the program."""
    with fake_job(tmp_path, "--exit-at", 5, -int(sig), restart={"max": 4, "no_progress": 3, "backoff": "0.1s",
                                                                "blame": 99}) as job:
        assert job.start().wait() == 3
        assert job.events("failed")[0]["reason"] == reason, job.story()
        assert {e["reason"] for e in job.events("rank_exit")} == {"rank_killed"}


def test_steps_trained_between_faults_are_progress_without_a_new_checkpoint(tmp_path):
    """Each attempt begins at step 0 again and gets less far than the one before."""
    with fake_job(tmp_path, "--steps", 100000, "--step-ms", 5,
                  restart={"no_progress": 2, "backoff": "0.1s", "blame": 99}) as job:
        job.start()
        for attempt, step in enumerate((80, 60, 40, 20, 10), 1):
            job.await_event("training", attempt)
            job.await_step(step)
            os.kill(job.rank_pid(1), signal.SIGKILL)
            job.await_event("restart", attempt)
        job.await_event("training", 6)
        assert {e["fails_in_row"] for e in job.events("restart")} == {0}
        job.verb("stop", "--wait")


def test_the_limit_of_restarts_is_kept(tmp_path):
    with fake_job(tmp_path, "--exit-at", 5, 9, restart={"max": 2, "no_progress": 99,
                                                        "backoff": "0.1s"}) as job:
        assert job.start().wait() == 3
        assert len(job.events("launch")) == 3
        assert job.events("failed")[0]["reason"] == "too_many_restarts"
        assert "2 restarts within" in job.events("failed")[0]["message"]


def test_json_prints_the_events(tmp_path):
    with fake_job(tmp_path, "--exit-at", 5, 9, restart={"max": 1, "backoff": "0.1s"}) as job:
        r = harness.run("tp-run", job.path, "--json", "--quiet")
        *printed, failure = [json.loads(line) for line in r.out.splitlines()]
        assert printed == job.events() and "failed" in [e["event"] for e in printed], repr(r)
        assert r.rc == failure["exit"] == 3 and len(r.err.splitlines()) == 1 and failure["error"] in r.err, repr(r)


def test_a_job_outlives_the_reader_of_its_events(tmp_path):
    with fake_job(tmp_path, "--exit-at", 5, 9, restart={"max": 2, "no_progress": 99, "backoff": "0.1s"}) as job:
        job.process = subprocess.Popen([job.bin / "tp-run", job.path, "--json"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        job.process.stdout.readline()
        job.process.stdout.close()
        assert job.wait() == 3
        assert len(job.events("launch")) == 3


def test_a_program_that_does_not_exist_is_reported(tmp_path):
    with Job(tmp_path, ["/nonexistent/trainer"], checkpoints="none", allow="[dp1]") as job:
        assert job.start().wait() == 2
        assert job.events("failed")[0]["reason"] == "command_not_executable"
        assert "/nonexistent/trainer: cannot be executed" in job.events("failed")[0]["message"]


def test_a_long_list_of_gpus_is_not_cut(tmp_path):
    """In place of tp-train, a script shows which GPUs it would get."""
    program = tmp_path / "tp-train"
    program.write_text("#!/bin/sh\nprintf %s \"$CUDA_VISIBLE_DEVICES\" > gpus\n")
    program.chmod(0o755)
    gpus = ",".join("GPU-%036d" % i for i in range(300))
    with Job(tmp_path, [program, "--device", "cuda", "--steps", 1, "--batch", 300], checkpoints="none", nodes="[a:300]",
             allow="[dp300]") as job:
        assert job.start(env={"CUDA_VISIBLE_DEVICES": gpus}).wait() == 0, job.story()
    assert (tmp_path / "gpus").read_text() == gpus


def test_it_warns_when_another_program_starts_tp_train_without_resume(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=3) as job:
        job.path.write_text(job.path.read_text().replace("command: [", 'command: ["env", "A=1", '))
        job.start().wait()  # 2, because --save-every needs the --ckpt that tp-run would add
        assert "warning: command: env starts tp-train, so tp-run adds no options to it" in job.output.read_text()
    with fake_job(tmp_path, "--steps", 3, name="other") as job:
        assert job.start().wait() == 0
        assert "warning" not in job.output.read_text()


def test_a_program_is_found_in_the_last_folder_of_a_long_path(tmp_path):
    """Slurm sites with many modules have a PATH of several kilobytes."""
    tool = tmp_path / "tools" / "my-trainer"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nprintf %s \"$PATH\" > path\n")
    tool.chmod(0o755)
    path = ":".join([os.environ["PATH"]] + ["/nowhere/%0100d" % i for i in range(200)] + [str(tool.parent)])
    with Job(tmp_path, ["my-trainer"], checkpoints="none", allow="[dp1]") as job:
        assert job.start(env={"PATH": path}).wait() == 0, job.story()
    assert (tmp_path / "path").read_text() == "%s:%s" % (harness.BIN, path)


def test_a_loss_that_is_nan_again_after_a_restart_ends_the_job(tmp_path):
    with fake_job(tmp_path, "--nan-at", 20) as job:
        assert job.start().wait() == 3
        assert len(job.events("nan")) == 2
        assert {e["reason"] for e in job.events("nan")} == {"loss_not_finite"}
        assert job.events("failed")[0]["reason"] == "loss_not_finite_again"


def test_a_slow_rank_and_a_jump_are_reported(tmp_path):
    with fake_job(tmp_path, "--slow", 1, "--jump-at", 30, "--steps", 40, watch={"slow_steps": 5}) as job:
        assert job.start().wait() == 0
        assert [e["rank"] for e in job.events("slow")] == [1]
        assert job.events("loss_jump")[0]["loss"] == 50


@pytest.mark.long
def test_steps_that_become_slow_are_reported_once_with_the_part_that_grew(tmp_path):
    with fake_job(tmp_path, "--slower-at", 150, "--steps", 100000, watch={"slow_steps": 5}) as job:
        job.start()
        slow = job.await_event("slowdown")
        assert slow["step"] >= 190 and slow["reason"] in ("compute_slower", "processors_busy"), slow
        assert re.search(r"steps have taken \d+ ms for \d+ steps, before \d+ ms: ranks ", slow["message"]), slow
        job.await_step(job.status()["step"] + 20)
        assert len(job.events("slowdown")) == 1 and not job.events("slow")
        job.verb("stop", "--wait")


def test_a_jump_or_a_nan_of_one_short_step_is_not_missed(tmp_path):
    """Steps take one or two milliseconds, so tp-run looks only once in about fifty steps."""
    with fake_job(tmp_path / "jump", "--step-ms", 1, "--jump-at", 333, "--steps", 600) as job:
        assert job.start().wait() == 0
        assert [e["loss"] for e in job.events("loss_jump")] == [50]
    with fake_job(tmp_path / "nan", "--step-ms", 1, "--nan-at", 333, "--steps", 600,
                  watch={"nan": "stop"}) as job:
        assert job.start().wait() == 3
        assert [e["at_step"] for e in job.events("nan")] == [334]


def test_another_trainer_is_stopped_resumed_and_done(tmp_path):
    with fake_job(tmp_path, "--state", tmp_path / "step", "--steps", 150) as job:
        job.start()
        job.await_step(10)
        assert job.verb("stop").rc == 0
        assert job.wait() == 75
        assert job.start().wait() == 0
        assert job.events("done") and int((tmp_path / "step").read_text()) == 150


TORCHRUN = r'''
import signal, subprocess, sys, time
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1], str(r)]) for r in range(2)]
asked = []
signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), [p.terminate() for p in ranks]))
while all(p.poll() is None for p in ranks):
    time.sleep(0.02)
for p in ranks:
    p.terminate()
    p.wait()
if not asked:
    print("Traceback (most recent call last):\n  File torchrun, line 8, in <module>")
    print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n" + "=" * 60)
    print("Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)")
    print("  exitcode  : 1 (pid: 1)\n" + "=" * 60)
sys.exit(1)
'''


def torchrun_job(folder, rank, **kw):
    """A job whose command behaves as torchrun does; `rank` is what each of its two ranks runs."""
    return Job(folder, [sys.executable, "-c", TORCHRUN, rank], nodes="[a:2]", allow="[dp2]", **kw)


def test_the_reason_is_found_above_the_table_of_a_launcher(tmp_path):
    rank = "import sys\nif sys.argv[1] == '1': raise ValueError('the data is empty')\nimport time; time.sleep(60)"
    with torchrun_job(tmp_path, rank, restart={"no_progress": 1}) as job:
        assert job.start().wait() == 3
        event = job.events("rank_exit")[0]
        assert event["rank"] == 1 and event["message"].endswith("ValueError: the data is empty"), event


def test_a_launcher_that_fails_when_it_is_asked_to_stop_has_stopped(tmp_path):
    rank = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
    with torchrun_job(tmp_path, rank, grace="60s") as job:
        job.start()
        job.await_event("launch")
        end = time.monotonic() + 60
        while "up" not in (job.state / "attempt-0001.log").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        begin = time.monotonic()
        job.verb("stop", "--wait")
        assert job.wait() == 75 and time.monotonic() - begin < 50
        assert not job.events("killed") + job.events("rank_exit"), job.story()


RANK = """
import sys, time
sys.path.insert(0, %r)
from tp_progress import Progress
p = Progress(int(sys.argv[1]), 2)
p.phase(Progress.TRAIN)
for step in range(1, 10**6):
    p.step(step, 1 / step)
    time.sleep(0.02)
    if sys.argv[1] == "1" and step == 20:
        sys.exit(1)
""" % str(harness.REPO / "progress")

def kernel():
    return tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", platform.release()).groups())


SLOW_LAUNCHER = """
import subprocess, sys, time
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[2], str(r)]) for r in range(2)]
if sys.argv[1] != "is silent":
    ranks[1].wait()
if sys.argv[1] == "tells":
    print("rank 1 ended with exit code 1", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["tells", "is silent", "waits, but is silent"])
def test_a_failed_rank_is_known_although_its_launcher_goes_on(tmp_path, how):
    """From the launcher's words, from the exit status that it has not read yet, or from the kernel, which
    keeps the status for tp-run."""
    if how == "waits, but is silent" and kernel() < (6, 15):
        pytest.skip("the kernel keeps the status since Linux 6.15")
    with Job(tmp_path, [sys.executable, "-c", SLOW_LAUNCHER, how, RANK], nodes="[a:2]", allow="[dp2]",
             restart={"max": 0}) as job:
        job.start()
        ends = job.await_event("rank_exit")
        assert ends["rank"] == 1 and "rank 1 ended with exit code 1" in ends["message"], ends
        assert ends["reason"] == "rank_failed" and not job.events("hang"), job.story()
        assert job.wait() == 3


def test_a_full_checkpoint_root_blames_no_node_and_ends_the_job(tmp_path, tiny):
    program = tmp_path / "bin/tp-train"
    program.parent.mkdir()
    with train_job(tmp_path, tiny, steps=20000, program=program, allow="[tp2]", nodes="[a, b]",
                   restart={"blame": 1, "exclude_for": "1h", "backoff": "0.1s"}) as job:
        program.write_text("#!/bin/sh\nexec env %s\n" % Shim(tmp_path, job.ckpt).line(
            harness.BIN / "tp-train", 200, "enospc"))
        program.chmod(0o755)
        assert job.start().wait() == 3
        assert {e["reason"] for e in job.events("rank_exit") + job.events("restart")} == {"root_full"}, job.story()
        assert not job.events("node_lost") and len(job.events("launch")) == 3, job.story()
        failed, = job.events("failed")
        assert failed["reason"] == "no_progress" and "No space left on device" in failed["message"], failed
        program.unlink()
        program.symlink_to(harness.BIN / "tp-train")  # somebody has freed space
        job.start()
        job.await_event("save", len(job.events("save")) + 1)
        assert job.verb("stop", "--wait").rc == 0


def test_grace_ends_a_job_that_does_not_stop(tmp_path):
    with fake_job(tmp_path, "--ignore-signals", "--steps", 10000, grace="1s") as job:
        job.start()
        job.await_step(5)
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 75
        assert 1 <= time.monotonic() - begin < 18, "not the grace of the file"
        assert job.events("killed") and job.processes() == []


# ---- stopping, resizing ----

@pytest.mark.parametrize("how", ["stop", "SIGTERM", "SIGUSR1", "SIGHUP"])
def test_on_a_request_to_stop_it_saves_and_continues_later(tmp_path, tiny, how):
    steps = 1000  # some seconds: the job must not be done before the request
    with train_job(tmp_path, tiny, steps=steps, options={"save-every": 100000}) as job:
        job.start()
        job.await_step(20)
        if how == "stop":
            assert job.verb("stop").rc == 0
        else:
            job.process.send_signal(getattr(signal, how))
        if how == "SIGHUP":  # a second one, as the kernel's after the shell's, does not kill the ranks
            job.await_event("drain")
            job.process.send_signal(signal.SIGHUP)
        assert job.wait() == 75
        step = job.events("stopped")[0]["step"]
        assert 20 <= step < steps and (job.ckpt / ("step-%08d" % step)).is_dir()
        assert harness.run("tp-run", "status", job.path).out.count("stopped")
        assert job.start().wait() == 0
        assert job.events("training")[1]["resumed_at"] == step
        assert harness.ok("tp-run", job.path).rc == 0  # the job is already done


def test_under_nohup_it_ignores_a_hangup(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=100) as job:
        job.start(nohup=True)
        job.await_step(5)
        job.process.send_signal(signal.SIGHUP)
        assert job.wait() == 0


def test_a_stop_before_the_first_step_is_no_fault(tmp_path, tiny):
    """The signal comes while the supervisor of the attempt starts."""
    with train_job(tmp_path, tiny, steps=1000) as job:
        job.start()
        while not job.events("launch"):
            assert job.process.poll() is None, job.story()
            time.sleep(0.001)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 75
        assert job.events("stopped")[0]["message"] in (
            "stopped by SIGTERM; it had not saved", "saved and stopped by SIGTERM"), job.story()


def test_resize_down_and_up_while_training(tmp_path, tiny, curve):
    with train_job(tmp_path, tiny, steps=STEPS, options={"batch": SLOW}) as job:
        job.start()
        job.await_step(10)
        assert job.verb("resize", "tp3").rc == 2
        assert job.verb("resize", "tp2").rc == 0
        assert job.await_event("training", 2)["layout"] == "tp2"
        assert job.verb("resize", "1").rc == 0
        assert job.await_event("training", 3)["layout"] == "tp1"
        assert job.verb("resize", "auto").rc == 0
        assert job.await_event("training", 4)["layout"] == "tp4"
        assert job.wait() == 0
        assert_same_curve(job, curve(STEPS, SLOW))


# ---- checkpoints ----

def flip(path, offset=-1000):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def stop_with_checkpoints(job):
    job.start()
    job.await_step(45)
    job.verb("stop", "--wait")
    job.wait()
    return harness.steps(job.ckpt)


def test_a_corrupt_newest_checkpoint_is_quarantined_and_reported(tmp_path, tiny, curve):
    with train_job(tmp_path, tiny, steps=STEPS) as job:
        steps = stop_with_checkpoints(job)
        flip(next(steps[-1].glob("*.h5")))
        assert job.start().wait() == 0
        bad = job.events("quarantine")
        assert [e["step"] for e in bad] == [int(steps[-1].name[5:])]
        assert job.events("training")[1]["resumed_at"] == int(steps[-2].name[5:])
        assert (job.ckpt / "quarantine" / steps[-1].name).is_dir()
        assert_same_curve(job, curve(STEPS))


def test_a_checkpoint_is_kept_when_the_program_that_verifies_it_cannot_run(tmp_path, tiny):
    """The file of tp-run is away for a while, as during an upgrade."""
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy(harness.BIN / "tp-run", programs)
    with train_job(tmp_path / "job", tiny, steps=100000, program=harness.BIN / "tp-train", bin=programs,
                   restart={"no_progress": 20, "backoff": "0.2s", "backoff_max": "0.2s"}) as job:
        job.start()
        job.await_step(45)
        (programs / "tp-run").rename(programs / "away")
        os.kill(job.rank_pid(0), signal.SIGKILL)
        failed = job.await_event("restart", 3, reason="check_failed")
        assert "could not be executed" in failed["message"], job.story()
        (programs / "away").rename(programs / "tp-run")
        assert job.await_event("training", 2)["resumed_at"] >= 10, job.story()
        assert not job.events("quarantine"), job.story()
        job.verb("stop", "--wait")


def test_a_checkpoint_is_kept_when_a_start_fails_for_another_reason(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=100000, nodes="[a]", allow="[tp1]",
                   restart={"no_progress": 8, "blame": 100, "backoff": "0.1s", "backoff_max": "0.1s"}) as job:
        steps = stop_with_checkpoints(job)
        log = job.state / "steps.jsonl"
        log.unlink()
        log.mkdir()
        assert job.start().wait() == 3
        assert "cannot be written" in job.events("failed")[-1]["message"], job.story()
        assert not job.events("quarantine"), job.story()
        assert harness.steps(job.ckpt) == steps


def test_when_no_checkpoint_is_good_it_does_not_start_at_step_0(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=STEPS, options={"save-every": 20}) as job:
        for step in stop_with_checkpoints(job):
            flip(next(step.glob("*.h5")))
        assert job.start().wait() == 3
        assert job.events("failed")[-1]["reason"] == "no_good_checkpoint"
        assert "to start again from step 0" in job.events("failed")[-1]["message"]
        assert len(job.events("launch")) == 1
