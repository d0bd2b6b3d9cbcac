"""Which step `--resume` takes: past damage, by --step, with the model of the checkpoint, and without the
optimizer's state.

needs: tp-train tp-reshard tp-ckpt
covers: trainer/resume_step layout/model_diff
"""
import hashlib
import json
import shutil
import subprocess

import numpy as np
import pytest

import harness
from harness import ok, read_log, run, train_args
from test_export import read_folder

NAMES = {2: "step-00000002", 4: "step-00000004", 6: "step-00000006"}


def argv(root, steps=8, layout="tp2", **options):
    """Like harness.train_args, but without --model."""
    words = train_args("-", root, steps=steps, layout=layout, **options)
    del words[1:3]
    return words


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    """A root with the steps 2, 4 and 6 of 8."""
    root = tmp_path_factory.mktemp("saved") / "ckpt"
    r = run(*train_args(tiny, root, steps=8, save_every=2, exit_step=6))
    assert r.rc == 75, repr(r)
    return root


@pytest.fixture
def root(saved, tmp_path):
    return harness.copy(saved, tmp_path / "ckpt")


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    """The digest and the log of 8 steps without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    harness.train(tiny, folder / "ckpt", steps=8, log=folder / "log")
    return harness.digest(folder / "ckpt"), read_log(folder / "log")


def test_a_step_that_another_job_saved_meanwhile_is_kept(tiny, saved, tmp_path):
    root, log = tmp_path / "ckpt", tmp_path / "log"
    words = train_args(tiny, root, steps=1000, save_every=500, log=log)
    p = subprocess.Popen(harness.command(words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (log.exists() and log.read_text()):
        assert p.poll() is None, p.stderr.read()
    other = harness.copy(saved / NAMES[6], root / "step-00000500")
    before = harness.tree(other)
    err = p.communicate(timeout=300)[1]
    assert p.returncode == 2, err
    assert "another job has saved step 500 since this one began" in err and "--force" not in err, err
    assert harness.tree(other) == before and harness.steps(root) == [other]


def test_a_step_of_the_highest_number_is_not_overlooked(root, tiny):
    """It was: a run began at the beginning, and said that there was nothing to resume."""
    model = ["--model", tiny]
    for name in list(NAMES.values())[:-1]:
        shutil.rmtree(root / name)
    last = root / ("step-%d" % (2 ** 63 - 1))
    (root / NAMES[6]).rename(last)
    manifest = (last / "manifest.json").read_bytes().replace(b'"step": 6', b'"step": %d' % (2 ** 63 - 1))
    body, mark, _ = manifest.rpartition(b'"checksum"')
    (last / "manifest.json").write_bytes(body + mark + b': "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode())
    r = run(*argv(root, resume=True), *model)
    assert r.rc == 0 and "nothing was left to train" in r.err, repr(r)
    (last / "manifest.json").write_text("damaged")
    r = run(*argv(root, resume=True), *model)
    assert r.rc == 3 and "has no checkpoint that can be read" in r.err, repr(r)


# A disk that is full, or a machine that stops, leaves a part of a line.
@pytest.mark.parametrize("tail, left", [
    (b'{"step": 5, "loss": 5.1', b''), (b'{"st', b''), (b'{"step": 5}', b'{"step": 5}\n'), (b'a note', b'a note\n'),
    (b'x' * 5000, b'x' * 5000 + b'\n'), (b'a line\n', b'a line\n')], ids=lambda x: x[:12].decode())
def test_the_log_of_a_resumed_run_has_whole_lines(root, tmp_path, tail, left):
    log, whole = tmp_path / "log", b'{"step": 4}\n'
    log.write_bytes(whole + tail)
    ok(*argv(root, resume=True, log=log))
    text = log.read_bytes()
    assert text.startswith(whole + left)
    assert [json.loads(x)["step"] for x in text[len(whole + left):].splitlines()] == [6, 7]


def flip(step, shard=0):
    """Flip a bit of the payload of a shard."""
    path = step / ("rank-%05d.h5" % shard)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_shard(step):
    path = step / "rank-00000.h5"
    path.write_bytes(path.read_bytes()[:-1])


def cut_manifest(step):
    path = step / "manifest.json"
    path.write_bytes(path.read_bytes()[:-40])


def lose_shard(step):
    (step / "rank-00001.h5").unlink()


def flip_last(step):
    flip(step, 1)


DAMAGES = [flip, flip_last, cut_shard, cut_manifest, lose_shard]


# ---- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_newest_step_is_passed_over_with_a_warning(damage, root, straight, tmp_path):
    damage(root / NAMES[6])
    r = ok(*argv(root, resume="must", log=tmp_path / "log"))
    assert "warning: %s/%s IS DAMAGED: " % (root, NAMES[6]) in r.err, repr(r)
    assert "going back to step 4" in r.err and "resumed from %s/%s" % (root, NAMES[4]) in r.err
    assert [x["step"] for x in read_log(tmp_path / "log")] == [4, 5, 6, 7]
    assert harness.digest(root) == straight[0]


def test_several_damaged_steps_are_all_named(root, straight):
    flip(root / NAMES[6])
    cut_manifest(root / NAMES[4])
    r = ok(*argv(root, resume=True))
    assert "%s IS DAMAGED" % NAMES[6] in r.err and "%s IS DAMAGED" % NAMES[4] in r.err, repr(r)
    assert "going back to step 2" in r.err and "going back to step 4" not in r.err
    assert harness.digest(root) == straight[0]


def test_when_every_step_is_damaged_nothing_is_trained(root):
    for name in NAMES.values():
        flip(root / name)
    before = harness.tree(root)
    r = run(*argv(root, resume=True))
    assert r.rc == 3 and r.out == "" and len(r.lines) == 1, repr(r)
    assert NAMES[6] in r.err and "move it away" in r.err
    assert harness.tree(root) == before


def test_damage_in_any_rank_sends_all_ranks_back(root, straight):
    flip(root / NAMES[6], 1)
    r = ok(*argv(root, layout="tp2dp2", resume=True))
    assert "IS DAMAGED" in r.err and "going back to step 4" in r.err, repr(r)


def test_after_going_back_a_later_failure_is_still_reported(root, tmp_path):
    """All ranks agree on the damage and go on; that must not hide an error that comes later."""
    flip(root / NAMES[6])
    r = run(*argv(root, resume=True, logits=tmp_path / "no" / "file"))
    assert r.rc == 2 or r.rc == 3, repr(r)
    assert "logits" in r.err or str(tmp_path / "no") in r.err, repr(r)


# ---- --step -----------------------------------------------------------------------------------------


def test_step_chooses(root, straight, tmp_path):
    r = ok(*argv(root, resume=True, step=2, log=tmp_path / "log"))
    assert "resumed from %s/%s" % (root, NAMES[2]) in r.err and "newer steps, up to 6" in r.err
    assert read_log(tmp_path / "log")[0]["step"] == 2
    assert harness.digest(root) == straight[0]


@pytest.mark.parametrize("step, damage, code, words", [
    (3, None, 2, "has no step 3"), (6, flip, 3, NAMES[6]), (6, cut_shard, 3, NAMES[6]),
    (6, cut_manifest, 3, NAMES[6])], ids=["absent", "flip", "cut shard", "cut manifest"])
def test_step_never_falls_back(step, damage, code, words, root):
    if damage:
        damage(root / NAMES[step])
    before = harness.tree(root)
    r = run(*argv(root, resume=True, step=step))
    assert r.rc == code and words in r.err and len(r.lines) == 1 and r.out == "", repr(r)
    assert r.err.count("leave out --step to resume from the newest intact step") == (damage is not None), repr(r)
    assert "IS DAMAGED" not in r.err and harness.tree(root) == before


@pytest.mark.parametrize("option", [{"step": 2}, {"reset_optim": True}])
def test_choices_without_resume_are_refused(option, tiny, tmp_path):
    r = run(*train_args(tiny, tmp_path / "ckpt", **option))
    assert r.rc == 2 and "--resume" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


# ---- --model ----------------------------------------------------------------------------------------


def test_without_model_the_checkpoint_says_which(root, straight):
    r = ok(*argv(root, layout="tp4", resume="must"))
    assert "model: %s/%s, LlamaForCausalLM" % (root, NAMES[6]) in r.err, repr(r)
    ok("tp-ckpt", "verify", root)


def test_without_model_and_checkpoint_the_run_is_refused(tmp_path):
    for words in argv(tmp_path / "none", resume=True), argv(tmp_path / "none"):
        r = run(*words)
        assert r.rc == 2 and "--model is missing" in r.err and len(r.lines) == 1, repr(r)
        assert not (tmp_path / "none").exists()


def test_model_and_checkpoint_must_agree(root, tmp_path):
    other = harness.write_config(tmp_path / "other", num_key_value_heads=2)
    r = run(*train_args(other, root, steps=8, resume=True))
    assert r.rc == 2 and "num_key_value_heads is 4, not 2" in r.err, repr(r)


# ---- the optimizer's state ----------------------------------------------------------------------------


def first_step(root, tmp_path, **options):
    """The log of one step after resuming, and the messages."""
    copy, log = harness.copy(root, tmp_path / "copy"), tmp_path / "log"
    r = ok(*argv(copy, steps=8, resume="must", log=log, **options))
    entries = read_log(log)
    shutil.rmtree(copy)
    log.unlink()
    return entries, r.err


@pytest.mark.parametrize("exit_step", [1, 2])
def test_an_exit_step_that_has_been_reached_is_said(exit_step, tiny, tmp_path):
    """The state is that of a stop at this step or after it, so the exit code is too (75)."""
    root = tmp_path / "ckpt"
    assert run(*train_args(tiny, root, steps=4, exit_step=2)).rc == 75
    before = harness.tree(root)
    r = run(*train_args(tiny, root, steps=4, exit_step=exit_step, resume="must"))
    says = "nothing was trained: the checkpoint in %s is at step 2, and --exit-step is %d; give a later one" % (root, exit_step)
    assert r.rc == 75 and says in r.err and "saved and stopped" not in r.err, repr(r)
    after = harness.tree(root)
    assert {k: v for k, v in after.items() if "step-" in k} == {k: v for k, v in before.items() if "step-" in k}
    r = ok(*train_args(tiny, root, steps=4, exit_step=4, resume="must"))
    assert "done: 4 steps" in r.err, repr(r)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_checkpoint_without_optimizer_state_starts_like_reset_optim(dtype, tiny, tmp_path):
    root = tmp_path / "ckpt"
    r = run(*train_args(tiny, root, steps=8, exit_step=6, dtype=dtype))
    assert r.rc == 75
    ok("tp-reshard", root, "--to", "tp4", "--no-optim", "-o", tmp_path / "weights")
    lost, words = first_step(tmp_path / "weights", tmp_path, dtype=dtype)
    assert "has no optimizer state: AdamW starts with zero moments" in words
    reset, words = first_step(root, tmp_path, dtype=dtype, reset_optim=True)
    assert "--reset-optim: AdamW starts with zero moments" in words
    kept, words = first_step(root, tmp_path, dtype=dtype)
    assert "zero moments" not in words
    for a, b in zip(lost, reset):
        assert (a["step"], a["lr"], a["tokens"]) == (b["step"], b["lr"], b["tokens"])
        assert abs(a["loss"] - b["loss"]) < 1e-4
    assert [x["step"] for x in reset] == [6, 7]
    assert reset[0]["lr"] == kept[0]["lr"]
    assert abs(reset[0]["loss"] - kept[0]["loss"]) < (1e-6 if dtype == "fp32" else 1e-2)
    assert abs(reset[1]["loss"] - kept[1]["loss"]) > 1e-5, "the moments were not reset"


def test_adamws_bias_correction_counts_from_the_reset(root, tmp_path):
    """The first update of a new AdamW is lr in every element, whatever the step is (eps and decay are 0)."""
    log = tmp_path / "log"
    ok(*argv(root, steps=7, resume="must", reset_optim=True, eps=1e-30, weight_decay=0, log=log))
    weights = []
    for name in NAMES[6], "step-00000007":
        ok("tp-ckpt", "export", root / name, "--format", "safetensors", "-o", tmp_path / name)
        weights.append(read_folder(tmp_path / name))
    lr = read_log(log)[0]["lr"]
    before, after = ({n: bits.view(np.float32) for n, (_, bits) in w.items()} for w in weights)
    name = "model.layers.0.mlp.gate_proj.weight"
    change = np.abs(after[name] - before[name])
    assert np.median(change) == pytest.approx(lr, rel=1e-3)
    train = json.loads((root / "step-00000007/manifest.json").read_text())["train"]
    assert train["optimizer_start"] == 6


def test_the_age_of_the_moments_survives_resuming_and_resharding(root, tmp_path, straight):
    """6 + 1 steps, resharded, 1 more step: like 6 + 2 steps without a break."""
    whole = harness.copy(root, tmp_path / "whole")
    ok(*argv(whole, resume="must", reset_optim=True))
    r = run(*argv(root, resume="must", reset_optim=True, exit_step=7))
    assert r.rc == 75
    ok("tp-reshard", root, "--to", "tp4", "-o", tmp_path / "tp4")
    ok("tp-reshard", tmp_path / "tp4", "--to", "tp2", "-o", tmp_path / "tp2")
    ok(*argv(tmp_path / "tp2", resume="must"))
    assert harness.digest(tmp_path / "tp2") == harness.digest(whole) != straight[0]


@pytest.mark.parametrize("name", ["next_sample", "tokens"])
def test_a_place_in_the_data_that_cannot_be_counted_on_from_is_damage(root, name):
    """A manifest with its right checksum, but a number that the next step would make negative."""
    path = root / NAMES[6] / "manifest.json"
    whole = json.loads(path.read_text())
    del whole["checksum"]
    whole["train"][name] = 2 ** 63 - 1
    body = json.dumps(whole).encode()[:-1] + b",\n"
    path.write_bytes(body + b'"checksum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode())
    r = run(*argv(root, resume=True))
    assert r.rc == 0 and "IS DAMAGED" in r.err and name in r.err, repr(r)
    assert "resumed from %s" % (root / NAMES[4]) in r.err
