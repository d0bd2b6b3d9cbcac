"""Ranks of FSDP2 with AdamW that save a model of transformers by the names of its modules, and load it.

    module_ranks.py JOBS.json

A job is {"ranks", "family", "folder", "load": a folder or null, "save": one or null, "accelerate", "out"}. Rank 0 writes OUT:
{"param", "exp_avg", "exp_avg_sq": {name: tensor}, "step"}, of what was saved or loaded, and "loss" of the next step.
"""
import json
import os
import pathlib
import sys

import family_models
import forked_ranks
import torch
import torch._dynamo  # noqa: F401 else each rank imports it, for some seconds
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

STEPS = 2


def step(model, optimizer):
    ids = torch.arange(24).reshape(1, 24) * 5 % 131
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def whole(value):
    return (value.full_tensor() if isinstance(value, DTensor) else value).clone()


def everything(model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    found = {"param": {k: whole(v) for k, v in weights.items()}, "step": {int(s["step"]) for s in state["state"].values()}}
    found.update((g, {k: whole(s[g]) for k, s in state["state"].items()}) for g in ("exp_avg", "exp_avg_sq"))
    return found


def parts_of(job, model, optimizer):
    """{folder: state dict}."""
    weights, state = get_state_dict(model, optimizer, options=StateDictOptions())
    if not job["accelerate"]:
        return {"": {"model": weights, "optim": state}}
    return {"pytorch_model_fsdp_0": {"model": weights}, "optimizer_0": {"optimizer": state}}


def load(job, model, optimizer):
    parts = parts_of(job, model, optimizer)
    for name, part in parts.items():
        dcp.load(part, checkpoint_id=os.path.join(job["load"], name))
    both = {k: v for part in parts.values() for k, v in part.items()}
    set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both.get("optim", both.get("optimizer")))


def rank_main(job, rank, world, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    model = family_models.make(job["family"], "%s-%d" % (job["folder"], rank), seed=2 if job["load"] else 1)
    for layer in (model.gpt_neox if job["family"] == "gpt-neox" else model.model).layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if job["load"]:
        load(job, model, optimizer)
    else:
        for _ in range(STEPS):
            step(model, optimizer)
    for name, part in (parts_of(job, model, optimizer) if job["save"] else {}).items():
        dcp.save(part, checkpoint_id=os.path.join(job["save"], name))
    out = everything(model, optimizer)
    out["loss"] = step(model, optimizer)
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["ranks"])
