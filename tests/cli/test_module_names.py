"""Checkpoints with the names of transformers 5's modules: the experts of a layer stacked in one tensor, and other names of a
router or a head, where a model's files have a tensor for each expert. Both are made of the same random tensors with the shapes
of tests/fixture/families.json; tests/clients/test_module_names.py, test_deepspeed_modules.py and
test_verl.py ask transformers, DeepSpeed and FSDP themselves.

needs: tp-ckpt tp-reshard
covers: reshard/formats/pieces/module_piece layout/module_name reshard/formats/torch/module_param
"""
import json
import random
import re

import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from state import digests
from test_import_formats import GROUPS
from test_verl import assert_same_files
from verl_files import Save

FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())
NAMES = {"mixtral": ("block_sparse_moe.experts", "w1", "w3", "w2"), "qwen3-moe": ("mlp.experts", "gate_proj", "up_proj", "down_proj")}
STACKED = list(NAMES)
ALL = STACKED + ["gpt-neox"]


def in_memory(family, tensors):
    """The tensors of the files as transformers 5 has them in memory."""
    if family == "gpt-neox":
        return {k.replace("embed_out.", "lm_head."): v for k, v in tensors.items()}
    experts, gate, up, down = NAMES[family]
    out = {k.replace("block_sparse_moe.gate", "mlp.gate"): v for k, v in tensors.items() if ".experts." not in k}
    for layer in range(FAMILIES[family]["config"]["num_hidden_layers"]):
        head = "model.layers.%d." % layer
        n = sum(k.startswith(head + experts) for k in tensors) // 3
        of = lambda name: [tensors["%s%s.%d.%s.weight" % (head, experts, e, name)] for e in range(n)]
        out[head + "mlp.experts.gate_up_proj"] = np.stack([np.concatenate(both) for both in zip(of(gate), of(up))])
        out[head + "mlp.experts.down_proj"] = np.stack(of(down))
    return out


class Made:
    """Random tensors of a family, by the names of its files and of its modules, and its config.json."""

    def __init__(self, family, folder, **changes):
        numbers = np.random.default_rng(7)
        shapes = FAMILIES[family]["tensors"]
        self.family, self.config = family, folder / "config.json"
        self.config.write_text(json.dumps({**FAMILIES[family]["config"], **changes}))
        self.files = {g: {k: numbers.standard_normal(s).astype(np.float32) for k, s in shapes.items()} for g in ("param",) + GROUPS}
        self.modules = {g: in_memory(family, tensors) for g, tensors in self.files.items()}

    def write(self, folder, groups, cut, split=False):
        """As a program of FSDP2 saves it; split: the optimizer in a folder of its own, as Accelerate has it."""
        weights = {"model." + k: (v, cut(v)) for k, v in groups["param"].items()}
        state = {"optimizer.state.%s.%s" % (k, g): (v, cut(v)) for g in GROUPS for k, v in groups[g].items()}
        state.update(("optimizer.state.%s.step" % k, (np.array(3, np.float32), [((), ())])) for k in groups["param"])
        options = {"optimizer.param_groups.0.lr": 0.5, "optimizer.param_groups.0.params": list(groups["param"])}
        if split:
            torch_files.dcp(folder / "pytorch_model_fsdp_0", weights)
            torch_files.dcp(folder / "optimizer_0", state, options)
        else:
            torch_files.dcp(folder, {**weights, **state}, options)
        return folder

    def import_(self, source, root, *more):
        return run("tp-ckpt", "import", source, "--config", self.config, "-o", root, *more)


