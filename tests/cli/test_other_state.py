"""What a checkpoint of another framework has besides the weights and AdamW's state, which no tensor here is made of: state of other
optimizers, schedules, counters. It is listed as left behind, and the weights come along.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/import_source reshard/unknown_tensors reshard/formats/torch/dcp reshard/formats/megatron/megatron_optimizer
    reshard/formats/megatron/megatron_extras reshard/formats/megatron/torch_dist
    reshard/formats/deepspeed/deepspeed_extras reshard/formats/deepspeed/deepspeed_zero reshard/formats/deepspeed/deepspeed_universal
"""
import json
import shutil

import numpy as np
import pytest

import foreign_files
import torch_files
from harness import ok, run
from test_import_formats import config_of, dcp_tensors, digests, groups_of

def left_out(source, config, tmp_path):
    """What import and tp-reshard say is left out, and the digests of the checkpoint that import makes."""
    text = ok("tp-ckpt", "import", source, "--config", config, "-o", tmp_path / "ckpt").out
    line, = [line for line in text.splitlines() if line.startswith("left out ")]
    again = ok("tp-reshard", source, "--config", config, "--to", "tp1", "--format", "tp", "-o", tmp_path / "again").out
    assert "left out " + line.split(": ", 1)[1] in again
    return line, digests(tmp_path / "ckpt")


# ---- DCP ----

def dcp_of(state, folder, rename):
    """The state dict of an FSDP program whose optimizer has other state: {exp_avg or exp_avg_sq: its name; None: it is not there}."""
    tensors = {}
    for name, value in dcp_tensors(state, 2).items():
        head, _, leaf = name.rpartition(".")
        if rename.get(leaf, leaf):
            tensors[head + "." + rename.get(leaf, leaf)] = value
    torch_files.dcp(folder, tensors)
    return folder, tensors


@pytest.mark.parametrize("rename,groups", [
    ({"exp_avg": "momentum_buffer", "exp_avg_sq": None}, ["momentum_buffer"]),  # SGD
    ({"exp_avg_sq": None}, ["exp_avg"])])  # Lion
def test_the_state_of_another_optimizer_in_dcp_is_listed(rename, groups, f32, tmp_path):
    source, tensors = dcp_of(f32, tmp_path / "dcp", rename)
    line, found = left_out(source, f32.config, tmp_path)
    n = len(f32.group("param"))
    assert line == "left out %d: %s/* (%d)" % (n, groups[0], n) and found == f32.digests("param")
    shown = json.loads(ok("tp-ckpt", "show", source, "--config", f32.config, "--json").out)["tensors"]
    assert len(shown) == 2 * n and {t["group"] for t in shown} == {"param", *groups}
    ok("tp-ckpt", "import", source, "--config", f32.config, "--ignore", groups[0] + "/*", "-o", tmp_path / "ignored")
    assert "left out" not in ok("tp-ckpt", "import", source, "--config", f32.config, "--no-optim", "-o", tmp_path / "w").out


def test_more_state_than_adamws_in_dcp_is_listed(f32, tmp_path):
    tensors = dcp_tensors(f32, 2)
    for name in [n for n in tensors if n.endswith(".exp_avg_sq")]:
        tensors[name.replace("exp_avg_sq", "max_exp_avg_sq")] = tensors[name]
        tensors[name.replace("exp_avg_sq", "mu_product")] = (np.array(0.5, np.float32), [((), ())])
    gone = "optim.state.model.norm2.weight.exp_avg"
    tensors[gone] = tensors[gone.replace("norm2", "norm")]
    torch_files.dcp(tmp_path / "dcp", tensors)
    line, found = left_out(tmp_path / "dcp", f32.config, tmp_path)
    n = len(f32.group("param"))
    for text in ("exp_avg/model.norm2.weight", "max_exp_avg_sq/* (%d)" % n, "mu_product/* (%d)" % n):
        assert text in line
    assert found == digests(f32.root)


def test_a_weight_that_the_model_lacks_is_still_an_error(f32, tmp_path):
    for name in ("model.gate.state.weight", "optim.state.model.norm.weight.param"):
        torch_files.dcp(tmp_path / name, {**dcp_tensors(f32, 2), name: (np.ones((2, 2), np.float32), [((0, 0), (2, 2))])})
        r = run("tp-ckpt", "import", tmp_path / name, "--config", f32.config, "-o", tmp_path / "no")
        assert r.rc == 2 and name.removeprefix("model.") in r.err and not (tmp_path / "no").exists(), repr(r)


