"""Ranks of Megatron-FSDP of Megatron-core on CPUs: build a model, train it for two steps, save it as fsdp_dtensor, and say what they
hold; or let Megatron-Bridge save it, or load such a checkpoint.

    fsdp_ranks.py JOBS.json [bridge]

A job is {"tp", "dp", "ep", "grouped", "bf16", "strategy", "args", "save", "out", "load", "config"}: ep is part of dp; strategy is
--data-parallel-sharding-strategy; args is a common.pt whose arguments are saved; load: a folder that is loaded before the steps, or
None. Layers are of Transformer Engine's modules (engine_modules.py), and so is AdamW. Rank R of tp and ep writes OUT/R.pt as
megatron_ranks.py does, from the shards of all data-parallel ranks and the intervals of the parameters that Megatron-FSDP says
they are.

With "bridge" Megatron-Bridge's own save_checkpoint saves and load_checkpoint loads. Without it, what is done are the calls of
Megatron-LM's save_checkpoint and load_checkpoint, which no package has.
"""
import argparse
import contextlib
import json
import pathlib
import random
import sys
import types
import zlib

import engine_modules

PROGRAM, BRIDGE = sys.argv[1], "bridge" in sys.argv
sys.argv[1:] = [PROGRAM, "transformer_engine"]
engine_modules.install()
if BRIDGE:
    import bridge_ranks as bridge
import forked_ranks  # noqa: E402
import megatron_ranks as ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel  # noqa: E402
from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import preprocess_state_dict_for_uneven_dtensor  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.transformer import fsdp_dtensor_checkpoint  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

STEPS, SAMPLES = 2, 128
FSDP = {"metadata": {"distrib_optim_sharding_type": "fsdp_dtensor"}}


