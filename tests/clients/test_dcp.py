"""torch.distributed.checkpoint saves and loads checkpoints of tp, through the Python package.

needs: tp-ckpt tp-reshard tp-train
"""
import argparse
import gc
import io
import pathlib
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from harness import ok  # noqa: E402

sys.path.insert(0, str(harness.REPO / "python"))
import tp_checkpoint  # noqa: E402
from tp_checkpoint import dcp, dcp_writer, transaction  # noqa: E402
from tp_checkpoint.dcp_names import candidates, name_of, pickle_name  # noqa: E402

TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")
RANKS = pathlib.Path(__file__).with_name("dcp_ranks.py")
Failed = torch_dcp.api.CheckpointException  # how torch reports an error of any rank


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(transaction, "_claimed", {})


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2).to(torch.float64))


def trained(seed, steps=3, frozen=False):
    """A model and its AdamW after some steps; frozen: the norm is not trained in the last of them."""
    model = model_of(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, betas=(0.5, 0.75))
    for i in range(steps):
        out = model[2](model[1](model[0](torch.randn(4, 6))).double())
        out.sum().backward()
        if frozen and i == steps - 1:
            model[1].weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(model, optimizer):
    a, b = get_state_dict(model, optimizer)
    return {"model": a, "optim": b}


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# ---- names -----------------------------------------------------------------------------------

def test_every_name_that_is_written_is_found_again():
    for path in [("model", "a.weight"), ("a.weight",), ("optim", "state", "a.weight", "exp_avg"), ("app", "model", "a.weight"),
                 ("app", "optim", "state", "a.weight", "exp_avg_sq"), ("optim", "state.a.weight.exp_avg"), ("ema", "a.weight"),
                 ("ema", "model", "norm.weight"), ("optim", "state", "w", "step")]:
        assert name_of(path) in candidates(".".join(path)), path
    assert pickle_name(("optim", "param_groups", 0, "lr")) in candidates("optim.param_groups.0.lr")
    assert ("param", "norm.weight") not in candidates("ema.model.norm.weight")


# ---- one process -----------------------------------------------------------------------------

@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_and_its_optimizer_continue_where_they_were(tmp_path, frozen):
    state = state_of(*trained(1, frozen=frozen))
    dcp.save(state, tmp_path / "ckpt", 10)
    ok("tp-ckpt", "verify", tmp_path / "ckpt")
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp1dp3zero3", "-o", tmp_path / "other")
    for root in tmp_path / "ckpt", tmp_path / "other":
        model, optimizer = trained(2, steps=1)
        found = state_of(model, optimizer)
        assert not same(found, state)
        ckpt = dcp.load(found, root)
        assert ckpt.step == 10 and ckpt.train.get("optimizer_start") == 7
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optim"])
        assert same(state_of(model, optimizer), state)
        steps = {float(s["step"]) for s in optimizer.state_dict()["state"].values()}
        assert steps == ({2.0, 3.0} if frozen else {3.0})
        assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)


@pytest.mark.parametrize("kind, options", [
    ("RMSprop", {"momentum": 0.5}), ("Adagrad", {}), ("Adadelta", {}), ("ASGD", {}), ("SGD", {"momentum": 0.5}), ("SGD", {}),
    ("Adamax", {}), ("NAdam", {})])
