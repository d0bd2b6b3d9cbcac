"""What Megatron-FSDP saves as fsdp_dtensor: import, look at it, convert it to torch_dist, and what is refused. Files that the framework
itself saves are in tests/clients/test_megatron_fsdp.py.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/fsdp_dtensor reshard/formats/megatron/fsdp_dtensor_root reshard/formats/megatron/fused_piece
    reshard/formats/torch/dcp_piece
"""
import numpy as np
import pytest

import foreign_files
import harness
import test_bridge
import torch_files
from harness import ok, run
from state import State, digests
from test_extras import ARGS, SCHEDULE
from test_import_formats import config_of, groups_of

MIXTRAL = dict(architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
DECAYING = {"wd_mult": 1.0, "lr": 0.004, "max_lr": 0.02, "min_lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-9, "weight_decay": 0.3}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """{name: State}: four layers of a vocabulary that must be padded, in bf16 and f32, and experts."""
    folder = tmp_path_factory.mktemp("states")
    kinds = {"bf16": ({}, "bf16"), "f32": ({}, "f32"), "experts": (MIXTRAL, "bf16")}
    return {name: State(folder / name, harness.write_config(folder / name / "model", num_hidden_layers=4, vocab_size=259, **changes),
                        dtype=dtype) for name, (changes, dtype) in kinds.items()}


def megatron_of(state, dtype="bf16", **sizes):
    m = foreign_files.Megatron(config_of(state), engine=True, **sizes)
    m.more_args.update(bf16=dtype == "bf16", fp16=False, use_megatron_fsdp=True)
    return m


def import_(state, source, root, *more):
    return run("tp-ckpt", "import", source, "--config", state.config, "-o", root, *more)


@pytest.mark.parametrize("tp,dp", [(1, 1), (2, 3), (4, 5)])
@pytest.mark.parametrize("kind", ["bf16", "f32", "experts"])
def test_with_the_optimizer(kind, tp, dp, states, tmp_path):
    state = states[kind]
    megatron_of(state, "f32" if kind == "f32" else "bf16", tp=tp, dp=dp).fsdp_dtensor(tmp_path / "m", groups_of(state), 3)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert r.rc == 0 and "Megatron-FSDP" in r.out and "step 3" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(state.root)


@pytest.mark.parametrize("how", ["sequential", "joined"])
def test_experts_in_separate_modules_and_with_gate_and_up_in_one_tensor(how, states, tmp_path):
    state = states["experts"]
    megatron_of(state, sequential=how == "sequential").fsdp_dtensor(tmp_path / "m", groups_of(state), 3, joined=how == "joined")
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 0 and digests(tmp_path / "ckpt") == digests(state.root), repr(r)


def test_weights_of_a_job_in_bf16_are_rounded_masters(states, tmp_path):
    state = states["bf16"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", {"master": groups_of(state)["master"]}, 3)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 0, repr(r)
    assert digests(tmp_path / "ckpt") == state.digests("param")


def test_it_can_be_looked_at(states, tmp_path):
    state = states["bf16"]
    megatron_of(state, tp=2, dp=3).fsdp_dtensor(tmp_path / "m", groups_of(state), 3)
    assert "fsdp_dtensor" in ok("tp-ckpt", "ls", tmp_path / "m", "--config", state.config).out
    assert ok("tp-ckpt", "verify", tmp_path / "m", "--config", state.config).out.startswith("intact: ")
    assert ok("tp-ckpt", "diff", tmp_path / "m", state.root, "--config", state.config).rc == 0
    shown = ok("tp-ckpt", "show", tmp_path / "m", "master/model.layers.1.mlp.up_proj.weight", "--config", state.config).out
    assert "_0.distcp" in shown, shown


def test_the_step_is_the_optimizers_and_not_the_iteration(states, tmp_path):
    state = states["bf16"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", groups_of(state), 5, options={"linear_qkv.weight": {**DECAYING, "step": 3}})
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 0 and [x.name for x in (tmp_path / "ckpt").glob("step-*")] == ["step-00000003"], repr(r)


def test_what_does_not_depend_on_the_layout_is_carried_to_torch_dist(states, tmp_path):
    state = states["bf16"]
    m = megatron_of(state, tp=2, dp=2)
    m.more_root = {"opt_param_scheduler": SCHEDULE, "num_floating_point_operations_so_far": 1e20,
                   "rng_state": {"(0, 0).0.random_rng_state": (3, 4)}, "rerun_state_machine": {"mode": "x", "sharded.y": 3}}
    m.more_args.update(ARGS, num_layers=4, params_dtype=torch_files.torch.bfloat16)
    m.fsdp_dtensor(tmp_path / "m", groups_of(state), 3, options={
        "word_embeddings.weight": {"lr": 9.0}, "linear_qkv.weight": DECAYING})  # --decoupled-lr is of the embedding
    r = ok("tp-reshard", tmp_path / "m", "--to", "pp2", "--format", "torch_dist", "--config", state.config, "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(state.root)
    inside = tmp_path / "out/iter_0000003"
    root = torch_files.load((inside / "common.pt").read_bytes())
    assert root["opt_param_scheduler"] == SCHEDULE and root["num_floating_point_operations_so_far"] == 1e20
    assert root["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    args = vars(root["args"])
    assert {k: args[k] for k in ("consumed_train_samples", "seed", "blend")} == {k: ARGS[k] for k in ("consumed_train_samples", "seed", "blend")}
    assert not {"use_megatron_fsdp", "params_dtype"} & set(args) and args["pipeline_model_parallel_size"] == 2
    group = root["optimizer"]["optimizer"]["param_groups"][0]
    assert {k: group[k] for k in DECAYING} == DECAYING
    assert "left out args.params_dtype, rng_state, rerun_state_machine\n" in r.out, repr(r)


@pytest.fixture
def bridged(states, tmp_path):
    """What Megatron-Bridge saves: no arguments, but files beside the tensors."""
    state = states["bf16"]
    m = megatron_of(state)
    m.more_root = {"opt_param_scheduler": SCHEDULE}
    m.fsdp_dtensor(tmp_path / "m", groups_of(state), test_bridge.STEP, lambda tensors, objects: objects.pop("args"))
    config = test_bridge.run_config(config_of(state), bf16=True)
    config["checkpoint"]["ckpt_format"], config["ddp"]["use_megatron_fsdp"] = "fsdp_dtensor", True
    (inside,) = (tmp_path / "m").glob("iter_*")
    (inside / "run_config.yaml").write_text(test_bridge.text_of(config))
    torch_files.save(inside / "train_state.pt", test_bridge.train_state(test_bridge.STEP))
    return tmp_path / "m", state, config


def test_bridges_config_takes_the_place_of_arguments(bridged, tmp_path):
    source, state, _ = bridged
    r = ok("tp-ckpt", "import", source, "-o", tmp_path / "ckpt")
    assert "run_config.yaml: there is no config.json, so one is made" in r.err and "LlamaForCausalLM" in r.err, repr(r)
    assert digests(tmp_path / "ckpt") == digests(state.root)


def test_bridges_files_come_along_to_torch_dist(bridged, tmp_path):
    source, state, config = bridged
    r = ok("tp-reshard", source, "--to", "tp2", "--format", "torch_dist", "-o", tmp_path / "out")
    assert "run_config.yaml" not in r.out, repr(r)
    (inside,) = (tmp_path / "out").glob("iter_*")
    lines = (inside / "run_config.yaml").read_text().splitlines()
    assert "  ckpt_format: torch_dist" in lines and "  use_megatron_fsdp: false" in lines and "  tensor_model_parallel_size: 2" in lines
    assert (inside / "train_state.pt").read_bytes() == next(source.glob("iter_*/train_state.pt")).read_bytes()
    assert torch_files.load((inside / "common.pt").read_bytes())["opt_param_scheduler"] == SCHEDULE


def test_experts_that_bridge_has_in_blocks_are_refused(states, tmp_path):
    state = states["experts"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", groups_of(state), 3, lambda tensors, objects: objects.pop("args"))
    (inside,) = (tmp_path / "m").glob("iter_*")
    (inside / "run_config.yaml").write_text(test_bridge.text_of(test_bridge.run_config(config_of(state), num_moe_experts=4)))
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 2 and "moe_mlp_glu_interleave_size" in r.err, repr(r)


def drop_half(tensors, objects):
    del tensors["model.module.decoder.layers.2.mlp.linear_fc1.weight_v"]


def cut_half(tensors, objects):
    name = "optimizer.state.module.module.module.decoder.layers.1.mlp.linear_fc1.weight_w.exp_avg"
    array, boxes = tensors[name]
    tensors[name] = (array[:-1], [(lo, (min(n[0], len(array) - 1 - lo[0]), *n[1:])) for lo, n in boxes])


def add_layer(tensors, objects):
    tensors["model.module.decoder.layers.4.mlp.linear_fc2.weight"] = tensors["model.module.decoder.layers.3.mlp.linear_fc2.weight"]


def go_beyond(tensors, objects):
    name = "model.module.decoder.layers.0.mlp.linear_fc1.weight_w"
    array, boxes = tensors[name]
    tensors[name] = (array, [((len(array) - 1, 0), (2, array.shape[1])), *boxes])


def add_axis(tensors, objects):
    array, _ = tensors["model.module.decoder.final_layernorm.weight"]
    tensors["model.module.decoder.final_layernorm.weight"] = (array[None, None], [((0, 0, 0), (1, 1, len(array)))])


def keep_masters(tensors, objects):
    head = "optimizer.state.module.module.module.decoder.final_layernorm.weight."
    tensors[head + "master_param"] = tensors[head + "exp_avg"]


def unknown_tensor(tensors, objects):
    tensors["model.module.decoder.layers.1.mlp.shared.weight"] = tensors["model.module.decoder.final_layernorm.weight"]


def other_step(tensors, objects):
    step = np.array(4, np.float32)
    tensors["optimizer.state.module.module.module.decoder.final_layernorm.weight.step"] = (step, [((), ())])


@pytest.mark.parametrize("change,word", [
    (drop_half, "model.layers.2.mlp.up_proj.weight"), (cut_half, "linear_fc1.weight_w.exp_avg has another shape"),
    (add_layer, "is of layer 4, the model has 4 layers"), (go_beyond, "has a chunk beyond its end"),
    (add_axis, "is neither a matrix nor a vector"), (keep_masters, "use_precision_aware_optimizer"),
    (unknown_tensor, "decoder.layers.*.mlp.shared.weight"), (other_step, "step")], ids=lambda x: getattr(x, "__name__", ""))
def test_damage_and_what_is_not_known_are_refused_by_name(change, word, states, tmp_path):
    state = states["bf16"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", groups_of(state), 3, change)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc in (2, 3) and word in r.err and not list((tmp_path / "ckpt").glob("step-*")), repr(r)
    if change is keep_masters:
        assert import_(state, tmp_path / "m", tmp_path / "ckpt", "--no-optim").rc == 0


@pytest.mark.parametrize("changes,joined,word", [
    ({"pipeline_model_parallel_size": 2}, False, "pipeline stages"), ({"moe_mlp_glu_interleave_size": 8}, False, "interleave_size"),
    ({"expert_tensor_parallel_size": 2}, True, "expert_tensor_parallel_size 2"), ({"hidden_size": 8}, False, "hidden_size 8")])
def test_jobs_that_are_not_read_are_refused_by_their_arguments(changes, joined, word, states, tmp_path):
    state = states["experts"]
    m = megatron_of(state)
    m.more_args.update(changes)
    m.fsdp_dtensor(tmp_path / "m", groups_of(state), 3, joined=joined)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 2 and word in r.err, repr(r)


def test_without_config_and_arguments_it_says_what_is_missing(states, tmp_path):
    state = states["bf16"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", groups_of(state), 3, lambda tensors, objects: objects.pop("args"))
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "--config" in r.err and "run_config.yaml" in r.err, repr(r)
    assert import_(state, tmp_path / "m", tmp_path / "ckpt").rc == 0


def test_a_tensor_that_the_model_does_not_have_can_be_left_out_on_purpose(states, tmp_path):
    state = states["bf16"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", groups_of(state), 3, unknown_tensor)
    r = import_(state, tmp_path / "m", tmp_path / "ckpt", "--ignore", "model.module.decoder.layers.*.mlp.shared.weight")
    assert r.rc == 0 and digests(tmp_path / "ckpt") == digests(state.root), repr(r)


def test_it_is_not_written(states, tmp_path):
    state = states["bf16"]
    megatron_of(state).fsdp_dtensor(tmp_path / "m", groups_of(state), 3)
    r = run("tp-reshard", tmp_path / "m", "--to", "tp2", "--config", state.config)
    assert r.rc == 2 and "fsdp_dtensor is read and not written" in r.err and "torch_dist" in r.err, repr(r)
