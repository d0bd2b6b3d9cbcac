"""Ranks of a version of Megatron-core before 0.15 on CPUs: load torch_dist with the distributed optimizer, say what they hold, and
save it.

    megatron_core_ranks.py JOBS.json

Megatron-core is the first one in PYTHONPATH. A job is {"tp", "pp", "dp", "ep", "load", "save", "out", "config"}: ep is part of dp,
and the config.json is that of a Llama or a Mixtral. Rank R of tp, ep and pp writes OUT/R.pt with {"loaded": {Megatron's name with
the numbers of layer and expert in the model: {"weight", "master", "exp_avg", "exp_avg_sq", "step", "wd_mult"}}}, whole also where
data-parallel ranks share it.

What these versions expect of their time is there: names of NumPy and setuptools, and torch.load's earlier default. Apex's FusedAdam
is that of fused_adam.py, and a norm is its parameter. All of loading and saving is Megatron-core's.
"""
import inspect
import json
import multiprocessing.dummy
import os
import pathlib
import sys
import types

import forked_ranks
from fused_adam import FusedAdam
import numpy
import packaging.version  # noqa: F401, which 0.8 takes from pkg_resources
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem
import without_gpus

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
numpy.product = numpy.prod


class Norm(torch.nn.Module):
    """RMSNorm: its parameter."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))


apex = types.ModuleType("apex")
apex.optimizers = types.ModuleType("apex.optimizers")
apex.optimizers.FusedAdam, apex.optimizers.FusedSGD = FusedAdam, torch.optim.SGD
pkg_resources = types.ModuleType("pkg_resources")
pkg_resources.packaging = packaging
sys.modules.update({"apex": apex, "apex.optimizers": apex.optimizers, "pkg_resources": pkg_resources})

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async  # noqa: E402
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer import transformer_block  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402


def adapt():
    """To CPUs, and to newer packages."""
    without_gpus.begin()
    filesystem_async._write_item = write_item
    torch_strategy.MCoreSavePlanner._add_non_coordinator_iobytes_request = lambda self, plan: None  # 0.8's; PyTorch does it
    # Files are written by threads: a fork of a rank, which has threads, may wait for ever.
    for module in (async_utils, filesystem_async):
        module.mp = types.SimpleNamespace(get_context=lambda how: multiprocessing.dummy)


def write_item(*args):
    """PyTorch's function with the arguments that it had."""
    return filesystem._write_item(filesystem._StorageWriterTransforms(), *args[-4:], filesystem.SerializationFormat.TORCH_SAVE)


def layer_spec(config):
    """As Transformer Engine's layers, which have the norm before experts by itself."""
    experts = config.get("num_local_experts")
    for name in ("TEColumnParallelGroupedLinear", "TEColumnParallelLinear", "TERowParallelLinear"):
        vars(gpt_layer_specs).setdefault(name)  # 0.10 looks at them also without Transformer Engine
    spec = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=False)
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    if experts:
        spec.submodules.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.")
    for name in ("LayerNormImpl", "LNImpl"):
        if hasattr(transformer_block, name):
            setattr(transformer_block, name, Norm)
    return spec


def make_model(job, args):
    c = job["config"]
    experts = dict(num_moe_experts=c["num_local_experts"], moe_router_topk=c["num_experts_per_tok"],
                   moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
                   expert_model_parallel_size=job["ep"]) if "num_local_experts" in c else {}
    config = TransformerConfig(
        **experts, gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, normalization="RMSNorm",
        num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"], num_attention_heads=c["num_attention_heads"],
        num_query_groups=c["num_key_value_heads"], kv_channels=c["head_dim"], ffn_hidden_size=c["intermediate_size"],
        layernorm_epsilon=c["rms_norm_eps"], use_cpu_initialization=True, gradient_accumulation_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        persist_layer_norm=False, tensor_model_parallel_size=job["tp"], pipeline_model_parallel_size=job["pp"], bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16)
    model = GPTModel(
        config=config, transformer_layer_spec=layer_spec(c), vocab_size=args.padded_vocab_size,
        max_sequence_length=c["max_position_embeddings"], pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=c["tie_word_embeddings"],
        position_embedding_type="rope")
    for p in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(p)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=True), Float16Module(config, model))
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16, clip_grad=0.0,
                        use_distributed_optimizer=True), [wrapped])
    return model, optimizer


def chained_of(optimizer):
    return getattr(optimizer, "chained_optimizers", [optimizer])


def sharding_of(common):
    """The arguments of sharded_state_dict, as Megatron-LM of this version takes them from a checkpoint."""
    form = "fully_sharded_model_space" if getattr(common["args"], "ckpt_fully_parallel_save", False) else "dp_zero_gather_scatter"
    if not hasattr(dist_checkpointing, "load_content_metadata"):  # before 0.13
        return {}, {"sharding_type": form}
    content = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    return {"metadata": content}, {"metadata": content}


