"""Ranks of Megatron-core on CPUs: load a checkpoint, say what they hold, make a step, say it again, and save.

    megatron_ranks.py JOBS.json local|transformer_engine

The second argument is Megatron-LM's --transformer-impl; Transformer Engine's modules are those of engine_modules.py. A job is
{"format", "tp", "pp", "vpp", "dp", "ep", "distributed", "fused", "load", "save", "flat", "grouped", "block", "out", "config"}:
format torch or torch_dist (Megatron's --ckpt-format), whether with the distributed optimizer (torch_dist: as fully_reshardable),
folders, and the config.json of a Llama, a Qwen3, a Mixtral or a GPT-2; ep is part of dp. flat: how to save a second and a third
time, to SAVE-dp_reshardable and so on; "torch" is with distrib_optim.pt. grouped: --moe-grouped-gemm, with which experts are a
TEGroupedMLP, or with local modules a GroupedMLP. block: what the arguments say of blocks of gate and up; 0: nothing. fused: whether
AdamW is FusedAdam. Rank R of tp, ep and pp writes OUT/R.pt with {"loaded": state, "saved": state, "logits": the rank's columns of
those of TOKENS in f32 when it was saved, on the last stage (has_logits)}; a state is {the name of Megatron's local modules
with the numbers of layer and expert in the model: {"weight", "master", "exp_avg", "exp_avg_sq", "step"}}, whole also where
data-parallel ranks share it.
"""
import contextlib
import importlib.util
import itertools
import json
import multiprocessing.dummy
import pathlib
import re
import sys
import types
import zlib

import engine_modules
import forked_ranks
import torch
import torch.distributed as dist
from fused_adam import FusedAdam
import without_gpus

IMPL = sys.argv[2] if len(sys.argv) > 2 else "local"  # others that import this have their own arguments
if IMPL == "transformer_engine":
    engine_modules.install()

import megatron.core.optimizer  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, param_and_grad_buffer  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer import distrib_optimizer  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlock  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250
CONTENT = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
DISTRIBUTED = {"distrib_optim_sharding_type": "fully_reshardable", "distrib_optim_fully_reshardable_mem_efficient": False}


class Waited:
    def wait(self):
        pass


def adapt():
    """To CPUs."""
    without_gpus.begin()
    param_and_grad_buffer._coalescing_manager = lambda *args, **kwargs: contextlib.nullcontext(Waited())
    # Files are written by threads: a fork of a rank, which has threads, may wait for ever.
    filesystem_async.mp = types.SimpleNamespace(get_context=lambda how: multiprocessing.dummy)
    if importlib.util.find_spec("megatron.core.transformer.moe.grouped_gemm_util"):  # 0.17 has no GroupedMLP any more
        util = importlib.import_module("megatron.core.transformer.moe.grouped_gemm_util")
        util.assert_grouped_gemm_is_available = lambda: None  # nothing is computed


def keep_steps():
    """PyTorch's AdamW has a step for each parameter, Apex's and Transformer Engine's one for a group, as the files do."""
    get, put = (getattr(DistributedOptimizer, "_%s_main_param_and_optimizer_states" % x) for x in ("get", "set"))
    DistributedOptimizer._set_main_param_and_optimizer_states = lambda self, p, tensors: put(
        self, p, {"step": get(self, p)["step"], **tensors})


def use_fused_adam():
    """As Megatron-core does where Apex is installed."""
    megatron.core.optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True


def kind_of(job):
    """What GPT-2 has, and what Llama, Qwen3 and Mixtral have."""
    if "n_embd" in job["config"]:
        return dict(gated_linear_unit=False, activation_func=torch.nn.functional.gelu, add_bias_linear=True,
                    normalization="LayerNorm")
    return dict(gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
                normalization="RMSNorm", qk_layernorm=job["config"]["model_type"] == "qwen3")


def layer_spec(job):
    kind = kind_of(job)
    modules = dict(num_experts=job["config"].get("num_local_experts"), moe_grouped_gemm=job["grouped"],
                   qk_layernorm=kind.get("qk_layernorm", False))
    if IMPL == "transformer_engine":
        return get_gpt_layer_with_transformer_engine_spec(**modules)
    spec = get_gpt_layer_local_spec(normalization=kind["normalization"], **modules)
    if "num_local_experts" in job["config"]:  # as Transformer Engine, which has this norm by itself before experts
        del spec.submodules.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    return spec


class Norm:
    """What norms of Transformer Engine 2 have, and so ask for when they load: a state that is empty without FP8."""

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        assert state is None or state.numel() == 0


