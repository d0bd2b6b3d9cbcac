"""Ranks of a trainer that saves and loads as torchtitan does: FSDP2, Meta's names, flat keys of the optimizer.

    torchtitan_ranks.py JOBS.json

A job is {"ranks", "renamed", "load", "save", "out", "config"}: whether the names are those since 2026, folders of
torch.distributed.checkpoint or null, and the config.json of a Llama. Rank 0 writes OUT: {"loaded": {key of the
checkpoint: whole tensor or object}, "logits": of TOKENS, "saved": the same after a step}.
"""
import json
import pathlib
import sys

import forked_ranks
import torch
import torch._dynamo  # noqa: F401 else each rank imports it, for some seconds
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250


def turn(x, theta):
    """Rotary embedding of (batch, token, head, element): neighbouring elements are a complex number."""
    n, width = x.shape[1], x.shape[3]
    angles = torch.outer(torch.arange(n).float(), theta ** -(torch.arange(0, width, 2).float() / width))
    pairs = torch.view_as_complex(x.unflatten(3, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[None, :, None]).flatten(3)


class Attention(nn.Module):
    def __init__(self, c, renamed):
        super().__init__()
        self.c, width = c, c["head_dim"]
        inner = self if not renamed else nn.Module()
        for name, heads in (("wq", "num_attention_heads"), ("wk", "num_key_value_heads"), ("wv", "num_key_value_heads")):
            setattr(inner, name, nn.Linear(c["hidden_size"], c[heads] * width, bias=False))
        if renamed:
            self.qkv_linear = inner
        self.wo = nn.Linear(c["num_attention_heads"] * width, c["hidden_size"], bias=False)

    def forward(self, x):
        inner = getattr(self, "qkv_linear", self)
        q, k, v = (w(x).unflatten(2, (-1, self.c["head_dim"])) for w in (inner.wq, inner.wk, inner.wv))
        q, k = turn(q, self.c["rope_theta"]), turn(k, self.c["rope_theta"])
        y = nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True,
                                                       enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False) for _ in range(2))
        self.w2 = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c, renamed):
        super().__init__()
        self.attention, self.feed_forward = Attention(c, renamed), FeedForward(c)
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"]) for _ in range(2))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, c, renamed):
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleDict({str(i): Block(c, renamed) for i in range(c["num_hidden_layers"])})
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.head = "lm_head" if renamed else "output"
        setattr(self, self.head, nn.Linear(c["hidden_size"], c["vocab_size"], bias=False))

    def forward(self, ids):
        x = self.tok_embeddings(ids)
        for layer in self.layers.values():
            x = layer(x)
        return getattr(self, self.head)(self.norm(x))


def state_of(model, optimizer):
    """The state dict that is saved and loaded: weights, and the optimizer under keys with the weights' names."""
    flat, (group,) = {}, optimizer.param_groups
    for name, p in model.named_parameters():
        flat.update(("state.%s.%s" % (name, k), x) for k, x in optimizer.state[p].items())
        flat.update(("param_groups.%s.%s" % (name, k), x) for k, x in group.items() if k not in ("params", "param_names"))
    return {**model.state_dict(), "optimizer": flat}


def whole(state):
    flat = {**state, **{"optimizer." + k: x for k, x in state["optimizer"].items()}}
    del flat["optimizer"]
    return {k: x.full_tensor() if isinstance(x, DTensor) else x for k, x in flat.items()}


def copied(state):
    return {k: x.detach().clone() if torch.is_tensor(x) else x for k, x in whole(state).items()}


def step(model, optimizer, rate):
    logits = model(TOKENS)
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()


def rank_main(job, rank, world, port):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    torch.manual_seed(1)
    model, mesh = Llama(job["config"], job["renamed"]), init_device_mesh("cpu", (world,))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-3, betas=(0.9, 0.95))
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)  # its option initial_lr is saved too
    step(model, optimizer, 0.0 if job["load"] else 1e-2)  # makes the state; without a rate, weights stay
    if job["load"]:
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=job["load"])
        model.load_state_dict(state, strict=False)
    out = {"loaded": copied(state if job["load"] else state_of(model, optimizer)), "logits": model(TOKENS).detach()}
    step(model, optimizer, 1e-2)
    state = state_of(model, optimizer)
    out["saved"] = copied(state)
    dcp.save({**state, "train_state": {"step": torch.tensor(2, dtype=torch.int32), "ntokens_seen": 64},
              "lr_scheduler": {"last_epoch": 2}}, checkpoint_id=job["save"])
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["ranks"])
