"""tp-ckpt import and export of Megatron's formats with mixtures of experts: legacy folders at any tp, pp, vpp and ep, and
torch_dist. foreign_files.py says what Megatron's ranks have; tests/clients/test_megatron.py asks Megatron itself.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/megatron_map reshard/formats/megatron/megatron_params reshard/formats/megatron/megatron_stacked
"""
import itertools
import json

import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_export_formats import modules_of
from test_import_formats import GROUPS, MEMORY, State, config_of, digests, groups_of, import_, imported

FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())


def make_state(folder, family, **changes):
    """A family of tests/fixture/families.json in bf16, with four layers and a vocabulary that must be padded."""
    config = {**FAMILIES[family]["config"], "num_hidden_layers": 4, "vocab_size": 259, **changes}
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(config))
    return State(folder, folder / "model/config.json", dtype="bf16")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return {"mixtral": make_state(tmp_path_factory.mktemp("mixtral"), "mixtral", head_dim=6),
            "qwen3-moe": make_state(tmp_path_factory.mktemp("qwen3-moe"), "qwen3-moe")}


# family, tp, pp, vpp, ep, Transformer Engine's grouped layers
LEGACY = [("mixtral", 2, 2, 1, 2, False), ("qwen3-moe", 1, 2, 2, 4, False), ("mixtral", 4, 1, 1, 2, True), ("mixtral", 2, 1, 1, 2, "stacked")]
LEGACY += [("qwen3-moe", 2, 1, 1, 1, True), ("qwen3-moe", 1, 2, 1, 1, "stacked")] * harness.LONG


