"""Ranks that train a model under FSDP on CPUs and save and load it by the calls of verl's FSDPCheckpointManager.

    verl_ranks.py JOBS.json

A job is {"kind", "ranks", "fsdp_size", "load", "save", "out", "config", "rule"}. kind: "fsdp2", "fsdp1", or "fsdp1-orig"
(use_orig_params); rule: dims are chosen so that they divide (get_shard_placement_fn of verl 0.6 and 0.7), only with FSDP2. "load" is a folder,
or null: the model starts from random weights and makes two steps. Then rank 0 notes what all ranks hold, all make a step, and rank 0
notes it again: OUT has {"saved": state, "next": state}; a state is {name: {"param", "exp_avg", "exp_avg_sq", "step"}}, whole tensors
as torch's own functions gather them. SAVE is written before the last step.

What is copied from verl 0.9.0 is only which functions are called, in which order, with which arguments: create_device_mesh of
workers/engine/fsdp/utils.py, apply_fsdp2 of utils/fsdp_utils.py, _build_fsdp_module of workers/engine/fsdp/transformer_impl.py,
save_checkpoint and load_checkpoint of utils/checkpoint/fsdp_checkpoint_manager.py. Versions 0.4.1 to 0.8 call the same.
"""
import contextlib
import functools
import json
import os
import pathlib
import random
import sys
import warnings

import forked_ranks
import numpy as np
import torch
import torch._dynamo  # noqa: F401 else each rank imports it, for some seconds
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FullyShardedDataParallel as FSDP, ShardedOptimStateDictConfig, ShardedStateDictConfig, ShardingStrategy,
                                    StateDictType, fully_shard)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM

BATCH, TOKENS = 2, 16


def mesh_of(job):
    ranks, size = job["ranks"], job["fsdp_size"]
    if size < 0 or size >= ranks:
        return init_device_mesh("cpu", mesh_shape=(ranks,), mesh_dim_names=["fsdp"])
    return init_device_mesh("cpu", mesh_shape=(ranks // size, size), mesh_dim_names=["ddp", "fsdp"])


def dividing_dim(ranks, param):
    return Shard(next((i for i, n in enumerate(param.shape) if n % ranks == 0), 0))


def wrap(job, model):
    mesh = mesh_of(job)
    layers = {type(m) for m in model.modules() if type(m).__name__ in model._no_split_modules}
    if job["kind"] == "fsdp2":
        options = {"mesh": mesh, "reshard_after_forward": True}
        if job["rule"]:
            options["shard_placement_fn"] = functools.partial(dividing_dim, mesh.shape[-1])
        tied = model.config.tie_word_embeddings
        for module in [m for m in model.modules() if type(m) in layers or (isinstance(m, torch.nn.Embedding) and not tied)]:
            fully_shard(module, **options)
        if not tied:
            fully_shard(model.lm_head, **options)
        return fully_shard(model, **options)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    strategy = ShardingStrategy.FULL_SHARD if mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD
    return FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), sharding_strategy=strategy, device_mesh=mesh,
                use_orig_params=job["kind"] == "fsdp1-orig")


def file_of(folder, kind):
    return os.path.join(folder, "%s_world_size_%d_rank_%d.pt" % (kind, dist.get_world_size(), dist.get_rank()))


def sharded(job, model):
    if job["kind"] == "fsdp2":
        return contextlib.nullcontext()
    return FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False),
                                ShardedOptimStateDictConfig(offload_to_cpu=False))


def save(job, folder, model, optimizer, scheduler):
    os.makedirs(folder, exist_ok=True)
    dist.barrier()
    with sharded(job, model):
        torch.save(model.state_dict(), file_of(folder, "model"))
        torch.save(optimizer.state_dict(), file_of(folder, "optim"))
        rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
        torch.save({"lr_scheduler": scheduler.state_dict(), "rng": rng}, file_of(folder, "extra_state"))
    if dist.get_rank() == 0:
        (model if job["kind"] == "fsdp2" else model._fsdp_wrapped_module).config.save_pretrained(os.path.join(folder, "huggingface"))
        config = {"FSDP_version": 2 if job["kind"] == "fsdp2" else 1, "world_size": dist.get_world_size()}
        pathlib.Path(folder, "fsdp_config.json").write_text(json.dumps(config, indent=4))
    dist.barrier()


