"""Checkpoints of Hugging Face Accelerate without FSDP: model.safetensors or pytorch_model.bin, and optimizer.bin, which knows
parameters by numbers.

The files are written by torch_files.py from a checkpoint of tp-train, and read; then all tensors have the digests of that
checkpoint. tests/clients has Accelerate itself write and load them.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/hf_trainer/hf_trainer reshard/formats/hf_trainer/hf_trainer_optimizer reshard/formats/hf_trainer/hf_trainer_params
    reshard/formats/hf_trainer/hf_trainer_files reshard/formats/hf_trainer/hf_trainer_target reshard/formats/safetensors/safetensors_pieces
"""
import json
import shutil

import numpy as np
import pytest

import harness
import test_trainer
import torch_files
from harness import ok, run
from state import State, digests
from test_trainer import LAYER, MOMENTS, OLD_LAYER, RULES, STEP, config_of, oracle_numpy, optimizer_of, options, order_of
from torch_files import Tensor


def save(folder, state, optimizer=None, weights="safetensors", files=("scheduler.bin", "random_states_0.pkl")):
    """Write FOLDER as accelerator.save_state does, which saves no config.json. Returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    params = state.group("param")
    if weights == "safetensors":
        oracle_numpy.save_safetensors(folder / "model.safetensors", params)
    else:
        torch_files.save(folder / "pytorch_model.bin", {k: Tensor(v) for k, v in params.items()})
    torch_files.save(folder / "optimizer.bin", optimizer or optimizer_of(state, order_of(config_of(state)), RULES["none"], 1))
    for name in files:
        torch_files.save(folder / name, {"last_epoch": STEP})
    return folder


def import_(state, source, root, *more):
    return run("tp-ckpt", "import", source, "-o", root, "--config", state.config, *more)


def assert_imported(state, source, root, *more):
    r = import_(state, source, root, *more)
    assert r.rc == 0 and "Accelerate, one process or DDP" in r.out and harness.steps(root)[-1].name == "step-%08d" % STEP, repr(r)
    assert digests(root) == digests(state.root)
    return r


def no_decay_first(optimizer):
    """The same parameters with the group without weight decay first."""
    first, second = optimizer["param_groups"]
    numbers = second["params"] + first["params"]
    optimizer["state"] = {i: optimizer["state"][n] for i, n in enumerate(numbers)}
    n = len(second["params"])
    optimizer["param_groups"] = [{**second, "params": list(range(n))}, {**first, "params": list(range(n, len(numbers)))}]
    return optimizer


def an_empty_group(optimizer):
    """As transformers' examples make it of a Llama: none of its norms has "layer_norm.weight" in its name."""
    optimizer["param_groups"].append({**options(0.0), "params": []})
    return optimizer


TORCHAO = [torch_files._module(name, OptimState8bit=torch_files._class())
           for name in ("torchao", "torchao.optim", "torchao.optim.subclass_8bit")][-1]


# ---- what is read ----

@pytest.mark.parametrize("weights", ["safetensors", "bin"])
@pytest.mark.parametrize("kind", ["one", "two", "no decay first", "empty"])
def test_the_groups_that_programs_make_are_read(kind, weights, f32, tmp_path):
    order = order_of(config_of(f32))
    one, two = optimizer_of(f32, order, RULES["none"], 1), optimizer_of(f32, order)
    optimizer = {"one": one, "two": two, "no decay first": no_decay_first(two), "empty": an_empty_group(one)}[kind]
    r = assert_imported(f32, save(tmp_path / "checkpoint_0", f32, optimizer, weights), tmp_path / "ckpt", "--layout", "tp2pp2")
    left = "left out 2: " if kind in ("one", "empty") else "left out 3: optimizer.bin.param_groups, "
    assert left + "scheduler.bin, random_states_*.pkl" in r.out, repr(r)
    noted = json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["options"]
    assert noted["beta1"] == 0.8 and noted["weight_decay"] == 0.1, "of the group with weight decay, wherever it is"


