"""Checkpoints of transformers' Trainer: model.safetensors or pytorch_model.bin, and optimizer.pt, which knows parameters by numbers.

The files are written by torch_files.py from a checkpoint of tp-train, and read; then all tensors have the digests of that
checkpoint. tests/clients has the Trainer itself write them.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/hf_trainer/hf_trainer reshard/formats/hf_trainer/hf_trainer_optimizer reshard/formats/hf_trainer/hf_trainer_params
    reshard/formats/hf_trainer/hf_trainer_search reshard/formats/hf_trainer/hf_trainer_groups reshard/formats/hf_trainer/hf_trainer_names
    reshard/formats/hf_trainer/hf_trainer_order reshard/formats/hf_trainer/hf_trainer_target layout/parameter_order
"""
import collections
import json
import pathlib
import sys

import numpy as np
import pytest

import harness
import torch_files
from harness import ok, run
from state import State, digests
from torch_files import Tensor

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import oracle_numpy  # noqa: E402

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = 3
LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
         "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
OLD_LAYER = [{"mlp.up_proj": "mlp.down_proj", "mlp.down_proj": "mlp.up_proj"}.get(x, x) for x in LAYER]
# Which parameters have no weight decay: with transformers 4.57 and 5, with 4.50 (of a Mistral), and 4.46 (of a Mistral).
RULES = {"norms": lambda n: "norm" in n, "layernorms": lambda n: "layernorm" in n, "none": lambda n: False}


def order_of(config, layer=LAYER):
    """The names of a Llama's parameters in the order of transformers' modules."""
    layers = ["model.layers.%d.%s.weight" % (i, x) for i in range(config["num_hidden_layers"]) for x in layer]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight"] + \
        ([] if config.get("tie_word_embeddings") else ["lm_head.weight"])


def config_of(state):
    return json.loads(pathlib.Path(state.config).read_text())


def adamw_state(state, name, step=STEP):
    return {"step": Tensor(np.array(step, np.float32)), **{g: Tensor(state.group(g)[name]) for g in MOMENTS}}


def options(decay):
    return {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": decay, "amsgrad": False, "foreach": None,
            "maximize": False, "capturable": False, "differentiable": False, "fused": None, "initial_lr": 0.02}


def optimizer_of(state, order, undecayed=RULES["norms"], groups=2):
    """What torch.save(optimizer.state_dict()) saves: parameters with weight decay come first."""
    lists = [[n for n in order if not undecayed(n)], [n for n in order if undecayed(n)]][:groups]
    names = [n for group in lists for n in group]
    param_groups, at = [], 0
    for group, decay in zip(lists, (0.1, 0.0)):
        param_groups.append({**options(decay), "params": list(range(at, at + len(group)))})
        at += len(group)
    return {"state": {i: adamw_state(state, n) for i, n in enumerate(names)}, "param_groups": param_groups}


def save(folder, state, optimizer=None, config=None, weights="safetensors"):
    """Write FOLDER as Trainer does. Returns it."""
    config = {**config_of(state), "transformers_version": "5.24.0", **(config or {})}
    params = state.group("param")
    if weights == "safetensors":
        oracle_numpy.save_model(folder, {k: v for k, v in config.items() if v is not None}, params)
    else:
        torch_files.save(folder / "pytorch_model.bin", collections.OrderedDict((k, Tensor(v)) for k, v in params.items()))
        (folder / "config.json").write_text(json.dumps(config))
    torch_files.save(folder / "optimizer.pt", optimizer or optimizer_of(state, order_of(config)))
    torch_files.save(folder / "scheduler.pt", {"last_epoch": STEP, "_step_count": STEP + 1, "base_lrs": [0.02, 0.02]})
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": STEP, "log_history": []}))
    return folder


def assert_imported(state, source, root, *more):
    r = ok("tp-ckpt", "import", source, "-o", root, *more)
    assert "transformers' Trainer" in r.out and harness.steps(root)[-1].name == "step-%08d" % STEP, repr(r)
    assert digests(root) == digests(state.root)
    return r


# ---- what is read ----