def load(job):
    (folder,) = pathlib.Path(job["load"]).glob("iter_*")
    common = dist_checkpointing.load_common_state_dict(folder)
    common["args"].padded_vocab_size = -(-job["config"]["vocab_size"] // (128 * job["tp"])) * 128 * job["tp"]
    model, optimizer = make_model(job, common["args"])
    of_model, of_optimizer = sharding_of(common)
    wanted = {"model": model.sharded_state_dict(**of_model)}
    wanted["optimizer"] = optimizer.sharded_state_dict(wanted, is_loading=True, **of_optimizer)
    found = dist_checkpointing.load(wanted, str(folder))
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return common, model, optimizer


def named(job, model):
    """(name with the numbers of layer and expert in the model, parameter) of this rank."""
    first = parallel_state.get_pipeline_model_parallel_rank() * job["config"]["num_hidden_layers"] // job["pp"]
    first_expert = parallel_state.get_expert_model_parallel_rank() * job["config"].get("num_local_experts", 0) // job["ep"]
    for name, p in model.named_parameters():
        parts = name.split(".")
        if name.startswith("decoder.layers."):
            parts[2] = str(int(parts[2]) + first)
        if "local_experts" in parts:
            parts[6] = str(int(parts[6]) + first_expert)
        yield ".".join(parts), p


def expert_group():
    """The data-parallel ranks that share experts."""
    for name in ("get_expert_data_parallel_group", "get_data_modulo_expert_parallel_group"):
        if hasattr(parallel_state, name):
            return getattr(parallel_state, name)()
    raise AssertionError("no group of ranks that share experts")


def gathered(optimizer, p, group):
    """Master, moments, step and factor of weight decay of a parameter, of which each rank has an interval, or nothing."""
    own, out = {}, {}
    if p in optimizer.model_param_gbuf_map:
        number, order = optimizer.model_param_group_index_map[p]
        of_param = optimizer.optimizer.param_groups[number]
        main = of_param["params"][order]
        own, at = {"master": main, **optimizer.optimizer.state[main]}, optimizer._get_model_param_range_map(p)["param"]
    for name in ("master", "exp_avg", "exp_avg_sq"):
        bits = torch.zeros(p.numel(), dtype=torch.int32)
        if own:
            bits[at.start:at.end] = own[name].detach().view(torch.int32)
        dist.all_reduce(bits, group=group)
        out[name] = bits.view(torch.float32).view(p.shape)
    for name in ("step", "wd_mult"):
        out[name] = torch.tensor(float(of_param[name]) if own else -1.0)
        dist.all_reduce(out[name], dist.ReduceOp.MAX, group=group)
    return out


def state_of(job, model, optimizer):
    chained, state = chained_of(optimizer), {}
    for name, p in named(job, model):
        of_experts = not getattr(p, "allreduce", True)
        group = expert_group() if of_experts else parallel_state.get_data_parallel_group()
        tensors = {"weight": p, **gathered(chained[of_experts], p, group)}
        state[name] = {k: x.detach().clone() for k, x in tensors.items()}
    return state


def save(job, common, model, optimizer):
    of_model, of_optimizer = sharding_of(common)
    folder = pathlib.Path(job["save"]) / ("iter_%07d" % common["iteration"])
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
        (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(common["iteration"]))
    dist.barrier()
    args = common["args"]
    args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.expert_model_parallel_size = job["tp"], job["pp"], job["ep"]
    wanted = {"args": args, "checkpoint_version": 3.0, "iteration": common["iteration"], "model": model.sharded_state_dict(**of_model)}
    wanted["optimizer"] = optimizer.sharded_state_dict(wanted, **of_optimizer)
    more = {"content_metadata": of_model["metadata"]} if "content_metadata" in inspect.signature(dist_checkpointing.save).parameters else {}
    dist_checkpointing.save(wanted, str(folder), **more)


def rank_main(job, rank, world, port):
    adapt()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(job["tp"], job["pp"], expert_model_parallel_size=job["ep"])
    common, model, optimizer = load(job)
    out = {"loaded": state_of(job, model, optimizer)}
    save(job, common, model, optimizer)
    if dist.get_rank(expert_group()) == 0:
        stage = parallel_state.get_pipeline_model_parallel_rank() * job["ep"] + parallel_state.get_expert_model_parallel_rank()
        number = stage * job["tp"] + parallel_state.get_tensor_model_parallel_rank()
        torch.save(out, pathlib.Path(job["out"]) / ("%d.pt" % number))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["pp"] * each["dp"])