@pytest.mark.parametrize("family,tp,pp,vpp,ep,engine", LEGACY)
def test_experts_of_megatrons_ranks(family, tp, pp, vpp, ep, engine, states, tmp_path):
    state = states[family]
    megatron = foreign_files.Megatron(config_of(state), tp, pp, vpp, ep=ep, engine=engine is True, stacked=engine == "stacked")
    megatron.legacy(tmp_path / "m", groups_of(state), 3)
    r = imported(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert "step 3" in r.out and "left out 2: args, rng_state" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(state.root)


@pytest.mark.parametrize("family,tp,ep,chained", [("mixtral", 2, 2, ""), ("qwen3-moe", 1, 4, "chained_1.")])
def test_experts_of_torch_dist(family, tp, ep, chained, states, tmp_path):
    state = states[family]
    megatron = foreign_files.Megatron(config_of(state), tp, ep=ep)
    megatron.more_args["expert_tensor_parallel_size"] = 1
    megatron.torch_dist(tmp_path / "m", groups_of(state), 3, chained=chained)
    imported(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(state.root)


# family, tp, pp, vpp, ep, elements of a bucket, Transformer Engine's grouped layers; "0.17": since this version --moe-grouped-gemm makes
# no GroupedMLP of Megatron's own modules
FLAT = [("mixtral", 2, 1, 1, 2, 3000, "0.17"), ("qwen3-moe", 1, 2, 2, 4, None, True), ("mixtral", 2, 1, 1, 2, 2000, "stacked")]
FLAT += [("mixtral", 1, 1, 1, 1, 2000, True), ("qwen3-moe", 2, 2, 1, 1, None, "stacked")] * harness.LONG


@pytest.mark.parametrize("family,tp,pp,vpp,ep,bucket,engine", FLAT)
@pytest.mark.parametrize("kind", ["legacy", "dp_reshardable", "dp_zero_gather_scatter"])
def test_flat_buffers_of_experts(kind, family, tp, pp, vpp, ep, bucket, engine, states, tmp_path):
    state = states[family]
    megatron = foreign_files.Megatron(config_of(state), tp, pp, vpp, dp=2 * ep, bucket_size=bucket, ep=ep, engine=engine is True,
                                      stacked=engine == "stacked")
    megatron.more_args["moe_grouped_gemm"] = bool(engine)
    if engine == "0.17":
        megatron.more_args["async_strategy"] = "nvrx"
    if vpp > 1:  # the first chunk has layers without experts' buffers
        megatron.counts = [0, 2, 1, 1]
        megatron.more_args["pipeline_model_parallel_layout"] = "E|tt|t|tL"
    if kind == "legacy":
        megatron.legacy(tmp_path / "m", groups_of(state), 3, distributed=True)
    else:
        megatron.torch_dist(tmp_path / "m", groups_of(state), 3, kind)
    imported(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(state.root)


@pytest.mark.parametrize("family,tp,ep,chained", [("mixtral", 2, 2, ""), ("qwen3-moe", 1, 4, "chained_1.")])
def test_experts_of_fully_sharded_model_space(family, tp, ep, chained, states, tmp_path):
    state = states[family]
    megatron = foreign_files.Megatron(config_of(state), tp, dp=3, ep=ep)
    megatron.torch_dist(tmp_path / "m", groups_of(state), 3, "fully_sharded_model_space", chained=chained)
    imported(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(state.root)


def test_experts_of_grouped_mlp_are_refused_in_fully_sharded_model_space(states, tmp_path):
    state = states["mixtral"]
    megatron = foreign_files.Megatron(config_of(state), 2, ep=2, stacked=True)
    megatron.torch_dist(tmp_path / "m", groups_of(state), 3, "fully_sharded_model_space")
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "w1.weight is missing; --no-optim" in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)
    imported(state, tmp_path / "m", tmp_path / "ckpt", "--no-optim")
    assert digests(tmp_path / "ckpt") == state.digests("param")


# how it is stored, tp, ep, elements of a bucket, rows of a block: of 40 rows of gate, two ranks have 5 blocks of 4 each
BLOCKS = [("legacy", 2, 2, None, 4), ("torch_dist", 2, 2, None, 4), ("torch_dist", 1, 4, None, 8), ("dp_reshardable", 2, 2, None, 10),
          ("distributed", 2, 2, 3000, 2)]


@pytest.mark.parametrize("kind,tp,ep,bucket,block", BLOCKS)
def test_gate_and_up_in_blocks(kind, tp, ep, bucket, block, states, tmp_path):
    state = states["mixtral"]
    megatron = foreign_files.Megatron(config_of(state), tp, dp=ep, bucket_size=bucket, ep=ep, engine=True).in_blocks(block)
    if kind in ("legacy", "distributed"):
        megatron.legacy(tmp_path / "m", groups_of(state), 3, distributed=kind == "distributed")
    else:
        megatron.torch_dist(tmp_path / "m", groups_of(state), 3, kind if kind != "torch_dist" else None)
    r = imported(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert "args.moe_mlp_glu_interleave_size" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(state.root)


def test_blocks_become_whole_in_another_folder_of_megatron(states, tmp_path):
    state = states["mixtral"]
    foreign_files.Megatron(config_of(state), 2, ep=2, engine=True).in_blocks(4).torch_dist(tmp_path / "m", groups_of(state), 3)
    for fmt in ("megatron", "torch_dist"):
        r = ok("tp-reshard", tmp_path / "m", "--to", "tp4", "--format", fmt, "--config", state.config, "-o", tmp_path / fmt)
        assert "args.moe_mlp_glu_interleave_size" in r.out, repr(r)
        assert digests(tmp_path / fmt) == digests(state.root)


def test_experts_that_are_not_grouped_have_no_blocks(states, tmp_path):
    state = states["mixtral"]
    megatron = foreign_files.Megatron(config_of(state), 2, ep=2)
    megatron.more_args["moe_mlp_glu_interleave_size"] = 4
    megatron.legacy(tmp_path / "m", groups_of(state), 3)
    imported(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(state.root)


@pytest.mark.parametrize("args,beside,word", [({"moe_mlp_glu_interleave_size": 8}, {}, "8, which does not divide the 20 rows of gate"),
                                            ({"moe_mlp_glu_interleave_size": "8"}, {}, "not a number"),
                                            ({"moe_use_legacy_grouped_gemm": True}, {}, "GroupedMLP"),
                                            ({}, {"glu_checkpoint_layout": {"model": "contiguous"}}, "glu_checkpoint_layout")])
@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
def test_blocks_that_cannot_be_read_are_named(kind, args, beside, word, states, tmp_path):
    state = states["mixtral"]
    megatron = foreign_files.Megatron(config_of(state), 2, ep=2, engine=True).in_blocks(4)
    megatron.more_args.update(args)
    megatron.more_root.update(beside)
    getattr(megatron, kind)(tmp_path / "m", groups_of(state), 3)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc in (2, 3) and len(r.lines) == 1 and word in r.err and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
def test_an_optimizer_in_another_order_than_the_weights_is_refused(kind, states, tmp_path):
    """As Megatron-Bridge saves: weights in the order of Hugging Face, the optimizer in blocks."""
    state = states["mixtral"]
    groups, swapped = groups_of(state), foreign_files.Megatron(config_of(state)).in_blocks(4)
    groups["param"] = {**groups["param"]}
    for name in [k for k in groups["param"] if ".w1." in k]:
        up = name.replace(".w1.", ".w3.")
        fc1 = swapped.expert_fc1(groups["param"][name], groups["param"][up], 0, 1)
        groups["param"][name], groups["param"][up] = np.split(fc1, 2)
    getattr(foreign_files.Megatron(config_of(state), 2, ep=2, engine=True).in_blocks(4), kind)(tmp_path / "m", groups, 3)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "masters of" in r.err and "--no-optim" in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


@pytest.mark.parametrize("change,word", [({"moe_grouped_gemm": True}, "cut elsewhere than between"),
                                         ({"expert_model_parallel_size": 1}, "of a rank that the job of common.pt did not have"),
                                         ({"expert_tensor_parallel_size": 1}, "of a rank")])
def test_flat_buffers_of_another_job_are_refused(change, word, states, tmp_path):
    state = states["mixtral"]
    megatron = foreign_files.Megatron(config_of(state), 2, dp=4, ep=2)
    megatron.more_args.update(change)
    megatron.torch_dist(tmp_path / "m", groups_of(state), 3, "dp_reshardable")
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc in (2, 3) and len(r.lines) == 1 and word in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
@pytest.mark.parametrize("change,word", [({"num_experts": 8}, "num_experts 8"), ({"moe_ffn_hidden_size": 80}, "moe_ffn_hidden_size 80"),
                                         ({"expert_model_parallel_size": 3}, "does not divide the 4 experts")])
def test_experts_of_another_model_are_refused(kind, change, word, states, tmp_path):
    state = states["qwen3-moe"]
    megatron = foreign_files.Megatron(config_of(state))
    megatron.more_args.update(change)
    getattr(megatron, kind)(tmp_path / "m", groups_of(state), 3)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 2 and word in r.err and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("what,word", [("rank", "mp_rank_01_001"), ("expert", "experts.2"), ("tp", "cut over 1 ranks"),
                                       ("distributed", "expected two, the second one for experts"), ("optimizer", "optimizer has")])
def test_what_is_missing_of_experts_is_named(what, word, states, tmp_path):
    state = states["mixtral"]
    megatron = foreign_files.Megatron(config_of(state), 2, ep=2)
    if what == "tp":
        megatron.more_args["expert_tensor_parallel_size"] = 1
    if what == "expert":  # as if ranks had no third one
        megatron.local_expert = lambda name, ep_rank: None if ".2." in name else foreign_files.Megatron.local_expert(
            megatron, name, ep_rank)
    if what == "optimizer":
        megatron.optimizers = lambda chunks, step: [megatron.ordinary(chunks, step)] * 2
    if what == "distributed":
        megatron.by_optimizer = lambda chunks: [chunks]
    megatron.legacy(tmp_path / "m", groups_of(state), 3, distributed=what == "distributed")
    if what == "rank":
        (tmp_path / "m/iter_0000003/mp_rank_01_001/model_optim_rng.pt").unlink()
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc in (2, 3) and len(r.lines) == 1 and word in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


# ---- export ----

def named(found, want, *name):
    assert found.shape == want.shape and np.array_equal(found.view(np.uint8), want.view(np.uint8)), name


@pytest.mark.parametrize("modules", ["local", "grouped", "sequential"])
@pytest.mark.parametrize("family,tp,pp,vpp,ep", [("mixtral", 2, 2, 1, 2), ("qwen3-moe", 1, 2, 2, 4)] + [("mixtral", 4, 1, 1, 1)] * harness.LONG)
def test_megatrons_ranks_get_their_experts(family, tp, pp, vpp, ep, modules, states, tmp_path):
    state, out = states[family], tmp_path / "m"
    layout = "tp%dpp%dep%d" % (tp, pp, ep) + ("vpp%d" % vpp if vpp > 1 else "")
    r = ok("tp-ckpt", "export", state.root, "-o", out, "--format", "megatron", "--layout", layout, "--mem", MEMORY,
           *modules_of(modules != "local"), *["--moe-experts", "sequential"] * (modules == "sequential"))
    assert "with --moe-grouped-gemm" in r.err if modules == "grouped" else "without --moe-grouped-gemm" in r.err, repr(r)
    reference = foreign_files.Megatron(config_of(state), tp, pp, vpp, padding=128, ep=ep, engine=modules != "local",
                                       sequential=modules == "sequential")
    reference.fill = foreign_files.LAST_ROW
    for place in itertools.product(range(tp), range(pp), range(ep)):
        root = torch_files.load((out / "iter_0000003" / reference.folder(*place) / "model_optim_rng.pt").read_bytes())
        chunks = reference.chunks(groups_of(state), *place)
        assert root["args"].num_experts == 4 and root["args"].expert_model_parallel_size == ep
        assert root["args"].moe_grouped_gemm is (modules == "grouped")
        for c, chunk in enumerate(chunks):
            model = {k: v for k, v in root["model%d" % c if vpp > 1 else "model"].items() if "_extra_state" not in k}
            assert list(model) == list(chunk["param"])
            states_of = {k for k in root["model%d" % c if vpp > 1 else "model"] if "_extra_state" in k}
            assert states_of == reference.extra_states(chunk["param"])
            for name, want in chunk["param"].items():
                named(model[name], want, "param", name)
        optimizers = root["optimizer"] if ep > 1 else [root["optimizer"]]
        wanted = reference.optimizers(chunks, 3) if ep > 1 else [reference.optimizers(chunks, 3)]
        for i, (optimizer, want) in enumerate(zip(optimizers, wanted, strict=True)):
            for number, moments in want["optimizer"]["state"].items():
                for group in GROUPS:
                    named(optimizer["optimizer"]["state"][number][group], moments[group].storage.reshape(
                        moments[group].shape), group, number)
            for group, masters in zip(optimizer["fp32_from_fp16_params"], want["fp32_from_fp16_params"]):
                for x, master in zip(group, masters, strict=True):
                    named(x, master.storage.reshape(master.shape), "master", "")
            assert len(optimizer["optimizer"]["state"]) == len(want["optimizer"]["state"])
            assert [g["is_expert_parallel"] for g in optimizer["optimizer"]["param_groups"]] == [[False, False], [True]][i]


@pytest.mark.parametrize("family,layout", [("mixtral", "tp2pp2ep2"), ("qwen3-moe", "tp4")])
def test_torch_dist_has_an_axis_of_experts(family, layout, states, tmp_path):
    state = states[family]
    ok("tp-ckpt", "export", state.root, "-o", tmp_path / "m", "--format", "torch_dist", "--layout", layout, "--mem", MEMORY)
    found, _ = torch_files.load_dcp(tmp_path / "m/iter_0000003")
    reference = foreign_files.Megatron(config_of(state))
    heads = {"param": "", "master": "optimizer.state.fp32_param.", "exp_avg": "optimizer.state.exp_avg.",
             "exp_avg_sq": "optimizer.state.exp_avg_sq."}
    for group, tensors in groups_of(state).items():
        for name, (want, _) in reference.stacked(reference, tensors).items():
            name = name.replace(".input_layernorm.", ".self_attention.linear_qkv.layer_norm_")
            named(found.pop(heads[group] + name), want, group, name)
    states_of = [k for k in found if "experts.linear_fc1._extra_state" in k]
    assert sorted(states_of) == ["decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_%d.%d_4.4" % at
                                 for at in np.ndindex(4, 4)]
    norms = {"decoder.layers.%s_layernorm._extra_state/shard_%d_4" % (x, i) for x in ("pre_mlp", *(
        ("self_attention.q", "self_attention.k") if family == "qwen3-moe" else ())) for i in range(4)}
    assert {k for k in found if "norm._extra_state" in k} == {*norms, "decoder.final_layernorm._extra_state/shard_0_1"}
    common = torch_files.load((tmp_path / "m/iter_0000003/common.pt").read_bytes())
    assert list(common["optimizer"]) == ([0, 1] if "ep2" in layout else ["optimizer"])


@pytest.mark.parametrize("fused", [False, True])
def test_the_norm_before_experts_keeps_its_name(fused, states, tmp_path):
    """Megatron-core's own modules save it in torch_dist under a name that Transformer Engine's have for dense layers only."""
    state, names = states["mixtral"], ["decoder.layers.pre_mlp_layernorm.weight", "decoder.layers.mlp.linear_fc1.layer_norm_weight"]

    def rename(tensors, _):
        for name in [k for k in tensors if fused and k.endswith(names[0])]:
            tensors[name.replace(*names)] = tensors.pop(name)

    foreign_files.Megatron(config_of(state), 2).torch_dist(tmp_path / "m", groups_of(state), 3, change=rename)
    ok("tp-reshard", tmp_path / "m", "--to", "ep2", "--config", state.config, "-o", tmp_path / "there", "--mem", MEMORY)
    found, _ = torch_files.load_dcp(tmp_path / "there/iter_0000003")
    assert [name in found for name in names] == [not fused, fused]
    assert any("pre_mlp_layernorm._extra_state" in k for k in found) != fused
    assert digests(tmp_path / "there") == digests(state.root)


def test_experts_from_one_layout_of_megatron_to_another(states, tmp_path):
    state, at = states["qwen3-moe"], tmp_path / "m"
    ok("tp-ckpt", "export", state.root, "-o", at, "--format", "megatron", "--layout", "tp2pp2")
    for to, fmt in (("tp2ep2", "megatron"), ("tp1pp2ep4", "megatron-dist"), ("tp2ep2", "torch_dist")):
        ok("tp-reshard", at, "--to", to, "--format", fmt, "-o", tmp_path / (to + fmt), "--mem", MEMORY)
        at = tmp_path / (to + fmt)
        assert digests(at) == digests(state.root)
    r = run("tp-reshard", at, "--to", "ep3")
    assert r.rc == 2 and not (tmp_path / "m-tp1ep3").exists() and len(r.lines) == 1, repr(r)


def test_the_distributed_optimizer_of_experts_on_several_ranks(states, tmp_path):
    state = states["mixtral"]
    ok("tp-ckpt", "export", state.root, "--format", "torch_dist", "--layout", "tp1ep2", "-o", tmp_path / "m", "--distributed-optimizer")
    found, _ = torch_files.load_dcp(tmp_path / "m/iter_0000003")
    reference = foreign_files.Megatron(config_of(state))
    name = "decoder.layers.mlp.experts.experts.linear_fc2.weight"
    named(found["optimizer.state.param." + name], reference.stacked(reference, state.group("master"))[name][0], name)
    optimizers = torch_files.load((tmp_path / "m/iter_0000003/common.pt").read_bytes())["optimizer"]
    assert [[g["is_expert_parallel"] for g in o["optimizer"]["param_groups"]] for o in optimizers.values()] == [[False, False], [True]]
    assert digests(tmp_path / "m") == digests(state.root)