def as_transformer_engine(model, experts):
    """Norms that are modules of their own there."""
    for name, module in model.named_modules():
        own = ("final_layernorm", "q_layernorm", "k_layernorm") + ("pre_mlp_layernorm",) * bool(experts)
        if name.endswith(own) and list(module.parameters()):
            module.__class__ = type("Norm", (Norm, type(module)), {})


def make_model(job, args):
    c = job["config"]
    experts = dict(num_moe_experts=c["num_local_experts"], moe_router_topk=c["num_experts_per_tok"],
                   moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
                   moe_grouped_gemm=job["grouped"], expert_model_parallel_size=job["ep"]) if "num_local_experts" in c else {}
    config = TransformerConfig(
        **experts, **kind_of(job),
        num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"], num_attention_heads=c["num_attention_heads"],
        num_query_groups=c["num_key_value_heads"], kv_channels=c["head_dim"], ffn_hidden_size=c["intermediate_size"],
        layernorm_epsilon=c["rms_norm_eps"], hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, gradient_accumulation_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False, persist_layer_norm=False,
        tensor_model_parallel_size=job["tp"], pipeline_model_parallel_size=job["pp"], bf16=True,
        virtual_pipeline_model_parallel_size=job["vpp"] if job["vpp"] > 1 else None,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16)
    models = [make_chunk(job, args, config, number) for number in range(job["vpp"])]
    wrapped = [DistributedDataParallel(config, DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=job["distributed"]), Float16Module(config, model),
        disable_bucketing=number > 0) for number, model in enumerate(models)]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=2e-3, min_lr=5e-4, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16,
                        clip_grad=0.0, use_distributed_optimizer=job["distributed"]), wrapped)
    for each in chained_of(optimizer) if job["distributed"] else ():
        each._init_optimizer_states_with_dummy_values()
    return models, optimizer