@pytest.fixture(scope="module", params=ALL)
def made(request, tmp_path_factory):
    return Made(request.param, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    return Made("mixtral", tmp_path_factory.mktemp("mixtral"))


@pytest.fixture(scope="module")
def truth(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    made.write(folder / "dcp", made.files, lambda v: torch_files.rows(v, 1))
    assert made.import_(folder / "dcp", folder / "ckpt").rc == 0
    return digests(folder / "ckpt")


def whole(array):
    return torch_files.rows(array, 1)


def random_grid(seed):
    """Each axis is cut at random, whatever experts, gate and up are."""
    chosen = random.Random(seed)

    def cut(array):
        boxes = [((), ())]
        for n in array.shape:
            at = sorted(chosen.sample(range(1, n), min(n - 1, chosen.randrange(3)))) if n > 1 else []
            boxes = [(lo + (a,), sizes + (b - a,)) for lo, sizes in boxes for a, b in zip([0] + at, at + [n])]
        return boxes
    return cut


@pytest.mark.parametrize("cut", [lambda v: torch_files.rows(v, 3), *(random_grid(seed) for seed in range(3))],
                         ids=["rows", "grid-0", "grid-1", "grid-2"])
def test_dcp_with_the_optimizer(cut, made, truth, tmp_path):
    source = made.write(tmp_path / "dcp", made.modules, cut)
    r = made.import_(source, tmp_path / "ckpt", "--layout", "tp2")
    assert r.rc == 0 and "step 3" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == truth
    assert "intact" in ok("tp-ckpt", "verify", source, "--config", made.config).out
    (source / "config.json").write_text(made.config.read_text())
    assert digests(source) == truth


def test_accelerate(made, truth, tmp_path):
    source = made.write(tmp_path / "c", made.modules, lambda v: torch_files.rows(v, 3), split=True)
    r = made.import_(source, tmp_path / "ckpt")
    assert r.rc == 0 and "Accelerate" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == truth


def test_whole_state_dicts(made, truth, tmp_path):
    """FULL_STATE_DICT."""
    tensors = {g: {k: torch_files.Tensor(v) for k, v in made.modules[g].items()} for g in made.modules}
    torch_files.save(tmp_path / "c/pytorch_model_fsdp.bin", tensors["param"])
    torch_files.save(tmp_path / "c/optimizer.bin", {"param_groups": [], "state": {
        k: {"step": torch_files.Tensor(np.array(3, np.float32)), **{g: tensors[g][k] for g in GROUPS}} for k in tensors["param"]}})
    r = made.import_(tmp_path / "c", tmp_path / "ckpt")
    assert r.rc == 0, repr(r)
    assert digests(tmp_path / "ckpt") == truth
    torch_files.save(tmp_path / "hf/pytorch_model.bin", tensors["param"])
    r = made.import_(tmp_path / "hf", tmp_path / "weights")
    assert r.rc == 0, repr(r)
    assert digests(tmp_path / "weights") == [line for line in truth if " param/" in line]


# ---- errors ----

@pytest.mark.parametrize("change", [dict(num_local_experts=5), dict(intermediate_size=41), dict(hidden_size=96)])
def test_experts_of_another_model_are_refused_by_shape(change, mixtral, tmp_path):
    other = Made("mixtral", tmp_path, **change)
    other.write(tmp_path / "dcp", mixtral.modules, whole)
    r = other.import_(tmp_path / "dcp", tmp_path / "ckpt")
    assert r.rc == 3 and re.search(r"distcp: tensor model.layers.\d.mlp.experts.\w+ is \[4, \d+, \d+\], but .* has \[", r.err), repr(r)
    assert not (tmp_path / "ckpt").exists()


def test_an_expert_that_is_missing_is_named(mixtral, tmp_path):
    def without_the_third(array):
        boxes = torch_files.rows(array, array.shape[0])
        return boxes[:2] + boxes[3:] if array.ndim == 3 else boxes
    mixtral.write(tmp_path / "dcp", mixtral.modules, without_the_third)
    r = mixtral.import_(tmp_path / "dcp", tmp_path / "ckpt")
    assert r.rc == 3 and "experts.2.w" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


def test_experts_that_are_stored_in_both_ways_are_refused(mixtral, tmp_path):
    both = {g: {**mixtral.files[g], **mixtral.modules[g]} for g in mixtral.files}
    mixtral.write(tmp_path / "dcp", both, whole)
    r = mixtral.import_(tmp_path / "dcp", tmp_path / "ckpt")
    assert r.rc == 3 and "block_sparse_moe" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.gate.weight", "model.layers.00.mlp.gate.weight", "model.layers.x.mlp.gate.weight",
                                  "model.layers.0.mlp.experts.gate_up_proj.weight"])
