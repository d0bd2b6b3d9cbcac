"""A file of torch.save in which a program keeps its model and its optimizer, and Lightning's .ckpt.

The files are written by torch_files.py from a checkpoint of tp-train, and read; then all tensors have the digests of that
checkpoint. tests/clients has PyTorch and Lightning write them.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/pt/pt reshard/formats/pt/pt_contents reshard/formats/hf_trainer/numbered_adamw
    reshard/formats/torch/named_adamw
"""
import collections
import json
import os
import random

import numpy as np
import pytest

import harness
import torch_files
from harness import ok, run
from object_store import ObjectStore
from object_store import ok as ok_there
from state import State, digests
from torch_files import Tensor
from verl_files import Save

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = 3
LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
         "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
OPTIONS = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": 0.1, "amsgrad": False}


def order_of(state, layer=LAYER):
    """The names of a Llama's parameters in the order of its modules, which is that of state_dict()."""
    config = json.loads(state.config.read_text())
    layers = ["model.layers.%d.%s.weight" % (i, x) for i in range(config["num_hidden_layers"]) for x in layer]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight"] + \
        ([] if config.get("tie_word_embeddings") else ["lm_head.weight"])


def weights(state, order, prefix="", groups=("param",)):
    """What model.state_dict() returns."""
    arrays = {g: state.group(g) for g in groups}
    return collections.OrderedDict((prefix + n, Tensor(arrays[groups[0]][n])) for n in order)


def of_parameter(state, name):
    return {"step": Tensor(np.array(STEP, np.float32)), **{g: Tensor(state.group(g)[name]) for g in MOMENTS}}


def numbered(state, *groups):
    """What optimizer.state_dict() returns of groups of parameters."""
    names = [n for g in groups for n in g]
    lists, at = [], 0
    for g in groups:
        lists.append({**OPTIONS, "params": list(range(at, at + len(g)))})
        at += len(g)
    return {"state": {i: of_parameter(state, n) for i, n in enumerate(names)}, "param_groups": lists}


def named(state, order, prefix=""):
    """What FSDP.full_optim_state_dict and get_optimizer_state_dict return."""
    return {"state": {prefix + n: of_parameter(state, n) for n in order},
            "param_groups": [{**OPTIONS, "params": [prefix + n for n in order]}]}


def save(path, obj):
    torch_files.save(path, obj)
    return path


def tutorial(path, state):
    order = order_of(state)
    return save(path, {"epoch": 2, "model_state_dict": weights(state, order), "optimizer_state_dict": numbered(state, order),
                       "loss": 0.5})


def assert_imported(state, path, root, *more, rules=None):
    """The import has every bit of the checkpoint; so have the other verbs, which see no config.json."""
    r = ok("tp-ckpt", "import", path, "-o", root, *(more if rules else ("--config", state.config, *more)))
    assert "a file of torch.save" in r.out and harness.steps(root)[-1].name == "step-%08d" % STEP, repr(r)
    assert digests(root) == digests(state.root)
    return r


def left_out(path):
    return sorted(json.loads(ok("tp-ckpt", "show", path, "--json").out)["others"])


def refused(*argv, says, code=2):
    r = run(*argv)
    assert r.rc == code and len(r.lines) == 1 and says in r.err, repr(r)
    return r


# ---- what is read ----