def make_chunk(job, args, config, number):
    """The part of the model that a rank has as its virtual stage `number`."""
    c, place = job["config"], dict(ignore_virtual=False, vp_stage=number)
    model = GPTModel(
        config=config, transformer_layer_spec=layer_spec(job),
        vocab_size=args.padded_vocab_size, max_sequence_length=c["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(**place), post_process=parallel_state.is_pipeline_last_stage(**place),
        share_embeddings_and_output_weights=c["tie_word_embeddings"], vp_stage=number if job["vpp"] > 1 else None,
        position_embedding_type="learned_absolute" if "n_embd" in c else "rope")
    if job["format"] == "torch_dist" and IMPL == "local":
        as_transformer_engine(model, "num_local_experts" in c)
    for p in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(p)
    return model


def named(job, models):
    """(name in local modules with the numbers of layer and expert in the model, parameter) of this rank."""
    return itertools.chain(*(named_of_chunk(job, model, number) for number, model in enumerate(models)))


def named_of_chunk(job, model, number):
    stage = number * job["pp"] + parallel_state.get_pipeline_model_parallel_rank()
    first = stage * job["config"]["num_hidden_layers"] // (job["pp"] * job["vpp"])
    first_expert = parallel_state.get_expert_model_parallel_rank() * job["config"].get("num_local_experts", 0) // job["ep"]
    for name, p in model.named_parameters():
        parts = local_name(name).split(".")
        if name.startswith("decoder.layers."):
            parts[2] = str(int(parts[2]) + first)
        if "local_experts" in parts:
            parts[6] = str(int(parts[6]) + first_expert)
        yield ".".join(parts), p


def local_name(name):
    """The name in local modules of a parameter of Transformer Engine's."""
    name = name.replace("self_attention.linear_qkv.layer_norm_", "input_layernorm.")
    name = name.replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
    return re.sub(r"experts\.(linear_fc[12]\.weight)(\d+)$", r"experts.local_experts.\2.\1", name)


def chained_of(optimizer):
    return getattr(optimizer, "chained_optimizers", [optimizer])


def gathered(chained, p):
    """Master, moments and step of a parameter, of which each data-parallel rank has an interval, or nothing. With expert
    parallelism a second optimizer has the experts, and fewer ranks share them."""
    of_experts = not getattr(p, "allreduce", True)
    optimizer = chained[of_experts]
    own, out = {}, {}
    group = parallel_state.get_expert_data_parallel_group() if of_experts else parallel_state.get_data_parallel_group()
    if p in optimizer.model_param_gbuf_map:
        own = optimizer._get_main_param_and_optimizer_states(p)
        at = optimizer._get_model_param_range_map(p)["param"]
    for theirs, name in (("param", "master"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
        bits = torch.zeros(p.numel(), dtype=torch.int32)
        if own:
            bits[at.start:at.end] = own[theirs].detach().view(torch.int32)
        dist.all_reduce(bits, group=group)
        out[name] = bits.view(torch.float32).view(p.shape)
    if own:
        of_group = optimizer.optimizer.param_groups[optimizer.model_param_group_index_map[p][0]]
    out["step"] = torch.tensor(float(own.get("step", of_group.get("step"))) if own else -1.0)
    dist.all_reduce(out["step"], dist.ReduceOp.MAX, group=group)
    return out


def state_of(job, models, optimizer):
    chained, state = chained_of(optimizer), {}
    for name, p in named(job, models):
        if job["distributed"]:
            tensors = gathered(chained, p)
        else:
            own, group = next((o.optimizer.state[p.main_param], group) for o in chained for group in o.optimizer.param_groups
                              if any(p.main_param is q for q in group["params"]))
            step = torch.tensor(float(own["step"] if "step" in own else group["step"]))
            tensors = {"master": p.main_param, "exp_avg": own["exp_avg"], "exp_avg_sq": own["exp_avg_sq"], "step": step}
        state.update(unstacked(job, name, {k: x.detach().clone() for k, x in {"weight": p, **tensors}.items()}))
    return state


def unstacked(job, name, tensors):
    """{name: tensors} of each expert in a GroupedMLP's parameter, as a SequentialMLP has them; else {name: tensors}."""
    head, dot, kind = name.rpartition(".weight")
    if not job["grouped"] or kind not in ("1", "2"):
        return {name: tensors}
    hidden, n = job["config"]["hidden_size"], job["config"]["num_local_experts"] // job["ep"]
    shape = (n, hidden, -1) if kind == "1" else (n, -1, hidden)
    return {"%s.local_experts.%d.linear_fc%s.weight" % (head, parallel_state.get_expert_model_parallel_rank() * n + e, kind): {
        k: x if k == "step" else x.view(shape)[e].t() for k, x in tensors.items()} for e in range(n)}


def legacy_file(folder, job):
    name = "mp_rank_%02d" % parallel_state.get_tensor_model_parallel_rank()
    if job["pp"] > 1:
        name += "_%03d" % parallel_state.get_pipeline_model_parallel_rank()
    if job["ep"] > 1:
        name += "_%03d" % parallel_state.get_expert_model_parallel_rank()
    (latest,) = pathlib.Path(folder).glob("iter_*")
    return latest / name / "model_optim_rng.pt"


def keys_of(job):
    return ["model%d" % number for number in range(job["vpp"])] if job["vpp"] > 1 else ["model"]


def names_of(state):
    """All that is in a state dict. A head that is the embedding, which has no tensor, may lack its state."""
    return set(state) - {"output_layer._extra_state"}


def load(job):
    if job["format"] == "torch":
        path = legacy_file(job["load"], job)
        found = torch.load(path, weights_only=False)
        args = found["args"]
        models, optimizer = make_model(job, args)
        for key, model in zip(keys_of(job), models):
            assert names_of(found[key]) == names_of(model.state_dict_for_save_checkpoint()), key
    else:
        (folder,) = pathlib.Path(job["load"]).glob("iter_*")
        args = dist_checkpointing.load_common_state_dict(str(folder))["args"]
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size = job["tp"], job["pp"]
        args.virtual_pipeline_model_parallel_size = job["vpp"] if job["vpp"] > 1 else None
        args.padded_vocab_size = -(-job["config"]["vocab_size"] // (128 * job["tp"])) * 128 * job["tp"]
        models, optimizer = make_model(job, args)
        content = dist_checkpointing.load_content_metadata(str(folder))
        wanted = {key: model.sharded_state_dict(metadata=content) for key, model in zip(keys_of(job), models)}
        wanted["optimizer"] = optimizer.sharded_state_dict(wanted, is_loading=True, metadata=content)
        found = dist_checkpointing.load(wanted, str(folder))
    for key, model in zip(keys_of(job), models):
        model.load_state_dict(found[key])
    optimizer.load_state_dict(found["optimizer"])
    if job["format"] == "torch" and job["distributed"]:
        optimizer.load_parameter_state(str(path.with_name("distrib_optim.pt")))
        for each in chained_of(optimizer) if not job["fused"] else ():  # which share one step after load_state_dict, and then add 1 to it many times
            for state in each.optimizer.state.values():
                state["step"] = state["step"].clone()
    return args, models, optimizer


def step(job, models, optimizer):
    """One step with invented gradients, which are the same on ranks that hold the same parameter."""
    for name, p in named(job, models):
        if getattr(p, "shared_embedding", False):  # the head of the last stage has the gradient of the embedding
            name = "embedding.word_embeddings.weight"
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        p.main_grad.copy_(0.01 * torch.randn(p.shape, generator=random))
    assert optimizer.step()[0]


def save(job, args, models, optimizer, flat=None):
    kind = "torch" if flat == "torch" else job["format"]
    job = {**job, "save": job["save"] + ("-" + flat if flat else "")}
    folder = pathlib.Path(job["save"]) / ("iter_%07d" % args.iteration)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(args.iteration))
    common = {"args": args, "checkpoint_version": 3.0, "iteration": args.iteration}
    if kind == "torch":
        path = legacy_file(job["save"], job)
        path.parent.mkdir(exist_ok=True)
        if job["distributed"]:
            optimizer.save_parameter_state(str(path.with_name("distrib_optim.pt")))
        weights = {key: model.state_dict_for_save_checkpoint() for key, model in zip(keys_of(job), models)}
        torch.save({**common, **weights, "optimizer": optimizer.state_dict()}, path)
        return
    dist.barrier()
    content = {**CONTENT, **DISTRIBUTED} if job["distributed"] else CONTENT
    if flat:
        content = {**content, "distrib_optim_sharding_type": flat}
    weights = {key: model.sharded_state_dict(metadata=content) for key, model in zip(keys_of(job), models)}
    state = {**common, **weights, "optimizer": optimizer.sharded_state_dict(weights, metadata=content)}
    dist_checkpointing.save(state, str(folder), content_metadata=content)


def has_logits(job):
    """Without Transformer Engine, the router of Megatron-core 0.16.1 uses a name that it then does not have."""
    return IMPL == "transformer_engine" or "num_local_experts" not in job["config"]


def logits_of(job, models):
    """Of the weights, which are bf16, computed in f32: each stage in turn, on the rank that has it. The models cannot be used any
    more. None: the last stage is another rank's."""
    n, x, own = TOKENS.shape[1], None, parallel_state.get_pipeline_model_parallel_rank()
    future = torch.ones(1, 1, n, n, dtype=torch.bool).triu(1)
    for module in itertools.chain(*(model.eval().float().modules() for model in models)):
        if hasattr(module, "input_in_float16"):  # softmax, which else returns bf16
            module.input_in_float16 = module.input_in_bf16 = False
        if isinstance(module, TransformerBlock):
            module.config.pipeline_dtype = torch.float32
    stages = job["pp"] * job["vpp"]
    for stage in range(stages):
        if stage % job["pp"] != own:
            continue
        model = models[stage // job["pp"]]
        if stage > 0 and job["pp"] > 1:
            x = torch.empty(n, len(TOKENS), job["config"]["hidden_size"])
            dist.recv(x, parallel_state.get_pipeline_model_parallel_prev_rank())
        model.set_input_tensor([x])
        with torch.no_grad():
            x = model(TOKENS, torch.arange(n).expand_as(TOKENS), future)
        if stage == stages - 1:
            return x
        dist.send(x.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
    return None


def rank_main(job, rank, world, port):
    adapt()
    if IMPL == "local":
        (use_fused_adam if job["fused"] else keep_steps)()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank,
                            world_size=world)
    parallel_state.initialize_model_parallel(job["tp"], job["pp"], job["vpp"] if job["vpp"] > 1 else None,
                                             expert_model_parallel_size=job["ep"])
    args, models, optimizer = load(job)
    if job["format"] == "torch":
        assert args.transformer_impl == IMPL and getattr(args, "moe_grouped_gemm", False) == job["grouped"], args
    out = {"loaded": state_of(job, models, optimizer)}
    step(job, models, optimizer)
    out["saved"] = state_of(job, models, optimizer)
    args.iteration += 1
    args.expert_model_parallel_size, args.expert_tensor_parallel_size = job["ep"], job["tp"]
    args.transformer_impl, args.moe_grouped_gemm = IMPL, job["grouped"]
    if job["block"]:
        args.transformer_impl, args.moe_grouped_gemm, args.moe_mlp_glu_interleave_size = "transformer_engine", True, job["block"]
    for flat in (None, *job["flat"]):
        save(job, args, models, optimizer, flat)
    if has_logits(job):
        out["logits"] = logits_of(job, models)
    if parallel_state.get_expert_data_parallel_rank() == 0:
        stage = parallel_state.get_pipeline_model_parallel_rank() * job["ep"] + parallel_state.get_expert_model_parallel_rank()
        number = stage * job["tp"] + parallel_state.get_tensor_model_parallel_rank()
        torch.save(out, pathlib.Path(job["out"]) / ("%d.pt" % number))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["pp"] * each["dp"])