class DeviceNames(TorchFunctionMode):
    """The name of a GPU is that of the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device and args and str(args[0]).startswith("cuda"):
            return torch.device("cpu")
        return func(*args, **kwargs or {})


class Stream:
    """A stream or an event of one that does all at once."""

    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, *args):
        return Stream()

    def record(self, *args):
        pass

    wait = synchronize = record

    def query(self):
        return True


def adapt():
    DeviceNames().__enter__()
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.current_stream = lambda *args: Stream()
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = torch.get_rng_state, lambda state: None
    from_group = DeviceMesh.from_group
    DeviceMesh.from_group = staticmethod(lambda group, device_type, *args, **more: from_group(group, "cpu", *args, **more))


def config_of(job):
    c = job["config"]
    experts = dict(num_moe_experts=c["num_local_experts"], moe_router_topk=c["num_experts_per_tok"],
                   moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather", moe_grouped_gemm=job["grouped"],
                   expert_model_parallel_size=job["ep"]) if "num_local_experts" in c else {}
    dtype = torch.bfloat16 if job["bf16"] else torch.float32
    return dict(
        **experts, **ranks.kind_of(job), num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"],
        num_attention_heads=c["num_attention_heads"], num_query_groups=c["num_key_value_heads"], kv_channels=c["head_dim"],
        ffn_hidden_size=c["intermediate_size"], layernorm_epsilon=c["rms_norm_eps"], hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, gradient_accumulation_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, apply_rope_fusion=False, persist_layer_norm=False, tensor_model_parallel_size=job["tp"],
        bf16=job["bf16"], params_dtype=dtype, pipeline_dtype=dtype, calculate_per_token_loss=True)


def make(job, config, args):
    """(the model in Megatron-FSDP, its optimizer)"""
    job = {**job, "vpp": 1, "pp": 1, "format": "torch"}
    torch.manual_seed(7)
    model = ranks.make_chunk(job, args, config, 0)
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=True, use_megatron_fsdp=True, overlap_grad_reduce=True,
        overlap_param_gather=True, data_parallel_sharding_strategy=job["strategy"])
    wrapped = FullyShardedDataParallel(config, ddp, Float16Module(config, model) if job["bf16"] else model)
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-3, min_lr=1e-4, weight_decay=0.1, bf16=job["bf16"], params_dtype=config.params_dtype, clip_grad=0.0,
        use_distributed_optimizer=True), [wrapped])
    return wrapped, optimizer


def step(job, wrapped, optimizer, number):
    """A step of training. With tensor parallelism it has invented gradients, because the stand-ins do not add up those of its
    ranks."""
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    if job["tp"] > 1:
        for name, p in wrapped.param_and_grad_buffer.optimizer_named_parameters:
            at, seed = p.megatron_fsdp_slice, zlib.crc32(b"%d%s" % (number, name_of(job, name).encode()))
            grad = 0.01 * torch.randn(p.orig_param.numel(), generator=torch.Generator().manual_seed(seed))[at]
            p.grad = torch.zeros_like(p) if grad.numel() else None
            if grad.numel():
                p.grad._local_tensor.copy_(grad.view(p._local_tensor.shape))
    else:
        tokens = (ranks.TOKENS + number) % 250
        future = torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        loss = wrapped(tokens, torch.arange(tokens.shape[1]).expand_as(tokens), future, labels=tokens.roll(-1, 1))
        loss.float().mean().backward()
        wrapped.finish_grad_sync()
    assert optimizer.step()[0]


def name_of(job, name):
    """The name in local modules with the number of the expert in the model."""
    name = ranks.local_name(name[name.index("decoder."):] if "decoder." in name else name.replace("module.", ""))
    parts = name.split(".")
    if "local_experts" in parts:
        experts = job["config"]["num_local_experts"] // job["ep"]
        parts[6] = str(int(parts[6]) + parallel_state.get_expert_model_parallel_rank() * experts)
    return ".".join(parts)


def state_of(job, wrapped, optimizer):
    out = {}
    for name, p in wrapped.param_and_grad_buffer.optimizer_named_parameters:
        group = (parallel_state.get_expert_data_parallel_group() if ".experts." in name else
                 parallel_state.get_data_parallel_group())
        inner = next(o.optimizer for o in ranks.chained_of(optimizer) if p in o.optimizer.state)
        parts = {"master": p, **{k: inner.state[p][k] for k in ("exp_avg", "exp_avg_sq")}}
        found = [None] * dist.get_world_size(group)
        own = {k: x.to_local().detach().float().flatten().clone() for k, x in parts.items()}
        dist.all_gather_object(found, (p.megatron_fsdp_slice.start, own), group=group)
        whole = {k: torch.full((p.orig_param.numel(),), torch.nan) for k in parts}
        for begin, part in found:
            for k, x in part.items():
                whole[k][begin:begin + x.numel()] = x
        step_of = next(g["step"] for g in inner.param_groups if any(p is q for q in g["params"]))
        out[name_of(job, name)] = {**{k: x.view(p.orig_param.shape) for k, x in whole.items()}, "step": torch.tensor(float(step_of))}
    for x in out.values():
        x["weight"] = x["master"].bfloat16()
    return out


def schedule_of(optimizer):
    return OptimizerParamScheduler(
        optimizer, init_lr=1e-4, max_lr=1e-3, min_lr=1e-4, lr_warmup_steps=SAMPLES, lr_decay_steps=100 * SAMPLES,
        lr_decay_style="cosine", start_wd=0.1, end_wd=0.1, wd_incr_steps=100, wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False, override_opt_param_scheduler=True)


# ---- Megatron-LM's calls (megatron/training/checkpointing.py) ----

def state_dict_of(job, config, args, wrapped, optimizer, schedule):
    """(the whole state, what of it is saved and loaded)"""
    model = wrapped.module  # unwrap_model stops here
    state = {"args": args, "checkpoint_version": 3.0, "iteration": args.iteration, "model": model.state_dict_for_save_checkpoint()}
    state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=bool(job["load"]) and not optimizer.state, **FSDP)
    state["opt_param_scheduler"] = schedule.state_dict()
    state["rng_state"] = {"(0, %d)" % parallel_state.get_tensor_model_parallel_rank(): [
        {"random_rng_state": random.getstate(), "torch_rng_state": torch.get_rng_state()}]}
    state["num_floating_point_operations_so_far"] = 1e15
    if not hasattr(fsdp_dtensor_checkpoint, "handle_experts_in_state_dict"):  # before 0.16
        if config.gated_linear_unit:
            fsdp_dtensor_checkpoint.handle_swiglu_in_state_dict(model, state["model"], state["optimizer"])
        fsdp_dtensor_checkpoint.handle_fp8_extra_state_case(state["model"])
    else:
        fsdp_dtensor_checkpoint.handle_fp8_extra_state_case(state["model"])
        if config.gated_linear_unit:
            state["model"], state["optimizer"] = fsdp_dtensor_checkpoint.handle_swiglu_in_state_dict(
                model, state["model"], state["optimizer"])
        if config.num_moe_experts:
            state["model"] = fsdp_dtensor_checkpoint.handle_experts_in_state_dict(state["model"], config.num_moe_experts)
    preprocess_state_dict_for_uneven_dtensor(state)
    return state


def save(job, config, args, wrapped, optimizer, schedule):
    folder = pathlib.Path(job["save"]) / ("iter_%07d" % args.iteration)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(args.iteration))
    dcp.save(state_dict_of(job, config, args, wrapped, optimizer, schedule), storage_writer=dcp.FileSystemWriter(folder))


def run_megatron(job):
    args = argparse.Namespace(**vars(torch.load(job["args"], weights_only=False)["args"]))
    c, unit = job["config"], 128 * job["tp"]
    vars(args).update(
        padded_vocab_size=-(-c["vocab_size"] // unit) * unit, iteration=STEPS, bf16=job["bf16"], fp16=False,
        params_dtype=torch.bfloat16 if job["bf16"] else torch.float32, ckpt_format="fsdp_dtensor", use_megatron_fsdp=True,
        data_parallel_sharding_strategy=job["strategy"], tensor_model_parallel_size=job["tp"], pipeline_model_parallel_size=1,
        expert_model_parallel_size=job["ep"], expert_tensor_parallel_size=job["tp"], transformer_impl="transformer_engine",
        moe_grouped_gemm=job["grouped"], consumed_train_samples=STEPS * SAMPLES)
    config = TransformerConfig(**config_of(job))
    wrapped, optimizer = make(job, config, args)
    schedule = schedule_of(optimizer)
    for number in range(STEPS):
        step(job, wrapped, optimizer, number)
        schedule.step(increment=SAMPLES)
    save(job, config, args, wrapped, optimizer, schedule)
    return {"saved": state_of(job, wrapped, optimizer)}


# ---- Megatron-Bridge's ----

def run_bridge(job):
    c, made, unit = job["config"], [], 128 * job["tp"]

    def provider(**fields):
        made.append(bridge.GPTModelProvider(
            **fields, vocab_size=c["vocab_size"], should_pad_vocab=True, seq_length=c["max_position_embeddings"],
            share_embeddings_and_output_weights=c["tie_word_embeddings"], position_embedding_type="rope",
            rotary_base=int(c.get("rope_theta", 10000)), transformer_layer_spec=bridge.local_layer_spec, hf_model_id=bridge.MODEL_ID))
        made[-1].finalize()
        return made[-1]

    config = provider(**config_of(job))
    args = types.SimpleNamespace(padded_vocab_size=-(-c["vocab_size"] // unit) * unit)
    wrapped, optimizer = make(job, config, args)
    schedule = schedule_of(optimizer)
    state = bridge.make_state({**job, "load": None, "pretrained": False}, config)
    checkpoint = state.cfg.checkpoint
    checkpoint.ckpt_format, checkpoint.save, state.cfg.ddp.use_megatron_fsdp = "fsdp_dtensor", job["save"], True
    for number in range(STEPS):
        step(job, wrapped, optimizer, number)
        schedule.step(increment=SAMPLES)
        state.train_state.step += 1
    state.train_state.consumed_train_samples = STEPS * SAMPLES
    bridge.checkpointing.save_checkpoint(state, [wrapped], optimizer, schedule, 1e15)
    return {"saved": state_of(job, wrapped, optimizer)}


def rank_main(job, rank, world, port):
    (bridge.without_gpus if BRIDGE else ranks.adapt)()
    adapt()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(job["tp"], 1, expert_model_parallel_size=job["ep"])
    out = (run_bridge if BRIDGE else run_megatron)(job)
    if parallel_state.get_expert_data_parallel_rank() == 0:
        number = parallel_state.get_expert_model_parallel_rank() * job["tp"] + parallel_state.get_tensor_model_parallel_rank()
        torch.save(out, pathlib.Path(job["out"]) / ("%d.pt" % number))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(PROGRAM).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["dp"])
