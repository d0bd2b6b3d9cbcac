"""Trains small models with Hugging Face Accelerate without FSDP, in one process or several (DDP), and saves or loads them with
save_state and load_state.

    accelerate_ddp_ranks.py JOBS.json

A job is {"ranks", "family", "groups": one of GROUPS, "safe": whether weights are safetensors, "compiled", "schedule", "steps": to train before it
saves, "model", "load", "save": folders or null, "more": steps to train after that, "automatic": names of folders, "out"}. Rank 0 writes
OUT: {"saved" or "loaded": the state, "after": the same after the steps of "more"}, or {"error"} of load_state.
"""
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

import family_models
import forked_ranks

MOMENTS = ("exp_avg", "exp_avg_sq")
OPTIONS = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-7)


def split(model, undecayed, first=0):
    groups = [{"params": [p for n, p in model.named_parameters() if undecayed(n, p) == u], "weight_decay": 0.0 if u else 0.1}
              for u in (False, True)]
    return groups[::-1] if first else groups


# What programs give to torch.optim.AdamW; "examples" is transformers' run_clm_no_trainer.py.
GROUPS = {"one": lambda m: m.parameters(), "dims": lambda m: split(m, lambda n, p: p.dim() < 2),
          "examples": lambda m: split(m, lambda n, p: any(x in n for x in ("bias", "layer_norm.weight"))),
          "no decay first": lambda m: split(m, lambda n, p: p.dim() < 2, first=1)}


def state_of(accelerator, model, optimizer):
    """{"group/name": tensor} by the names of the live model, "options" and "step"."""
    model, found = accelerator.unwrap_model(model, keep_torch_compile=False), {}
    state = optimizer.optimizer.state
    for name, p in model.named_parameters():
        found["param/" + name] = p.detach().clone()
        found.update(("%s/%s" % (g, name), state[p][g].clone()) for g in MOMENTS if p in state)
    found["step"] = {float(s["step"]) for s in state.values()}
    found["options"] = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return found


def train(accelerator, model, optimizer, schedule, first, steps):
    for number in range(first, first + steps):
        ids = torch.randint(0, 131, (2, 16), generator=torch.Generator().manual_seed(100 * number + accelerator.process_index))
        accelerator.backward(model(input_ids=ids, labels=ids).loss)
        optimizer.step()
        if schedule:
            schedule.step()
        optimizer.zero_grad()


def run(job):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    if job["model"]:
        model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    else:
        kind, config = family_models.FAMILIES[job["family"]]
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**config))
    model.train()
    if job["load"]:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
    optimizer = torch.optim.AdamW(GROUPS[job["groups"]](model), **OPTIONS)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 1, 40) if job["schedule"] else None
    if job["compiled"]:
        model = torch.compile(model, backend="eager")
    config = ProjectConfiguration(project_dir=job["save"], automatic_checkpoint_naming=job["automatic"])
    accelerator = Accelerator(cpu=True, project_config=config)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    if job["load"]:
        accelerator.load_state(job["load"])
    train(accelerator, model, optimizer, schedule, job["first"], job["steps"])
    out = {"loaded" if job["load"] else "saved": state_of(accelerator, model, optimizer)}
    if job["save"]:
        accelerator.save_state(None if job["automatic"] else job["save"], safe_serialization=job["safe"])
    train(accelerator, model, optimizer, schedule, job["first"] + job["steps"], job["more"])
    out["after"] = state_of(accelerator, model, optimizer)
    if accelerator.is_main_process:
        torch.save(out, job["out"])
    accelerator.wait_for_everyone()
    accelerator.free_memory()


def rank_main(job, rank, world, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    run(job)
    dist.destroy_process_group()


if __name__ == "__main__":
    jobs = json.loads(pathlib.Path(sys.argv[1]).read_text())
    for each in sorted(jobs, key=lambda job: -job["ranks"]):  # a process that has trained cannot be forked
        if each["ranks"] > 1:
            forked_ranks.run(rank_main, each, each["ranks"])
        else:
            run(each)