@pytest.mark.parametrize("weights", ["safetensors", "bin"])
@pytest.mark.parametrize("rule,groups", [("norms", 2), ("layernorms", 2), ("none", 2), ("none", 1)])
def test_the_sizes_of_the_groups_say_which_rule_of_weight_decay_it_is(rule, groups, weights, f32, tmp_path):
    """One group is what torch.optim.AdamW(model.parameters()) makes."""
    optimizer = optimizer_of(f32, order_of(config_of(f32)), RULES[rule], groups)
    source = save(tmp_path / "checkpoint-3", f32, optimizer, weights=weights)
    r = assert_imported(f32, source, tmp_path / "ckpt", "--layout", "tp2pp2")
    # The checkpoint notes AdamW's options, which are those of all groups where none is without weight decay.
    left = "left out 2: " if rule == "none" else "left out 3: optimizer.pt.param_groups, "
    assert left + "scheduler.pt, trainer_state.json" in r.out, repr(r)


def test_it_is_read_by_every_verb(f32, tmp_path):
    source = save(tmp_path / "checkpoint-3", f32)
    listed = json.loads(ok("tp-ckpt", "ls", source, "--json").out)[0]
    assert listed["format"] == "trainer" and listed["step"] == STEP and listed["tensors"] == len(digests(f32.root))
    assert digests(source) == digests(f32.root)
    ok("tp-ckpt", "diff", source, f32.root)
    shown = ok("tp-ckpt", "show", source, "exp_avg/model.norm.weight").out
    assert "optimizer.pt" in shown
    r = ok("tp-ckpt", "verify", source)
    assert "intact" in r.out and "which state of optimizer.pt is of which parameter" in r.out, repr(r)


def test_the_weights_may_be_in_parts_and_tied(tmp_path):
    state = State(tmp_path, harness.write_config(tmp_path / "model", tie_word_embeddings=True))
    source = save(tmp_path / "checkpoint-3", state)
    weights = state.group("param")
    (source / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, inside in parts.items():
        oracle_numpy.save_safetensors(source / file, {n: weights[n] for n in inside})
    (source / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {n: f for f, inside in parts.items() for n in inside}}))
    assert_imported(state, source, tmp_path / "again")


@pytest.mark.parametrize("known", [True, False])
def test_names_in_the_file_are_used(known, f32, tmp_path):
    """torch >= 2.6 saves them where the optimizer was made of named parameters. Then any order will do, and the architecture need
    not be known."""
    order = sorted(order_of(config_of(f32)), reverse=True)
    optimizer = optimizer_of(f32, order, RULES["none"], 1)
    optimizer["param_groups"][0]["param_names"] = ["_orig_mod." + n for n in order]
    config = {} if known else {"architectures": ["UnheardOf"], "model_type": "unheard"}
    source = save(tmp_path / "checkpoint-3", f32, optimizer, config)
    assert digests(source) == digests(f32.root)
    if known:
        assert_imported(f32, source, tmp_path / "ckpt")


@pytest.mark.parametrize("step", [STEP, "group"])
def test_the_step_may_be_an_int_or_that_of_a_group(step, f32, tmp_path):
    """Of transformers' own AdamW, and of Apex's."""
    optimizer = optimizer_of(f32, order_of(config_of(f32)))
    for state in optimizer["state"].values():
        del state["step"]
        state.update({} if step == "group" else {"step": step})
    for group in optimizer["param_groups"] if step == "group" else ():
        group["step"] = STEP
    assert_imported(f32, save(tmp_path / "checkpoint-3", f32, optimizer), tmp_path / "ckpt")


