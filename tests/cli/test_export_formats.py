"""tp-ckpt export in the formats of other frameworks: Python reads every element again, and tp-ckpt import makes the
same checkpoint of it.

needs: tp-train tp-ckpt tp-reshard make_ckpt fault/shim.so
covers: reshard/export_source reshard/convert cli/reshard/convert_print reshard/formats/pieces/piece_target reshard/formats/torch/torch_target reshard/formats/torch/dcp_target
    reshard/formats/torch/dcp_metadata_write reshard/formats/export_format
    reshard/formats/megatron/megatron_target reshard/formats/megatron/megatron_params reshard/formats/megatron/megatron_args_write
    reshard/formats/megatron/torch_dist_target reshard/formats/megatron/torch_dist_common
    reshard/formats/torch/dcp_items reshard/formats/torch/dcp_adamw
    reshard/formats/deepspeed/deepspeed_target
"""
import json
import random
import re
import sys

import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from state import State, digests
from test_faults import Shim
from test_import_formats import config_of, groups_of
from test_reshard import make

sys.path.insert(0, str(harness.REPO / "python"))
import tp_checkpoint  # noqa: E402

MEMORY = "1G" if harness.SANITIZE else "64M"


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied")
    return State(folder, harness.write_config(folder / "model", tie_word_embeddings=True, vocab_size=261))


def export(state, out, fmt, *more):
    return ok("tp-ckpt", "export", state.root, "-o", out, "--format", fmt, "--mem", MEMORY, *more)


def imported(source, root, *more):
    return ok("tp-ckpt", "import", source, "-o", root, "--mem", MEMORY, *more)


def same(a, b):
    return a.shape == b.shape and np.array_equal(a.view(np.uint8), b.view(np.uint8))


# ---- the steps of the optimizer ----

def saved_at(root, state, step, **train):
    """The state with another step, by the Python package."""
    arrays = {tuple(key.split("/", 1)): values for key, values in state.tensors.items()}
    tp_checkpoint.save(root, step, arrays, config=state.config.read_text(), train=train)
    return root


EXACT = {"dcp": (), "trainer": (), "accelerate": (), "torchtitan": (), "deepspeed": (), "megatron": (),
         "torch_dist": (), "torch_dist distributed": ("--distributed-optimizer",)}


@pytest.mark.parametrize("fmt", EXACT)
def test_a_step_that_f32_does_not_have_is_written_exactly(fmt, f32, tmp_path):
    """PyTorch's tensors of steps are f32, which has not all numbers above 2^24; f64 has this one."""
    root = saved_at(tmp_path / "ckpt", f32, 20000001)
    ok("tp-ckpt", "export", root, "-o", tmp_path / "out", "--format", fmt.split()[0], *EXACT[fmt])
    if fmt == "dcp":
        found, _ = torch_files.load_dcp(tmp_path / "out")
        assert found["optim.state.model.norm.weight.step"].dtype == "f8" and found["optim.state.model.norm.weight.step"] == 20000001
    imported(tmp_path / "out", tmp_path / "again")
    assert [s.name for s in harness.steps(tmp_path / "again")] == ["step-20000001"]
    assert digests(tmp_path / "again") == digests(f32.root)


@pytest.mark.parametrize("fmt", EXACT)
def test_the_steps_that_adamw_has_counted_are_written(fmt, f32, tmp_path):
    """They are fewer than those of the run where the moments began later, and others where the Python package says so."""
    for i, (step, count, train) in enumerate([(100, 30, {"optimizer_start": 70}), (5, 900, {"options": {"optimizer_steps": {"*": 900}}})]):
        root, out, again = saved_at(tmp_path / ("ckpt%d" % i), f32, step, **train), tmp_path / ("out%d" % i), tmp_path / ("again%d" % i)
        ok("tp-ckpt", "export", root, "-o", out, "--format", fmt.split()[0], *EXACT[fmt])
        imported(out, again)
        assert [s.name for s in harness.steps(again)] == ["step-%08d" % count]
        if fmt == "deepspeed":
            assert (out / "latest_universal").read_text() == "global_step%d_universal" % step


