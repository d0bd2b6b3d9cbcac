"""Checkpoints of Megatron-Bridge and of NeMo 2: torch_dist whose model and job are said by run_config.yaml or by context/model.yaml,
not by arguments in common.pt. Those that the frameworks' own code saves are in tests/clients/test_bridge.py and test_nemo.py.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/bridge_args reshard/formats/megatron/bridge_files reshard/formats/megatron/torch_dist_root
    reshard/formats/megatron/yaml_tree
"""
import json
import shutil

import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_import_formats import State, config_of, groups_of

GROUP = {"wd_mult": 1.0, "lr": 0.004, "max_lr": 0.02, "min_lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-9, "weight_decay": 0.3}
SCHEDULE = {"max_lr": 0.02, "lr_warmup_steps": 10, "num_steps": 640, "lr_decay_style": "cosine", "end_wd": 0.1, "start_wd": None}
COUNTERS = {"consumed_train_samples": 4096, "skipped_train_samples": 3, "consumed_valid_samples": 50}
STEP = 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A vocabulary that must be padded, in bf16 with masters and moments."""
    folder = tmp_path_factory.mktemp("llama")
    return State(folder, harness.write_config(folder / "model", num_hidden_layers=4, vocab_size=259), dtype="bf16")


def digests(path, *more):
    return ok("tp-ckpt", "digest", path, *more).out.splitlines()[:-1]


def model_of(config, tp, pp, **changes):
    """The fields of Bridge's GPTModelProvider that matter, and some that do not."""
    return {"_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider", "num_layers": config["num_hidden_layers"],
            "hidden_size": config["hidden_size"], "ffn_hidden_size": config["intermediate_size"],
            "num_attention_heads": config["num_attention_heads"], "num_query_groups": config["num_key_value_heads"],
            "kv_channels": config["head_dim"], "seq_length": config["max_position_embeddings"],
            "layernorm_epsilon": config["rms_norm_eps"], "rotary_base": 10000, "rotary_percent": 1.0,
            "position_embedding_type": "rope", "normalization": "RMSNorm", "gated_linear_unit": True,
            "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False}, "add_bias_linear": False,
            "add_qkv_bias": False, "qk_layernorm": False, "share_embeddings_and_output_weights": False, "rope_scaling": False,
            "vocab_size": 259, "should_pad_vocab": True, "make_vocab_size_divisible_by": 8, "window_size": None,
            "num_moe_experts": None, "moe_layer_freq": 1, "init_method": {"_target_": "torch.nn.init.normal_", "_partial_": True},
            "transformer_layer_spec": {"_target_": "megatron.bridge.models.gpt_provider.local_layer_spec", "_call_": False},
            "hf_model_id": "org/a-model", "moe_mlp_glu_interleave_size": 16, "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": None, "expert_model_parallel_size": 1,
            "expert_tensor_parallel_size": tp, "num_layers_in_first_pipeline_stage": None, "pipeline_model_parallel_layout": None,
            "sequence_parallel": tp > 1, **changes}


def block(value, indent=0):
    """YAML in the style of PyYAML's safe_dump."""
    lines = []
    for key, v in sorted(value.items()):
        lines.append("%s%s:" % (" " * indent, key))
        if isinstance(v, dict):
            lines += block(v, indent + 2)
        elif isinstance(v, list):
            lines += [" " * indent + "- " + (json.dumps(x) if not isinstance(x, list) else "\n".join(
                [("" if i == 0 else " " * indent + "  ") + "- " + y for i, y in enumerate(x)])) for x in v]
        else:
            lines[-1] += " " + (v if isinstance(v, str) else json.dumps(v))
    return lines


def run_config(config, tp=1, pp=1, **changes):
    return {"_target_": "megatron.bridge.training.config.ConfigContainer", "model": model_of(config, tp, pp, **changes),
            "checkpoint": {"save_optim": True, "save_rng": True, "save": "/ckpt/a run: #1 \u00fc", "ckpt_format": "torch_dist"},
            "ddp": {"overlap_grad_reduce": False, "bucket_size": None, "use_distributed_optimizer": True}, "dist": None}


def text_of(config):
    return "\n".join(block({**config, "checkpoint": {**config["checkpoint"], "save": json.dumps(config["checkpoint"]["save"])}})) + "\n"


def train_state(step, dtype=np.int64):
    numbers = {"step": step, **COUNTERS}
    return {k: torch_files.Tensor(np.array(v, dtype)) for k, v in numbers.items()}


def bridge(folder, state, tp=1, pp=1, kind=None, step=STEP, dtype=np.int64, config=None, job=None, core_019=False, **changes):
    """Write FOLDER as Bridge does. job: more of how Megatron's ranks shared the work. core_019: as with Megatron-core 0.19."""
    m = foreign_files.Megatron(config_of(state), tp, pp, **job or {})
    own = {} if kind else {"optimizer": {"param_groups": [{"wd_mult": 0, "lr": 9.0}, GROUP]}}
    root = {"checkpoint_version": 3.0, "iteration": STEP, "opt_param_scheduler": SCHEDULE, "rerun_state_machine": {"mode": 1},
            "optimizer": own, "content_metadata": {"singleton_local_shards": False}}

    def change(tensors, objects):
        if kind:
            options(tensors, objects)
        if core_019:
            objects["common_state/shard_0_1"] = [root]

    m.torch_dist(folder, groups_of(state), STEP, kind, change=change)
    inside = folder / ("iter_%07d" % STEP)
    torch_files.save(inside / "common.pt", root)
    if core_019:
        (inside / "common.pt").unlink()
    (inside / "run_config.yaml").write_text(text_of(config or run_config(config_of(state), tp, pp, **changes)))
    for path in (inside / "train_state.pt", folder / "latest_train_state.pt"):
        torch_files.save(path, train_state(step, dtype))
    return inside


def options(_, objects):
    for name in objects:
        if ".optimizer/shard" in name:
            objects[name] = [{"param_groups": [{"wd_mult": 0, "lr": 9.0}, GROUP]}]


def common_of(folder):
    return torch_files.load((folder / ("iter_%07d" % STEP) / "common.pt").read_bytes())


@pytest.mark.parametrize("kind,tp,pp", [(None, 1, 1), ("dp_reshardable", 2, 2), ("dp_zero_gather_scatter", 2, 1)])
def test_the_run_config_takes_the_place_of_arguments(kind, tp, pp, llama, tmp_path):
    inside = bridge(tmp_path / "m", llama, tp, pp, kind)
    for path in (tmp_path / "m", inside):
        r = ok("tp-ckpt", "digest", path)
        assert "run_config.yaml: there is no config.json, so one is made" in r.err and "LlamaForCausalLM" in r.err, repr(r)
        assert "vocabulary of 259, without the" in r.err, repr(r)
        assert digests(path) == digests(llama.root)
        ok("tp-ckpt", "verify", path)
    r = ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(llama.root) and "step 3" in r.out, repr(r)


@pytest.mark.parametrize("kind,tp,pp", [(None, 1, 1), ("dp_reshardable", 2, 2)])
def test_the_common_state_may_be_an_object_among_the_tensors(kind, tp, pp, llama, tmp_path):
    """Megatron-core 0.19 writes no common.pt."""
    inside = bridge(tmp_path / "m", llama, tp, pp, kind, core_019=True)
    r = ok("tp-reshard", inside, "--to", "tp4", "-o", tmp_path / "out")
    assert digests(inside) == digests(tmp_path / "out") == digests(llama.root) and "common_state/shard" not in r.out, repr(r)
    ok("tp-ckpt", "verify", inside)
    root = common_of(tmp_path / "out")
    group = root["optimizer"]["optimizer"]["param_groups"][0]
    assert {k: group[k] for k in GROUP} == GROUP and root["opt_param_scheduler"] == SCHEDULE and root["iteration"] == STEP


def test_without_a_common_state_the_error_names_both_places(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama)
    (inside / "common.pt").unlink()
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 3 and "has no common.pt, and .metadata no common_state/shard_0_1" in r.err, repr(r)


@pytest.mark.parametrize("bucket,vpp,engine,layout", [
    (None, 1, True, None), (40000, 1, False, None), (None, 2, False, None), (None, 2, True, [["embedding", "decoder"], ["decoder"], ["decoder"], [
        "decoder", "loss"]])])
def test_flat_buffers_are_taken_apart_as_the_run_config_says(bucket, vpp, engine, layout, llama, tmp_path):
    """Buckets, virtual stages, their layout, and the order of modules of Transformer Engine's layers."""
    spec = {"_target_": "megatron.bridge.models.gpt_provider.%s_layer_spec" % ("default" if engine else "local"), "_call_": False}
    config = run_config(config_of(llama), 1, 2, transformer_layer_spec=spec, **{
        "pipeline_model_parallel_layout": layout, "virtual_pipeline_model_parallel_size": None if layout or vpp == 1 else vpp})
    config["ddp"].update(overlap_grad_reduce=bucket is not None, bucket_size=bucket)
    bridge(tmp_path / "m", llama, 1, 2, "dp_reshardable", config=config, job=dict(vpp=vpp, bucket_size=bucket, engine=engine))
    assert digests(tmp_path / "m") == digests(llama.root)
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")  # compares masters with weights


@pytest.mark.parametrize("kind,dtype", [(None, np.int64), ("dp_reshardable", np.int32)])
def test_what_bridge_needs_comes_along(kind, dtype, llama, tmp_path):
    """run_config.yaml says the new sizes and that there is no random state; all else of it, and train_state.pt, is as it was."""
    inside = bridge(tmp_path / "m", llama, 2, 2, kind, dtype=dtype)
    r = ok("tp-reshard", tmp_path / "m", "--to", "pp4", "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(llama.root)
    assert "run_config.yaml" not in r.out and "rng_state" in r.out and "rerun_state_machine" in r.out, repr(r)
    made = tmp_path / "out" / inside.name
    old, new = ((x / "run_config.yaml").read_text().splitlines() for x in (inside, made))
    changed = {"tensor_model_parallel_size: 1", "pipeline_model_parallel_size: 4", "expert_tensor_parallel_size: 1",
               "sequence_parallel: false", "save_rng: false"}
    assert len(old) == len(new) and {b.strip() for a, b in zip(old, new) if a != b} - {
        'save: "/ckpt/a run: #1 \\xFC"'} == changed, sorted(set(new) - set(old))
    assert (made / "train_state.pt").read_bytes() == (inside / "train_state.pt").read_bytes()
    root = common_of(tmp_path / "out")
    assert root["opt_param_scheduler"] == SCHEDULE and "rerun_state_machine" not in root
    args = vars(root["args"])
    assert {k: args[k] for k in COUNTERS} == COUNTERS and args["no_save_rng"] is True and args["tensor_model_parallel_size"] == 1
    assert "moe_mlp_glu_interleave_size" not in args and "init_method" not in args
    group = root["optimizer"]["optimizer"]["param_groups"][0]
    assert {k: group[k] for k in GROUP} == GROUP
    again = ok("tp-reshard", tmp_path / "out", "--to", "tp2", "-o", tmp_path / "again")  # common.pt has arguments now
    assert "run_config.yaml" not in again.out and (tmp_path / "again" / inside.name / "run_config.yaml").exists()
    assert "tensor_model_parallel_size: 2" in (tmp_path / "again" / inside.name / "run_config.yaml").read_text()


def test_without_the_optimizer_the_run_config_says_so(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama)
    ok("tp-reshard", tmp_path / "m", "--to", "tp2", "-o", tmp_path / "out", "--no-optim")
    assert not (tmp_path / "out" / inside.name / "run_config.yaml").exists()  # extras go with the optimizer


def test_a_train_state_of_another_step_stays_behind(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama, step=7)
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp2", "-o", tmp_path / "out")
    assert "train_state.pt is of step 7, and what is written is of step 3" in r.err, repr(r)
    assert not (tmp_path / "out" / inside.name / "train_state.pt").exists()
    assert vars(common_of(tmp_path / "out")["args"])["consumed_train_samples"] == 4096


def test_other_formats_do_not_get_the_files(llama, tmp_path):
    bridge(tmp_path / "m", llama)
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp2", "--format", "megatron", "-o", tmp_path / "out")
    assert "run_config.yaml and train_state.pt are not written" in r.err and not list((tmp_path / "out").rglob("run_config.yaml"))
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "hf")
    assert "run_config.yaml, train_state.pt" in r.out, repr(r)


def test_bridges_builders_have_the_fields_of_two_classes(llama, tmp_path):
    config = run_config(config_of(llama), 2, 2)
    model = config["model"]
    outer = ("_target_", "vocab_size", "should_pad_vocab", "make_vocab_size_divisible_by", "seq_length", "rotary_base", "rotary_percent",
             "position_embedding_type", "rope_scaling", "share_embeddings_and_output_weights", "transformer_layer_spec")
    config["model"] = {**{k: model[k] for k in outer}, "_target_": "megatron.bridge.models.gpt.model_config.BridgeGPTModelConfig",
                       "_builder_": "megatron.bridge.models.gpt.gpt_builder.GPTModelBuilder",
                       "extra_checkpoint_metadata": {"hf_model_id": "org/another"},
                       "transformer": {k: v for k, v in model.items() if k not in outer and k != "hf_model_id"}}
    config["model"]["transformer"]["activation_func"] = "silu"
    inside = bridge(tmp_path / "m", llama, 2, 2, "dp_reshardable", config=config)
    ok("tp-reshard", tmp_path / "m", "--to", "pp4", "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(llama.root)
    assert "    pipeline_model_parallel_size: 4" in (tmp_path / "out" / inside.name / "run_config.yaml").read_text().splitlines()


def test_the_copy_for_transformers_has_the_config(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama, normalization="LayerNorm")
    (inside / "hf").mkdir()
    shutil.copy(llama.config, inside / "hf/config.json")
    r = ok("tp-ckpt", "digest", tmp_path / "m")
    assert "hf/config.json: is taken as config.json" in r.err, repr(r)
    assert digests(tmp_path / "m") == digests(llama.root)


# what is wrong, what the error says
REFUSALS = {
    "class": (dict(_target_="megatron.bridge.models.nemotronh.NemotronHModelProvider"), "its model is a NemotronHModelProvider"),
    "llama4": (dict(_target_="megatron.bridge.models.llama.llama4_provider.Llama4ModelProvider"), "its model is a Llama4ModelProvider"),
    "spec": (dict(transformer_layer_spec={"_target_": "megatron.bridge.models.olmoe.olmoe_bridge.olmoe_layer_spec", "_call_": False}),
             "its model is a GPTModelProvider with layers of olmoe_layer_spec"),
    "gelu": (dict(activation_func={"_target_": "torch.nn.functional.gelu", "_call_": False}), "saved with gated_activation_func gelu"),
    "relu": (dict(activation_func={"_target_": "torch.nn.functional.relu"}, gated_linear_unit=False), "saved with activation_func relu"),
    "yarn": (dict(position_embedding_type="yarn"), "saved with position_embedding_type yarn"),
    "layers": (dict(num_layers=None), "have no num_layers"),
    "windows": (dict(window_attn_skip_freq=[1, 0]), "saved with window_attn_skip_freq a list"),
    "mla": (dict(multi_latent_attention=True), "saved with multi_latent_attention True"),
    "scaling": (dict(scale_factor=8.0, low_freq_factor=2.0, high_freq_factor=4.0, old_context_len=8192), "saved with scale_factor 8"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_model_of_no_known_family_needs_a_config(what, llama, tmp_path):
    changes, words = REFUSALS[what]
    bridge(tmp_path / "m", llama, **changes)
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and len(r.lines) == 1 and words in r.err and "--config: that of org/a-model" in r.err, repr(r)
    assert "run_config.yaml" in r.err and not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("changes,member,value", [
    (dict(qk_layernorm=True), "architectures", ["Qwen3ForCausalLM"]), (dict(add_qkv_bias=True), "architectures", ["Qwen2ForCausalLM"]),
    (dict(window_size=[15, 0]), "sliding_window", 16), (dict(rotary_base=500000.0), "rope_theta", 500000.0),
    (dict(share_embeddings_and_output_weights=True), "tie_word_embeddings", True),
    (dict(num_query_groups=None), "num_key_value_heads", 8), (dict(layernorm_epsilon="1.0e-06"), "rms_norm_eps", 1e-6),
    (dict(ffn_hidden_size=None), "intermediate_size", 256),
    (dict(rope_scaling=True, rope_scaling_factor=32.0), "rope_scaling", dict(
        rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    (dict(scale_factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, old_context_len=8192), "rope_scaling", dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    (dict(seq_len_interpolation_factor=4.0), "rope_scaling", {"rope_type": "linear", "factor": 4.0}),
    (dict(num_moe_experts=4, moe_router_topk=2, moe_layer_freq=[1, 1, 1, 1]), "num_local_experts", 4)])
def test_fields_become_members_of_config_json(changes, member, value, llama, tmp_path):
    """Where they are those of another model, the error says so, because the tensors are not."""
    bridge(tmp_path / "m", llama, **changes)
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--no-optim")
    if r.rc == 0:
        ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "hf")
        assert json.loads((tmp_path / "hf/config.json").read_text())[member] == value
    else:  # the tensors are those of another model, which is only known if the field was read
        assert changes.keys() & {"qk_layernorm", "add_qkv_bias", "num_query_groups", "num_moe_experts", "ffn_hidden_size",
                                 "share_embeddings_and_output_weights"}, repr(r)
        assert "is made from the arguments" in r.err and str(value) in r.err + str(value), repr(r)


BOMB = "a: &a [%s]\n" % ", ".join("x" * 20) + "\n".join(
    "%s: &%s [%s]" % (y, y, ", ".join(["*" + x] * 20)) for x, y in zip("abcdefgh", "bcdefghi")) + "\nmodel:\n  x: *i\n  num_layers: *h\n"


@pytest.mark.parametrize("text,words", [
    ("model: {", "run_config.yaml:2: is not YAML"), ("- model\n", "has no keys and values"), ("\tmodel: 1\n", "is not YAML"),
    ("model: 1\n", 'has no mapping "model"'), ("", "has no keys and values"), ("model: {a: b}\n#" + "x" * (1 << 20), "1048576"),
    (BOMB, "its model is a model without a class"), ("[" * 1000000, "more than 1000 brackets"), ("model: " + "[" * 999, "is not YAML"), ("model: *x\n", "is not YAML"), ("model: {a: \"\\0\"}\n", "model without a class")],
    ids=["open", "list", "tab", "number", "empty", "long", "bomb", "deep", "less deep", "alias", "zero"])
def test_a_damaged_run_config_is_an_error(text, words, llama, tmp_path):
    inside = bridge(tmp_path / "m", llama)
    (inside / "run_config.yaml").write_text(text)
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--mem", "256M")
    assert r.rc in (2, 3) and len(r.lines) == 1 and words in r.err and "run_config.yaml" in r.err, repr(r)


def test_a_damaged_train_state_is_an_error(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama)
    data = bytearray((inside / "train_state.pt").read_bytes())
    data[data.index(b"\x03\0\0\0\0\0\0\0")] ^= 1
    (inside / "train_state.pt").write_bytes(data)
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 3 and "train_state.pt" in r.err, repr(r)


def test_without_any_record_of_the_model_the_error_says_where_it_could_be(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama)
    (inside / "run_config.yaml").unlink()
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "nor Megatron-Bridge's run_config.yaml" in r.err and "--config" in r.err, repr(r)
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--config", llama.config)
    assert digests(tmp_path / "ckpt") == digests(llama.root)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_config_json_says_is_tied_is_compared(tied, llama, tmp_path):
    """Nothing else says which it is."""
    inside = bridge(tmp_path / "m", llama, 2, 1)
    (inside / "run_config.yaml").unlink()
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**config_of(llama), "tie_word_embeddings": tied}))
    argv = ("tp-ckpt", "import", tmp_path / "m", "--config", config, "-o")
    r = run(*argv, tmp_path / "ckpt")
    if not tied:
        assert r.rc == 0 and digests(tmp_path / "ckpt") == digests(llama.root), repr(r)
        return
    assert r.rc == 2 and "lm_head.weight differs" in r.err and "tie_word_embeddings" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "ckpt").exists()
    assert "lm_head.weight" in ok(*argv, tmp_path / "without", "--ignore", "lm_head.weight").out
    assert digests(tmp_path / "without") == [d for d in digests(llama.root) if "lm_head" not in d]


def test_flat_buffers_need_the_layout_of_the_job(llama, tmp_path):
    inside = bridge(tmp_path / "m", llama, 2, 2, "dp_reshardable")
    (inside / "run_config.yaml").unlink()
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--config", llama.config)
    assert r.rc == 2 and "tensor-parallel and pipeline sizes" in r.err and "--no-optim" in r.err, repr(r)
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--config", llama.config, "--no-optim")
    ok("tp-ckpt", "diff", tmp_path / "ckpt", llama.root, "--group", "param")


# ---- NeMo ----

def in_module(tensors, objects, *cut):
    """NeMo's names: the model is a module of another one."""
    for names in (tensors, *cut):
        for name in list(names):
            head, _, rest = name.rpartition("optimizer.state.")
            state, dot, own = rest.partition(".") if head or rest != name else ("", "", rest)
            names[(head + "optimizer.state." + state + dot if dot and rest != name else "") + "module." + own] = names.pop(name)


def nemo(folder, state, kind=None, **changes):
    """Write FOLDER as NeMo does: weights/ and context/."""
    m = foreign_files.Megatron(config_of(state), 2)
    m.torch_dist(folder / "all", groups_of(state), STEP, kind, change=in_module)
    (folder / "all" / ("iter_%07d" % STEP)).rename(folder / "weights")
    shutil.rmtree(folder / "all")
    torch_files.save(folder / "weights/common.pt", {
        "epoch": 0, "global_step": STEP, "pytorch-lightning_version": "2.4.0", "state_dict": {}, "loops": {"fit_loop": {}},
        "optimizer": [{"optimizer": {"param_groups": [{"wd_mult": 0, "lr": 9.0}, GROUP]}}], "lr_schedulers": [{"last_epoch": 3}]})
    (folder / "context").mkdir()
    config = {**model_of(config_of(state), 7, 7), "_target_": "nemo.collections.llm.gpt.model.llama.Llama3Config8B", "vocab_size": None,
              "kv_channels": None, **changes}
    (folder / "context/model.yaml").write_text("\n".join(block({
        "_target_": "nemo.collections.llm.gpt.model.llama.LlamaModel", "config": config, "optim": None})) + "\n")
    return folder


@pytest.mark.parametrize("kind", [None, "fully_sharded_model_space"])
def test_nemo(kind, llama, tmp_path):
    nemo(tmp_path / "m", llama, kind)
    for path in (tmp_path / "m", tmp_path / "m/weights"):
        r = ok("tp-ckpt", "digest", path)
        assert "context/model.yaml: there is no config.json, so one is made" in r.err, repr(r)
        assert "vocabulary of 272, padding included" in r.err, repr(r)
        assert digests(path, "--config", llama.config) == digests(llama.root)
        ok("tp-ckpt", "verify", path)
    r = ok("tp-reshard", tmp_path / "m", "--to", "pp2", "--config", llama.config, "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(llama.root)
    assert "loops" in r.out and "lr_schedulers" in r.out, repr(r)
    group = common_of(tmp_path / "out")["optimizer"]["optimizer"]["param_groups"][0]
    assert {k: group[k] for k in GROUP} == GROUP


def test_nemo_beside_the_current_folder(llama, tmp_path, monkeypatch):
    nemo(tmp_path / "m", llama)
    monkeypatch.chdir(tmp_path / "m")
    for path in ("weights", "weights/", "./weights", "."):
        assert "context/model.yaml" in ok("tp-ckpt", "digest", path).err, path


def test_nemo_rl_has_bridges_folder_in_weights(llama, tmp_path):
    bridge(tmp_path / "policy/weights", llama, 2, 2, "dp_reshardable")
    assert digests(tmp_path / "policy") == digests(llama.root)