def test_moments_in_bf16_are_read(bf16, tmp_path):
    """As a model has them that is trained in bf16 as a whole: nothing is lost in f32."""
    optimizer = optimizer_of(bf16, order_of(config_of(bf16)))
    for state in optimizer["state"].values():
        for group in MOMENTS:
            state[group] = Tensor((state[group].storage.reshape(state[group].shape).view(np.uint32) >> 16).astype(np.uint16))
    source = save(tmp_path / "checkpoint-3", bf16, optimizer, weights="bin")
    ok("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    found = {d.split()[1]: d for d in digests(tmp_path / "ckpt")}
    assert {d.split()[1]: d for d in bf16.digests("param")}.items() <= found.items()
    assert {n.split("/")[0] for n in found} == {"param", "master", *MOMENTS}
    ok("tp-ckpt", "diff", source, tmp_path / "ckpt", "--group", "param")


def test_it_becomes_another_frameworks(f32, tmp_path):
    """The options of AdamW come along where one group can have them."""
    source = save(tmp_path / "checkpoint-3", f32)
    r = ok("tp-reshard", source, "--to", "tp2", "--format", "dcp", "-o", tmp_path / "dcp")
    assert "optimizer.pt.param_groups" in r.out, repr(r)  # the second group has no weight decay there
    found, _ = torch_files.load_dcp(tmp_path / "dcp")
    assert np.array_equal(found["optim.state.lm_head.weight.exp_avg"], f32.group("exp_avg")["lm_head.weight"])
    assert found["optim.param_groups.0.betas"] == (0.8, 0.9)
    optimizer = optimizer_of(f32, order_of(config_of(f32)))
    optimizer["param_groups"][1]["weight_decay"] = 0.1
    source = save(tmp_path / "equal", f32, optimizer)
    r = ok("tp-reshard", source, "--to", "tp2", "--format", "dcp", "-o", tmp_path / "dcp2")
    assert "param_groups" not in r.out, repr(r)
    ok("tp-reshard", source, "--to", "tp4", "--format", "tp", "-o", tmp_path / "ours")
    assert digests(tmp_path / "ours") == digests(f32.root)


# ---- two orders ----

@pytest.mark.parametrize("version,layer", [("4.30.2", OLD_LAYER), ("4.31.0", LAYER), ("5.24.0", LAYER)])
def test_where_two_orders_fit_the_version_decides(version, layer, tmp_path):
    """Before transformers 4.31 a Llama had gate, down, up. Where the MLP is as wide as the model, shapes do not tell."""
    config = harness.write_config(tmp_path / "model", intermediate_size=json.loads(
        harness.write_config(tmp_path / "tiny").read_text())["hidden_size"])
    state = State(tmp_path, config)
    optimizer = optimizer_of(state, order_of(config_of(state), layer))
    source = save(tmp_path / "checkpoint-3", state, optimizer, {"transformers_version": version})
    assert_imported(state, source, tmp_path / "again")
    source = save(tmp_path / "unsaid", state, optimizer, {"transformers_version": None})
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "no")
    assert r.rc == 2 and "several fit" in r.err and "transformers_version" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "no").exists()


def test_where_shapes_tell_the_order_no_version_is_needed(f32, tmp_path):
    optimizer = optimizer_of(f32, order_of(config_of(f32), OLD_LAYER))
    source = save(tmp_path / "checkpoint-3", f32, optimizer, {"transformers_version": None})
    assert_imported(f32, source, tmp_path / "ckpt")


# ---- what is refused ----

def without_one(optimizer, order):
    """A frozen parameter, of which the optimizer does not know."""
    group = optimizer["param_groups"][0]
    group["params"] = group["params"][:-1]
    n = len(optimizer["state"]) - 1
    optimizer["param_groups"][1]["params"] = list(range(len(group["params"]), n))
    del optimizer["state"][n]


def other_groups(optimizer, order):
    """A program's own groups: one parameter more has no weight decay."""
    first, second = optimizer["param_groups"]
    second["params"].insert(0, first["params"].pop())


def three_groups(optimizer, order):
    optimizer["param_groups"].insert(0, {**options(0.3), "params": [optimizer["param_groups"][0]["params"].pop(0)]})


def another_shape(optimizer, order):
    a, b = order.index("model.layers.0.self_attn.q_proj.weight"), order.index("model.layers.0.mlp.gate_proj.weight")
    state = optimizer["state"]
    state[a], state[b] = state[b], state[a]


def no_state(optimizer, order):
    """A parameter that was never used, as an expert may be."""
    del optimizer["state"][4]


def one_moment(optimizer, order):
    del optimizer["state"][4]["exp_avg_sq"]


def other_numbers(optimizer, order):
    optimizer["param_groups"][0]["params"][0] = 7