def test_steps_of_parameters_that_differ_are_refused(f32, tmp_path):
    root = saved_at(tmp_path / "ckpt", f32, 5, options={"optimizer_steps": {"*": 5, "model.norm.weight": 2}})
    r = run("tp-ckpt", "export", root, "-o", tmp_path / "out", "--format", "dcp")
    assert r.rc == 2 and "counted other steps of model.norm.weight than the 5" in r.err and "--no-optim" in r.err, repr(r)
    ok("tp-ckpt", "export", root, "-o", tmp_path / "out", "--format", "dcp", "--no-optim")
    ok("tp-ckpt", "export", root, "-o", tmp_path / "hf")
    root = saved_at(tmp_path / "huge", f32, 2 ** 53 + 1)
    r = run("tp-ckpt", "export", root, "-o", tmp_path / "no", "--format", "dcp")
    assert r.rc == 2 and "the largest that can be written is 9007199254740992" in r.err, repr(r)


def test_tp_train_says_that_it_counts_other_steps(f32, tmp_path):
    root = saved_at(tmp_path / "ckpt", f32, 3, options={"optimizer_steps": {"*": 900}})
    r = ok(*harness.train_args(f32.config, root, steps=4, resume=True, layout="tp1"))
    assert "AdamW had counted 900 steps, now 3, on which" in r.err, repr(r)
    root = saved_at(tmp_path / "same", f32, 3, options={"optimizer_steps": {"*": 2, "model.norm.weight": 1}}, optimizer_start=1)
    assert "AdamW had counted" not in ok(*harness.train_args(f32.config, root, steps=4, resume=True, layout="tp1")).err


# ---- weights of two types ----

@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"])
def test_masters_are_kept_where_one_weight_is_f32(name, bf16, tmp_path):
    """Also if it is the first one. Weights in f32 have no masters; Megatron-LM has those of all weights, or none."""
    arrays = {tuple(key.split("/", 1)): values for key, values in bf16.tensors.items()}
    arrays["param", name] = arrays.pop(("master", name))
    root = tmp_path / "ckpt"
    tp_checkpoint.save(root, 3, arrays, config=bf16.config.read_text())
    ok("tp-ckpt", "export", root, "-o", tmp_path / "ds", "--format", "deepspeed")
    imported(tmp_path / "ds", tmp_path / "again")
    assert set(digests(root)) < set(digests(tmp_path / "again")) and len(digests(tmp_path / "again")) == len(digests(root)) + 1
    with tp_checkpoint.open(tmp_path / "again") as ckpt:
        assert ckpt.train["dtype"] == "bf16" and ckpt[name].dtype == ckpt.tensor(name, "master").dtype == "f32"
    for fmt in ("megatron", "torch_dist"):
        r = run("tp-ckpt", "export", root, "-o", tmp_path / fmt, "--format", fmt)
        assert r.rc == 2 and "%s/step-00000003: has no master/%s, and Megatron-LM needs all of master" % (root, name) in r.err, repr(r)
        ok("tp-ckpt", "export", root, "-o", tmp_path / fmt, "--format", fmt, "--dtype", "f32")
        imported(tmp_path / fmt, tmp_path / (fmt + "-again"))
        assert set(digests(tmp_path / (fmt + "-again"))) >= {d for d in digests(root) if " exp_avg" in d or d.endswith("param/" + name)}


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_weight_that_is_not_trained_does_not_lose_the_optimizer(name, f32, tmp_path):
    """Also if it is the first one. Formats that need the state of all weights are refused."""
    arrays = {tuple(key.split("/", 1)): v for key, v in f32.tensors.items() if key.startswith("param/") or not key.endswith("/" + name)}
    root = tmp_path / "ckpt"
    tp_checkpoint.save(root, 3, arrays, config=f32.config.read_text())
    r = ok("tp-ckpt", "export", root, "-o", tmp_path / "dcp", "--format", "dcp")
    assert "the optimizer's state" not in r.out, repr(r)
    found, _ = torch_files.load_dcp(tmp_path / "dcp")
    for key in ("exp_avg", "exp_avg_sq", "step"):
        assert {k for k in f32.group("param") if "optim.state.%s.%s" % (k, key) in found} == set(f32.group("param")) - {name}
    for fmt, option in (("megatron", "--no-optim"), ("torch_dist", "--no-optim"), ("deepspeed", "another format")):
        r = run("tp-ckpt", "export", root, "-o", tmp_path / "no", "--format", fmt)
        assert r.rc == 2 and "has no exp_avg/" + name in r.err and option in r.err, repr(r)


