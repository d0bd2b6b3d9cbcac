"""The PyTorch program that the training benchmarks compare with: one process, or a Llama in two ranks.

    PYTHON torch_training.py '{"mode": "tp", ...}'      (from lib/training.py)

The models are those of torch_models.py, which are faster than transformers'. AdamW is fused, gradients are
clipped in one fused pass and set to None. Each process has one thread.

  mode  one  one process
        tp   DTensor: parallelize_module, column- and row-parallel layers, vocabulary-parallel embedding
             and head, parallel loss
        sp   the same, with norms and residuals split along the sequence (torchtitan's default)
        dp   DistributedDataParallel: buckets are all-reduced during the backward pass
        hf   DistributedDataParallel around transformers' LlamaForCausalLM with its defaults (sdpa)
        megatron  Megatron-core's layers (megatron_llama.py)
        compile   one process, with torch.compile around the model and the loss

Ranks communicate by gloo over loopback. Prints one JSON object: for every step the loss (of the whole
batch), the CPU seconds of all ranks together and the wall seconds of the slowest; and each rank's peak memory.
"""
import contextlib
import json
import os
import resource
import sys
import time

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import torch  # noqa: E402 (threads are set before it is loaded)
import torch.distributed as dist
import torch.nn.functional as F
import torch_models
from torch import nn


REPLICAS = ("dp", "hf")  # modes in which each rank has its own sequences


def tensor_parallel(model, sequence):
    """Megatron's tensor parallelism with DTensors; with `sequence` also sequence parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
                                                   RowwiseParallel, SequenceParallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    between = Shard(1) if sequence else Replicate()

    def row(**kw):
        return RowwiseParallel(output_layouts=between, **kw)

    parallelize_module(model, mesh, {
        "embed_tokens": row(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1),
                                   use_local_output=False)})
    plan = {"self_attn.o_proj": row(), "mlp.down_proj": row()}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
                 "mlp.up_proj"):
        plan[name] = ColwiseParallel()
    if sequence:
        plan |= {"input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
                 "self_attn": PrepareModuleInput(input_layouts=(Shard(1), None, None),
                                                 desired_input_layouts=(Replicate(), None, None)),
                 "mlp": PrepareModuleInput(input_layouts=(Shard(1),),
                                           desired_input_layouts=(Replicate(),))}
        parallelize_module(model, mesh, {"norm": SequenceParallel()})
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def local(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def square_norm(grads, is_part):
    """The squared norm of gradients: all are DTensors, or all whole on each rank, or all a rank's part."""
    square = local(nn.utils.get_total_norm(grads, foreach=True)) ** 2
    if is_part:
        dist.all_reduce(square)
    return square


def clip(groups, most, is_part):
    wide, thin = ([p.grad for p in g] for g in groups)
    norm = (square_norm(wide, is_part) + square_norm(thin, False)).sqrt()
    for g in groups:
        nn.utils.clip_grads_with_norm_(g, most, norm, foreach=True)


def batches(w, rank):
    """This rank's token windows of every step."""
    data = bytearray(open(w["data"], "rb").read())
    if w["data"].endswith(".bin"):
        text = torch.frombuffer(data, dtype=torch.int16).long() & 0xffff
    else:
        text = torch.frombuffer(data, dtype=torch.uint8).long()
    windows, share = (len(text) - 1) // w["seq"], w["batch"]
    first = 0
    if w["mode"] in REPLICAS:
        share //= w["ranks"]
        first = rank * share
    for s in range(w["steps"]):
        at = [(s * w["batch"] + first + b) % windows * w["seq"] for b in range(share)]
        yield torch.stack([text[i:i + w["seq"] + 1] for i in at])


def hugging_face(folder):
    """(LlamaForCausalLM, logits of token ids)."""
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_cache=False)
    around = nn.parallel.DistributedDataParallel(model.train(), gradient_as_bucket_view=True)
    return model, lambda ids: around(ids).logits


def built(w):
    """(module with the trained parameters, function for the loss of token windows, context of a step)."""
    c, mode = w["config"], w["mode"]
    if mode == "megatron":
        import megatron_llama
        model = megatron_llama.build(c)
        megatron_llama.load(model, w["folder"], c)
        return model, lambda x: megatron_llama.loss_of(model, x), contextlib.nullcontext
    context = contextlib.nullcontext
    if mode == "hf":
        model, around = hugging_face(w["folder"])
    else:
        model = around = torch_models.build(c, w["folder"])
    if mode in ("tp", "sp"):
        from torch.distributed.tensor.parallel import loss_parallel
        tensor_parallel(model, mode == "sp")
        context = loss_parallel
    if mode == "dp":
        around = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def loss_of(x):
        logits = around(x[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
    return model, torch.compile(loss_of) if mode == "compile" else loss_of, context


def train(w, rank):
    torch.set_num_threads(1)
    model, loss_of, context = built(w)
    groups = [[p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False)]
    opt = torch.optim.AdamW([{"params": groups[0], "weight_decay": 0.1},
                             {"params": groups[1], "weight_decay": 0.0}],
                            lr=w["lr"], betas=(0.9, 0.95), eps=1e-8, fused=True)
    out = {"cpu": [], "wall": [], "loss": []}
    for x in batches(w, rank):
        cpu, wall = time.process_time(), time.monotonic()
        with context(), torch.autocast("cpu", torch.bfloat16, enabled=w["bf16"]):
            loss = loss_of(x)
            loss.backward()
        clip(groups, 1.0, w["mode"] == "megatron")
        opt.step()
        opt.zero_grad()
        out["loss"].append(local(loss.detach()).item())
        out["cpu"].append(time.process_time() - cpu)
        out["wall"].append(time.monotonic() - wall)
    out["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return out


def rank_main(rank, w, port, answers):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank,
                            world_size=w["ranks"])
    answers.put(train(w, rank))
    dist.barrier()
    dist.destroy_process_group()


def together(w):
    import socket

    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    answers = mp.get_context("spawn").SimpleQueue()
    ranks = mp.spawn(rank_main, (w, port, answers), nprocs=w["ranks"], join=False)
    while not ranks.join():  # raises if a rank did; the results fit into the pipe
        pass
    every = [answers.get() for _ in range(w["ranks"])]
    steps = [list(zip(*(r[k] for r in every))) for k in ("cpu", "wall", "loss")]
    mean = [sum(x) / len(x) for x in steps[2]]  # with dp each rank has the mean over its own sequences
    return {"cpu": [sum(x) for x in steps[0]], "wall": [max(x) for x in steps[1]], "loss": mean,
            "rss": [r["rss"] for r in every]}


def main():
    w = json.loads(sys.argv[1])
    if w["mode"] in ("one", "compile"):
        out = train(w, 0)
        out["rss"] = [out["rss"]]
    else:
        out = together(w)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