def no_state_dict(optimizer, order):
    optimizer.clear()
    optimizer["what"] = 1


REFUSED = {
    without_one: (2, "which of them were trained, it does not say"), other_groups: (2, "are not those of transformers' Trainer"),
    three_groups: (2, "are not those of transformers' Trainer"), another_shape: (3, "the moments of parameter 1 are "),
    no_state: (2, "has no moments of parameter 4, model.layers.0.self_attn.o_proj.weight"),
    one_moment: (2, "has no moments of parameter 4"), other_numbers: (2, "do not number the parameters from 0 on"),
    no_state_dict: (2, "is not the state_dict() of an optimizer")}


@pytest.mark.parametrize("change", REFUSED, ids=lambda c: c.__name__)
def test_a_state_that_cannot_be_assigned_is_refused_and_never_dropped_in_silence(change, f32, tmp_path):
    order = order_of(config_of(f32))
    optimizer = optimizer_of(f32, order)
    change(optimizer, [n for n in order if "norm" not in n])
    source = save(tmp_path / "checkpoint-3", f32, optimizer)
    code, text = REFUSED[change]
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert r.rc == code and text in r.err and "optimizer.pt" in r.err and "--no-optim" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "ckpt").exists()
    r = run("tp-reshard", source, "--to", "tp2", "--format", "dcp", "-o", tmp_path / "dcp")
    assert r.rc == code and text in r.err and not (tmp_path / "dcp").exists(), repr(r)
    for verb in ("digest", "diff"):  # they would compare the weights alone
        r = run("tp-ckpt", verb, source, *[f32.root] * (verb == "diff"))
        assert r.rc == 3 and text in r.err, repr(r)
    ok("tp-ckpt", "diff", source, f32.root, "--group", "param")
    r = ok("tp-ckpt", "ls", source)
    assert text in r.err and "left out here" in r.err, repr(r)
    r = run("tp-ckpt", "verify", source)
    assert (r.rc, text in r.out) == ((1, True) if code == 3 else (0, False)), repr(r)
    assert code == 3 or "anything of the optimizer's state" in r.out
    r = ok("tp-ckpt", "import", source, "--no-optim", "-o", tmp_path / "weights")
    assert digests(tmp_path / "weights") == f32.digests("param") and "optimizer.pt" in r.out, repr(r)


def write_rules(path, state):
    """A file of rules that cuts no tensor. Returns its path."""
    path.write_text("".join("%s -\n" % n for n in order_of(config_of(state))))
    return path


def test_without_a_known_model_numbers_are_refused(f32, tmp_path):
    source = save(tmp_path / "checkpoint-3", f32)
    (source / "config.json").rename(tmp_path / "config.json")
    r = ok("tp-ckpt", "show", source)
    assert "there is no config.json of a known family" in r.err and "--config" in r.err, repr(r)
    assert digests_with(source, tmp_path / "config.json") == digests(f32.root)
    assert_imported(f32, source, tmp_path / "ckpt", "--config", tmp_path / "config.json")
    source = save(tmp_path / "unknown", f32, None, {"architectures": ["UnheardOf"], "model_type": "unheard"})
    rules = write_rules(tmp_path / "rules", f32)
    r = run("tp-ckpt", "import", source, "--rules", rules, "-o", tmp_path / "no")
    assert r.rc == 2 and "is not known for this architecture" in r.err and "--no-optim" in r.err, repr(r)


def digests_with(source, config):
    return ok("tp-ckpt", "digest", source, "--config", config).out.splitlines()[:-1]