def test_the_keys_of_pytorchs_tutorial(f32, tmp_path):
    path = tutorial(tmp_path / "model.pt", f32)
    r = assert_imported(f32, path, tmp_path / "ckpt", "--layout", "tp2pp2")
    assert "epoch, loss" in r.out and "model_state_dict" not in r.out, repr(r)
    listed = json.loads(ok("tp-ckpt", "ls", path, "--json").out)[0]
    assert listed["format"] == "pt" and listed["step"] == STEP and listed["tensors"] == len(digests(f32.root))
    assert digests(path) == digests(f32.root)  # without a config.json: one group has all tensors, in the order of the weights
    ok("tp-ckpt", "diff", path, f32.root)
    assert "model.pt" in ok("tp-ckpt", "show", path, "exp_avg/model.norm.weight").out
    assert "intact" in ok("tp-ckpt", "verify", path).out
    ok("tp-reshard", path, "--to", "tp4", "--format", "tp", "--config", f32.config, "-o", tmp_path / "tp4")
    assert digests(tmp_path / "tp4") == digests(f32.root)
    ok("tp-reshard", path, "--to", "dp2", "--format", "dcp", "--config", f32.config, "-o", tmp_path / "dcp")
    assert digests(tmp_path / "dcp") == digests(f32.root)


def test_what_lightning_saves(f32, tmp_path):
    """Names begin with the module's attribute, and there is a list of optimizers."""
    order = order_of(f32)
    path = save(tmp_path / "epoch=1-step=3.ckpt", {
        "epoch": 1, "global_step": STEP, "pytorch-lightning_version": "2.6.0",
        "state_dict": collections.OrderedDict([*weights(f32, order, "model.").items(), ("table", Tensor(np.zeros(3, np.float32)))]),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 2}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": ""}},
        "optimizer_states": [numbered(f32, order)], "lr_schedulers": [{"last_epoch": 3}], "hyper_parameters": {"lr": 0.01}})
    r = assert_imported(f32, path, tmp_path / "ckpt")
    for left in ("table", "callbacks", "loops", "lr_schedulers", "hyper_parameters"):
        assert left in r.out, repr(r)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model._orig_mod."])
def test_weights_alone(prefix, f32, tmp_path):
    """torch.save(model.state_dict()), of a compiled model, of DistributedDataParallel."""
    path = save(tmp_path / "weights.bin", weights(f32, order_of(f32), prefix))
    assert ok("tp-ckpt", "digest", path).out.splitlines()[:-1] == f32.digests("param")
    ok("tp-ckpt", "import", path, "-o", tmp_path / "ckpt", "--config", f32.config)
    assert digests(tmp_path / "ckpt") == f32.digests("param")


def test_two_groups_by_weight_decay(f32, tmp_path):
    """Which parameters have no weight decay is told by the sizes of the groups and by shapes; nanoGPT takes what is no matrix."""
    order = order_of(f32)
    vectors = [n for n in order if "norm" in n]
    matrices = [n for n in order if n not in vectors]
    for name, lists in (("vectors first", (vectors, matrices)), ("matrices first", (matrices, vectors))):
        path = save(tmp_path / (name + ".pt"), {"model": weights(f32, order), "optimizer": numbered(f32, *lists), "iter_num": STEP})
        assert_imported(f32, path, tmp_path / name)
    r = ok("tp-ckpt", "ls", path)  # without a config.json it is not known which group has which
    assert "left out here" in r.err and json.loads(ok("tp-ckpt", "ls", path, "--json").out)[0]["tensors"] == len(order), repr(r)


def test_the_order_is_that_of_the_weights(tmp_path):
    """Here shapes do not tell gate and up from down, and no version is known."""
    width = json.loads(harness.write_config(tmp_path / "tiny").read_text())["hidden_size"]
    state = State(tmp_path, harness.write_config(tmp_path / "model", intermediate_size=width))
    swapped = [{"mlp.up_proj": "mlp.down_proj", "mlp.down_proj": "mlp.up_proj"}.get(x, x) for x in LAYER]
    for name, layer in (("new", LAYER), ("old", swapped)):
        order = order_of(state, layer)
        path = save(tmp_path / (name + ".pt"), {"model": weights(state, order), "optimizer": numbered(state, order)})
        assert_imported(state, path, tmp_path / name)