def test_a_name_that_is_only_like_that_of_a_module_is_unknown(name, mixtral, tmp_path):
    groups = {g: dict(mixtral.modules[g]) for g in mixtral.modules}
    groups["param"][name] = np.ones((4, 48), np.float32)
    mixtral.write(tmp_path / "dcp", groups, whole)
    r = mixtral.import_(tmp_path / "dcp", tmp_path / "ckpt", "--no-optim")
    assert r.rc == 2 and re.sub(r"\.\d+\.", ".*.", name) in r.err and not (tmp_path / "ckpt").exists(), repr(r)


def test_a_part_out_of_its_tensor_is_refused(mixtral, tmp_path):
    def beyond(array):
        return [((0, 0, 0), (5,) + array.shape[1:])] if array.ndim == 3 else whole(array)
    mixtral.write(tmp_path / "dcp", mixtral.modules, beyond)
    r = mixtral.import_(tmp_path / "dcp", tmp_path / "ckpt")
    assert r.rc == 3 and "mlp.experts." in r.err, repr(r)


# ---- what is written ----

def load(folder, kind):
    """{name: array or object} with "model." and "optim." in front."""
    if kind == "dcp":
        return torch_files.load_dcp(folder)[0]
    found = {**torch_files.load_dcp(folder / "pytorch_model_fsdp_0")[0], **torch_files.load_dcp(folder / "optimizer_0")[0]}
    return {k.replace("optimizer.", "optim."): v for k, v in found.items()}


def assert_has(folder, kind, groups):
    """Weights, moments, steps and the names of parameters."""
    found = load(folder, kind)
    want = {"model." + k: v for k, v in groups["param"].items()}
    want.update(("optim.state.%s.%s" % (k, g), v) for g in GROUPS for k, v in groups[g].items())
    want.update(("optim.state.%s.step" % k, np.array(3, np.float32)) for k in groups["param"])
    assert {k for k in found if "param_groups" not in k} == set(want)
    for name, array in want.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name
    params = [n for k, v in found.items() if k.endswith(".params") for n in v]
    assert sorted(params) == sorted(groups["param"])


@pytest.mark.parametrize("kind", ["dcp", "accelerate"])
@pytest.mark.parametrize("to", ["tp1", "tp2ep2dp2", "tp4dp3zero1"])
def test_reshard_keeps_the_names_of_the_source(kind, to, made, tmp_path):
    cut = lambda v: torch_files.rows(v, 3)
    if made.family == "gpt-neox" and "ep" in to:
        to = "tp2dp2"
    for groups in made.modules, made.files:
        source, out = tmp_path / ("c%d" % (groups is made.files)), tmp_path / ("out%d" % (groups is made.files))
        made.write(source, groups, cut, split=kind == "accelerate")
        ok("tp-reshard", source, "--to", to, "--config", made.config, "-o", out)
        assert_has(out, kind, groups)
        assert "equal" in ok("tp-ckpt", "diff", source, out, "--config", made.config).out
    assert "equal" in ok("tp-ckpt", "diff", tmp_path / "c0", tmp_path / "out1", "--config", made.config).out


@pytest.mark.parametrize("kind", ["dcp", "accelerate"])
def test_a_version_of_transformers_chooses_the_names(kind, made, tmp_path):
    """Also from a checkpoint of ours, and against the names of the source, whose groups name its parameters."""
    ways = {"4": made.files, "5": made.modules}
    for version, other in ("4", "5"), ("5", "4"):
        source = made.write(tmp_path / ("c" + version), ways[version], whole, split=kind == "accelerate")
        ok("tp-reshard", source, "--to", "tp2", "--config", made.config, "--transformers", other, "-o", tmp_path / ("to" + other))
        assert_has(tmp_path / ("to" + other), kind, ways[other])
        assert load(tmp_path / ("to" + other), kind)["optim.param_groups.0.lr"] == 0.5
    assert made.import_(tmp_path / "c5", tmp_path / "ckpt").rc == 0
    for version, groups in (None, made.files), ("4", made.files), ("5", made.modules):
        out = tmp_path / ("export%s" % version)
        ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", kind, *(["--transformers", version] if version else []), "-o", out)
        assert_has(out, kind, groups)