def test_every_verb_reads_it(f32, tmp_path):
    source = save(tmp_path / "run/checkpoints/checkpoint_1", f32)
    config = ("--config", f32.config)
    listed = json.loads(ok("tp-ckpt", "ls", source, "--json", *config).out)[0]
    assert listed["format"] == "accelerate-ddp" and listed["step"] == STEP and listed["tensors"] == len(digests(f32.root))
    assert test_trainer.digests_with(source, f32.config) == digests(f32.root)
    ok("tp-ckpt", "diff", source, f32.root, *config)
    assert "optimizer.bin" in ok("tp-ckpt", "show", source, "exp_avg/model.norm.weight", *config).out
    r = ok("tp-ckpt", "verify", source, *config)
    assert "intact" in r.out and "which state of optimizer.bin is of which parameter" in r.out, repr(r)
    r = run("tp-ckpt", "ls", tmp_path / "run")
    assert r.rc == 2 and "name this folder" in r.err and "checkpoint_1" in r.err, repr(r)


def test_without_a_config_the_optimizer_is_not_lost_in_silence(f32, tmp_path):
    source = save(tmp_path / "checkpoint_0", f32)
    for verb in "ls", "show", "verify":
        r = ok("tp-ckpt", verb, source)
        assert "optimizer.bin: knows parameters by numbers" in r.err and "--config" in r.err, repr(r)
    r = run("tp-ckpt", "digest", source)
    assert r.rc == 3 and "optimizer.bin" in r.err, repr(r)
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "--config" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


def test_names_of_compiled_models_and_of_several_processes(f32, tmp_path):
    source = save(tmp_path / "checkpoint_0", f32, files=("random_states_0.pkl", "random_states_1.pkl", "sampler.bin", "custom_checkpoint_0.pkl"))
    oracle_numpy.save_safetensors(source / "model.safetensors", {"_orig_mod." + k: v for k, v in f32.group("param").items()})
    shutil.copy(source / "model.safetensors", source / "model_1.safetensors")
    shutil.copy(source / "optimizer.bin", source / "optimizer_1.bin")
    r = assert_imported(f32, source, tmp_path / "ckpt")
    assert "left out 5: random_states_*.pkl, sampler.bin, custom_checkpoint_*.pkl, optimizer_1.bin, model_1.safetensors" in r.out, repr(r)


def test_it_becomes_another_frameworks(f32, tmp_path):
    source = save(tmp_path / "checkpoint_0", f32)
    r = ok("tp-reshard", source, "--to", "tp2", "--format", "accelerate", "--config", f32.config, "-o", tmp_path / "fsdp")
    assert digests(tmp_path / "fsdp") == digests(f32.root), repr(r)
    found, _ = torch_files.load_dcp(tmp_path / "fsdp/optimizer_0")
    assert found["optimizer.param_groups.0.betas"] == (0.8, 0.9)


def test_a_folder_of_save_pretrained_in_parts(f32, tmp_path):
    """As hooks of save_state write it: config.json is there, and the weights are in parts."""
    ok("tp-ckpt", "export", f32.root, "--max-shard-size", "100K", "-o", tmp_path / "checkpoint_0")
    assert (tmp_path / "checkpoint_0/model.safetensors.index.json").exists()
    torch_files.save(tmp_path / "checkpoint_0/optimizer.bin", optimizer_of(f32, order_of(config_of(f32))))
    assert digests(tmp_path / "checkpoint_0") == digests(f32.root)


@pytest.mark.parametrize("beside", [False, True])
def test_the_version_of_a_base_models_config_does_not_decide(beside, tmp_path):
    """It is that of the program which saved the base model; the one that trained may have had another order of parameters. Only a
    config.json in the folder itself is taken to be of the program."""
    width = json.loads(harness.write_config(tmp_path / "tiny").read_text())["hidden_size"]
    state = State(tmp_path, harness.write_config(tmp_path / "model", intermediate_size=width))
    config = {**config_of(state), "transformers_version": "4.30.2"}
    source = save(tmp_path / "checkpoint_0", state, optimizer_of(state, order_of(config, OLD_LAYER), RULES["none"], 1))
    file = (source if beside else tmp_path) / "config.json"
    file.write_text(json.dumps(config))
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "again", "--config", file)
    if beside:
        assert r.rc == 0 and digests(tmp_path / "again") == digests(state.root), repr(r)
    else:
        assert r.rc == 2 and "several fit" in r.err and "put a config.json beside it" in r.err, repr(r)