def test_a_tied_head_is_one_parameter(tmp_path):
    state = State(tmp_path, harness.write_config(tmp_path / "model", tie_word_embeddings=True))
    order = order_of(state)
    both = weights(state, order)
    both["lm_head.weight"] = both["model.embed_tokens.weight"]
    path = save(tmp_path / "tied.pt", {"model": both, "optimizer": numbered(state, order)})
    assert_imported(state, path, tmp_path / "again")
    assert json.loads(ok("tp-ckpt", "ls", path, "--json").out)[0]["tensors"] == 3 * len(order) + 1


@pytest.mark.parametrize("prefix,inside", [("", ""), ("model.", "model."), ("model.", ""), ("module.", "")])
def test_an_optimizer_by_names(prefix, inside, f32, tmp_path):
    """It may be that of the model inside the program's module, and Hugging Face's own names begin with "model."."""
    order = order_of(f32)
    path = save(tmp_path / "full.pt", {"state": {"model": weights(f32, order, prefix), "optim": named(f32, order[::-1], inside)}})
    assert_imported(f32, path, tmp_path / "ckpt")


@pytest.mark.parametrize("prefix,inside", [("module.", "module."), ("model.", "model."), ("model.", ""), ("", "module."),
                                           ("module._orig_mod.", "_orig_mod.")])
def test_an_optimizer_with_names_beside_numbers(prefix, inside, f32, tmp_path):
    """Of AdamW(model.named_parameters()); the names tell the order, which is another one here."""
    order = order_of(f32)
    optimizer = numbered(f32, order[::-1])
    optimizer["param_groups"][0]["param_names"] = [inside + n for n in order[::-1]]
    path = save(tmp_path / "names.pt", {"model": weights(f32, order, prefix), "optimizer": optimizer})
    assert_imported(f32, path, tmp_path / "ckpt")
    assert digests(path) == digests(f32.root)


@pytest.mark.parametrize("prefix,inside", [("", ""), ("model.", ""), ("", "module.")])
def test_a_flat_optimizer(prefix, inside, f32, tmp_path):
    """get_optimizer_state_dict with flatten_optimizer_state_dict: its keys look like names of weights."""
    order = order_of(f32)
    flat = {"state.%s%s.%s" % (inside, n, k): v for n in order for k, v in of_parameter(f32, n).items()}
    flat.update(("param_groups.%s%s.%s" % (inside, n, k), v) for n in order for k, v in OPTIONS.items())
    for key in ("model", "student"):
        path = save(tmp_path / (key + ".pt"), {key: weights(f32, order, prefix), "optim": flat})
        assert_imported(f32, path, tmp_path / key)
    assert json.loads((harness.steps(tmp_path / "model")[-1] / "manifest.json").read_text())["train"]["options"] == {
        "lr": 0.01, "beta1": 0.8, "beta2": 0.9, "eps": 1e-7, "weight_decay": 0.1}


@pytest.mark.parametrize("whole", [lambda m, o: (m, o), lambda m, o: {"m": m, "o": (o,)}, lambda m, o: {"m": m, "o": {0: o}},
                                   lambda m, o: {0: m, 1: o}], ids=["tuple", "in a tuple", "by a number", "both by numbers"])
def test_keys_that_are_numbers_and_tuples(whole, f32, tmp_path):
    order = order_of(f32)
    assert_imported(f32, save(tmp_path / "m.pt", whole(weights(f32, order), numbered(f32, order))), tmp_path / "ckpt")


def test_a_model_of_rules_has_the_order_of_its_weights(f32, tmp_path):
    """A program's own architecture, with one group."""
    order = order_of(f32)
    config = json.loads(f32.config.read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["UnheardOf"], "model_type": "unheard"}))
    (tmp_path / "rules").write_text("model.embed_tokens.weight 0 pad\nmodel.layers.*.input_layernorm.weight -\n" + "".join(
        "model.layers.*.%s.weight %s\n" % (x, "1" if x in ("self_attn.o_proj", "mlp.down_proj") else "0") for x in LAYER[:7]) +
        "model.layers.*.post_attention_layernorm.weight -\nmodel.norm.weight -\nlm_head.weight 0 pad\n")
    path = tutorial(tmp_path / "own.pt", f32)
    assert_imported(f32, path, tmp_path / "ckpt", "--rules", tmp_path / "rules", "--config", tmp_path / "config.json", rules=True)


