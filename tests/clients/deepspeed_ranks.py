"""Ranks of DeepSpeed on CPUs: train a model or load a checkpoint, say what they hold, make a step, say it again, and save.

    deepspeed_ranks.py JOBS.json

A job is {"stage", "ranks", "load", "save", "out", "config", "bf16", "frozen"}: ZeRO's stage, folders, and the config.json of a
model. "load" is a Universal checkpoint, or null: the model starts from random weights and makes a step more. Parameters whose
names have "frozen" in them are not trained. Rank 0 writes OUT: {"loaded": state, "saved": state}; a state is {name: {"master",
"exp_avg", "exp_avg_sq", "step"}}, or {name: {"weight"}} where it is not trained, whole tensors as DeepSpeed's own functions gather
them. The step between the two has the tokens number "first" (1). With "alike" all ranks have the same tokens and gradients are
not clipped, so that a power of two of ranks gives the same bits as one, and the steps after it are made too, up to LAST. OUT has
the "losses" by these numbers.
"""
import json
import pathlib
import sys

import forked_ranks
import deepspeed_engine  # before deepspeed, for which it sets variables
import accelerate  # noqa: F401 else each rank imports it
import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

BATCH, TOKENS, LAST = 2, 16, 3


def make_engine(job):
    torch.manual_seed(1)
    config = AutoConfig.for_model(**job["config"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, p in model.named_parameters():
        p.requires_grad_(not job["frozen"] or job["frozen"] not in name)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    settings = {"train_micro_batch_size_per_gpu": BATCH, "bf16": {"enabled": job["bf16"]},
                "gradient_clipping": 0.0 if job.get("alike") else 1.0,
                "zero_optimization": {"stage": job["stage"], "stage3_param_persistence_threshold": 0},
                "checkpoint": {"load_universal": job["load"] is not None}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)
    return engine


def step(job, engine, number):
    random = torch.Generator().manual_seed(100 * number + (0 if job.get("alike") else dist.get_rank()))
    ids = torch.randint(0, job["config"]["vocab_size"], (BATCH, TOKENS), generator=random)
    loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
    engine.backward(loss)
    engine.step()
    return loss.item()


def state_of(engine):
    at, found = deepspeed_engine.step_of(engine), {}
    for name, p in engine.module.named_parameters():
        if not p.requires_grad:
            with deepspeed.zero.GatheredParameters([p]):
                found[name] = {"weight": p.detach().clone()}
            continue
        found[name] = {**deepspeed_engine.state_of(p), "step": at}
    return found


def rank_main(job, rank, world, port):
    deepspeed_engine.start(rank, world, port)
    engine = make_engine(job)
    if job["load"]:
        assert engine.load_checkpoint(job["load"])[0]
    else:
        step(job, engine, 0)
    out = {"loaded": state_of(engine)}
    first = job.get("first", 1)
    out["losses"] = {first: step(job, engine, first)}
    out["saved"] = state_of(engine)
    engine.save_checkpoint(job["save"])
    out["losses"].update((number, step(job, engine, number)) for number in range(first + 1, LAST + 1) if job.get("alike"))
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["ranks"])