# ---- PyTorch DCP ----

@pytest.mark.parametrize("layout", ["tp8", "dp3zero1", "tp4cp2pp2dp2zero3"])
def test_dcp_has_every_element_once(layout, bf16, tmp_path):
    export(bf16, tmp_path / "dcp", "dcp", "--layout", layout)
    found, planner = torch_files.load_dcp(tmp_path / "dcp")
    names = bf16.group("param")
    for name in names:
        assert same(found["model." + name], bf16.tensors["master/" + name])
        assert planner["model." + name] == ("model", name)
        for group in ("exp_avg", "exp_avg_sq"):
            assert same(found["optim.state.%s.%s" % (name, group)], bf16.tensors["%s/%s" % (group, name)])
        assert found["optim.state.%s.step" % name] == 3 and found["optim.state.%s.step" % name].dtype == "f4"
    assert sorted(found["optim.param_groups.0.params"]) == sorted(names)
    assert planner["optim.param_groups.0.lr"] == ("optim", "param_groups", 0, "lr")
    assert found["optim.param_groups.0.betas"] == (0.9, 0.95) and found["optim.param_groups.0.amsgrad"] is False
    assert len(found) == 4 * len(names) + 12


@pytest.mark.parametrize("layout", ["tp2pp2dp2zero1"])
def test_dcp_comes_back_as_the_same_checkpoint(layout, bf16, f32, tied, tmp_path):
    for i, (state, more) in enumerate(((f32, ()), (bf16, ("--dtype", "bf16")), (tied, ()))):
        out, root = tmp_path / ("dcp%d" % i), tmp_path / ("again%d" % i)
        export(state, out, "dcp", "--layout", layout)
        assert "intact" in ok("tp-ckpt", "verify", out).out
        imported(out, root, *more)
        assert digests(root) == digests(state.root) and harness.steps(root)[-1].name == state.step.name


def test_a_tied_head_has_both_names_and_is_stored_once(tied, tmp_path):
    export(tied, tmp_path / "dcp", "dcp", "--no-optim")
    found, _ = torch_files.load_dcp(tmp_path / "dcp")
    assert same(found["model.lm_head.weight"], found["model.model.embed_tokens.weight"])
    assert len(found) == len(tied.group("param")) + 1
    assert sum(p.stat().st_size for p in (tmp_path / "dcp").glob("*.distcp")) < 1.5 * sum(
        v.nbytes for v in tied.group("param").values())
    for sides in (tied.root, tmp_path / "dcp"), (tmp_path / "dcp", tied.root):
        assert "equal: %d tensors" % len(found) in ok("tp-ckpt", "diff", "--group", "param", *sides).out
    changed = {**tied.group("param"), "model.embed_tokens.weight": 2 * tied.group("param")["model.embed_tokens.weight"]}
    tp_checkpoint.save(tmp_path / "other", 1, changed, config=tied.config.read_text())
    r = harness.run("tp-ckpt", "diff", "--group", "param", tmp_path / "other", tmp_path / "dcp")
    assert r.rc == 1 and "param/model.embed_tokens.weight: " in r.out and "param/lm_head.weight: " in r.out, repr(r)


def test_dcp_of_weights_alone_and_casts(bf16, tmp_path):
    export(bf16, tmp_path / "a", "dcp", "--no-optim")
    found, _ = torch_files.load_dcp(tmp_path / "a")
    for name, want in bf16.group("param").items():
        assert same(found["model." + name], want)
    r = json.loads(export(bf16, tmp_path / "b", "dcp", "--dtype", "bf16", "--json").out)
    assert r["dtype"] == "bf16" and r["format"] == "dcp" and "seed" in r["left_out"]
    found, _ = torch_files.load_dcp(tmp_path / "b")
    name = next(iter(bf16.group("param")))
    assert found["model." + name].dtype == "u2" and found["optim.state.%s.exp_avg" % name].dtype == "f4"


# ---- Megatron-LM ----

@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Four layers in bf16, a vocabulary that must be padded."""
    folder = tmp_path_factory.mktemp("deep")
    return State(folder, harness.write_config(folder / "model", num_hidden_layers=4, vocab_size=259), dtype="bf16")


def padded(*mesh, padding=128, **more):
    """Megatron's tensors with padding as it is written."""
    reference = foreign_files.Megatron(*mesh, padding=padding, **more)
    reference.fill = foreign_files.LAST_ROW
    return reference