def test_another_optimizer_is_listed_as_left_out(f32, tmp_path):
    order = order_of(config_of(f32))
    state = {i: {"step": STEP, "exp_avg_sq_row": Tensor(f32.group("exp_avg_sq")[n][..., 0]), "RMS": 1.0}
             for i, n in enumerate(order)}  # Adafactor's
    source = save(tmp_path / "checkpoint-3", f32, {"state": state, "param_groups": [{**options(0), "params": list(range(len(order)))}]})
    r = ok("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert "left out 3: optimizer.pt, scheduler.pt, trainer_state.json" in r.out, repr(r)
    assert "has exp_avg_sq_row, RMS of another optimizer than AdamW" in r.err, repr(r)
    assert digests(tmp_path / "ckpt") == f32.digests("param")
    r = ok("tp-ckpt", "ls", source)
    assert "has exp_avg_sq_row, RMS of another optimizer than AdamW" in r.err, repr(r)
    r = run("tp-ckpt", "digest", source)
    assert r.rc == 3 and "exp_avg_sq_row" in r.err, repr(r)


def test_amsgrads_maximum_is_listed(f32, tmp_path):
    optimizer = optimizer_of(f32, order_of(config_of(f32)))
    for state in optimizer["state"].values():
        state["max_exp_avg_sq"] = state["exp_avg_sq"]
    r = assert_imported(f32, save(tmp_path / "checkpoint-3", f32, optimizer), tmp_path / "ckpt")
    assert "max_exp_avg_sq/* (%d)" % len(f32.group("param")) in r.out, repr(r)


def test_a_model_that_is_missing_is_named(f32, tmp_path):
    source = save(tmp_path / "checkpoint-3", f32)
    (source / "model.safetensors").unlink()
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "neither model.safetensors nor pytorch_model.bin" in r.err and len(r.lines) == 1, repr(r)
    oracle_numpy.save_safetensors(source / "adapter_model.safetensors", {"x": np.zeros(1, np.float32)})
    r = run("tp-ckpt", "ls", source)
    assert r.rc == 2 and "adapter of PEFT" in r.err, repr(r)


def test_steps_that_differ_are_an_error(f32, tmp_path):
    order = order_of(config_of(f32))
    optimizer = optimizer_of(f32, order)
    optimizer["state"][5]["step"] = Tensor(np.array(STEP + 1, np.float32))
    r = run("tp-ckpt", "import", save(tmp_path / "checkpoint-3", f32, optimizer), "-o", tmp_path / "ckpt")
    assert r.rc == 3 and "step" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("damage", ["bit", "cut", "empty"])
def test_a_damaged_optimizer_is_found(damage, f32, tmp_path):
    source = save(tmp_path / "checkpoint-3", f32)
    file = source / "optimizer.pt"
    data = bytearray(file.read_bytes())
    if damage == "bit":
        data[data.find(f32.group("exp_avg")["model.norm.weight"].tobytes()) + 9] ^= 4
    file.write_bytes(data if damage == "bit" else data[:len(data) // 2] if damage == "cut" else b"")
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert r.rc == 3 and "optimizer.pt" in r.err and len(r.lines) == 1 and not harness.steps(tmp_path / "ckpt"), repr(r)
    assert run("tp-ckpt", "verify", source).rc == 1


HOSTILE = [{"state": {}, "param_groups": []}, {"state": [], "param_groups": [{"params": [0]}]},
           {"state": {}, "param_groups": [{"params": [0, 1, 2]}]}, {"state": {0: 3, 1: None}, "param_groups": [{"params": [0, 1]}]},
           {"state": {0: {"exp_avg": 1, "exp_avg_sq": "x"}}, "param_groups": [{"params": [0]}]},
           {"state": {2 ** 70: {}}, "param_groups": [{"params": [2 ** 70]}]}, {"state": {}, "param_groups": 5}, [], 7,
           {"state": {0: {0: 1}}, "param_groups": [{"params": [0], "param_names": [3]}, None, "x"]}]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_contents_are_refused_in_one_sentence(content, f32, tmp_path):
    source = save(tmp_path / "checkpoint-3", f32)
    torch_files.save(source / "optimizer.pt", content)
    r = run("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert r.rc == 0 or (r.rc == 2 and len(r.lines) == 1), repr(r)
    assert "optimizer.pt" in r.out + r.err, repr(r)


# ---- what is written ----

def load(file):
    return torch_files.load(file.read_bytes())


def written_names(optimizer, config):
    """The names by their numbers, which must be those of Trainer: with weight decay, then without."""
    order = order_of(config)
    want = [n for n in order if "norm" not in n], [n for n in order if "norm" in n]
    assert [g["param_names"] for g in optimizer["param_groups"]] == list(want)
    assert [g["params"] for g in optimizer["param_groups"]] == [list(range(len(want[0]))),
                                                                list(range(len(want[0]), len(order)))]
    return [*want[0], *want[1]]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_export_has_the_state_that_trainer_loads(dtype, f32, bf16, tmp_path):
    """Moments by number, the step, AdamW's options, and no step with a learning rate that no program chose."""
    state = bf16 if dtype == "bf16" else f32
    r = ok("tp-ckpt", "export", state.root, "--format", "trainer", "-o", tmp_path / "out")
    assert '"train_batch_size": 0' in r.err, repr(r)
    optimizer = load(tmp_path / "out/optimizer.pt")
    for i, name in enumerate(written_names(optimizer, config_of(state))):
        assert float(optimizer["state"][i]["step"]) == STEP
        for group in MOMENTS:
            assert np.array_equal(optimizer["state"][i][group], state.group(group)[name]), name
    weights = oracle_numpy.load_safetensors(tmp_path / "out/model.safetensors")
    for name, want in state.group("master" if dtype == "bf16" else "param").items():
        assert np.array_equal(weights[name], want), name
    first, second = optimizer["param_groups"]
    assert first["betas"] == (0.9, 0.95) and first["lr"] == second["lr"] == 0 and second["weight_decay"] == 0 < first["weight_decay"]
    schedule = load(tmp_path / "out/scheduler.pt")
    assert schedule["last_epoch"] == STEP and schedule["lr_lambdas"] == [None, None]
    run_state = json.loads((tmp_path / "out/trainer_state.json").read_text())
    assert run_state["global_step"] == STEP and run_state["train_batch_size"] == 0
    ok("tp-ckpt", "verify", tmp_path / "out")
    ok("tp-ckpt", "import", tmp_path / "out", "-o", tmp_path / "again")
    if dtype == "fp32":
        assert digests(tmp_path / "again") == digests(state.root)


def test_what_trainer_saved_besides_comes_along_from_trainer_to_trainer(f32, tmp_path):
    source = save(tmp_path / "checkpoint-3", f32)
    torch_files.save(source / "rng_state.pth", {"cpu": 1})
    r = ok("tp-reshard", source, "--to", "tp1", "-o", tmp_path / "out")  # the format stays
    assert "left out" not in r.out and "train_batch_size" not in r.err, repr(r)
    for name in ("scheduler.pt", "trainer_state.json", "rng_state.pth"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes(), name
    optimizer = load(tmp_path / "out/optimizer.pt")
    assert optimizer["param_groups"][0]["lr"] == 0.01 and optimizer["param_groups"][0]["betas"] == (0.8, 0.9)
    assert [g["weight_decay"] for g in optimizer["param_groups"]] == [0.1, 0.0]
    assert digests(tmp_path / "out") == digests(f32.root)
    r = ok("tp-reshard", source, "--to", "tp1", "--step", 9, "-o", tmp_path / "later")
    assert json.loads((tmp_path / "later/trainer_state.json").read_text())["global_step"] == 9, repr(r)
    assert load(tmp_path / "later/scheduler.pt")["last_epoch"] == 9
    assert float(load(tmp_path / "later/optimizer.pt")["state"][0]["step"]) == STEP


def test_an_export_without_the_optimizer_is_refused(f32, tmp_path):
    r = run("tp-ckpt", "export", f32.root, "--format", "trainer", "--no-optim", "-o", tmp_path / "out")
    assert r.rc == 2 and "has no exp_avg/" in r.err and "export safetensors" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "out").exists()


def test_a_model_of_rules_has_no_order_that_is_known(f32, tmp_path):
    source = save(tmp_path / "unknown", f32, None, {"architectures": ["UnheardOf"], "model_type": "unheard"})
    (source / "optimizer.pt").unlink()
    write_rules(tmp_path / "rules", f32)
    ok("tp-ckpt", "import", source, "--rules", tmp_path / "rules", "-o", tmp_path / "ckpt")
    r = run("tp-ckpt", "export", tmp_path / "ckpt", "--format", "trainer", "-o", tmp_path / "out")
    assert r.rc == 2 and "order of this architecture's parameters is not known" in r.err and not (tmp_path / "out").exists(), repr(r)