# ---- what is refused ----

def test_a_schedule_without_an_optimizer_is_refused(f32, tmp_path):
    source = save(tmp_path / "checkpoint_0", f32)
    (source / "optimizer.bin").unlink()
    r = import_(f32, source, tmp_path / "ckpt")
    assert r.rc == 3 and "has scheduler.bin and no optimizer.bin" in r.err and "--no-optim" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "ckpt").exists()
    assert import_(f32, source, tmp_path / "ckpt", "--no-optim").rc == 0
    assert digests(tmp_path / "ckpt") == f32.digests("param")


def three_groups(optimizer):
    """With the sizes that two groups would have, and the norms in two: each half of the layers has its own learning rate."""
    norms = optimizer["param_groups"][1]
    optimizer["param_groups"].append({**norms, "params": norms["params"][2:]})
    norms["params"] = norms["params"][:2]


def other_groups(optimizer):
    first, second = optimizer["param_groups"]
    second["params"].insert(0, first["params"].pop())


def names_for_numbers(optimizer):
    """As FSDP's optimizer has them, whose weights were not copied."""
    for group in optimizer["param_groups"]:
        group["params"] = ["p%d" % n for n in group["params"]]
    optimizer["state"] = {"p%d" % n: s for n, s in optimizer["state"].items()}


REFUSED = {three_groups: "(in several groups) parameters are not all parameters, or those with weight decay",
           other_groups: "the program chose others", names_for_numbers: "do not number the parameters from 0 on"}


@pytest.mark.parametrize("change", REFUSED, ids=lambda c: c.__name__)
def test_groups_that_cannot_be_assigned_are_refused(change, f32, tmp_path):
    optimizer = optimizer_of(f32, order_of(config_of(f32)))
    change(optimizer)
    source = save(tmp_path / "checkpoint_0", f32, optimizer)
    r = import_(f32, source, tmp_path / "ckpt")
    assert r.rc == 2 and REFUSED[change] in r.err and "--no-optim" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "ckpt").exists()
    assert import_(f32, source, tmp_path / "ckpt", "--no-optim").rc == 0
    assert digests(tmp_path / "ckpt") == f32.digests("param")