def modules_of(engine):
    """Options for Megatron's own modules; Transformer Engine's are the default."""
    return [] if engine else ["--transformer-impl", "local"]


@pytest.mark.parametrize("engine", [False, True], ids=["local", "engine"])
@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2), (8, 2, 1)], ids="tp%dpp%dvpp%d".__mod__)
def test_megatron_ranks_have_what_megatron_would_give_them(mesh, engine, deep, tmp_path):
    tp, pp, vpp = mesh
    out = tmp_path / "m"
    layout = "tp%dpp%d" % (tp, pp) + ("vpp%d" % vpp if vpp > 1 else "")
    export(deep, out, "megatron", "--layout", layout, *modules_of(engine))
    reference = padded(config_of(deep), *mesh, engine=engine)
    state = groups_of(deep)
    assert (out / "latest_checkpointed_iteration.txt").read_text() == "3"
    for tp_rank in range(tp):
        for pp_rank in range(pp):
            name = "mp_rank_%02d" % tp_rank + ("_%03d" % pp_rank if pp > 1 else "")
            root = torch_files.load((out / "iter_0000003" / name / "model_optim_rng.pt").read_bytes())
            chunks = reference.chunks(state, tp_rank, pp_rank)
            order = [[], []]
            for c, chunk in enumerate(chunks):
                model = root["model%d" % c if vpp > 1 else "model"]
                assert [k for k in model if "_extra_state" not in k] == list(chunk["param"])
                assert {k for k in model if "_extra_state" in k} == reference.extra_states(chunk["param"])
                for k, want in chunk["param"].items():
                    assert same(model[k], want), k
                    order[want.ndim == 1].append((chunk, k))
            assert root["args"].transformer_impl == ("transformer_engine" if engine else "local")
            optimizer = root["optimizer"]
            for number, (chunk, k) in enumerate(order[0] + order[1]):
                moments = optimizer["optimizer"]["state"][number]
                for group in ("exp_avg", "exp_avg_sq"):
                    assert same(moments[group], chunk[group][k]), k
                assert set(moments) == {"exp_avg", "exp_avg_sq"}
            for masters, group in zip(optimizer["fp32_from_fp16_params"], order):
                for array, (chunk, k) in zip(masters, group, strict=True):
                    assert same(array, chunk["master"][k]), k
            groups = optimizer["optimizer"]["param_groups"]
            assert [g["params"] for g in groups] == [list(range(len(order[0]))),
                                                     list(range(len(order[0]), len(order[0] + order[1])))]
            assert [g["wd_mult"] for g in groups] == [1, 0] and root["iteration"] == 3
            assert all(g["step"] == 3 and g["bias_correction"] is True for g in groups)


@pytest.mark.parametrize("layout", ["tp1", "tp4pp2"])
def test_megatron_comes_back_as_the_same_checkpoint(layout, bf16, f32, tied, tmp_path):
    for i, state in enumerate((f32, bf16, tied)):
        out, root = tmp_path / ("m%d" % i), tmp_path / ("again%d" % i)
        export(state, out, "megatron", "--layout", layout)
        assert "intact" in ok("tp-ckpt", "verify", out).out
        imported(out, root, "--config", state.config)
        assert digests(root) == digests(state.root) and harness.steps(root)[-1].name == state.step.name


def test_megatron_at_another_layout_and_what_it_cannot_hold(deep, tmp_path):
    export(deep, tmp_path / "m", "megatron", "--layout", "tp2pp2")
    r = reshard(tmp_path / "m", "--to", "tp4pp4")
    assert "megatron -> megatron at tp4pp4, step 3" in r.out and "left out" not in r.out, repr(r)
    assert len(list((tmp_path / "m-tp4pp4").rglob("*.pt"))) == 16
    assert digests(tmp_path / "m-tp4pp4") == digests(deep.root)
    r = run("tp-reshard", tmp_path / "m", "--to", "pp3")
    assert r.rc == 2 and not (tmp_path / "m-tp1pp3").exists(), repr(r)


# ---- Megatron-core torch_dist ----