def test_state_that_the_target_has_no_place_for_is_listed(f32, tmp_path):
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, 2))
    argv = ["tp-reshard", tmp_path / "dcp", "--config", f32.config, "--to", "tp1", "--format", "safetensors"]
    n = len(f32.group("param"))
    assert "left out exp_avg/* (%d), exp_avg_sq/* (%d)" % (n, n) in ok(*argv, "-o", tmp_path / "hf").out
    assert "left out" not in ok(*argv, "--no-optim", "-o", tmp_path / "asked").out


# ---- Megatron ----

class Megatron(foreign_files.Megatron):
    """With an optimizer whose state is change(that of AdamW)."""

    change = scaler = None

    def ordinary(self, chunks, step):
        out = super().ordinary(chunks, step)
        out["optimizer"]["state"] = {i: self.change(s) for i, s in out["optimizer"]["state"].items() if self.change(s)}
        return {**out, "grad_scaler": {"scale": 65536.0}} if self.scaler else out


CHANGES = {
    "sgd": (lambda s: {"momentum_buffer": s["exp_avg"]}, "momentum_buffer/* (%d), master/* (%d)"),
    "lion": (lambda s: {"step": s["step"], "exp_avg": s["exp_avg"]}, "exp_avg/* (%d), master/* (%d)"),
    "plain": (lambda s: {}, "optimizer.fp32_from_fp16_params"),
    "amsgrad": (lambda s: {**s, "max_exp_avg_sq": s["exp_avg_sq"]}, "max_exp_avg_sq/* (%d)"),
    "factored": (lambda s: {**s, "row": torch_files.Tensor(np.ones(3, np.float32))}, "optimizer.state.row (")}


@pytest.mark.parametrize("kind", CHANGES)
def test_the_state_of_another_optimizer_of_megatron_is_listed(kind, bf16, tmp_path):
    megatron = Megatron(config_of(bf16), 2)
    megatron.change, texts = CHANGES[kind]
    megatron.scaler = True
    megatron.legacy(tmp_path / "m", groups_of(bf16), 3)
    line, found = left_out(tmp_path / "m", bf16.config, tmp_path)
    for text in texts.split(", "):
        assert text.replace("%d", str(len(bf16.group("param")))) in line
    assert "optimizer.grad_scaler" in line
    assert found == (bf16.digests("param") if kind in ("sgd", "lion", "plain") else digests(bf16.root))


def test_the_state_of_another_optimizer_of_torch_dist_is_listed(bf16, tmp_path):
    def sgd(tensors, objects):
        for name in [n for n in tensors if n.startswith("optimizer.state.exp_avg")]:
            value = tensors.pop(name)
            if ".exp_avg_sq." not in name:
                tensors[name.replace("exp_avg", "momentum_buffer")] = value

    foreign_files.Megatron(config_of(bf16), 2).torch_dist(tmp_path / "m", groups_of(bf16), 3, change=sgd)
    line, found = left_out(tmp_path / "m", bf16.config, tmp_path)
    n = len(bf16.group("param"))
    assert "momentum_buffer/* (%d)" % n in line and "master/* (%d)" % n in line and found == bf16.digests("param")


# ---- DeepSpeed ----

MORE = {"lr_scheduler": {"last_batch_iteration": 3}, "epoch": 7, "torch_rng": torch_files.Tensor(np.zeros(8, np.float32)),
        "data_sampler": None, "random_ltd": {}, "ds_version": "0.19"}
GROUPS = [{"lr": 0.004, "betas": (0.8, 0.95), "eps": 1e-9, "weight_decay": 0.3}]


def change_state(path, obj, change):
    """What DeepSpeed saves with the optimizer change(AdamW's), a schedule, a program's own objects and the scale of the loss."""
    if "module" in obj:
        obj.update(MORE)
        if path.name.startswith("zero_pp_rank_"):  # ZeRO-3 keeps buffers whole
            obj["module"]["model.rotary.scale"] = torch_files.Tensor(np.ones(4, np.float32))
    state = obj.get("optimizer_state_dict")
    if state:
        base = state.get("base_optimizer_state") or state["optimizer_state_dict"]
        base["state"], base["param_groups"] = {i: change(s) for i, s in base["state"].items()}, GROUPS
        state.update(loss_scaler={"scale": 65536.0}, overflow=False)


