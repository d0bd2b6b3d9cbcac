"""Other frameworks load what tp-ckpt export writes in their formats, and find the tensors of the checkpoint in it."""
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402

STEPS = 3


@pytest.fixture(scope="module", params=["fp32", "bf16", "tied"])
def trained(request, tmp_path_factory):
    """(config.json, checkpoint root) of a short run at tp2pp2."""
    folder = tmp_path_factory.mktemp("trained")
    tied = dict(tie_word_embeddings=True, vocab_size=261) if request.param == "tied" else {}
    config = harness.write_config(folder / "model", **tied)
    harness.train(config, folder / "ckpt", steps=STEPS, layout="tp2pp2",
                  dtype="bf16" if request.param == "bf16" else "fp32")
    return config, folder / "ckpt"


def tensors(root, npz):
    """{"group/name": tensor} of the newest step, by the reader that only needs h5py; weights are their masters where
    there are any."""
    subprocess.run(["/usr/bin/python3", harness.REPO / "tests/reader/read_ckpt.py", harness.steps(root)[-1], npz],
                   check=True, stdout=subprocess.DEVNULL)
    found = {k: torch.from_numpy(v) for k, v in np.load(npz).items() if v.dtype == np.float32}
    return {**found, **{k.replace("master/", "param/"): v for k, v in found.items() if k.startswith("master/")}}


@pytest.mark.parametrize("layout", ["tp1", "tp2dp2zero1"])
def test_a_program_of_pytorch_continues_from_dcp(layout, trained, tmp_path):
    """get_state_dict, dcp.load, set_state_dict: weights, moments and step are equal, and a step can be made."""
    config, root = trained
    harness.ok("tp-ckpt", "export", root, "--format", "dcp", "-o", tmp_path / "dcp", "--layout", layout)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "dcp"), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    model_state, optim_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optim_state}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    want = tensors(root, tmp_path / "all.npz")
    for name, p in model.named_parameters():
        assert torch.equal(p, want["param/" + name]), name
        for group in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[p][group], want["%s/%s" % (group, name)]), name
        assert optimizer.state[p]["step"] == STEPS
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95) and optimizer.param_groups[0]["lr"] < 1
    ids = torch.randint(0, 200, (2, 16))
    model(ids, labels=ids).loss.backward()
    optimizer.step()


def test_what_a_program_of_pytorch_saved_besides_comes_along(tmp_path):
    """Options of the optimizer, a schedule and objects of the program: from DCP to DCP they stay as they are."""
    config = harness.write_config(tmp_path / "model")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "model"), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.9), weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    ids = torch.randint(0, 200, (2, 16))
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    schedule.step()

    def state():
        model_state, optim_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optim": optim_state, "schedule": schedule.state_dict(), "loader": {"0": [1, {"at": 7}]}}

    saved = state()
    dcp.save(saved, checkpoint_id=tmp_path / "saved", no_dist=True)
    r = harness.ok("tp-reshard", tmp_path / "saved", "--to", "tp2", "--config", config, "-o", tmp_path / "dcp")
    assert "left out" not in r.out, repr(r)
    loaded = state()
    loaded["schedule"], loaded["loader"] = {k: None for k in saved["schedule"]}, {"0": [None, {"at": None}]}
    loaded["optim"]["param_groups"][0]["lr"] = -1.0
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert loaded["optim"]["param_groups"] == saved["optim"]["param_groups"] and loaded["optim"]["param_groups"][0]["lr"] < 0.02
    assert loaded["schedule"] == saved["schedule"] and loaded["loader"] == saved["loader"]
    assert dcp_names(tmp_path / "dcp") == dcp_names(tmp_path / "saved")


def dcp_names(folder):
    """{name: path in the state dict}"""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    return {name: metadata.planner_data[name] for name in metadata.state_dict_metadata}