@pytest.mark.parametrize("layout", ["tp8pp2", "pp4"])
def test_torch_dist_has_megatrons_tensors_with_stacked_layers(layout, deep, tmp_path):
    export(deep, tmp_path / "m", "torch_dist", "--layout", layout)
    inside = tmp_path / "m/iter_0000003"
    found, _ = torch_files.load_dcp(inside)
    tp = 8 if "tp8" in layout else 1
    reference = padded(config_of(deep), padding=128 * tp)
    norms = {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
             "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"}
    heads = {"param": "", "master": "optimizer.state.fp32_param.", "exp_avg": "optimizer.state.exp_avg.",
             "exp_avg_sq": "optimizer.state.exp_avg_sq."}
    for group, tensors in groups_of(deep).items():
        layers = [reference.layer(tensors, i) for i in range(4)]
        for name, (_, how) in layers[0].items():
            want = np.stack([reference.cut(layer[name][0], how, 0) for layer in layers])
            assert same(found.pop(heads[group] + "decoder.layers." + norms.get(name, name)), want), name
        for name, want in reference.chunk(tensors, 0, 0, 0).items():
            if "layers." not in name:
                assert same(found.pop(heads[group] + name), want), name
    assert sorted(set(map(str, found.values()))) == ["[None]"] and len(found) == 4 * 4 + 1  # linear layers, and the last norm
    common = torch_files.load((inside / "common.pt").read_bytes())
    assert common["iteration"] == 3 and common["optimizer"]["optimizer"]["state"] == {}
    assert [(g["step"], g["bias_correction"]) for g in common["optimizer"]["optimizer"]["param_groups"]] == [(3, True)] * 2
    assert json.loads((inside / "metadata.json").read_text())["sharded_backend"] == "torch_dist"


def test_torch_dist_comes_back_as_the_same_checkpoint(bf16, f32, tied, tmp_path):
    for i, state in enumerate((f32, bf16, tied)):
        out, root = tmp_path / ("m%d" % i), tmp_path / ("again%d" % i)
        export(state, out, "megatron-dist", "--layout", "tp4pp2")
        imported(out, root, "--format", "megatron-dist")
        assert digests(root) == digests(state.root)


