"""Ranks of Meta's Llama (llama-models with fairscale's model parallelism) on CPUs.

    meta_ranks.py JOBS.json

A job is {"ranks", "load", "save", "params", "old", "out"}: a folder that is loaded as Llama3.build does, by Meta's own
maybe_reshard_state_dict and a strict load_state_dict, or, where it is null, a new model of these params, in bf16, that each rank saves
in SAVE. old: the embedding is ParallelEmbedding, as in Meta's code of Llama 2. Rank 0 writes OUT: logits of TOKENS.
"""
import json
import pathlib
import sys

import forked_ranks
import torch
import torch.distributed as dist
from fairscale.nn.model_parallel import initialize
from fairscale.nn.model_parallel.layers import ParallelEmbedding
from llama_models import checkpoint
from llama_models.llama3 import model as llama
from llama_models.llama3.args import ModelArgs

TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250
NEW = llama.VocabParallelEmbedding


def load(folder, args):
    found = checkpoint.maybe_reshard_state_dict(sorted(folder.glob("*.pth")), n_kv_heads=args.n_kv_heads)
    torch.set_default_dtype(torch.float32)  # which it has changed
    model = llama.Transformer(args)
    model.load_state_dict(found, strict=True)
    return model


def make(folder, args, rank):
    torch.manual_seed(7 + rank)
    model = llama.Transformer(args)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_((torch.ones_like(p) if name.endswith("norm.weight") else torch.randn_like(p) * 0.1).bfloat16())
    torch.save({k: v.bfloat16() for k, v in model.state_dict().items()}, folder / ("consolidated.%02d.pth" % rank))
    return model


def run(job, rank, world, port):
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method="tcp://localhost:%d" % port)
    initialize.initialize_model_parallel(world)
    folder = pathlib.Path(job["load"] or job["save"])
    llama.VocabParallelEmbedding = ParallelEmbedding if job["old"] else NEW
    params = json.loads((folder / "params.json").read_text())
    if job["old"]:
        params.setdefault("rope_theta", 10000)  # which Meta's code of Llama 2 has no argument for
    args = ModelArgs(max_seq_len=32, max_batch_size=2, **params)
    model = load(folder, args) if job["load"] else make(folder, args, rank)
    logits = model.float()(TOKENS, 0)
    if rank == 0:
        torch.save(logits, job["out"])


torch.set_num_threads(1)
for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    forked_ranks.run(run, job, job["ranks"])
