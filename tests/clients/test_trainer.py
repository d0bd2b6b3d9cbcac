"""transformers' Trainer trains models of every family and saves checkpoints: what is read of them has the state of the live
optimizer, parameter by parameter.

covers: reshard/formats/hf_trainer/hf_trainer reshard/formats/hf_trainer/hf_trainer_optimizer reshard/formats/hf_trainer/hf_trainer_params
covers: reshard/formats/hf_trainer/hf_trainer_target layout/parameter_order"""
import json
import logging
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import frameworks  # noqa: E402
import harness  # noqa: E402
from live_state import MODELS, assert_equal, live_state, state_of  # noqa: E402

STEPS = 2


def train(model, folder, steps=STEPS, resume=None, optimizers=(None, None), trainer=transformers.Trainer, **options):
    """Train it, and save at each second step. Returns the Trainer."""
    logging.disable(logging.WARNING)
    torch.manual_seed(3)
    rows = torch.randint(0, 131, (16, 24), generator=torch.Generator().manual_seed(7))
    data = [{"input_ids": r, "labels": r} for r in rows]
    options = dict(dict(weight_decay=0.1, learning_rate=1e-2, optim="adamw_torch", adam_beta2=0.95), **options)
    t = trainer(model=model.train(), train_dataset=data, optimizers=optimizers, args=transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=2, per_device_train_batch_size=4, use_cpu=True, report_to="none",
        disable_tqdm=True, logging_steps=100, **options))
    t.train(resume_from_checkpoint=str(resume) if resume else None)
    return t


@pytest.mark.parametrize("name", MODELS)
def test_the_state_is_that_of_the_live_optimizer(name, tmp_path):
    model = family_models.make(name, tmp_path / "model")
    t = train(model, tmp_path / "run")
    want = live_state(model, t.optimizer, name)
    saved = tmp_path / "run" / "checkpoint-2"
    files = load_file(saved / "model.safetensors")
    assert all(torch.equal(x, files[k.split("/", 1)[1]]) for k, x in want.items() if k.startswith("param/"))
    assert all(x.count_nonzero() for x in want.values())  # else two parameters could be exchanged
    r = harness.ok("tp-ckpt", "import", saved, "-o", tmp_path / "ckpt", "--layout", "tp2")
    assert "step 2, tp2" in r.out and "transformers' Trainer" in r.out, repr(r)
    assert_equal(state_of(tmp_path / "ckpt", tmp_path), want)
    harness.ok("tp-ckpt", "diff", saved, tmp_path / "ckpt")
    assert "intact" in harness.ok("tp-ckpt", "verify", saved).out


def assert_imported_as_live(folder, tmp_path):
    """What trainer_run.py made is imported, and equals what its optimizer had."""
    harness.ok("tp-ckpt", "import", folder / "checkpoint-2", "-o", tmp_path / "ckpt" / folder.name, "--layout", "tp2")
    assert_equal(state_of(tmp_path / "ckpt" / folder.name, tmp_path), load_file(folder / "live.safetensors"))


# 4.46: only registered classes of norms have no weight decay, and Gemma 2 has another order. 4.50: what has "layernorm" in its name.
# 4.57: all norms; experts are modules.
@pytest.mark.parametrize("version,groups", [("4.46.3", {"llama": (16, 5), "mistral": (21, 0), "gemma2": (24, 0)}),
                                            ("4.50.3", {"llama": (16, 5), "mistral": (17, 4), "gemma2": (16, 8)}),
                                            ("4.57.6", {"llama": (16, 5), "mistral": (16, 5), "gemma2": (15, 9)})])
def test_the_state_is_that_of_earlier_versions(version, groups, tmp_path, figure):
    out = frameworks.run("trainer_run.py", tmp_path, *MODELS, transformers=version)
    sizes = dict(re.findall(r"^(\S+) groups (.*)$", out, re.M))
    assert {n: tuple(map(int, sizes[n].split())) for n in groups} == groups
    for name in sizes:
        assert_imported_as_live(tmp_path / name, tmp_path)
    figure("families that transformers %s trains" % version, len(sizes))
    assert len(sizes) >= 12


