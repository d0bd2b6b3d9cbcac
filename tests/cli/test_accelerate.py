"""Checkpoints of Hugging Face Accelerate and of transformers' Trainer with FSDP: two DCP folders, or a file of the
weights and one of the optimizer, and small files beside them.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/torch/accelerate reshard/formats/torch/named_adamw
"""
import json
import re
import shutil

import numpy as np
import pytest

import harness
import torch_files
from harness import ok, run
from state import State, digests
from test_import_formats import GROUPS, config_of, dcp_tensors, imported, import_

WEIGHTS, OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"
DECAYING = {"lr": 0.004, "initial_lr": 0.02, "betas": (0.9, 0.95), "eps": 1e-9, "weight_decay": 0.3, "fused": True}
STATE = '{"global_step": 3, "train_batch_size": 8, "log_history": [{"loss": 2.5}]}'
SCHEDULE = {"base_lrs": [0.02, 0.02], "last_epoch": 3, "lr_lambdas": [None, None], "_last_lr": [0.004, 0.004]}


def norms(names):
    return [n for n in names if "norm" in n]


def write(folder, state, files=("scheduler.pt", "trainer_state.json", "rng_state_0.pth"), parts=3):
    """As the Trainer saves it with SHARDED_STATE_DICT."""
    tensors = dcp_tensors(state, parts, "model.", "optimizer.state.")
    names = list(state.group("param"))
    groups = (dict(DECAYING, params=[n for n in names if n not in norms(names)]),
              dict(DECAYING, params=norms(names), weight_decay=0.0))
    options = {"optimizer.param_groups.%d.%s" % (i, k): v for i, group in enumerate(groups) for k, v in group.items()}
    paths = {k: ("optimizer", "param_groups", int(k.split(".")[2]), k.split(".")[3]) for k in options}
    torch_files.dcp(folder / WEIGHTS, {k: v for k, v in tensors.items() if k.startswith("model.")})
    torch_files.dcp(folder / OPTIMIZER, {k: v for k, v in tensors.items() if k.startswith("optimizer.")}, options, paths=paths)
    for name in files:
        if name.endswith(".json"):
            (folder / name).write_text(STATE)
        else:
            torch_files.save(folder / name, SCHEDULE)
    return options


def load(folder):
    """({name: array or object}, planner_data) of both folders."""
    weights, paths = torch_files.load_dcp(folder / WEIGHTS)
    state, more = torch_files.load_dcp(folder / OPTIMIZER)
    assert all(k.startswith("model.") for k in weights) and all(k.startswith("optimizer.") for k in state)
    return {**weights, **state}, {**paths, **more}


