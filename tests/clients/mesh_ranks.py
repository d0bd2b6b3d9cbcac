"""Ranks of a program of PyTorch that trains a Llama of transformers with FSDP2, and with tensor parallelism where the mesh has two axes.

    mesh_ranks.py JOB.json

A job is {"mesh", "config", "load", "save", "out"}: [dp] or [dp, tp], a config.json, folders of torch.distributed.checkpoint (load: null,
or one to continue from). Rank 0 writes OUT: {"loaded", "saved": {"group/name": whole tensor}, "logits": of TOKENS when it was saved}.
"""
import json
import math
import sys

import forked_ranks
import torch
import torch._dynamo  # noqa: F401 else each rank imports it, for some seconds
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 130
CUTS = {**{"self_attn." + x: ColwiseParallel for x in ("q_proj", "k_proj", "v_proj")}, "self_attn.o_proj": RowwiseParallel,
        "mlp.gate_proj": ColwiseParallel, "mlp.up_proj": ColwiseParallel, "mlp.down_proj": RowwiseParallel}


def made(job):
    torch.manual_seed(1)
    config = {k: v for k, v in job["config"].items() if k != "architectures"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    names = ("dp", "tp")[:len(job["mesh"])]
    mesh = init_device_mesh("cpu", tuple(job["mesh"]), mesh_dim_names=names)
    for layer in model.model.layers:
        if "tp" in names:
            parallelize_module(layer, mesh["tp"], {name: cut() for name, cut in CUTS.items()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(model, optimizer):
    logits = model(TOKENS).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def whole(x):
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def state_of(model, optimizer):
    weights, optim = get_state_dict(model, optimizer)
    found = {"param/" + k: whole(v) for k, v in weights.items()}
    for name, state in optim["state"].items():
        found.update({"%s/%s" % (k, name): whole(state[k]) for k in ("exp_avg", "exp_avg_sq")})
    return found


def rank_main(job, rank, world, port):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    model, optimizer = made(job)
    step(model, optimizer)
    if job["load"]:
        weights, optim = get_state_dict(model, optimizer)
        state = {"model": weights, "optim": optim}
        dcp.load(state, checkpoint_id=job["load"])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    out = {"loaded": state_of(model, optimizer)}
    step(model, optimizer)
    out["saved"], out["logits"] = state_of(model, optimizer), whole(model(TOKENS).logits)
    weights, optim = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": optim}, checkpoint_id=job["save"])
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        job = json.load(f)
    forked_ranks.run(rank_main, job, math.prod(job["mesh"]))