def test_of_trainer_three_groups_are_refused_too(f32, tmp_path):
    optimizer = optimizer_of(f32, order_of(config_of(f32)))
    three_groups(optimizer)
    r = run("tp-ckpt", "import", test_trainer.save(tmp_path / "checkpoint-3", f32, optimizer), "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "are not those of transformers' Trainer" in r.err, repr(r)


def test_weights_that_are_missing_are_named(f32, tmp_path):
    source = save(tmp_path / "checkpoint_0", f32)
    (source / "model.safetensors").unlink()
    r = import_(f32, source, tmp_path / "ckpt")
    assert r.rc == 2 and "has an optimizer.bin of Accelerate, but neither model.safetensors" in r.err and len(r.lines) == 1, repr(r)


def test_the_name_of_the_other_format_is_told(f32, tmp_path):
    """--format accelerate is FSDP's."""
    source = save(tmp_path / "checkpoint_0", f32)
    r = import_(f32, source, tmp_path / "ckpt", "--format", "accelerate")
    assert r.rc == 2 and "of one process or DDP it is --format accelerate-ddp" in r.err and len(r.lines) == 1, repr(r)
    ok("tp-ckpt", "export", f32.root, "--format", "accelerate", "-o", tmp_path / "fsdp")
    r = import_(f32, tmp_path / "fsdp", tmp_path / "ckpt", "--format", "accelerate-ddp")
    assert r.rc == 2 and "of FSDP it is --format accelerate" in r.err and len(r.lines) == 1, repr(r)


# ---- other optimizers ----

class EightBits:
    """A moment of torchao: an object of a class of its own, not a tensor."""

    def __init__(self, array):
        self.args = (Tensor(array),)

    def __reduce__(self):
        return TORCHAO.OptimState8bit, self.args


def state_as(f32, kind, name):
    """What another optimizer keeps of a parameter."""
    m, v = (f32.group(g)[name] for g in MOMENTS)
    step = Tensor(np.array(STEP, np.float32))
    return {"muon": lambda: {"momentum_buffer": Tensor(m)}, "lion": lambda: {"exp_avg": Tensor(m)},
            "adafactor": lambda: {"step": step, "row_var": Tensor(v[..., 0]), "col_var": Tensor(v[..., 0])},
            "bitsandbytes": lambda: {"step": STEP, "__bnb_optimizer_quant_state__": {"state1": Tensor(m), "qmap1": Tensor(v)}},
            "bitsandbytes in f32": lambda: {"step": STEP, "state1": Tensor(m), "state2": Tensor(v)},
            "torchao": lambda: {"step": step, "exp_avg": EightBits(m), "exp_avg_sq": EightBits(v)},
            "schedule-free": lambda: {"z": Tensor(m), "exp_avg_sq": Tensor(v)}, "sgd": lambda: {}}[kind]()


OTHERS = {"muon": "has momentum_buffer of another optimizer than AdamW", "lion": "has only one of AdamW's moments",
          "adafactor": "has row_var, col_var of another optimizer than AdamW",
          "bitsandbytes": "has __bnb_optimizer_quant_state__ of bitsandbytes", "bitsandbytes in f32": "has state1, state2 of bitsandbytes",
          "torchao": "has exp_avg, exp_avg_sq of a package that stores it in fewer bits",
          "schedule-free": "has z of another optimizer than AdamW", "sgd": "has no state of parameters"}


@pytest.mark.parametrize("program", ["accelerate", "trainer"])
@pytest.mark.parametrize("kind", OTHERS)
def test_another_optimizer_stays_behind_and_is_named(kind, program, f32, tmp_path):
    order = order_of(config_of(f32))
    optimizer = {"state": {i: state_as(f32, kind, n) for i, n in enumerate(order)} if kind != "sgd" else {},
                 "param_groups": [{**options(0), "params": list(range(len(order)))}]}
    source = (save if program == "accelerate" else test_trainer.save)(tmp_path / "checkpoint", f32, optimizer)
    r = import_(f32, source, tmp_path / "ckpt")
    file = "optimizer.bin" if program == "accelerate" else "optimizer.pt"
    assert r.rc == 0 and OTHERS[kind] in r.err and "%s, " % file in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == f32.digests("param")
    assert OTHERS[kind] in ok("tp-ckpt", "verify", source, "--config", f32.config).err
    r = run("tp-ckpt", "digest", source, "--config", f32.config)
    assert r.rc == 3 and OTHERS[kind] in r.err, repr(r)


def galore(f32, optimizer, order):
    """Moments of a lower rank, and what makes them."""
    q = order.index("model.layers.0.self_attn.q_proj.weight")
    optimizer["state"][q] = {**optimizer["state"][q], "projector": 3, **{g: Tensor(f32.group(g)[order[q]][:2]) for g in MOMENTS}}
    return "have another shape than it, and it has projector of another optimizer than AdamW"


def muon_and_adamw(f32, optimizer, order):
    q = order.index("model.layers.0.self_attn.q_proj.weight")
    optimizer["state"][q] = state_as(f32, "muon", order[q])
    return "has no moments of parameter %d, %s, but momentum_buffer of another optimizer than AdamW" % (q, order[q])


def large_ones_in_eight_bits(f32, optimizer, order):
    optimizer["state"][0] = state_as(f32, "torchao", order[0])
    return "has no moments of parameter 0, %s, but exp_avg, exp_avg_sq of a package that stores it in fewer bits" % order[0]


@pytest.mark.parametrize("change", [galore, muon_and_adamw, large_ones_in_eight_bits], ids=lambda c: c.__name__)
def test_another_optimizer_of_some_parameters_is_refused(change, f32, tmp_path):
    order = order_of(config_of(f32))
    optimizer = optimizer_of(f32, order, RULES["none"], 1)
    text = change(f32, optimizer, order)
    source = save(tmp_path / "checkpoint_0", f32, optimizer)
    r = import_(f32, source, tmp_path / "ckpt")
    assert r.rc == 2 and text in r.err and "--no-optim" in r.err and len(r.lines) == 1, repr(r)
    r = ok("tp-ckpt", "verify", source, "--config", f32.config)  # which is not damaged
    assert text in r.err, repr(r)


@pytest.mark.parametrize("more,listed", [
    ({"amsgrad": True}, True), ({"decoupled_weight_decay": False}, True), ({"maximize": True}, True),
    ({"decoupled_weight_decay": False, "weight_decay": 0.0}, False), ({"decoupled_weight_decay": True}, False)])
def test_options_that_make_it_another_optimizer_are_listed(more, listed, f32, tmp_path):
    """Adam's weight decay is another one than AdamW's, but its moments are the same."""
    optimizer = optimizer_of(f32, order_of(config_of(f32)), RULES["none"], 1)
    optimizer["param_groups"][0].update(more)
    r = assert_imported(f32, save(tmp_path / "checkpoint_0", f32, optimizer), tmp_path / "ckpt")
    assert ("optimizer.bin.param_groups" in r.out) == listed, repr(r)


# ---- what is written ----

def written(folder):
    return torch_files.load((folder / "optimizer.bin").read_bytes())


def assert_state(optimizer, names, state):
    """By numbers, in this order of the parameters."""
    assert sorted(optimizer["state"]) == list(range(len(names)))
    for i, name in enumerate(names):
        assert float(optimizer["state"][i]["step"]) == STEP
        assert all(np.array_equal(optimizer["state"][i][g], state.group(g)[name]) for g in MOMENTS), name


# Which parameters have no weight decay, by --param-groups. A Llama has no "layer_norm.weight", so a group is empty.
GROUPS = {"norms": lambda n: "norm" in n, "one": None, "examples": lambda n: "bias" in n or "layer_norm.weight" in n}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("groups", GROUPS)
def test_an_export_has_the_groups_that_were_asked_for(groups, dtype, f32, bf16, tmp_path):
    state = bf16 if dtype == "bf16" else f32
    more = () if groups == "norms" else ("--param-groups", groups)
    ok("tp-ckpt", "export", state.root, "--format", "accelerate-ddp", *more, "-o", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors", "optimizer.bin"]
    order, undecayed = order_of(config_of(state)), GROUPS[groups] or (lambda n: False)
    lists = [[n for n in order if not undecayed(n)], [n for n in order if undecayed(n)]][:1 if groups == "one" else 2]
    optimizer = written(tmp_path / "out")
    assert [g["param_names"] for g in optimizer["param_groups"]] == lists
    assert [n for g in optimizer["param_groups"] for n in g["params"]] == list(range(len(order)))
    assert [g["weight_decay"] for g in optimizer["param_groups"]] == [0.1, 0.0][:len(lists)]
    assert all(g["betas"] == (0.9, 0.95) and g["lr"] > 0 for g in optimizer["param_groups"])
    assert_state(optimizer, sum(lists, []), state)
    weights = oracle_numpy.load_safetensors(tmp_path / "out/model.safetensors")
    for name, want in state.group("master" if dtype == "bf16" else "param").items():
        assert np.array_equal(weights[name], want), name
    ok("tp-ckpt", "import", tmp_path / "out", "-o", tmp_path / "again")
    if dtype == "fp32":
        assert digests(tmp_path / "again") == digests(state.root)


@pytest.mark.parametrize("kind", ["one", "no decay first", "own options"])
def test_reshard_keeps_groups_numbers_and_files(kind, f32, tmp_path):
    order = order_of(config_of(f32))
    optimizer, names = optimizer_of(f32, order, RULES["none"], 1), order
    if kind == "no decay first":
        optimizer = no_decay_first(optimizer_of(f32, order))
        names = [n for n in order if "norm" in n] + [n for n in order if "norm" not in n]
    if kind == "own options":
        optimizer["param_groups"][0].update(name="all", fused=True, amsgrad=False, schedule=[1, (2.5, None)])
    files = "scheduler.bin", "scaler.pt", "sampler.bin", "random_states_0.pkl", "random_states_1.pkl", "random_states_2.pkl"
    source = save(tmp_path / "source", f32, optimizer, "bin", (*files, "custom_checkpoint_0.pkl"))
    r = ok("tp-reshard", source, "--to", "tp1", "--config", f32.config, "-o", tmp_path / "out")
    assert "accelerate-ddp -> accelerate-ddp" in r.out and "left out custom_checkpoint_*.pkl" in r.out, repr(r)
    found = written(tmp_path / "out")
    assert found["param_groups"] == optimizer["param_groups"]
    assert_state(found, names, f32)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(["config.json", "model.safetensors", "optimizer.bin", *files])
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert test_trainer.digests_with(tmp_path / "out", f32.config) == digests(f32.root)
    ok("tp-reshard", source, "--to", "tp1", "--config", f32.config, "--param-groups", "norms", "-o", tmp_path / "other")
    assert [len(g["params"]) for g in written(tmp_path / "other")["param_groups"]] == [len(order) - sum("norm" in n for n in order),
                                                                                        sum("norm" in n for n in order)]


@pytest.mark.parametrize("more,state", [({"amsgrad": True}, "max_exp_avg_sq"), ({"momentum_decay": 0.004}, "mu_product")])
def test_groups_that_need_state_which_is_not_written_are_new_ones(more, state, f32, tmp_path):
    """With them torch.optim would load the file, and fail in the next step."""
    order = order_of(config_of(f32))
    optimizer = optimizer_of(f32, order, RULES["none"], 1)
    optimizer["param_groups"][0].update(more)
    for entry in optimizer["state"].values():
        entry[state] = Tensor(np.ones(entry["exp_avg"].shape if "max" in state else (), np.float32))
    source = save(tmp_path / "source", f32, optimizer)
    r = ok("tp-reshard", source, "--to", "tp1", "--config", f32.config, "--param-groups", "one", "-o", tmp_path / "out")
    assert state in r.out and "optimizer.bin.param_groups" in r.out, repr(r)
    found = written(tmp_path / "out")
    assert_state(found, order, f32)
    assert len(found["param_groups"]) == 1 and not found["param_groups"][0]["amsgrad"] and "momentum_decay" not in found["param_groups"][0]
    r = ok("tp-reshard", source, "--to", "tp1", "--config", f32.config, "-o", tmp_path / "norms")
    assert not any(g["amsgrad"] for g in written(tmp_path / "norms")["param_groups"]), repr(r)


def test_a_tied_head_is_no_parameter(tmp_path):
    tied = State(tmp_path, harness.write_config(tmp_path / "model", tie_word_embeddings=True))
    ok("tp-ckpt", "export", tied.root, "--format", "accelerate-ddp", "-o", tmp_path / "out")
    assert "lm_head.weight" not in [n for g in written(tmp_path / "out")["param_groups"] for n in g["param_names"]]
    ok("tp-ckpt", "import", tmp_path / "out", "-o", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(tied.root)


def test_weights_alone_are_no_accelerate_checkpoint(f32, tmp_path):
    """Its optimizer must be there; the options have a meaning for this format alone."""
    export = "tp-ckpt", "export", f32.root, "-o", tmp_path / "out", "--format"
    for argv, says in (((*export, "accelerate-ddp", "--no-optim"), "which optimizer.bin needs"),
                       ((*export, "accelerate-ddp", "--param-groups", "two"), "takes one, norms or examples, not 'two'"),
                       ((*export, "trainer", "--param-groups", "one"), "is for --format accelerate-ddp, not trainer"),
                       (("tp-reshard", f32.root, "--to", "tp2", "--param-groups", "one"), "is for --format accelerate-ddp")):
        r = run(*argv)
        assert r.rc == 2 and says in r.err and not (tmp_path / "out").exists(), repr(r)