def test_a_version_of_transformers_that_means_nothing_is_refused(mixtral, tmp_path):
    mixtral.write(tmp_path / "c", mixtral.modules, whole)
    for more, message in ((["--format", "dcp", "--transformers", "6"], "--transformers takes 4 or 5, not '6'"),
                          (["--format", "safetensors", "--transformers", "5"], "--transformers is for --format dcp, accelerate or deepspeed, not safetensors"),
                          (["--format", "tp", "--transformers", "5"], "--transformers is for --format dcp, accelerate or deepspeed")):
        r = run("tp-reshard", tmp_path / "c", "--to", "tp1", "--config", mixtral.config, *more, "-o", tmp_path / "out")
        assert r.rc == 2 and message in r.err and not (tmp_path / "out").exists(), repr(r)


def test_the_copy_of_a_tied_head(tmp_path):
    tied = Made("gpt-neox", tmp_path, tie_word_embeddings=True)
    groups = {g: {k: v for k, v in tied.modules[g].items() if k != "lm_head.weight"} for g in tied.modules}
    source = tied.write(tmp_path / "alone", groups, whole)
    embedding = groups["param"]["gpt_neox.embed_in.weight"]
    weights = {"model." + k: (v, whole(v)) for k, v in {**groups["param"], "lm_head.weight": embedding}.items()}
    torch_files.dcp(tmp_path / "both", weights)
    for name in "alone", "both":
        assert tied.import_(tmp_path / name, tmp_path / (name + "-ckpt"), "--no-optim").rc == 0
    assert digests(tmp_path / "alone-ckpt") == digests(tmp_path / "both-ckpt")
    weights["model.lm_head.weight"] = (embedding + 1, whole(embedding))
    torch_files.dcp(tmp_path / "other", weights)
    r = tied.import_(tmp_path / "other", tmp_path / "other-ckpt")
    assert r.rc == 2 and "tie_word_embeddings" in r.err, repr(r)
    ok("tp-reshard", source, "--to", "tp2", "--config", tied.config, "--transformers", "5", "-o", tmp_path / "out")
    assert np.array_equal(load(tmp_path / "out", "dcp")["model.lm_head.weight"], embedding)


@pytest.mark.parametrize("source, kind", [("bin", "dcp"), ("dcp", "accelerate"), ("accelerate", "dcp")])
def test_the_names_stay_in_another_format(source, kind, mixtral, tmp_path):
    if source == "bin":
        torch_files.save(tmp_path / "c/pytorch_model.bin", {k: torch_files.Tensor(v) for k, v in mixtral.modules["param"].items()})
    else:
        mixtral.write(tmp_path / "c", mixtral.modules, lambda v: torch_files.rows(v, 3), split=source == "accelerate")
    ok("tp-reshard", tmp_path / "c", "--to", "tp2", "--config", mixtral.config, "--format", kind, "-o", tmp_path / "out")
    if source == "bin":
        found = torch_files.load_dcp(tmp_path / "out")[0]
        assert set(found) == {"model." + k for k in mixtral.modules["param"]}
        assert all(np.array_equal(found["model." + k], v) for k, v in mixtral.modules["param"].items())
    else:
        assert_has(tmp_path / "out", kind, mixtral.modules)


# ---- DeepSpeed ----

def zero1(folder, groups):
    """A model in f32."""
    foreign_files.zero1(folder, groups, 3, 3)


def zero3(folder, groups, write=lambda folder, state: foreign_files.zero3(folder, state, 3, 5)):
    """The masters of a model in bf16, whose weights are in no file."""
    write(folder, {**groups, "master": groups["param"]})


