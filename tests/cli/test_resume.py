"""Resuming at any layout with the same curve, and after a signal; saving during training; and what
tp-train prints about changes between two runs.

needs: tp-train tp-reshard tp-ckpt
covers: trainer/snapshot trainer/snapshot_shard trainer/snapshot_copy trainer/restore trainer/resume_diff cli/train/model_place
"""
import os
import pathlib
import signal
import subprocess
import time

import pytest

import harness
from curves import LOSS_WITHIN, NORM_WITHIN
from harness import TEXT, ok, read_log, run
from test_ckpt import sign

# 8 heads over 2 KV heads, and a vocabulary that no degree divides.
MODEL = dict(num_key_value_heads=2, vocab_size=259, tie_word_embeddings=True)
# Eight ranks on two cores. There are no leak checks, because Open MPI leaks in modules that it
# has unloaded at the end, and suppressions need the names of these modules.
MPI = dict(OMPI_MCA_mpi_yield_when_idle="1",
           ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return harness.write_config(tmp_path_factory.mktemp("model"), **MODEL)


def argv(model, layout, root, log, *more):
    return ["tp-train", "--model", model, "--data", TEXT, "--steps", 20, "--batch", 8, "--seq", 32,
            "--layout", layout, "--ckpt", root, "--log", log, *more]


@pytest.fixture(scope="module")
def straight(model, tmp_path_factory):
    """straight(dtype) is (log, root) of 20 steps without interruption."""
    done = {}

    def get(dtype="fp32"):
        if dtype not in done:
            folder = tmp_path_factory.mktemp("straight")
            ok(*argv(model, "tp8", folder / "ckpt", folder / "log", "--dtype", dtype))
            done[dtype] = read_log(folder / "log"), folder / "ckpt"
        return done[dtype]
    return get


def canonical(layout):
    return layout if layout.startswith("tp") else "tp1" + layout


def assert_same_curve(log, straight, loss_within=LOSS_WITHIN, norm_within=NORM_WITHIN):
    assert [x["step"] for x in log] == [x["step"] for x in straight]
    for a, b in zip(log, straight):
        assert abs(a["loss"] - b["loss"]) <= loss_within, a
        assert abs(a["grad_norm"] / b["grad_norm"] - 1) <= norm_within, a
        assert a["lr"] == b["lr"] and a["tokens"] == b["tokens"]


@pytest.mark.parametrize("layouts", [["tp8", "tp4"], ["tp8", "tp1"], ["tp1", "tp8"],
                                  ["tp2dp2", "tp4", "dp4", "tp8dp2", "tp1"]], ids="-".join)
def test_resuming_at_another_layout_keeps_the_curve(model, straight, layouts, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    for i, layout in enumerate(layouts):
        more = ["--resume=must"] if i else []
        last = i == len(layouts) - 1
        if not last:
            more += ["--exit-step", 20 * (i + 1) // len(layouts)]
        r = run(*argv(model, layout, root, log, *more))
        assert r.rc == (0 if last else 75), repr(r)
        if i:
            assert "written by %s)" % canonical(layouts[i - 1]) in r.err, repr(r)
    got = read_log(log)
    assert_same_curve(got, straight()[0])
    assert {x["layout"] for x in got} == set(map(canonical, layouts))


def test_resuming_at_the_same_layout_is_the_same_bits(model, straight, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    r = run(*argv(model, "tp8", root, log, "--exit-step", 7))
    assert r.rc == 75
    ok(*argv(model, "tp8", root, log, "--resume"))
    want, want_root = straight()
    for a, b in zip(read_log(log), want):
        assert (a["loss"], a["grad_norm"]) == (b["loss"], b["grad_norm"])
    assert harness.digest(root) == harness.digest(want_root)


def test_resuming_in_bf16_keeps_the_curve(model, straight, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    assert run(*argv(model, "tp8", root, log, "--dtype", "bf16", "--exit-step", 10)).rc == 75
    ok(*argv(model, "tp8", root, log, "--dtype", "bf16", "--resume"))
    want, want_root = straight("bf16")
    assert_same_curve(read_log(log), want, 0, 0)
    assert harness.digest(root) == harness.digest(want_root)
    ok("tp-ckpt", "verify", root)


def test_a_resumed_run_may_change_its_arithmetic(model, straight, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    assert run(*argv(model, "tp2", root, log, "--dtype", "bf16", "--exit-step", 10)).rc == 75
    r = ok(*argv(model, "tp4", root, log, "--resume"))
    assert "bf16" in r.err and "fp32" in r.err
    assert_same_curve(read_log(log), straight()[0], 2e-2, 5e-2)


def test_saving_does_not_change_the_curve_and_its_time_is_logged(model, straight, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    ok(*argv(model, "tp8", root, log, "--save-every", 3))
    got = read_log(log)
    assert_same_curve(got, straight()[0], 0, 0)
    assert [s.name for s in harness.steps(root)] == ["step-%08d" % n for n in
                                                    (3, 6, 9, 12, 15, 18, 20)]
    assert all(got[n - 1]["save_seconds"] > 0 for n in (3, 6, 20))
    ok("tp-ckpt", "verify", root)


def test_keep_keeps_the_newest_steps(model, tmp_path):
    ok(*argv(model, "tp2", tmp_path / "ckpt", tmp_path / "log", "--save-every", 4, "--keep", 2))
    assert [s.name for s in harness.steps(tmp_path / "ckpt")] == ["step-00000016", "step-00000020"]


def test_auto_on_an_empty_root_starts_from_the_beginning_and_reports_it(model, straight, tmp_path):
    r = ok(*argv(model, "tp8", tmp_path / "ckpt", tmp_path / "log", "--resume"))
    assert "NOTHING TO RESUME" in r.err
    assert_same_curve(read_log(tmp_path / "log"), straight()[0], 0, 0)


@pytest.mark.parametrize("fmt", ["dcp", "torch_dist", "safetensors"])
def test_a_folder_of_another_framework_is_no_root(fmt, model, straight, tmp_path):
    """Neither to resume, nor to save steps into, which no program would then find."""
    root = tmp_path / "foreign"
    ok("tp-ckpt", "export", straight()[1], "--format", fmt, "-o", root)
    before = harness.tree(root)
    for more in ["--resume"], ["--resume=must"], []:
        line = argv(model, "tp1", root, tmp_path / "log", *more)
        without = line[:1] + line[3:]
        for words in [without] * bool(more) + [line] * (fmt != "safetensors"):
            r = run(*words)
            assert r.rc == 2 and "has the format %s, " % fmt in r.err and "tp-ckpt import" in r.err, repr(r)
    assert harness.tree(root) == before
    if fmt == "safetensors":  # the weights to start from may be in the same folder
        ok(*argv(root, "tp1", root, tmp_path / "log"))
        ok(*argv(root, "tp1", root, tmp_path / "log", "--resume"))


def test_a_checkpoint_is_no_model(straight, tmp_path):
    for folder in straight()[1], *harness.steps(straight()[1]):
        r = run(*argv(folder, "tp1", tmp_path / "ckpt", tmp_path / "log"))
        assert r.rc == 2 and "is a checkpoint of tp-train" in r.err and "--resume --ckpt" in r.err, repr(r)


def test_resuming_a_complete_run_changes_nothing(model, straight, tmp_path):
    root = harness.copy(straight()[1], tmp_path / "ckpt")
    before = harness.digest(root)
    r = ok(*argv(model, "tp2", root, tmp_path / "log", "--resume"))
    assert "done: 20 steps" in r.err and read_log(tmp_path / "log") == []
    assert harness.digest(root) == before


def test_without_resume_a_root_with_checkpoints_is_refused(model, straight, tmp_path):
    root = harness.copy(straight()[1], tmp_path / "ckpt")
    before = harness.tree(root)
    r = run(*argv(model, "tp2", root, tmp_path / "log"))
    assert r.rc == 2 and len(r.lines) == 1 and "--resume" in r.err, repr(r)
    assert harness.tree(root) == before


def test_the_epoch_comes_from_the_launcher_and_a_wrong_one_is_refused(model, straight, tmp_path):
    root = harness.copy(straight()[1], tmp_path / "ckpt")
    before = harness.tree(root)
    words = argv(model, "tp2", root, tmp_path / "log", "--resume")
    r = run(*words, env={"TP_EPOCH": "soon"})
    assert r.rc == 2 and "TP_EPOCH is \"soon\"" in r.err, repr(r)
    r = run(*words, env={"TP_EPOCH": "77"})
    assert r.rc != 0 and "has epoch 77" in r.err, repr(r)
    assert harness.tree(root) == before


def test_auto_does_not_start_from_the_beginning_over_a_damaged_checkpoint(model, straight, tmp_path):
    root = harness.copy(straight()[1], tmp_path / "ckpt")
    manifest = root / "step-00000020" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    r = run(*argv(model, "tp2", root, tmp_path / "log", "--resume"))
    assert r.rc == 3 and "step-00000020" in r.err, repr(r)


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(model, straight, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    ok(*argv(model, "tp4", root, log, "--save-every", 12))
    manifest = root / "step-00000020" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    r = ok(*argv(model, "tp2", root, log, "--resume"))
    assert "step-00000020 IS DAMAGED" in r.err and "back to step 12" in r.err, repr(r)
    assert_same_curve(read_log(log)[20:], straight()[0][12:])
    ok("tp-ckpt", "verify", root)


# ---- signals --------------------------------------------------------------------------------------


def start(words, n):
    """Start a run and wait until n steps are logged."""
    log = pathlib.Path(words[words.index("--log") + 1])
    words = words[:]
    words[words.index("--steps") + 1] = 100000
    p = subprocess.Popen(harness.command(words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         text=True, env={**os.environ, **(MPI if words[0] == "mpirun" else {})})
    end = time.time() + 60
    while time.time() < end and p.poll() is None:
        if log.exists() and len(log.read_text().splitlines()) >= n:
            return p
        time.sleep(0.02)
    p.kill()
    raise AssertionError("no %d steps within a minute: %s" % (n, p.communicate()[1]))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_saves_and_stops(name, model, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    p = start(argv(model, "tp2dp2", root, log), 5)
    p.send_signal(getattr(signal, name))
    _, err = p.communicate(timeout=60)
    assert p.returncode == 75 and "saved and stopped" in err, err
    done = len(read_log(log))
    assert [s.name for s in harness.steps(root)] == ["step-%08d" % done]
    words = argv(model, "tp4", root, log, "--resume=must")
    words[words.index("--steps") + 1] = done + 3
    ok(*words)
    assert [x["step"] for x in read_log(log)] == list(range(done + 3))


def test_a_signal_under_mpirun_saves_and_stops(model, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    p = start(["mpirun", "-n", 2] + argv(model, "tp2", root, log), 5)
    p.send_signal(signal.SIGUSR1)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 75 and "saved and stopped" in err, err
    assert [s.name for s in harness.steps(root)] == ["step-%08d" % len(read_log(log))]


def test_under_mpirun_the_numbers_are_the_same(model, straight, tmp_path):
    ok("mpirun", "-n", 4, *argv(model, "tp2dp2", tmp_path / "ckpt", tmp_path / "log"), env=MPI)
    assert_same_curve(read_log(tmp_path / "log"), straight()[0])


# ---- changes between two runs ----------------------------------------------------------------


def resumed(model, root, *more):
    """The messages of a run that resumes from a copy of root."""
    folder = root.parent / ("again-%d" % len(list(root.parent.iterdir())))
    return run("tp-train", "--model", model, "--data", TEXT, "--batch", 8, "--seq", 32,
               "--ckpt", harness.copy(root, folder), "--resume=must", *more).err


@pytest.fixture
def two_steps(model, tmp_path):
    ok("tp-train", "--model", model, "--data", TEXT, "--steps", 2, "--batch", 8, "--seq", 32,
       "--layout", "tp2", "--ckpt", tmp_path / "ckpt")
    return tmp_path / "ckpt"


def test_a_run_that_resumes_unchanged_prints_no_warning(model, two_steps):
    err = resumed(model, two_steps, "--steps", 2, "--layout", "dp2", "--micro", 1)
    assert "warning" not in err and "nothing was left to train" in err


@pytest.mark.parametrize("more, words", [
    (["--lr", 1e-2], "--lr was 0.001, now 0.01"),
    (["--seq", 16], "--seq was 32, now 16 (data is counted in sequences"),
    (["--batch", 4], "--batch was 8, now 4"),
    (["--beta2", 0.99, "--clip", 0], "--beta2 was 0.95, now 0.99; --clip was 1, now 0"),
    (["--data", "/usr/share/common-licenses/GPL-2"], "the number of tokens of --data was "),
    (["--dtype", "bf16"], "arithmetic was fp32, now bf16"),
], ids=lambda x: x if isinstance(x, str) else None)
def test_changed_options_are_listed(more, words, model, two_steps):
    err = resumed(model, two_steps, "--steps", 3, *more)
    assert "warning: this run differs from the run that saved it" in err and words in err
    assert "--steps was 2, now 3" in err


@pytest.mark.parametrize("resume", [[], ["--resume"], ["--resume=must"]])
@pytest.mark.parametrize("what", ["newer", "cut"])
def test_with_an_unreadable_checkpoint_training_never_starts_over(what, resume, model, two_steps):
    path = two_steps / "step-00000002/manifest.json"
    text = path.read_text()
    if what == "newer":
        sign(path.parent, text.replace('"version": 2', '"version": 99', 1))
    else:
        path.write_text(text[:100])
    before = harness.tree(two_steps)
    r = run("tp-train", "--model", model, "--data", TEXT, "--steps", 3, "--batch", 8, "--seq", 32,
            "--ckpt", two_steps, *resume)
    assert r.rc == (3 if resume else 2) and r.out == ""
    assert ("version 99" if what == "newer" else "truncated") in r.err and "move it away" in r.err
    assert harness.tree(two_steps) == before


def test_changed_constants_and_lost_masters_are_reported(model, two_steps, tmp_path):
    other = harness.write_config(tmp_path, **MODEL, rope_theta=500.0, rms_norm_eps=1e-3)
    err = resumed(other, two_steps, "--steps", 2)
    assert "rope_theta was 10000, now 500" in err and "eps was 1e-05, now 0.001" in err
    ok("tp-reshard", two_steps, "--to", "tp4", "--dtype", "bf16", "-o", tmp_path / "cast")
    assert "weights were cast to bf16" in resumed(model, tmp_path / "cast", "--steps", 2)


def test_another_architecture_and_other_names_are_reported(model, two_steps, tmp_path):
    (tmp_path / "gpt2").mkdir()
    gpt2 = harness.write_config(tmp_path / "gpt2", architectures=["GPT2LMHeadModel"], n_embd=32,
                                n_head=8, n_layer=2, n_positions=64, model_type="gpt2",
                                tie_word_embeddings=True)
    err = resumed(gpt2, two_steps, "--steps", 3)
    assert "architecture is LlamaForCausalLM, not GPT2LMHeadModel" in err
    plan = tmp_path / "plan"
    plan.write_text(ok("tp-train", "--model", model, "--print-plan").out.replace("mlp.", "ffn.")
                    .replace("\nffn.", "\nmlp."))
    err = resumed(model, two_steps, "--steps", 3, "--plan", plan)
    assert "has no tensor model.layers.0.ffn" in err and "--plan" in err


def test_threads_that_save_together_write_what_another_program_writes(tmp_path):
    """Large enough for four threads; boxes of the embedding are longer than the piece that a thread writes."""
    model = harness.write_config(tmp_path, vocab_size=50000, hidden_size=96, num_hidden_layers=1)
    ok("tp-train", "--model", model, "--data", "bytes:%s" % TEXT, "--steps", 1, "--batch", 1, "--seq", 8,
       "--threads", 4, "--ckpt", tmp_path / "ckpt", "-q")
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp1", "-o", tmp_path / "again")
    saved, again = ((tmp_path / root / "step-00000001/rank-00000.h5").read_bytes() for root in ("ckpt", "again"))
    assert len(saved) > 64 << 20 and saved == again