def test_import_takes_weights_moments_step_and_options(f32, tmp_path):
    write(tmp_path / "checkpoint-3", f32)
    r = imported(f32, tmp_path / "checkpoint-3", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert "Accelerate" in r.out and "step 3" in r.out, repr(r)
    for left in "scheduler.pt", "trainer_state.json", "rng_state_*.pth":
        assert left in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(f32.root)
    options = json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["options"]
    assert options == {"lr": 0.004, "beta1": 0.9, "beta2": 0.95, "eps": 1e-9, "weight_decay": 0.3}


def test_readers_take_the_folder(f32, tmp_path):
    folder = tmp_path / "checkpoint-3"
    write(folder, f32)
    assert re.search(r"accelerate +3 +%d " % (3 * len(f32.group("param"))), ok("tp-ckpt", "ls", folder).out)
    assert "intact" in ok("tp-ckpt", "verify", folder, "--config", f32.config).out
    assert digests(folder) == digests(f32.root)
    assert "equal" in ok("tp-ckpt", "diff", folder, f32.root).out
    assert WEIGHTS + "/__" in ok("tp-ckpt", "show", folder, "model.norm.weight").out
    assert OPTIMIZER + "/__" in ok("tp-ckpt", "show", folder, "exp_avg/model.norm.weight").out
    assert digests(folder / WEIGHTS) == f32.digests("param"), "a half is a DCP checkpoint"


@pytest.mark.parametrize("to", ["tp1", "tp4pp2", "tp2dp3zero1"])
def test_reshard_keeps_the_kind_and_what_is_beside_the_tensors(to, f32, tmp_path):
    source, out = tmp_path / "checkpoint-3", tmp_path / "out"
    options = write(source, f32, ("scheduler.pt", "scheduler.bin", "scaler.pt", "trainer_state.json", "random_states_0.pkl"))
    r = ok("tp-reshard", source, "--to", to, "--config", f32.config, "-o", out)
    assert "accelerate -> accelerate" in r.out and re.search("left out random_states_...kl", r.out), repr(r)
    assert sorted(p.name for p in out.iterdir()) == ["config.json", OPTIMIZER, WEIGHTS, "scaler.pt", "scheduler.bin",
                                                     "scheduler.pt", "trainer_state.json"]
    for name in "scheduler.pt", "scheduler.bin", "scaler.pt", "trainer_state.json":
        assert (out / name).read_bytes() == (source / name).read_bytes(), name
    found, paths = load(out)
    assert {k: v for k, v in found.items() if "param_groups" in k} == options
    assert tuple(paths["optimizer.param_groups.1.lr"]) == ("optimizer", "param_groups", 1, "lr")
    assert digests(out) == digests(f32.root)


def test_export_has_the_names_and_groups_of_the_trainer(f32, tmp_path):
    r = ok("tp-ckpt", "export", f32.root, "--format", "accelerate", "--layout", "tp2pp2", "-o", tmp_path / "out")
    assert "train_batch_size" in r.err, "people are told what they must set: %r" % r
    found, paths = load(tmp_path / "out")
    names = list(f32.group("param"))
    for name in names:
        assert np.array_equal(found["model." + name], f32.group("param")[name]) and tuple(paths["model." + name]) == ("model", name)
        for group in GROUPS:
            key = "optimizer.state.%s.%s" % (name, group)
            assert np.array_equal(found[key], f32.group(group)[name]) and tuple(paths[key]) == ("optimizer", "state", name, group)
        assert found["optimizer.state.%s.step" % name] == 3
    for number, (params, decay) in enumerate(((set(names) - set(norms(names)), 0.1), (set(norms(names)), 0.0))):
        head = "optimizer.param_groups.%d." % number
        assert set(found[head + "params"]) == params and len(found[head + "params"]) == len(params) > 0
        assert found[head + "weight_decay"] == decay and found[head + "betas"] == (0.9, 0.95)
        assert {"lr", "initial_lr", "eps", "amsgrad", "foreach", "maximize", "capturable", "differentiable", "fused",
                "decoupled_weight_decay"} <= {k[len(head):] for k in found if k.startswith(head)}
        assert tuple(paths[head + "lr"]) == ("optimizer", "param_groups", number, "lr")
    assert json.loads((tmp_path / "out/trainer_state.json").read_text())["global_step"] == 3
    schedule = torch_files.load((tmp_path / "out/scheduler.pt").read_bytes())
    assert schedule == {"last_epoch": 3, "_step_count": 4, "lr_lambdas": []}
    ok("tp-ckpt", "import", tmp_path / "out", "-o", tmp_path / "again", "--layout", "tp2pp2")
    assert digests(tmp_path / "again") == digests(f32.root)


def test_a_tied_head_is_stored_once_and_is_in_no_group(tmp_path):
    tied = State(tmp_path / "state", harness.write_config(tmp_path / "model", tie_word_embeddings=True, vocab_size=261))
    ok("tp-ckpt", "export", tied.root, "--format", "accelerate", "-o", tmp_path / "out")
    root = torch_files._Unpickler((tmp_path / "out" / WEIGHTS / ".metadata").read_bytes()).load()
    places = {k.fqn: (v.relative_path, v.offset) for k, v in root.storage_data.items()}
    assert places["model.lm_head.weight"] == places["model.model.embed_tokens.weight"]
    state, _ = torch_files.load_dcp(tmp_path / "out" / OPTIMIZER)
    assert not [k for k in state if "lm_head" in k]
    assert not [v for k, v in state.items() if k.endswith(".params") and "lm_head.weight" in v]
    ok("tp-ckpt", "import", tmp_path / "out", "-o", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(tied.root)


def test_weights_alone(f32, tmp_path):
    ok("tp-ckpt", "export", f32.root, "--format", "accelerate", "--no-optim", "-o", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", WEIGHTS]
    ok("tp-ckpt", "import", tmp_path / "out", "-o", tmp_path / "again")
    assert digests(tmp_path / "again") == f32.digests("param")
    write(tmp_path / "both", f32)
    r = ok("tp-reshard", tmp_path / "both", "--to", "tp2", "--no-optim", "--config", f32.config, "-o", tmp_path / "less")
    assert sorted(p.name for p in (tmp_path / "less").iterdir()) == ["config.json", WEIGHTS], repr(r)


def test_to_and_from_another_format(f32, tmp_path):
    write(tmp_path / "a", f32)
    ok("tp-reshard", tmp_path / "a", "--to", "tp2", "--format", "dcp", "--config", f32.config, "-o", tmp_path / "dcp")
    found, _ = torch_files.load_dcp(tmp_path / "dcp")
    assert found["optim.param_groups.0.lr"] == 0.004 and not [k for k in found if k.startswith("optimizer.")]
    r = ok("tp-reshard", tmp_path / "dcp", "--to", "tp2", "--format", "accelerate", "-o", tmp_path / "b")
    assert digests(tmp_path / "b") == digests(f32.root)
    assert load(tmp_path / "b")[0]["optimizer.param_groups.0.weight_decay"] == 0.3, repr(r)


def test_groups_in_one_object_are_read(f32, tmp_path):
    """As torch before 2.4 saved them."""
    folder = tmp_path / "checkpoint-3"
    write(folder, f32)
    state = {k: v for k, v in dcp_tensors(f32, 2, "model.", "optimizer.state.").items() if k.startswith("optimizer.")}
    groups = [dict(DECAYING, params=["a"]), dict(DECAYING, weight_decay=0.0, params=[])]
    torch_files.dcp(folder / OPTIMIZER, state, {"optimizer.param_groups": groups}, paths={"optimizer.param_groups": ("optimizer", "param_groups")})
    imported(f32, folder, tmp_path / "ckpt")
    assert json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["options"]["weight_decay"] == 0.3
    ok("tp-reshard", folder, "--to", "tp2", "--config", f32.config, "-o", tmp_path / "out")
    found, _ = load(tmp_path / "out")
    assert found["optimizer.param_groups"] == groups, "for the same torch"
    assert found["optimizer.param_groups.0.weight_decay"] == 0.3 and found["optimizer.param_groups.1.weight_decay"] == 0


def test_force_replaces_such_a_folder(f32, tmp_path):
    argv = "tp-ckpt", "export", f32.root, "--format", "accelerate", "-o", tmp_path / "out"
    ok(*argv)
    ok(*argv, "--force")
    assert digests(tmp_path / "out") == digests(f32.root)


# ---- what is missing or wrong ----

def refused(state, folder, tmp_path, *says, rc=3):
    r = import_(state, folder, tmp_path / "ckpt", "--layout", "tp2")
    assert r.rc == rc and all(s in r.err for s in says) and not (tmp_path / "ckpt").exists(), repr(r)


def test_a_half_is_named(f32, tmp_path):
    folder = tmp_path / "runs/checkpoint-3"
    write(folder, f32)
    r = imported(f32, folder / WEIGHTS, tmp_path / "weights")
    assert "left out 1: " in r.out and "checkpoint-3/optimizer_0" in r.out, repr(r)
    refused(f32, folder / OPTIMIZER, tmp_path, "optimizer_0: has the state of an optimizer and no weights", "the one above", rc=2)
    refused(f32, tmp_path / "runs", tmp_path, "name this folder", str(folder), rc=2)


def test_a_folder_that_was_not_copied_is_named(f32, tmp_path):
    folder = tmp_path / "checkpoint-3"
    write(folder, f32)
    shutil.move(folder / WEIGHTS, tmp_path / "moved")
    refused(f32, folder, tmp_path, "no weights", WEIGHTS)
    shutil.move(tmp_path / "moved", folder / WEIGHTS)
    (folder / OPTIMIZER / ".metadata").rename(tmp_path / "moved")
    refused(f32, folder, tmp_path, "optimizer_0: has no .metadata")
    shutil.rmtree(folder / OPTIMIZER)
    refused(f32, folder, tmp_path, "has scheduler.pt and no optimizer", "--no-optim")
    imported(f32, folder, tmp_path / "ckpt", "--no-optim")
    assert digests(tmp_path / "ckpt") == f32.digests("param")


def test_numbers_in_place_of_names_are_refused(f32, tmp_path):
    """Accelerate 1.6 saved the optimizer of FSDP2 so."""
    folder = tmp_path / "checkpoint-3"
    write(folder, f32)
    names = list(f32.group("param"))
    tensors = {}
    for key, value in dcp_tensors(f32, 2, "model.", "optimizer.state.").items():
        if key.startswith("optimizer."):
            name, leaf = key[len("optimizer.state."):].rsplit(".", 1)
            tensors["optimizer.state.%d.%s" % (names.index(name), leaf)] = value
    torch_files.dcp(folder / OPTIMIZER, tensors)
    refused(f32, folder, tmp_path, "has numbers in place of the names", "--no-optim", rc=2)
    imported(f32, folder, tmp_path / "ckpt", "--no-optim")
    assert digests(tmp_path / "ckpt") == f32.digests("param")


@pytest.mark.parametrize("inside", [WEIGHTS, OPTIMIZER])
def test_a_flipped_bit_is_found_in_both_folders(inside, f32, tmp_path):
    folder = tmp_path / "checkpoint-3"
    write(folder, f32, parts=1)
    group = "param" if inside == WEIGHTS else "exp_avg"
    pattern = f32.group(group)["model.norm.weight"].tobytes()
    (file,) = [p for p in (folder / inside).glob("*.distcp") if pattern in p.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.find(pattern) + 9] ^= 4
    file.write_bytes(data)
    refused(f32, folder, tmp_path, "CRC-32", inside)
    r = run("tp-ckpt", "verify", folder)
    assert r.rc == 1 and inside in r.out + r.err, repr(r)


def test_steps_of_two_saves_are_noticed(f32, tmp_path):
    folder = tmp_path / "checkpoint-3"
    write(folder, f32)
    tensors = dcp_tensors(f32, 2, "model.", "optimizer.state.")
    tensors["optimizer.state.model.norm.weight.step"] = (np.array(4, np.float32), [((), ())])
    torch_files.dcp(folder / OPTIMIZER, {k: v for k, v in tensors.items() if k.startswith("optimizer.")})
    refused(f32, folder, tmp_path, "step")


def test_a_model_of_another_size_is_refused(f32, tmp_path):
    folder = tmp_path / "checkpoint-3"
    write(folder, f32)
    config = dict(config_of(f32), num_hidden_layers=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    r = run("tp-ckpt", "import", folder, "--config", tmp_path / "config.json", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "model.layers." in r.err, repr(r)
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert r.rc != 0 and "--config" in r.err, "the Trainer saves no config.json: %r" % r


# ---- FULL_STATE_DICT ----

def write_whole(folder, state, numbers=False):
    """One file of the weights, and one of the optimizer, by names."""
    weights = state.group("param")
    key = {n: i if numbers else n for i, n in enumerate(weights)}
    torch_files.save(folder / "pytorch_model_fsdp.bin", {k: torch_files.Tensor(v) for k, v in weights.items()})
    torch_files.save(folder / "optimizer.bin", {
        "state": {key[n]: {**{g: torch_files.Tensor(state.group(g)[n]) for g in GROUPS},
                           "step": torch_files.Tensor(np.array(3, np.float32))} for n in weights},
        "param_groups": [dict(DECAYING, params=[key[n] for n in weights if n not in norms(weights)]),
                         dict(DECAYING, params=[key[n] for n in norms(weights)], weight_decay=0.0)]})


def test_whole_state_dicts_are_read_with_the_optimizer(f32, tmp_path):
    """Also beside model.safetensors, which the Trainer writes too, and which has no optimizer."""
    folder = tmp_path / "checkpoint-3"
    write_whole(folder, f32)
    ok("tp-ckpt", "export", f32.root, "-o", tmp_path / "hf")
    for name in "model.safetensors", "config.json":
        shutil.copy(tmp_path / "hf" / name, folder / name)
    torch_files.save(folder / "scheduler.pt", SCHEDULE)
    r = ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt", "--layout", "tp2")
    assert "Accelerate" in r.out and "step 3" in r.out and "every checksum" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(folder) == digests(f32.root)
    assert json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["options"]["weight_decay"] == 0.3
    ok("tp-reshard", folder, "--to", "tp2", "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(f32.root) and (tmp_path / "out" / OPTIMIZER / ".metadata").exists()
    assert (tmp_path / "out/scheduler.pt").read_bytes() == (folder / "scheduler.pt").read_bytes()


def test_whole_state_dicts_that_are_damaged_are_refused(f32, tmp_path):
    folder = tmp_path / "checkpoint-3"
    write_whole(folder, f32, numbers=True)
    refused(f32, folder, tmp_path, "numbers in place of the names", rc=2)
    imported(f32, folder, tmp_path / "weights", "--no-optim")
    assert digests(tmp_path / "weights") == f32.digests("param")
    torch_files.save(folder / "scheduler.bin", SCHEDULE)
    (folder / "optimizer.bin").unlink()
    refused(f32, folder, tmp_path, "has scheduler.bin and no optimizer", "optimizer.bin")
    for wrong in {"state": [1]}, {"state": {None: {}}}, {"state": {"a": {"step": torch_files.Tensor(np.zeros(2, np.float32))}}}:
        torch_files.save(folder / "optimizer.bin", wrong)
        refused(f32, folder, tmp_path, "optimizer.bin" if "a" not in wrong["state"] else "a")