def bare_universal(folder, groups):
    zero3(folder, groups, lambda folder, state: foreign_files.universal(folder, state, 3, bare=True))


def universal(folder, groups):
    foreign_files.universal(folder, {**groups, "master": groups["param"]}, 3, bare=False)


WAYS = {"zero1": zero1, "zero3": zero3, "universal": universal, "universal of zero3": bare_universal}


@pytest.mark.parametrize("way", WAYS)
def test_deepspeed(way, made, tmp_path):
    for name, groups in ("modules", made.modules), ("files", made.files):
        WAYS[way](tmp_path / name, groups)
        r = made.import_(tmp_path / name, tmp_path / (name + "-ckpt"), "--layout", "tp2")
        assert r.rc == 0 and "step 3" in r.out, repr(r)
    assert digests(tmp_path / "modules-ckpt") == digests(tmp_path / "files-ckpt")
    assert "intact" in ok("tp-ckpt", "verify", tmp_path / "modules", "--config", made.config).out


def test_frozen_parameters_of_zero3(mixtral, tmp_path):
    """Each rank has a part of a stacked tensor that is not trained."""
    for name, groups in ("modules", mixtral.modules), ("files", mixtral.files):
        trained = {g: {k: v for k, v in groups[g].items() if "experts" not in k} for g in groups}
        foreign_files.zero3(tmp_path / name, {**trained, "master": trained["param"], "param": groups["param"]}, 3, 5)
        assert mixtral.import_(tmp_path / name, tmp_path / (name + "-ckpt"), "--no-optim").rc == 0
    assert digests(tmp_path / "modules-ckpt") == digests(tmp_path / "files-ckpt")


def test_experts_of_another_model_in_deepspeed_are_refused_by_shape(mixtral, tmp_path):
    zero3(tmp_path / "zero3", mixtral.modules)
    for change in {"num_local_experts": 5}, {"intermediate_size": 41}:
        other = Made("mixtral", tmp_path, **change)
        r = other.import_(tmp_path / "zero3", tmp_path / "ckpt")
        assert r.rc == 3 and "optim_states.pt: tensor model.layers.0.mlp.experts." in r.err and "one tensor" in r.err, repr(r)
        assert not (tmp_path / "ckpt").exists()