def test_random_programs(f32, tmp_path):
    """Any keys, one or two levels deep, any order of entries, any number of objects beside them."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    order = order_of(f32)
    for i in range(8):
        prefix = rng.choice(["", "model.", "module.", "net.model."])
        parts = [(rng.choice(["a", "model", "weights", "state_dict"]), weights(f32, order, prefix)),
                 (rng.choice(["o", "optimizer", "opt.0"]), rng.choice([numbered(f32, order), named(f32, order)])),
                 *((n, rng.choice([1, 2.5, None, "text", [1, 2], {"x": Tensor(np.zeros(2, np.float32))}])) for n in ("b", "c", "d"))]
        rng.shuffle(parts)
        whole = dict(parts)
        if rng.random() < 0.5:
            whole = {"state": whole, "more": 1}
        assert_imported(f32, save(tmp_path / ("%d.pt" % i), whole), tmp_path / str(i))


def test_it_is_read_in_a_store(f32, tmp_path, store):
    path = tutorial(tmp_path / "model.pt", f32)
    store.put("bucket/runs/model.pt", path.read_bytes())
    store.put("bucket/runs/config.json", f32.config.read_bytes())
    assert ok_there(store, "tp-ckpt", "digest", "s3://bucket/runs/model.pt").out == ok("tp-ckpt", "digest", path).out
    ok_there(store, "tp-ckpt", "import", "s3://bucket/runs/model.pt", "-o", tmp_path / "ckpt", "--config", "s3://bucket/runs/config.json")
    assert digests(tmp_path / "ckpt") == digests(f32.root)


# ---- which model, which optimizer ----

def test_an_average_beside_the_model_is_left_out(f32, tmp_path):
    order = order_of(f32)
    other = {n: Tensor(np.zeros_like(a)) for n, a in f32.group("param").items()}
    path = save(tmp_path / "ema.pt", {"ema": other, "model": weights(f32, order), "optimizer": numbered(f32, order)})
    r = assert_imported(f32, path, tmp_path / "ckpt")
    assert "ema" in r.out, repr(r)
    path = save(tmp_path / "deeper.pt", {"step": 1, "state": {"ema": other, "model": weights(f32, order), "optimizer": numbered(f32, order),
                                                              7: [1, 2]}})
    assert left_out(path) == ["state.7", "state.ema", "state.optimizer.param_groups", "step"]
    assert_imported(f32, path, tmp_path / "deeper")
    path = save(tmp_path / "two.pt", {"student": weights(f32, order), "teacher": other})
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="several dicts of weights (student, teacher)")


def test_of_several_models_in_one_dict_none_is_guessed(f32, tmp_path):
    """A LightningModule may have a teacher too; only a usual name tells which is meant, not the shorter one."""
    order = order_of(f32)
    other = {n: Tensor(np.zeros_like(a)) for n, a in f32.group("param").items()}
    for one, two in (("policy.", "ref."), ("ref.", "policy."), ("student.", "teacher."), ("a.model.", "b.model.")):
        both = {**weights(f32, order, one), **{two + n: t for n, t in other.items()}}
        path = save(tmp_path / (one + "ckpt"), {"state_dict": both, "optimizer_states": [numbered(f32, order)]})
        refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="weights of several models in one dict")
    both = {**{"ema." + n: t for n, t in other.items()}, **weights(f32, order, "model.")}
    path = save(tmp_path / "ema.ckpt", {"state_dict": both, "optimizer_states": [numbered(f32, order)]})
    assert "ema.model.norm.weight" in assert_imported(f32, path, tmp_path / "ckpt").out


@pytest.mark.parametrize("of", [numbered, named], ids=["numbers", "names"])
def test_parts_of_one_rank_are_refused(of, f32, tmp_path):
    """What torch.save writes of FSDP's DTensors; an optimizer's are not lost in silence."""
    order, fsdp = order_of(f32), Save({g: f32.group(g) for g in ("param", *MOMENTS)}, 2)

    def part(name, array):
        return fsdp.dtensor(name, array, 0, fsdp.mesh(0))

    path = save(tmp_path / "m.pt", {"model": {n: part(n, a) for n, a in f32.group("param").items()}})
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="is a DTensor, of which this file has the part")
    optimizer = of(f32, order)
    for n, entry in zip(order, optimizer["state"].values()):
        entry.update((g, part(n, f32.group(g)[n])) for g in MOMENTS)
    path = save(tmp_path / "o.pt", {"model": weights(f32, order), "optimizer": optimizer})
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="DTensor")
    ok("tp-ckpt", "import", path, "-o", tmp_path / "ckpt", "--config", f32.config, "--no-optim")


@pytest.mark.parametrize("some", [1, 1000])
def test_moments_of_other_types_are_not_lost_in_silence(some, f32, tmp_path):
    """As a program may cast them, to fp8 or int8."""
    order = order_of(f32)
    optimizer = numbered(f32, order)
    for n, entry in list(zip(order, optimizer["state"].values()))[:some]:
        entry["exp_avg"] = Tensor(np.zeros(f32.group("exp_avg")[n].shape, np.int8))
    path = save(tmp_path / "m.pt", {"model": weights(f32, order), "optimizer": optimizer})
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="its moments have a type that is not read")


def test_of_several_optimizers_none_is_guessed(f32, tmp_path):
    order = order_of(f32)
    path = save(tmp_path / "gan.ckpt", {"state_dict": weights(f32, order),
                                        "optimizer_states": [numbered(f32, order), numbered(f32, order)]})
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config,
            says="several optimizers (optimizer_states.0, optimizer_states.1)")
    r = ok("tp-ckpt", "import", path, "-o", tmp_path / "ckpt", "--config", f32.config, "--no-optim")
    assert left_out(path) == ["optimizer_states"]
    assert digests(tmp_path / "ckpt") == f32.digests("param"), repr(r)
    path = save(tmp_path / "new.ckpt", {"state_dict": weights(f32, order), "optimizer_states": [
        numbered(f32, order), {"state": {}, "param_groups": [{**OPTIONS, "params": []}]}]})
    assert_imported(f32, path, tmp_path / "one")


def test_frozen_parameters_are_refused(f32, tmp_path):
    order = order_of(f32)
    path = save(tmp_path / "m.pt", {"model": weights(f32, order), "optimizer": numbered(f32, order[3:])})
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="has %d parameters" % len(order[3:]))
    assert not (tmp_path / "no").exists()


def test_another_optimizer_is_named(f32, tmp_path):
    order = order_of(f32)
    sgd = {"state": {i: {"momentum_buffer": Tensor(f32.group("exp_avg")[n])} for i, n in enumerate(order)},
           "param_groups": [{"lr": 0.1, "params": list(range(len(order)))}]}
    path = save(tmp_path / "m.pt", {"model": weights(f32, order), "optimizer": sgd})
    r = ok("tp-ckpt", "import", path, "-o", tmp_path / "ckpt", "--config", f32.config)
    assert "momentum_buffer" in r.err and "left out" in r.out and digests(tmp_path / "ckpt") == f32.digests("param"), repr(r)


# ---- what is no such file ----

def test_a_part_of_a_checkpoint_is_not_taken_for_it(f32, tmp_path):
    """But the format can be said."""
    ok("tp-ckpt", "export", f32.root, "-o", tmp_path / "trainer", "--format", "trainer")
    ok("tp-ckpt", "export", f32.root, "-o", tmp_path / "megatron", "--format", "megatron")
    for part in (tmp_path / "trainer/optimizer.pt", next(tmp_path.glob("megatron/iter*/mp_rank_00/model_optim_rng.pt"))):
        for argv in (["tp-ckpt", "import", part, "-o", tmp_path / "no", "--config", f32.config], ["tp-ckpt", "ls", part],
                     ["tp-reshard", part, "--to", "tp2"]):
            refused(*argv, says="is a part of the checkpoint in " + str(tmp_path))
    path = tutorial(tmp_path / "trainer/own.pt", f32)
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says="or the format pt")
    assert_imported(f32, path, tmp_path / "ckpt", "--format", "pt")
    ok("tp-reshard", path, "--to", "tp2", "--from-format", "pt", "--format", "tp", "--config", f32.config, "-o", tmp_path / "tp2")
    assert digests(tmp_path / "tp2") == digests(f32.root)


@pytest.mark.parametrize("content,says", [
    ({"state": {}, "param_groups": []}, "no weights"), ({"epoch": 1}, "no weights"), ([1, 2], "no weights"), ({}, "no weights"),
    ({"mask": Tensor(np.zeros(4, np.float32))}, "no weights")])
def test_a_file_without_weights(content, says, f32, tmp_path):
    path = save(tmp_path / "m.pt", content)
    refused("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config, says=says)


def test_a_module_itself_is_named(f32, tmp_path):
    """What torch.save(model) saves is read, never executed, and has no names of weights."""
    class Llama:
        def __init__(self):
            self.training, self._modules = True, {"model": None}
    torch_files._module("own_models", Llama=Llama)
    for content in (Llama(), {"epoch": 1, "model": Llama()}, [Llama()]):
        refused("tp-ckpt", "import", save(tmp_path / "m.pt", content), "-o", tmp_path / "no", "--config", f32.config,
                says="a module of class Llama itself in place of its state_dict()")


def test_a_list_of_state_dicts(f32, tmp_path):
    order = order_of(f32)
    assert_imported(f32, save(tmp_path / "m.pt", [weights(f32, order), {"lr": 1}, numbered(f32, order)]), tmp_path / "ckpt")


def test_other_files(f32, tmp_path):
    """A file of torch before 1.6, one cut off, text, a named pipe, a folder of such a name."""
    data = tutorial(tmp_path / "whole.pt", f32).read_bytes()
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    (tmp_path / "cut.pt").write_bytes(data[:len(data) // 2])
    (tmp_path / "text.ckpt").write_text("not a checkpoint\n")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    for name, code in (("old.pt", 3), ("cut.pt", 3), ("text.ckpt", 3), ("pipe.pt", None), ("folder.pt", 2), ("absent.pt", 2)):
        for argv in (["tp-ckpt", "import", tmp_path / name, "-o", tmp_path / "no", "--config", f32.config], ["tp-ckpt", "ls", tmp_path / name]):
            r = run(*argv, timeout=60)
            assert (r.rc == code or (code != 3 and r.rc in (2, 3))) and len(r.lines) == 1 and name in r.err, repr(r)
    assert not (tmp_path / "no").exists()


def test_a_flipped_bit_is_found(f32, tmp_path):
    path = tutorial(tmp_path / "m.pt", f32)
    data = bytearray(path.read_bytes())
    at = data.find(f32.group("exp_avg")["model.norm.weight"].tobytes())
    assert at > 0
    data[at + 5] ^= 4
    path.write_bytes(data)
    r = run("tp-ckpt", "verify", path, "--config", f32.config)
    assert r.rc == 1 and "m.pt" in r.out + r.err, repr(r)
    r = run("tp-ckpt", "import", path, "-o", tmp_path / "no", "--config", f32.config)
    assert r.rc == 3 and "CRC-32" in r.err and not (tmp_path / "no").exists(), repr(r)
