"""Ranks of Megatron-core on CPUs: load a checkpoint, say what they hold, make a step, say it again, and save.

    megatron_ranks.py JOBS.json

A job is {"format", "tp", "pp", "load", "save", "out", "config"}: format torch or torch_dist (Megatron's --ckpt-format),
folders, and the config.json of a Llama. Rank R writes OUT/R.pt with {"loaded": state, "saved": state}; a state is
{Megatron's name with the layer's number in the model: {"weight", "master", "exp_avg", "exp_avg_sq", "step"}}.
"""
import contextlib
import json
import multiprocessing.dummy
import pathlib
import sys
import types
import zlib

import forked_ranks
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, param_and_grad_buffer
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.overrides import TorchFunctionMode

CONTENT = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}


class OnCpu(TorchFunctionMode):
    """Megatron-core asks for its tensors on a GPU: they stay on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(args[0]).replace("torch.", "torch.cuda.")
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class Waited:
    def wait(self):
        pass


def without_gpus():
    torch.cuda.current_device = lambda: torch.device("cpu")
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *args: None)
    CudaRNGStatesTracker.fork = lambda self, *args: contextlib.nullcontext()
    param_and_grad_buffer._coalescing_manager = lambda *args, **kwargs: contextlib.nullcontext(Waited())
    # Files are written by threads: a fork of a rank, which has threads, may wait for ever.
    filesystem_async.mp = types.SimpleNamespace(get_context=lambda how: multiprocessing.dummy)
    OnCpu().__enter__()


def make_model(job, args):
    c = job["config"]
    config = TransformerConfig(
        num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"], num_attention_heads=c["num_attention_heads"],
        num_query_groups=c["num_key_value_heads"], kv_channels=c["head_dim"], ffn_hidden_size=c["intermediate_size"],
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        normalization="RMSNorm", layernorm_epsilon=c["rms_norm_eps"], hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, gradient_accumulation_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False, persist_layer_norm=False,
        tensor_model_parallel_size=job["tp"], pipeline_model_parallel_size=job["pp"], bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16)
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=args.padded_vocab_size, max_sequence_length=c["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False, position_embedding_type="rope")
    for p in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(p)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True),
                                      Float16Module(config, model))
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16,
                        clip_grad=0.0), [wrapped])
    return model, optimizer


def named(job, model):
    """(name with the layer's number in the model, parameter) of this rank."""
    first = parallel_state.get_pipeline_model_parallel_rank() * job["config"]["num_hidden_layers"] // job["pp"]
    for name, p in model.named_parameters():
        parts = name.split(".")
        if name.startswith("decoder.layers."):
            parts[2] = str(int(parts[2]) + first)
        yield ".".join(parts), p


def state_of(job, model, optimizer):
    inner = getattr(optimizer, "chained_optimizers", [optimizer])[0].optimizer
    state = {}
    for name, p in named(job, model):
        own = inner.state[p.main_param]
        tensors = {"weight": p, "master": p.main_param, **{k: own[k] for k in ("exp_avg", "exp_avg_sq", "step")}}
        state[name] = {k: x.detach().clone() for k, x in tensors.items()}
    return state


def legacy_file(folder, job):
    name = "mp_rank_%02d" % parallel_state.get_tensor_model_parallel_rank()
    if job["pp"] > 1:
        name += "_%03d" % parallel_state.get_pipeline_model_parallel_rank()
    (latest,) = pathlib.Path(folder).glob("iter_*")
    return latest / name / "model_optim_rng.pt"


def load(job):
    if job["format"] == "torch":
        found = torch.load(legacy_file(job["load"], job), weights_only=False)
        args = found["args"]
        model, optimizer = make_model(job, args)
    else:
        (folder,) = pathlib.Path(job["load"]).glob("iter_*")
        args = dist_checkpointing.load_common_state_dict(str(folder))["args"]
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size = job["tp"], job["pp"]
        args.padded_vocab_size = -(-job["config"]["vocab_size"] // (128 * job["tp"])) * 128 * job["tp"]
        model, optimizer = make_model(job, args)
        content = dist_checkpointing.load_content_metadata(str(folder))
        wanted = {"model": model.sharded_state_dict(metadata=content)}
        wanted["optimizer"] = optimizer.sharded_state_dict(wanted, is_loading=True, metadata=content)
        found = dist_checkpointing.load(wanted, str(folder))
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return args, model, optimizer


def step(job, model, optimizer):
    """One step with invented gradients, which are the same on ranks that hold the same parameter."""
    for name, p in named(job, model):
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        p.main_grad.copy_(0.01 * torch.randn(p.shape, generator=random))
    assert optimizer.step()[0]


def save(job, args, model, optimizer):
    args.iteration += 1
    folder = pathlib.Path(job["save"]) / ("iter_%07d" % args.iteration)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(args.iteration))
    common = {"args": args, "checkpoint_version": 3.0, "iteration": args.iteration}
    if job["format"] == "torch":
        path = legacy_file(job["save"], job)
        path.parent.mkdir()
        torch.save({**common, "model": model.state_dict_for_save_checkpoint(), "optimizer": optimizer.state_dict()},
                   path)
        return
    dist.barrier()
    state = {**common, "model": model.sharded_state_dict(metadata=CONTENT)}
    state["optimizer"] = optimizer.sharded_state_dict(state, metadata=CONTENT)
    dist_checkpointing.save(state, str(folder), content_metadata=CONTENT)


def rank_main(job, rank, world, port):
    without_gpus()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank,
                            world_size=world)
    parallel_state.initialize_model_parallel(job["tp"], job["pp"])
    args, model, optimizer = load(job)
    out = {"loaded": state_of(job, model, optimizer)}
    step(job, model, optimizer)
    out["saved"] = state_of(job, model, optimizer)
    save(job, args, model, optimizer)
    torch.save(out, pathlib.Path(job["out"]) / ("%d.pt" % rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["pp"])