def assert_is_universal(folder, groups, dtype):
    (tag,) = folder.glob("global_step*_universal")
    states = torch_files.load((tag / "mp_rank_00_model_states.pt").read_bytes())
    rank = torch_files.load((tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").read_bytes())
    shapes = {k: v.shape for k, v in groups["param"].items()}
    for root in states, rank:
        assert {k: tuple(v) for k, v in root["param_shapes"][0].items()} == shapes
    assert {k: (v.shape, v.dtype) for k, v in states["module"].items()} == {k: (v, np.dtype(dtype)) for k, v in shapes.items()}
    assert {p.name for p in (tag / "zero").iterdir() if p.is_dir()} == set(shapes)
    for name in shapes:
        for file, group in (("fp32", "param"), *((g, g) for g in GROUPS)):
            found = torch_files.load((tag / "zero" / name / (file + ".pt")).read_bytes())["param"]
            assert found.dtype == np.float32 and np.array_equal(found, groups[group][name]), (name, file)
        if dtype == "f4":
            assert np.array_equal(states["module"][name], groups["param"][name]), name
        assert torch_files.load((tag / "zero" / name / "step.pt").read_bytes()) == 3


@pytest.mark.parametrize("way, dtype", [("zero1", "f4"), ("zero3", "u2")])
def test_universal_has_the_names_of_its_source_or_of_a_version(way, dtype, made, tmp_path):
    for name, groups, other in ("modules", made.modules, made.files), ("files", made.files, made.modules):
        WAYS[way](tmp_path / name, groups)
        reshard = ["tp-reshard", tmp_path / name, "--to", "tp1", "--config", made.config]
        ok(*reshard, "-o", tmp_path / (name + "-kept"))
        assert_is_universal(tmp_path / (name + "-kept"), groups, dtype)
        ok(*reshard, "--transformers", "4" if name == "modules" else "5", "-o", tmp_path / (name + "-other"))
        assert_is_universal(tmp_path / (name + "-other"), other, dtype)
        assert "equal" in ok("tp-ckpt", "diff", tmp_path / (name + "-kept"), tmp_path / (name + "-other"), "--config", made.config).out
    assert made.import_(tmp_path / "modules", tmp_path / "ckpt").rc == 0
    for version, groups in (None, made.files), ("4", made.files), ("5", made.modules):
        out = tmp_path / ("export%s" % version)
        ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "deepspeed", *(["--transformers", version] if version else []), "-o", out)
        assert_is_universal(out, groups, dtype)


def test_the_names_of_dcp_stay_in_universal(made, tmp_path):
    source = made.write(tmp_path / "dcp", made.modules, lambda v: torch_files.rows(v, 3))
    ok("tp-reshard", source, "--to", "tp1", "--config", made.config, "--format", "deepspeed", "-o", tmp_path / "u")
    assert_is_universal(tmp_path / "u", made.modules, "f4")


def test_experts_of_different_types_do_not_become_one_tensor(mixtral, tmp_path):
    name = "model.layers.0.block_sparse_moe.experts.1.w2.weight"
    groups = {g: dict(mixtral.files[g]) for g in mixtral.files}
    groups["param"][name] = groups["param"][name].astype(np.float16)
    mixtral.write(tmp_path / "dcp", groups, whole)
    argv = ["tp-reshard", tmp_path / "dcp", "--to", "tp1", "--config", mixtral.config, "--format", "deepspeed", "--transformers"]
    r = run(*argv, "5", "-o", tmp_path / "u")
    assert r.rc == 2 and name in r.err and "mlp.experts.down_proj" in r.err and "--dtype" in r.err, repr(r)
    assert not (tmp_path / "u").exists()


# ---- verl ----

VERL = {"fsdp2": (dict(ranks=3), dict(ranks=2)), "more": (dict(ranks=2, form="2.15"), dict(ranks=7, form="2.15")),
        "hsdp": (dict(ranks=4, replicas=2), dict(ranks=6, replicas=3)), "fsdp1": (dict(ranks=3, kind="fsdp1"), dict(ranks=5, kind="fsdp1")),
        "axes": (dict(ranks=3, dims=3), dict(ranks=5, dims=5))}


def save_verl(groups, how, folder, config=None):
    """dims: the first axis that so many ranks divide is cut."""
    if "dims" in how:
        how = {**how, "dims": {k: next((d for d, n in enumerate(v.shape) if n % how["dims"] == 0), 0) for k, v in groups["param"].items()}}
    return Save(groups, **how).write(folder, config)


@pytest.mark.parametrize("case", [*VERL, "orig", "sharded"])
def test_verl(case, made, truth, tmp_path):
    how = VERL[case][0] if case in VERL else dict(ranks=3, kind=case)
    folder = save_verl(made.modules, how, tmp_path / "actor", made.config)
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(folder) == truth
    assert "proved" in ok("tp-ckpt", "verify", folder).out


@pytest.mark.parametrize("case", VERL)
def test_verl_is_written_with_the_names_of_its_source(case, made, tmp_path):
    before, after = VERL[case]
    for name, groups in ("modules", made.modules), ("files", made.files):
        source = save_verl(groups, before, tmp_path / name / "actor", made.config)
        ok("tp-reshard", source, "--to", "dp%d" % after["ranks"], "-o", tmp_path / name / "to")
        assert_same_files(tmp_path / name / "to", save_verl(groups, after, tmp_path / name / "want"))
        ok("tp-ckpt", "diff", source, tmp_path / name / "to")


def test_verl_does_not_change_its_names(mixtral, tmp_path):
    source = save_verl(mixtral.modules, dict(ranks=2), tmp_path / "actor", mixtral.config)
    r = run("tp-reshard", source, "--to", "dp3", "--transformers", "4", "-o", tmp_path / "to")
    assert r.rc == 2 and "--transformers is for --format dcp, accelerate or deepspeed, not verl" in r.err, repr(r)
    ok("tp-reshard", source, "--to", "tp1", "--format", "dcp", "-o", tmp_path / "dcp")
    assert_has(tmp_path / "dcp", "dcp", mixtral.modules)


# ---- Trainer ----

ATTENTION = ["self_attn.%s_proj.weight" % x for x in "qkvo"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
NORMS = ["input_layernorm.weight", "post_attention_layernorm.weight"]
# named_parameters() of a layer in transformers 5
LAYER = {"mixtral": ATTENTION + ["mlp.gate.weight"] + EXPERTS + NORMS,
         "qwen3-moe": ATTENTION + ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] + EXPERTS + ["mlp.gate.weight"] + NORMS}


@pytest.fixture(scope="module", params=STACKED)
def stacked(request, tmp_path_factory):
    return Made(request.param, tmp_path_factory.mktemp("stacked"))


def trainers_order(made):
    """Parameters with weight decay come before the norms."""
    names = ["model.embed_tokens.weight", *("model.layers.%d.%s" % (i, n) for i in range(2) for n in LAYER[made.family]),
             "model.norm.weight", "lm_head.weight"]
    assert set(names) == set(made.modules["param"])
    return [[n for n in names if "norm" not in n], [n for n in names if "norm" in n]]


def write_trainer(folder, made, order, named):
    """The weights have the names of files, and optimizer.pt has numbers."""
    torch_files.save(folder / "pytorch_model.bin", {k: torch_files.Tensor(v) for k, v in made.files["param"].items()})
    state, groups = {}, []
    for names in order:
        numbers = range(len(state), len(state) + len(names))
        groups.append({"lr": 0.5, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "params": list(numbers),
                       **({"param_names": names} if named else {})})
        state.update((i, {"step": torch_files.Tensor(np.array(3, np.float32)), **{g: torch_files.Tensor(made.modules[g][n]) for g in GROUPS}})
                     for i, n in zip(numbers, names))
    torch_files.save(folder / "optimizer.pt", {"state": state, "param_groups": groups})
    return folder


@pytest.mark.parametrize("named", [False, True])
def test_trainers_numbers_of_stacked_experts(named, stacked, tmp_path):
    order = trainers_order(stacked)
    if named:
        random.Random(5).shuffle(order[0])
    source = write_trainer(tmp_path / "checkpoint-3", stacked, order, named)
    stacked.write(tmp_path / "dcp", stacked.files, whole)
    for path in source, tmp_path / "dcp":
        assert stacked.import_(path, tmp_path / (path.name + "-ckpt")).rc == 0
    assert digests(tmp_path / "checkpoint-3-ckpt") == digests(tmp_path / "dcp-ckpt")
    for version, groups in (None, stacked.modules), ("4", stacked.files):
        out = tmp_path / ("to%s" % version)
        ok("tp-reshard", source, "--to", "tp2", "--config", stacked.config, "--format", "dcp",
           *(["--transformers", version] if version else []), "-o", out)
        assert_has(out, "dcp", groups)


def test_trainer_gets_stacked_experts_in_its_order(made, tmp_path):
    made.write(tmp_path / "dcp", made.files, whole)
    ok("tp-reshard", tmp_path / "dcp", "--to", "tp1", "--config", made.config, "--format", "trainer", "-o", tmp_path / "out")
    optimizer = torch_files.load((tmp_path / "out/optimizer.pt").read_bytes())
    names = [n for group in optimizer["param_groups"] for n in group["param_names"]]
    assert sorted(names) == sorted(made.modules["param"])
    if made.family in STACKED:
        assert names == sum(trainers_order(made), [])
    for i, name in enumerate(names):
        assert all(np.array_equal(optimizer["state"][i][g], made.modules[g][name]) for g in GROUPS), name
    ok("tp-ckpt", "diff", tmp_path / "dcp", tmp_path / "out", "--config", made.config)
