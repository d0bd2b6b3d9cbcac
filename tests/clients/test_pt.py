"""Programs with a loop of their own, and PyTorch Lightning, save a model and its optimizer in one file: what is read of it has the
state of the live optimizer, parameter by parameter.

covers: reshard/formats/pt/pt reshard/formats/pt/pt_contents reshard/formats/hf_trainer/numbered_adamw"""
import pathlib
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import frameworks  # noqa: E402
import harness  # noqa: E402
from live_state import assert_equal, live_state, state_of  # noqa: E402

STEPS = 3
# Orders of their own, tied heads, other names in files, stacked experts.
MODELS = ["llama", "qwen3", "gemma3", "gpt2", "gpt-neox", "opt", "mixtral"]


def train(model, optimizer, steps=STEPS):
    rows = torch.randint(0, 131, (steps, 4, 24), generator=torch.Generator().manual_seed(7))
    for row in rows:
        model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def by_dimensions(model):
    """The groups of nanoGPT."""
    params = list(model.parameters())
    return [{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]


def imported(path, model, tmp_path, name):
    harness.ok("tp-ckpt", "import", path, "-o", tmp_path / name, "--layout", "tp2", "--config", model)
    return state_of(tmp_path / name, tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_of_ones_own(name, tmp_path):
    """With one group, with two, and by names; the state dict of a compiled model has other names."""
    for groups in ("one", "two"):
        model = family_models.make(name, tmp_path / "model").train()
        optimizer = torch.optim.AdamW(model.parameters() if groups == "one" else by_dimensions(model), lr=1e-2)
        train(model, optimizer)
        want = live_state(model, optimizer, name)
        assert all(x.count_nonzero() for x in want.values())  # else two parameters could be exchanged
        path = tmp_path / (groups + ".pt")
        torch.save({"epoch": 1, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
                    "rng": torch.get_rng_state()}, path)
        assert_equal(imported(path, tmp_path / "model", tmp_path, groups), want)
    for flat in (False, True):
        whole = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=flat))
        torch.save({"model": torch.compile(model).state_dict(), "optim": whole}, tmp_path / "names.pt")
        assert_equal(imported(tmp_path / "names.pt", tmp_path / "model", tmp_path, "names %s" % flat), want)


def test_lightning(tmp_path):
    """With one process, and with DDP; the Trainer resumes from neither format of ours, so only reading is compared."""
    family_models.make("llama", tmp_path / "model")
    for strategy in ("auto", "ddp"):
        frameworks.run("lightning_run.py", tmp_path / "model", tmp_path / strategy, strategy)
        assert_equal(imported(tmp_path / strategy / "last.ckpt", tmp_path / "model", tmp_path, "from-" + strategy),
                     load_file(tmp_path / strategy / "live.safetensors"))
        r = harness.ok("tp-reshard", tmp_path / strategy / "last.ckpt", "--to", "tp2", "--format", "dcp", "--config",
                       tmp_path / "model", "-o", tmp_path / strategy / "dcp")
        assert "lr_schedulers" in r.out and "hyper_parameters" in r.out, repr(r)
        harness.ok("tp-ckpt", "diff", tmp_path / strategy / "last.ckpt", tmp_path / strategy / "dcp")