@pytest.fixture
def deepspeed(bf16, tmp_path, monkeypatch):
    def write(write_files, change):
        save = torch_files.save

        def changed(path, obj):
            if isinstance(obj, dict):
                change_state(path, obj, change)
            save(path, obj)

        with monkeypatch.context() as m:
            m.setattr(torch_files, "save", changed)
            write_files(tmp_path / "ds", groups_of(bf16))
        return tmp_path / "ds"
    return write


@pytest.mark.parametrize("write_files", [lambda f, g: foreign_files.zero1(f, g, 3, 2), lambda f, g: foreign_files.zero3(f, g, 3, 2)],
                         ids=["zero1", "zero3"])
@pytest.mark.parametrize("kind", ["sgd", "lion", "plain", "amsgrad"])
def test_what_deepspeed_has_besides_adamw_is_listed(kind, write_files, deepspeed, bf16, tmp_path):
    folder = deepspeed(write_files, CHANGES[kind][0])
    zero3 = bool(list(folder.rglob("bf16_*")))
    line, found = left_out(folder, bf16.config, tmp_path)
    for text in ("lr_scheduler", "epoch", "torch_rng", "optimizer.loss_scaler", *["model.rotary.scale"] * zero3):
        assert " " + text in line
    assert not any(text in line for text in ("data_sampler", "random_ltd", "overflow", "ds_version", "param_shapes"))
    n = len(bf16.group("param"))
    text = {"sgd": "optimizer.state.momentum_buffer", "lion": "exp_avg/* (%d)" % n, "amsgrad": "optimizer.state.max_exp_avg_sq"}
    assert text.get(kind, "") in line
    if kind == "amsgrad":
        assert found == digests(bf16.root)
        ok("tp-reshard", folder, "--config", bf16.config, "--to", "tp1", "-o", tmp_path / "u")
        saved = torch_files.load(next((tmp_path / "u").rglob("optimizer_state.pt")).read_bytes())["param_groups"][0]
        assert {k: saved[k] for k in GROUPS[0]} == GROUPS[0]
        again = ok("tp-reshard", tmp_path / "u", "--to", "tp1", "-o", tmp_path / "u2")
        saved = torch_files.load(next((tmp_path / "u2").rglob("optimizer_state.pt")).read_bytes())["param_groups"][0]
        assert {k: saved[k] for k in GROUPS[0]} == GROUPS[0], repr(again)
    elif zero3:  # it has no other weights
        assert found == bf16.digests("param")
    else:
        assert found == bf16.digests("param") and "master/* (%d)" % n in line


def test_more_in_universal_is_listed_or_refused(bf16, tmp_path):
    foreign_files.universal(tmp_path / "u", groups_of(bf16), 3, False)
    zero = tmp_path / "u/global_step3_universal/zero"
    for param in zero.iterdir():
        shutil.copy(param / "exp_avg.pt", param / "momentum.pt")
    line, found = left_out(tmp_path / "u", bf16.config, tmp_path)
    assert "zero/*/momentum.pt" in line and found == digests(bf16.root)
    (zero / "model.norm.weight/exp_avg.pt").rename(tmp_path / "kept")
    r = run("tp-ckpt", "import", tmp_path / "u", "--config", bf16.config, "-o", tmp_path / "no")
    assert r.rc and "model.norm.weight/exp_avg.pt" in r.err, repr(r)
    for param in zero.iterdir():
        (param / "exp_avg.pt").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "ckpt")
    shutil.rmtree(tmp_path / "again")
    line, found = left_out(tmp_path / "u", bf16.config, tmp_path)
    assert "exp_avg_sq/* (" in line and found == bf16.digests("param")
    shutil.copytree(zero / "model.norm.weight", zero / "model.norm2.weight")
    r = run("tp-ckpt", "import", tmp_path / "u", "--config", bf16.config, "-o", tmp_path / "no")
    assert r.rc == 3 and "model.norm2.weight" in r.err and len(r.lines) == 1, repr(r)