def test_of_several_processes_the_state_is_the_same(tmp_path):
    """DDP: the first process saves what all have."""
    subprocess.run([sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                    pathlib.Path(__file__).parent / "trainer_run.py", tmp_path, "llama"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "llama/checkpoint-2/rng_state_1.pth").exists()
    assert_imported_as_live(tmp_path / "llama", tmp_path)


class HalfNorms(transformers.Trainer):
    """A program with groups of its own."""

    def get_decay_parameter_names(self, model):
        return [n for n, _ in model.named_parameters() if "input_layernorm" not in n]


def made(kind, model):
    """An optimizer that the program makes."""
    return {"list": lambda: torch.optim.AdamW(model.parameters(), lr=1e-2),
            "named": lambda: torch.optim.AdamW(reversed(list(model.named_parameters())), lr=1e-2)}[kind](), None


@pytest.mark.parametrize("kind", ["fused", "list", "named", "no decay", "bf16"])
def test_other_optimizers_of_adamw_are_read(kind, tmp_path):
    model = family_models.make("qwen3", tmp_path / "model")
    if kind == "bf16":
        model = model.bfloat16()
    more = {"fused": dict(optim="adamw_torch_fused"), "no decay": dict(weight_decay=0.0)}.get(kind, {})
    t = train(model, tmp_path / "run", optimizers=made(kind, model) if kind in ("list", "named") else (None, None), **more)
    want = live_state(model, t.optimizer, "qwen3")
    if kind == "bf16":
        assert {x.dtype for x in want.values()} == {torch.bfloat16}
        want.update({k.replace("param/", "master/"): x for k, x in want.items() if k.startswith("param/")})
    saved = tmp_path / "run/checkpoint-2"
    harness.ok("tp-ckpt", "import", saved, "-o", tmp_path / "ckpt")
    got = state_of(tmp_path / "ckpt", tmp_path)
    for name in [n for n in got if got[n].dtype == torch.uint16]:  # bf16
        got[name] = got[name].view(torch.bfloat16).float()
    assert_equal(got, want)


@pytest.mark.parametrize("kind", ["frozen", "groups"])
def test_what_cannot_be_assigned_is_refused(kind, tmp_path):
    model = family_models.make("llama", tmp_path / "model")
    if kind == "frozen":
        model.model.layers[0].requires_grad_(False)
    train(model, tmp_path / "run", trainer=HalfNorms if kind == "groups" else transformers.Trainer)
    saved = tmp_path / "run/checkpoint-2"
    r = harness.run("tp-ckpt", "import", saved, "-o", tmp_path / "ckpt")
    text = "has 12 parameters, and the model of config.json has 21" if kind == "frozen" else "groups of 19 and 2 parameters are not"
    assert r.rc == 2 and text in r.err and "--no-optim" in r.err and not (tmp_path / "ckpt").exists(), repr(r)
    harness.ok("tp-ckpt", "import", saved, "-o", tmp_path / "ckpt", "--no-optim")
    assert_equal(state_of(tmp_path / "ckpt", tmp_path), live_state(model, None, "llama"))


@pytest.mark.parametrize("optim,keys", [("adafactor", "exp_avg_sq_row, exp_avg_sq_col"), ("sgd", None)])
def test_another_optimizer_is_listed(optim, keys, tmp_path):
    model = family_models.make("llama", tmp_path / "model")
    train(model, tmp_path / "run", optim=optim)
    r = harness.ok("tp-ckpt", "import", tmp_path / "run/checkpoint-2", "-o", tmp_path / "ckpt")
    assert ": optimizer.pt, scheduler.pt" in r.out and (keys or "has no state of parameters") in r.err, repr(r)
    assert_equal(state_of(tmp_path / "ckpt", tmp_path), live_state(model, None, "llama"))


# ---- what is written ----

def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("name", MODELS)
def test_trainer_continues_as_if_it_had_never_stopped(name, tmp_path):
    """Four steps, and two, a move through tp2 of DCP or a copy in parts, and two more: equal weights, moments and steps."""
    model = family_models.make(name, tmp_path / "model")
    undisturbed = train(model, tmp_path / "run", steps=4)
    saved = tmp_path / "run/checkpoint-2"
    if name in ("llama", "mixtral"):
        harness.ok("tp-reshard", saved, "--to", "tp2", "--format", "dcp", "-o", tmp_path / "dcp")
        saved = tmp_path / "dcp"
    harness.ok("tp-reshard", saved, "--to", "tp1", "--format", "trainer", "-o", tmp_path / "moved")
    moved = load(tmp_path / "moved")
    resumed = train(moved, tmp_path / "again", steps=4, resume=tmp_path / "moved")
    assert resumed.state.global_step == 4
    assert_equal(live_state(moved, resumed.optimizer, name), live_state(model, undisturbed.optimizer, name))
    assert {float(x["step"]) for x in resumed.optimizer.state.values()} == {4}
    for group, want in zip(resumed.optimizer.param_groups, undisturbed.optimizer.param_groups):
        assert {k: v for k, v in group.items() if k in ("lr", "betas", "eps", "weight_decay")} == {
            k: v for k, v in want.items() if k in ("lr", "betas", "eps", "weight_decay")}


@pytest.mark.parametrize("version", ["4.50.3", "4.57.6", None])
def test_trainer_has_the_state_of_a_checkpoint_of_ours(version, tmp_path):
    """tp-train at tp2pp2, then Trainer: the moments of each parameter, and the step, which has no update where the checkpoint
    does not know the learning rate."""
    config = harness.write_config(tmp_path / "model")
    harness.train(config, tmp_path / "ckpt", steps=3, layout="tp2pp2")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "trainer", "--max-shard-size", "100K", "-o", tmp_path / "out")
    assert (tmp_path / "out/model.safetensors.index.json").exists()
    state = json.loads((tmp_path / "out/trainer_state.json").read_text())
    if version:  # it trains with this batch size, and stops where it is not known
        with pytest.raises(AssertionError, match="Error"):
            frameworks.run("trainer_load.py", tmp_path / "out", tmp_path / "live.safetensors", transformers=version)
        state["train_batch_size"] = 8
        (tmp_path / "out/trainer_state.json").write_text(json.dumps(state))
    out = frameworks.run("trainer_load.py", tmp_path / "out", tmp_path / "live.safetensors", transformers=version)
    want = state_of(tmp_path / "ckpt", tmp_path)
    got = load_file(tmp_path / "live.safetensors")
    assert_equal(got, want)
    assert "steps {3.0}, global_step 3, lr [0.0, 0.0]" in out, out
    harness.ok("tp-ckpt", "diff", tmp_path / "out", tmp_path / "ckpt")