def test_torch_dist_with_the_distributed_optimizer(bf16, f32, tied, tmp_path):
    for i, state in enumerate((f32, bf16, tied)):
        out, root = tmp_path / ("m%d" % i), tmp_path / ("again%d" % i)
        export(state, out, "torch_dist", "--layout", "tp2pp2", "--distributed-optimizer")
        assert "intact" in ok("tp-ckpt", "verify", out).out
        imported(out, root)
        assert digests(root) == digests(state.root)
        ordinary = tmp_path / ("o%d" % i)
        export(state, ordinary, "torch_dist", "--layout", "tp2pp2")
        found, want = (torch_files.load_dcp(x / "iter_0000003")[0] for x in (out, ordinary))
        if not state.group("master"):  # weights are their own masters, and the distributed optimizer keeps these
            want.update({"optimizer.state.fp32_param." + k: v for k, v in want.items()
                         if not k.startswith("optimizer.") and "_extra_state" not in k})
        want = {k.replace("state.fp32_param.", "state.param."): v for k, v in want.items()}
        assert sorted(found) == sorted(want) and sum(k.startswith("optimizer.state.param.") for k in found) > 5
        assert all(v == [None] if isinstance(v, list) else same(v, want[k]) for k, v in found.items())
        common = torch_files.load((out / "iter_0000003/common.pt").read_bytes())
        assert [g["step"] for g in common["optimizer"]["optimizer"]["param_groups"]] == [3, 3]
        assert common["optimizer"]["param_state_sharding_type"] == "fully_reshardable"
        assert common["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"


def test_the_distributed_optimizer_after_a_reshard_and_where_it_cannot_be(bf16, tmp_path):
    export(bf16, tmp_path / "m", "torch_dist", "--layout", "tp2")
    reshard(tmp_path / "m", "--to", "pp2", "-o", tmp_path / "a", "--distributed-optimizer")
    common = torch_files.load((tmp_path / "a/iter_0000003/common.pt").read_bytes())
    assert common["optimizer"]["param_state_sharding_type"] == "fully_reshardable"
    assert digests(tmp_path / "a") == digests(bf16.root)
    for name, more, kind in (("b", ["--ordinary-optimizer"], None), ("c", [], "fully_reshardable")):
        reshard(tmp_path / "a", "--to", "tp4", "-o", tmp_path / name, *more)
        common = torch_files.load((tmp_path / name / "iter_0000003/common.pt").read_bytes())
        assert common["optimizer"].get("param_state_sharding_type") == kind
        assert digests(tmp_path / name) == digests(bf16.root)
    for argv in (["tp-ckpt", "export", bf16.root, "--format", "dcp"], ["tp-reshard", bf16.root, "--to", "tp2"],
                 ["tp-reshard", tmp_path / "m", "--to", "tp2", "--format", "tp"],
                 ["tp-ckpt", "export", bf16.root, "--format", "torch_dist", "--no-optim"]):
        r = run(*argv, "-o", tmp_path / "no", "--distributed-optimizer")
        assert r.rc == 2 and len(r.lines) == 1 and "--distributed-optimizer" in r.err, repr(r)
        assert not (tmp_path / "no").exists()
    ok("tp-ckpt", "export", bf16.root, "--format", "torch_dist", "--no-optim", "-o", tmp_path / "w")
    r = run("tp-reshard", tmp_path / "w", "--to", "tp2", "-o", tmp_path / "no", "--distributed-optimizer")
    assert r.rc == 2 and "has no state of an optimizer" in r.err and not (tmp_path / "no").exists(), repr(r)


# ---- DeepSpeed Universal ----

@pytest.mark.parametrize("kind", ["f32", "bf16", "tied"])
def test_universal_has_a_folder_for_each_parameter(kind, request, tmp_path):
    state, out = request.getfixturevalue(kind), tmp_path / "ds"
    export(state, out, "deepspeed")
    tag = out / "global_step3_universal"
    assert (out / "latest_universal").read_text() == tag.name
    masters = state.group("master") or state.group("param")
    model = torch_files.load((tag / "mp_rank_00_model_states.pt").read_bytes())
    assert model["global_steps"] == 3 and model["dp_world_size"] == model["mp_world_size"] == 1
    assert {k: tuple(v) for k, v in model["param_shapes"][0].items()} == {k: v.shape for k, v in masters.items()}
    for name, want in state.group("param").items():
        assert same(model["module"][name], want)
        for file, array in (("fp32", masters[name]), *((g, state.tensors["%s/%s" % (g, name)]) for g in (
                "exp_avg", "exp_avg_sq"))):
            found = torch_files.load((tag / "zero" / name / (file + ".pt")).read_bytes())
            assert same(found["param"], array) and found["cat_dim"] == 0
        assert torch_files.load((tag / "zero" / name / "step.pt").read_bytes()) == 3
    optimizer = torch_files.load((tag / "zero/optimizer_state.pt").read_bytes())
    for groups in (optimizer["param_groups"], optimizer["optimizer_state_dict"]["param_groups"]):
        assert [group["betas"] for group in groups] == [(0.9, 0.95)]
    assert optimizer["optimizer_state_dict"]["state"][0]["step"] == 3
    rank = torch_files.load((tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").read_bytes())
    assert rank["module"] == {} and rank["global_steps"] == 3 and rank["dp_world_size"] == 1
    assert "intact" in ok("tp-ckpt", "verify", out).out
    imported(out, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(state.root)


def test_zero3_becomes_universal(bf16, tmp_path):
    foreign_files.zero3(tmp_path / "ds", groups_of(bf16), 3, 3)
    r = reshard(tmp_path / "ds", "--to", "tp1", "--config", bf16.config, "-o", tmp_path / "u")
    assert "deepspeed -> deepspeed" in r.out
    assert [d for d in digests(tmp_path / "u") if "master/" in d] == bf16.digests("master")
    r = run("tp-ckpt", "export", bf16.root, "--no-optim", "--format", "deepspeed", "-o", tmp_path / "w")
    assert r.rc == 2 and "has no master/" in r.err, repr(r)
    assert not (tmp_path / "w").exists()


# ---- all formats ----

@pytest.mark.parametrize("fmt", ["safetensors", "trainer", "gguf", "vllm", "dcp", "accelerate", "torchtitan", "megatron", "torch_dist", "deepspeed", "meta"])
def test_force_replaces_an_export_of_any_format(fmt, f32, tmp_path):
    export(f32, tmp_path / "out", fmt)
    (tmp_path / "out/README.md").write_text("mine")
    export(f32, tmp_path / "out", "safetensors", "--force")
    assert not (tmp_path / "out/README.md").exists() and (tmp_path / "out/model.safetensors").exists()


@pytest.mark.parametrize("fmt", ["dcp", "megatron"] + ["torch_dist", "deepspeed"] * harness.LONG)
def test_a_killed_export_leaves_the_old_folder_or_the_new_one(fmt, tmp_path):
    rng = random.Random(5)
    root, work = make(tmp_path / "source", "tp2"), tmp_path / "work"
    work.mkdir()
    argv = ["tp-ckpt", "export", root, "-o", work / "out", "--format", fmt, "--force"]
    shim = Shim(tmp_path, work)
    status, err = shim.run(argv)
    assert status == 0, err
    whole = harness.tree(work / "out")
    points = range(1, len(shim.points()) + 1)
    for at in points if harness.LONG else rng.sample(points, 4):
        shim.run(argv, at, "kill")
        assert harness.tree(work / "out") == whole, "killed at point %d" % at
    ok(*argv)
    assert not [p for p in work.rglob("*") if ".tmp" in p.name]


@pytest.mark.parametrize("fmt", ["safetensors", "gguf", "deepspeed"])
def test_a_layout_is_refused_where_the_files_have_none(fmt, f32, tmp_path):
    r = run("tp-ckpt", "export", f32.root, "-o", tmp_path / "out", "--format", fmt, "--layout", "tp2")
    assert r.rc == 2 and "--layout tp2: the files of %s are the same at every layout" % fmt in r.err, repr(r)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fmt, has_effect", [("safetensors", True), ("dcp", False), ("gguf", False)])
def test_a_limit_of_files_that_has_no_effect_is_said(fmt, has_effect, f32, tmp_path):
    """It is no error: scripts give --max-shard-size with any format."""
    r = export(f32, tmp_path / "out", fmt, "--max-shard-size", "64K")
    assert ("--max-shard-size has no effect with --format %s" % fmt in r.err) != has_effect, repr(r)


@pytest.mark.parametrize("fmt", ["dcp", "megatron"])
def test_a_layout_that_does_not_fit_is_refused(fmt, f32, tmp_path):
    r = run("tp-ckpt", "export", f32.root, "-o", tmp_path / "out", "--format", fmt, "--layout", "tp3")
    assert r.rc == 2 and "tp3" in r.err and not (tmp_path / "out").exists()


# ---- tp-reshard, which finds out the format ----

def reshard(source, *more):
    return ok("tp-reshard", source, "--mem", MEMORY, *more)


def test_reshard_writes_the_format_that_it_found(f32, tmp_path):
    export(f32, tmp_path / "dcp", "dcp", "--layout", "tp4")
    r = json.loads(reshard(str(tmp_path / "dcp") + "/", "--to", "tp2pp2", "--json").out)
    assert r["out"] == str(tmp_path / "dcp-tp2pp2") and r["format"] == r["from_format"] == "dcp"
    assert r["to"] == "tp2pp2" and r["step"] == 3 and r["digests_equal"] == r["tensors"] == len(f32.tensors)
    assert len(list((tmp_path / "dcp-tp2pp2").glob("*.distcp"))) == 4
    assert digests(tmp_path / "dcp-tp2pp2") == digests(f32.root)
    again = run("tp-reshard", tmp_path / "dcp", "--to", "tp2pp2")
    assert again.rc == 2 and "exists" in again.err
    reshard(tmp_path / "dcp", "--to", "tp2pp2", "--force")


def test_reshard_from_megatron_to_dcp_and_to_a_checkpoint(bf16, tmp_path):
    source = tmp_path / "megatron"
    foreign_files.Megatron(config_of(bf16), 2).legacy(source, groups_of(bf16), 3)
    (source / "tokenizer.json").write_text("{}")
    r = reshard(source, "--config", bf16.config, "--to", "tp4", "--format", "dcp", "-o", tmp_path / "dcp")
    assert "left out args" in r.out and "megatron -> dcp at tp4, step 3" in r.out
    found, _ = torch_files.load_dcp(tmp_path / "dcp")
    for name, want in bf16.group("master").items():
        assert same(found["model." + name], want)
    assert (tmp_path / "dcp/tokenizer.json").read_text() == "{}"
    reshard(source, "--config", bf16.config, "--to", "tp2", "--format", "tp", "-o", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(bf16.root)


def test_reshard_copies_the_tokenizer_of_assets(f32, tmp_path):
    export(f32, tmp_path / "dcp", "dcp")
    assets = tmp_path / "llama"
    assets.mkdir()
    (assets / "tokenizer.json").write_text('{"of": "assets"}')
    for source, fmt in ((tmp_path / "dcp", "safetensors"), (f32.root, "torch_dist")):
        (tmp_path / "dcp/tokenizer.json").write_text("{}")
        reshard(source, "--to", "tp1", "--format", fmt, "--assets", assets, "-o", tmp_path / fmt)
        assert (tmp_path / fmt / "tokenizer.json").read_text() == '{"of": "assets"}'
    for argv in ((f32.root, "--to", "tp1"), (tmp_path / "dcp", "--to", "tp1", "--format", "tp")):
        r = run("tp-reshard", *argv, "--assets", assets, "-o", tmp_path / "none")
        assert r.rc == 2 and "--assets is for formats of other frameworks" in r.err, repr(r)


def test_what_cannot_be_written_names_the_source(f32, tmp_path):
    torch_files.save(tmp_path / "hf/pytorch_model.bin", {k: torch_files.Tensor(v) for k, v in f32.group("param").items()})
    r = run("tp-reshard", tmp_path / "hf", "--config", f32.config, "--to", "tp2", "-o", tmp_path / "no")
    assert r.rc == 2 and "bin is read and not written" in r.err and "safetensors" in r.err, repr(r)
    r = run("tp-reshard", tmp_path / "hf", "--config", f32.config, "--to", "tp1", "--format", "deepspeed", "-o", tmp_path / "no")
    assert r.rc == 2 and str(tmp_path / "hf") in r.err and ".tmp" not in r.err and not (tmp_path / "no").exists(), repr(r)
    r = run("tp-reshard", tmp_path / "hf", "--to", "tp1", "--format", "nope", "-o", tmp_path / "no")
    assert r.rc == 2 and "unknown format 'nope'; it is one of safetensors, " in r.err, repr(r)
    assert "; or tp, a checkpoint of tp-train" in r.err, repr(r)


@pytest.mark.parametrize("verb", ["import", "export"])
def test_help_has_a_line_for_each_format(verb):
    """Their names come from the tables of formats."""
    text = ok("tp-ckpt", verb, "--help").out
    names = re.sub(r"\s", "", re.search(r"--format ([\w|\s-]*?)\s+format (of|to)", text)[1]).split("|")
    assert {"safetensors", "meta", "torch_dist"} <= set(names) and ("verl" in names) == (verb == "import")
    assert not [n for n in names if n != "auto" and "\n    %s " % n not in text]


def test_reshard_from_a_checkpoint_to_another_format(f32, tmp_path):
    r = json.loads(reshard(f32.root, "--to", "dp2zero1", "--format", "dcp", "-o", tmp_path / "dcp", "--json").out)
    assert r["to"] == "tp1dp2zero1" and r["from_format"] == "tp"
    imported(tmp_path / "dcp", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(f32.root)


@pytest.mark.parametrize("options,word", [(["--from", "tp2"], "--from"), (["--link"], "--link"), (["--no-clone"], "--no-clone"),
                                          (["--format", "onnx"], "onnx"), (["--from-format", "onnx"], "onnx"),
                                          (["--to", "tp3"], "tp3")])
def test_reshard_refuses_what_a_conversion_cannot_do(options, word, f32, tmp_path):
    export(f32, tmp_path / "dcp", "dcp")
    before = harness.tree(tmp_path)
    r = run("tp-reshard", tmp_path / "dcp", "--to", "tp2", *options) if "--to" not in options else run(
        "tp-reshard", tmp_path / "dcp", *options)
    assert r.rc == 2 and word in r.err and harness.tree(tmp_path) == before


def test_reshard_says_that_the_memory_of_a_gpu_has_no_effect(f32, tmp_path):
    """It is no error: scripts give --device-mem with any checkpoint."""
    said = "--device-mem has no effect"
    to = ("--to", "tp1", "--device-mem", "64M", "-o")
    assert said in reshard(f32.root, *to, tmp_path / "dcp", "--format", "dcp").err
    assert said in reshard(f32.root, *to, tmp_path / "cpu", "--device", "cpu").err
    assert said not in reshard(f32.root, *to, tmp_path / "auto").err
