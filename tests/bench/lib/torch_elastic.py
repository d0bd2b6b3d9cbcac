"""The trainer that bench_restart runs under torchrun: gloo ranks, steps of about 50 ms, checkpoints.

    torchrun --nproc-per-node 4 --max-restarts 9 torch_elastic.py FOLDER

It saves a checkpoint every ten steps. Most of a step is a sleep, which leaves the processors to torchrun;
the rest is an all-reduce. Each rank writes "pid restarts step" to FOLDER/rank-R after every step.
"""
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
state = {"step": 0, "weights": torch.zeros(1 << 20)}
if (folder / "ckpt").exists():
    state = torch.load(folder / "ckpt")
while True:
    time.sleep(0.045)
    gradient = torch.ones(1 << 20)
    dist.all_reduce(gradient)
    state["weights"] += gradient
    state["step"] += 1
    if rank == 0 and state["step"] % 10 == 0:
        torch.save(state, folder / "ckpt.new")
        os.replace(folder / "ckpt.new", folder / "ckpt")
    new = folder / ("rank-%d.new" % rank)
    new.write_text("%d %d %d" % (os.getpid(), restarts, state["step"]))
    os.replace(new, folder / ("rank-%d" % rank))