def test_optimizers_without_moments_of_adam_continue_too(tmp_path, kind, options):
    def made(seed, steps):
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
        torch.manual_seed(seed)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.25, **options)
        for _ in range(steps):
            model(torch.randn(4, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    state = state_of(*made(1, 3))
    dcp.save(state, tmp_path / "ckpt", 10)
    ok("tp-ckpt", "verify", tmp_path / "ckpt")
    model, optimizer = made(2, 1)
    found = state_of(model, optimizer)
    assert not same(found, state)
    dcp.load(found, tmp_path / "ckpt")
    assert same(found, state)


def test_names_and_groups_of_users_are_loaded_as_they_were_saved(tmp_path):
    state = {"model": {"w": torch.zeros(2)}, "master": {"w": torch.ones(2)}, "my.ema": {"w": torch.full((2,), 2.0)},
             "step": {"w": torch.tensor(0.5)}, "optim": {"state": {"v": {"step": torch.tensor(7.0)}}}}
    dcp.save(state, tmp_path / "ckpt", 1)
    found = {"model": {"w": torch.full((2,), 9.0)}, "master": {"w": torch.zeros(2)}, "my.ema": {"w": torch.zeros(2)},
             "step": {"w": torch.tensor(0.0)}, "optim": {"state": {"v": {"step": torch.tensor(0.0)}}}}
    dcp.load(found, tmp_path / "ckpt")
    assert same(found, state)


def test_the_functions_of_torch_take_the_reader_and_the_writer(tmp_path):
    state, empty = model_of(1).state_dict(), model_of(2).state_dict()
    torch_dcp.save(state, storage_writer=dcp.TPWriter(tmp_path / "ckpt", 1))
    torch_dcp.async_save({"model": state}, storage_writer=dcp.TPWriter(tmp_path / "ckpt", 2), no_dist=True).result()
    for step, wrap in (1, lambda s: s), (2, lambda s: {"model": s}), (2, lambda s: s), (1, lambda s: {"app": {"model": s}}):
        found = {k: torch.zeros_like(v) for k, v in empty.items()}
        torch_dcp.load(wrap(found), storage_reader=dcp.TPReader(tmp_path / "ckpt", step))
        assert same(found, state)


def test_async_save_and_save_take_turns(tmp_path, monkeypatch):
    """Of one process they are one job, and none refuses the other as an older one."""
    real = transaction.read_epoch

    def read_epoch(root):
        found = real(root)
        time.sleep(0.2)  # the others are before the claim
        return found

    monkeypatch.setattr(transaction, "read_epoch", read_epoch)
    states = [{"model": {"w": torch.full((3,), float(step))}} for step in range(3)]
    begun = [torch_dcp.async_save(states[step], storage_writer=dcp.TPWriter(tmp_path / "ckpt", step), no_dist=True) for step in (0, 1)]
    dcp.save(states[2], tmp_path / "ckpt", 2)
    for each in begun:
        each.result()
    for step, state in enumerate(states):
        found = {"model": {"w": torch.zeros(3)}}
        dcp.load(found, tmp_path / "ckpt", step)
        assert same(found, state)
    assert (tmp_path / "ckpt/epoch").read_text() == "1\n"


def test_an_async_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(dcp_writer.ShardFile, "finish", lambda self: 1 / 0)
    failed = torch_dcp.async_save({"w": torch.ones(3)}, storage_writer=dcp.TPWriter(tmp_path / "ckpt", 1), no_dist=True)
    assert isinstance(failed.exception(), Failed)
    del failed
    gc.collect()
    assert not list((tmp_path / "ckpt").glob("step-*"))


def test_a_tied_head_is_stored_once(tmp_path):
    config = dict(harness.TINY, tie_word_embeddings=True)
    weight = torch.randn(256, 64)
    dcp.save({"model": {"model.embed_tokens.weight": weight, "lm_head.weight": weight}}, tmp_path / "ckpt", 1, config=config)
    ok("tp-ckpt", "verify", tmp_path / "ckpt")
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        assert [t.name for t in ckpt.tensors()] == ["model.embed_tokens.weight"]
    state = {"model": {"model.embed_tokens.weight": torch.zeros(256, 64), "lm_head.weight": torch.zeros(256, 64)}}
    dcp.load(state, tmp_path / "ckpt")
    assert all(torch.equal(v, weight) for v in state["model"].values())
    apart = {"model": {"model.embed_tokens.weight": weight, "lm_head.weight": weight + 1}}
    with pytest.raises(Failed, match="lm_head.weight and model.model.embed_tokens.weight have different values"):
        dcp.save(apart, tmp_path / "ckpt", 2, config=config)
    assert list(tp_checkpoint.steps(tmp_path / "ckpt")) == [1]


def test_weights_in_fp32_come_from_the_masters_of_a_bf16_run(tmp_path):
    harness.train(harness.write_config(tmp_path / "model"), tmp_path / "ckpt", steps=2, layout="tp2dp2zero1", dtype="bf16")
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        name = "model.layers.0.mlp.down_proj.weight"
        state = {"model": {name: torch.zeros(64, 96)}, "optim": {"state": {name: {
            "exp_avg": torch.zeros(64, 96), "step": torch.zeros(())}}, "param_groups": [{"lr": 0.5}]}}
        dcp.load(state, tmp_path / "ckpt")
        assert torch.equal(state["model"][name], ckpt.tensor(name, "master").torch())
        found = state["optim"]["state"][name]
        assert torch.equal(found["exp_avg"], ckpt.tensor(name, "exp_avg").torch()) and found["step"] == 2
        assert state["optim"]["param_groups"] == [{"lr": 0.5}], "tp-train stores none, so they stay"
        low = {name: torch.zeros(64, 96, dtype=torch.bfloat16)}
        dcp.load(low, tmp_path / "ckpt")
        assert torch.equal(low[name], ckpt[name].torch())


@pytest.mark.parametrize("step, other", [(3, 0), (torch.tensor([3.0]), torch.tensor([0.0])), (torch.tensor(3), torch.tensor(0))])
def test_the_step_of_a_parameter_may_have_any_form(tmp_path, step, other):
    """Adafactor of transformers counts with an int."""
    dcp.save(counted(step), tmp_path / "ckpt", 10)
    found = counted(other)
    dcp.load(found, tmp_path / "ckpt")
    assert same(found, counted(step))


# ---- errors ----------------------------------------------------------------------------------

class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    bad, marker = io.BytesIO(), tmp_path / "ran"
    torch.save(Evil(str(marker)), bad)
    for data in bad.getvalue(), pickle.dumps(Evil(str(marker))), b"":
        tp_checkpoint.save(tmp_path / "ckpt", 1, {("pickle", "note"): np.frombuffer(data, np.uint8), "x": np.zeros(2, np.float32)}, force=True)
        with pytest.raises(Failed, match="pickle/note: is not loaded"):
            dcp.load({"note": None}, tmp_path / "ckpt")
        assert not marker.exists()


def counted(step):
    """The state of an optimizer with this step of its parameter."""
    return {"model": {"w": torch.zeros(2)}, "optim": {"state": {"w": {"exp_avg": torch.ones(2), "step": step}}}}


@pytest.mark.parametrize("state, message", [
    ({"model": {"x": torch.zeros(2, dtype=torch.complex64)}}, "model.x: has the dtype torch.complex64"),
    ({"model": {"x": torch.zeros(2)}, "module": {"x": torch.zeros(2)}}, "would both be stored as param/x"),
    ({"model": {"a/b": torch.zeros(2)}}, "no tensor can have these names"),
    ({"model": {"ema.x": torch.zeros(2)}, "ema": {"x": torch.ones(2)}}, "ema.x: a load could not tell it from model.ema.x"),
    ({"pickle": {"x": torch.zeros(2)}}, "pickle.x: the group pickle is for what is not a tensor"),
    ({"x": torch.zeros([1] * 7)}, "param/x: has 7 axes; the format has at most 6"),
    ({"x": torch.zeros(2).to_sparse()}, "x: has the layout torch.sparse_coo; the format has dense tensors only"),
    ({"x": torch.zeros(2, device="meta")}, "x: is on the device meta, so it has no values to save"),
    (counted(torch.tensor(3.5)), "optim.state.w.step: is 3.5, expected a whole number of steps"),
    (counted(torch.tensor(-1.0)), "optim.state.w.step: is -1.0, expected a whole number of steps"),
    (counted(torch.tensor(float("nan"))), "optim.state.w.step: is nan, expected a whole number of steps"),
    ({"x": torch.zeros(2), "args": argparse.Namespace(lr=1)}, "args: is not a plain value .it calls argparse.Namespace"),
    ({"x": torch.zeros(2), "lr": np.float64(0.5)}, "lr: is not a plain value .it calls numpy"),
])
def test_what_cannot_be_saved_is_named(tmp_path, state, message):
    with pytest.raises(Failed, match=message):
        dcp.save(state, tmp_path / "ckpt", 1)
    assert not list(tmp_path.glob("ckpt/step-*"))


def test_what_cannot_be_loaded_is_named(tmp_path):
    dcp.save({"model": {"x": torch.zeros(2)}}, tmp_path / "ckpt", 1)
    with pytest.raises(Failed, match="Missing key in checkpoint state_dict: model.y"):
        dcp.load({"model": {"y": torch.zeros(2)}}, tmp_path / "ckpt")
    part = {"model": {"x": torch.ones(2), "y": torch.ones(2)}}
    dcp.load(part, tmp_path / "ckpt", planner=dcp.LoadPlanner(allow_partial_load=True))
    assert same(part, {"model": {"x": torch.zeros(2), "y": torch.ones(2)}})
    with pytest.raises(Failed, match="Size mismatch"):
        dcp.load({"model": {"x": torch.zeros(3)}}, tmp_path / "ckpt")
    with pytest.raises(tp_checkpoint.NotFoundError, match="has no step 2"):
        dcp.load({"model": {"x": torch.zeros(2)}}, tmp_path / "ckpt", step=2)
    shard = tmp_path / "ckpt/step-00000001/rank-00000.h5"
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        offset = int(ckpt._index()[0]["offset"])
    data = bytearray(shard.read_bytes())
    data[offset] ^= 4
    shard.write_bytes(data)
    with pytest.raises(Failed, match="the file is damaged"):
        dcp.load({"model": {"x": torch.zeros(2)}}, tmp_path / "ckpt")


# ---- four ranks ------------------------------------------------------------------------------

def test_four_ranks_save_and_load_at_any_placement_and_an_error_of_one_leaves_nothing(tmp_path):
    r = subprocess.run([TORCHRUN, "--standalone", "--nproc-per-node", "4", RANKS, tmp_path / "ckpt"], text=True,
                       env={"PYTHONPATH": str(harness.REPO / "python"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert r.returncode == 0, r.stdout[-6000:]
    for step in 4, 5, 6:
        ok("tp-ckpt", "verify", tmp_path / "ckpt", "--step", step)
        # Debian's HDF5 1.10 reads what a newer one wrote, and finds the datasets that /index says
        folder = tmp_path / ("ckpt/step-%08d" % step)
        subprocess.run(["/usr/bin/python3", harness.REPO / "tests/reader/read_ckpt.py", folder], check=True)
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp1dp3", "--step", 5, "-o", tmp_path / "other")
