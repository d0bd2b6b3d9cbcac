"""torch_dist for a version of Megatron-core before 0.15 (--megatron-core): what lies in the files, and that it comes back.
tests/clients/test_megatron_core.py asks those versions themselves.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/megatron_version reshard/formats/megatron/torch_dist_cut
"""
import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_import_formats import MEMORY, State, config_of, digests, groups_of
from test_megatron_experts import make_state

STEP = "iter_0000003"
FORMS = {"0.8.0": "fully_sharded_model_space", "0.10": "fully_sharded_model_space", "0.11.0": "fully_sharded_model_space",
         "0.13.1": "fully_sharded_model_space", "0.14.0": "fully_sharded_model_space", "0.15.0": "fully_reshardable"}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """deep: the vocabulary must be padded. f32: weights are their own masters. gpt2: biases outside of layers. mixtral: experts."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("deep", "f32", "gpt2", "mixtral")}
    deep = {"num_hidden_layers": 4, "vocab_size": 259}
    return {"deep": State(folders["deep"], harness.write_config(folders["deep"] / "model", **deep), dtype="bf16"),
            "f32": State(folders["f32"], harness.write_config(folders["f32"] / "model", **deep)),
            "gpt2": make_state(folders["gpt2"], "gpt2", num_hidden_layers=None, n_layer=4),
            "mixtral": make_state(folders["mixtral"], "mixtral", head_dim=6)}


def export(state, out, layout, *more):
    ok("tp-ckpt", "export", state.root, "--format", "torch_dist", "--layout", layout, "-o", out, "--mem", MEMORY, *more)
    return out / STEP


def parts_of(name, shape, tp):
    """Into how many parts Megatron cuts each axis: every layer and expert is one, gate and up are cut apart, and then tp ranks
    have a part each of the rows or the columns of a linear layer."""
    axes = (2 if ".experts." in name else 1) * ("decoder.layers." in name)
    parts = list(shape[:axes]) + [1] * (len(shape) - axes)
    gated = "linear_fc1.weight" in name and "gpt2" not in name
    if "layer_norm" in name or "layernorm" in name or "router" in name or "position" in name or name.endswith(("proj.bias", "fc2.bias")):
        return parts
    if "linear_proj.weight" in name or "linear_fc2.weight" in name:
        parts[axes + 1] = tp
    else:
        parts[axes] = tp * (1 + gated)
    return parts


def cut(array, parts):
    """[X, Y] as [X / x, Y / y, x * y], for parts of [x, y]."""
    sizes = [n // k for n, k in zip(array.shape, parts)]
    grid = array.reshape([x for pair in zip(parts, sizes) for x in pair])
    order = [*range(0, 2 * array.ndim, 2), *range(1, 2 * array.ndim, 2)]
    return grid.transpose(order).reshape(*parts, -1)


# model, layout, tp, ep
LAYOUTS = [("deep", "tp2pp2", 2, 1), ("f32", "tp1", 1, 1), ("gpt2", "tp4", 4, 1), ("mixtral", "tp2pp2", 2, 1), ("mixtral", "tp2ep2", 2, 2)]


@pytest.mark.parametrize("version", ["0.8.0", "0.10", "0.11.0", "0.13.1", "0.14.0"])
@pytest.mark.parametrize("model,layout,tp,ep", LAYOUTS)
def test_parameters_are_cut_into_flat_parts(model, layout, tp, ep, version, states, tmp_path):
    state, minor = states[model], int(version.split(".")[1])
    inside = export(state, tmp_path / "m", layout, "--distributed-optimizer", "--megatron-core", version)
    whole = torch_files.load_dcp(export(state, tmp_path / "new", layout, "--distributed-optimizer"))[0]
    found, cuts = torch_files.load_dcp(inside)[0], torch_files.load_cuts(inside)
    assert {k for k, v in found.items() if isinstance(v, np.ndarray)} == set(cuts)
    n_cut = 0
    for name, array in whole.items():
        if not name.startswith("optimizer."):
            assert np.array_equal(found.pop(name), array) and cuts.get(name) is None, name
            continue
        ours = name.replace("optimizer.state.param.", "optimizer.state.fp32_param.")
        chained = "chained_%d." % (".experts." in name) if ep > 1 and minor < 14 else ""
        if array.ndim > 1 or minor > 10:
            assert cuts[chained + ours] == array.shape, name
            array = cut(array, parts_of(model + " " + name, array.shape, tp))
            n_cut += 1
        got = found.pop(chained + ours)
        assert got.shape == array.shape and got.tobytes() == np.ascontiguousarray(array).tobytes(), name
    assert not found and n_cut > 20
    assert "intact" in ok("tp-ckpt", "verify", tmp_path / "m").out
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "again", "--mem", MEMORY)
    assert digests(tmp_path / "again") == digests(state.root)


def files_of(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def common_of(folder):
    return torch_files.load((folder / "common.pt").read_bytes())


@pytest.mark.parametrize("version", FORMS)
def test_common_pt_says_which_form_it_is(version, states, tmp_path):
    minor, form = int(version.split(".")[1]), FORMS[version]
    for model, layout in (("deep", "tp2"), ("mixtral", "tp1ep2")):
        common = common_of(export(states[model], tmp_path / model, layout, "--distributed-optimizer", "--megatron-core", version))
        optimizers = list(common["optimizer"].values()) if model == "mixtral" else [common["optimizer"]]
        for optimizer in optimizers:
            assert optimizer["param_state_sharding_type"] == form
            assert {g["step"] for g in optimizer["optimizer"]["param_groups"]} == {3}
        assert common["content_metadata"]["distrib_optim_sharding_type"] == form
        assert common["content_metadata"]["chained_optim_avoid_prefix"] == (minor >= 14)
        assert getattr(common["args"], "ckpt_fully_parallel_save", False) == (minor < 15)


def test_the_ordinary_optimizer_differs_only_in_the_names_of_experts(states, tmp_path):
    inside = export(states["mixtral"], tmp_path / "new", "tp1ep2")
    new = torch_files.load_dcp(inside)[0]
    assert files_of(inside) == files_of(export(states["mixtral"], tmp_path / "14", "tp1ep2", "--megatron-core", "0.14.0"))
    old = export(states["mixtral"], tmp_path / "13", "tp1ep2", "--megatron-core", "0.13.0")
    found = torch_files.load_dcp(old)[0]
    want = {("chained_%d." % (".experts." in k) if k.startswith("optimizer.") else "") + k: v for k, v in new.items()}
    assert set(found) == set(want) and torch_files.load_cuts(old) is None
    assert all(np.array_equal(found[k], want[k]) for k in want if isinstance(want[k], np.ndarray))
    assert not hasattr(common_of(old)["args"], "ckpt_fully_parallel_save")
    assert digests(tmp_path / "13") == digests(states["mixtral"].root)


@pytest.mark.parametrize("version", ["0.15", "0.16.1", "1.0", "0.150.2"])
def test_versions_since_0_15_have_the_files_of_no_version(version, states, tmp_path):
    without, given = (export(states["mixtral"], tmp_path / name, "tp2ep2", "--distributed-optimizer", *more)
                      for name, more in (("a", []), ("b", ["--megatron-core", version])))
    assert files_of(without) == files_of(given)


@pytest.mark.parametrize("version,word", [
    ("0.7.0", "0.8 is the earliest version"), ("0.0", "0.8 is the earliest version"), ("", "is not a version"), ("12", "is not a version"),
    ("0.12.", "is not a version"), (".12", "is not a version"), ("0.12.3.4", "is not a version"), ("0.12.3rc1", "is not a version"),
    ("-0.12", "is not a version"), ("v0.12", "is not a version"), ("0.9999999", "is not a version"), ("0. 12", "is not a version")])
def test_a_version_that_is_none_is_refused(version, word, states, tmp_path):
    for argv in (["tp-ckpt", "export", states["deep"].root], ["tp-reshard", states["deep"].root, "--to", "tp2"]):
        r = run(*argv, "--format", "torch_dist", "-o", tmp_path / "no", "--megatron-core=" + version)
        assert r.rc == 2 and len(r.lines) == 1 and word in r.err and "--megatron-core " + version in r.err, repr(r)
        assert not list(tmp_path.iterdir())


def test_other_formats_are_refused(states, tmp_path):
    root = states["deep"].root
    for argv in (["tp-ckpt", "export", root], ["tp-ckpt", "export", root, "--format", "megatron"], ["tp-reshard", root, "--to", "tp2"],
                 ["tp-reshard", root, "--to", "tp2", "--format", "dcp"]):
        r = run(*argv, "-o", tmp_path / "no", "--megatron-core", "0.12.3")
        assert r.rc == 2 and len(r.lines) == 1 and "--megatron-core is for --format torch_dist" in r.err, repr(r)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["fully_sharded_model_space", "dp_zero_gather_scatter", "dp_reshardable"])
def test_tp_reshard_notes_a_form_that_old_programs_do_not_load(form, states, tmp_path):
    state = states["deep"]
    foreign_files.Megatron(config_of(state), 2, dp=2).torch_dist(tmp_path / "m", groups_of(state), 3, form)

    def reshard(name, *more):
        r = ok("tp-reshard", tmp_path / "m", "--to", "pp2", "-o", tmp_path / name, "--config", state.config, "--mem", MEMORY, *more)
        assert digests(tmp_path / name) == digests(state.root)
        return common_of(tmp_path / name / STEP)["optimizer"].get("param_state_sharding_type"), r.err

    old = form != "dp_reshardable"
    kind, err = reshard("new")
    assert kind == "fully_reshardable" and err.count("--megatron-core VERSION") == old and (form in err) == old, err
    for name, more, want in (("old", ["--megatron-core", "0.12.3"], "fully_sharded_model_space"),
                             ("given", ["--megatron-core", "0.16"], "fully_reshardable"), ("ordinary", ["--ordinary-optimizer"], None)):
        kind, err = reshard(name, *more)
        assert kind == want and "megatron-core" not in err, err