def load(job, folder, model, optimizer, scheduler):
    with sharded(job, model):
        model.load_state_dict(torch.load(file_of(folder, "model"), weights_only=False))
        optimizer.load_state_dict(torch.load(file_of(folder, "optim"), weights_only=False))
    extra = torch.load(file_of(folder, "extra_state"), weights_only=False)
    if "rng" in extra:
        torch.set_rng_state(extra["rng"]["cpu"])
        np.random.set_state(extra["rng"]["numpy"])
        random.setstate(extra["rng"]["random"])
    if extra["lr_scheduler"] is not None:
        scheduler.load_state_dict(extra["lr_scheduler"])
    dist.barrier()


# ---- training --------------------------------------------------------------------------------

def step(job, model, optimizer, scheduler, number):
    """With gradients that are the same at every number of ranks, bit for bit; AdamW computes each element by itself. Those of the model would
    be rounded in other ways."""
    g = torch.Generator().manual_seed(number)
    ids = torch.randint(0, job["config"]["vocab_size"], (BATCH, TOKENS), generator=g)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert torch.isfinite(loss)
    loss.backward()
    for name, p in model.named_parameters() if job["kind"] == "fsdp2" else ():
        whole = torch.randn(p.shape, generator=g) * 0.1
        p.grad = distribute_tensor(whole, p.device_mesh, p.placements)
    for p in model.parameters() if job["kind"] == "fsdp1" else ():  # flat, of a unit; the end is padding
        whole, size = torch.randn(p._unpadded_unsharded_size, generator=g) * 0.1, job["fsdp_size"]
        shard = dist.get_rank() % (size if 0 < size < job["ranks"] else job["ranks"]) * p.numel()
        p.grad = torch.nn.functional.pad(whole[shard:shard + p.numel()], (0, max(0, shard + p.numel() - max(shard, whole.numel()))))
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def whole_tensor(x):
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()  # of one rank it is the tensor itself


def gathered(model, optimizer, weights):
    """Each rank has an interval of each flattened moment, or nothing. For parameters that some ranks have nothing of, exp_avg of
    FSDP.optim_state_dict of torch 2.15 was not that of the ranks, so it is not asked."""
    mine = {name.replace("_fsdp_wrapped_module.", ""): optimizer.state.get(p, {}) for name, p in model.named_parameters()}
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return {name: {"step": next(m[name]["step"] for m in every if m[name]),
                   **{k: torch.cat([m[name][k] for m in every if m[name]]).reshape(weights[name].shape) for k in ("exp_avg", "exp_avg_sq")}}
            for name in mine}


def state_of(job, model, optimizer):
    """By torch's own functions; all ranks call them."""
    if job["kind"] == "fsdp2":
        return {name: {"param": whole_tensor(p.data), **{k: whole_tensor(x) for k, x in optimizer.state[p].items()}}
                for name, p in model.named_parameters()}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        weights = model.state_dict()
        if job["kind"] == "fsdp1-orig":
            return {name: {"param": weights[name].clone(), **s} for name, s in gathered(model, optimizer, weights).items()}
        moments = FSDP.optim_state_dict(model, optimizer)["state"]
    return {name: {"param": weights[name].clone(), **{k: x.clone() for k, x in s.items()}} for name, s in moments.items()}


def rank_main(job, rank, world, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(2 if job["load"] else 1)
    model = wrap(job, AutoModelForCausalLM.from_config(AutoConfig.for_model(**job["config"]), dtype=torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 8))
    if job["load"]:
        load(job, job["load"], model, optimizer, scheduler)
    else:
        for number in range(2):
            step(job, model, optimizer, scheduler, number)
    out = {"saved": state_of(job, model, optimizer), "lr": optimizer.param_groups[0]["lr"], "epoch": scheduler.last_epoch}
    if job["save"]:
        save(job, job["save"], model, optimizer, scheduler)
    step(job, model, optimizer, scheduler, 2)
    out["next"] = state_of(job, model, optimizer)
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


def main():
    for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, job, job["ranks"])


if __name__ == "__main__":
    main()
