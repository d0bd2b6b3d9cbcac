"""Ranks of DeepSpeed on CPUs that train a PipelineModule with tensor parallelism, whose modules have the names of GPT-NeoX's or of
Megatron-DeepSpeed's, and save it.

    neox_ranks.py JOBS.json

A job is {"names": "neox" or "megatron", "tp", "pp", "dp", "bf16", "pipeline", "gated", "tied", "config", "save", "out"}; with
"universal", which is what the program says for it, ds_to_universal converts what was saved. Each rank
of dp 0 writes OUT-STAGE-TP: {name: {"weight", "master", "exp_avg", "exp_avg_sq", "step"}} of its parameters, as the engine has
them. Norms and biases that each tensor-parallel rank has whole begin with other values on each, so that it matters which is
taken.
"""
import argparse
import json
import pathlib
import sys

import forked_ranks
import deepspeed_engine  # before deepspeed, for which it sets variables
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.checkpoint import ds_to_universal
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology
from torch import nn
from torch.nn import functional

BATCH, TOKENS, STEPS, ACCUMULATED = 2, 8, 2, 2
ARGS = {"num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads"}
TP = {}  # size, rank and group of tensor parallelism


class Reduce(torch.autograd.Function):
    """The sum over tensor-parallel ranks."""

    @staticmethod
    def forward(_, x):
        y = x.float().clone()
        dist.all_reduce(y, group=TP["group"])
        return y.to(x.dtype)

    @staticmethod
    def backward(_, grad):
        return grad


def part(n):
    return n // TP["size"]


def linear(n_in, n_out, bias=True):
    module = nn.Linear(n_in, n_out, bias=bias)
    if bias:
        nn.init.normal_(module.bias, std=0.02)
    return module


def norm(config, gated):
    if not gated:
        module = nn.LayerNorm(config["hidden_size"])
        nn.init.normal_(module.bias, std=0.02)
    else:
        module = nn.RMSNorm(config["hidden_size"], eps=1e-6)
    nn.init.normal_(module.weight, mean=1, std=0.02)
    return module


class Scale(nn.Module):
    """GPT-NeoX's RMSNorm has "scale" where others have "weight"."""

    def __init__(self, config):
        super().__init__()
        self.scale = nn.Parameter(norm(config, True).weight.detach())

    def forward(self, x):
        return functional.rms_norm(x, self.scale.shape, self.scale)


class Embedding(nn.Module):
    def __init__(self, job):
        super().__init__()
        config = job["config"]
        self.word_embeddings = nn.Embedding(part(job["vocab"]), config["hidden_size"])
        nn.init.normal_(self.word_embeddings.weight, std=0.02)
        if "n_positions" in config:
            self.position_embeddings = nn.Embedding(config["n_positions"], config["hidden_size"])

    @property
    def word_embeddings_weight(self):
        return self.word_embeddings.weight

    def forward(self, ids):
        low = TP["rank"] * self.word_embeddings.num_embeddings
        mine = (ids >= low) & (ids < low + self.word_embeddings.num_embeddings)
        x = Reduce.apply(self.word_embeddings((ids - low) * mine) * mine[..., None])
        if hasattr(self, "position_embeddings"):
            x = x + self.position_embeddings(torch.arange(ids.shape[1]))
        return x


def logits(embedding, x):
    return functional.linear(x, embedding.word_embeddings_weight)


class Attention(nn.Module):
    def __init__(self, job):
        super().__init__()
        c, bias = job["config"], not job["gated"]
        kv = c.get("num_key_value_heads", c["num_attention_heads"]) * c["hidden_size"] // c["num_attention_heads"]
        self.query_key_value = linear(c["hidden_size"], part(c["hidden_size"] + 2 * kv), bias)
        self.dense = linear(part(c["hidden_size"]), c["hidden_size"], bias)

    def forward(self, x):
        """Not attention, but all rows count."""
        qkv = self.query_key_value(x)
        return Reduce.apply(functional.linear(qkv[..., :self.dense.in_features] * qkv[..., -1:] + qkv.mean(), self.dense.weight, self.dense.bias))


class Mlp(nn.Module):
    def __init__(self, job):
        super().__init__()
        c, self.gated = job["config"], job["gated"]
        names = ("linear1", "linear2") if job.get("new_names") else ("dense_h_to_4h", "dense_4h_to_h")
        self.names = names
        ffn = part(c["intermediate_size"])
        setattr(self, names[0], linear(c["hidden_size"], ffn * (2 if self.gated else 1), not self.gated))
        setattr(self, names[1], linear(ffn, c["hidden_size"], not self.gated))

    def forward(self, x):
        y = getattr(self, self.names[0])(x)
        if self.gated:
            a, b = y.chunk(2, -1)
            y = functional.silu(a) * b
        else:
            y = functional.gelu(y)
        return Reduce.apply(getattr(self, self.names[1])(y))


class Layer(nn.Module):
    def __init__(self, job):
        super().__init__()
        neox = job["names"] == "neox"

        def make_norm():
            return Scale(job["config"]) if neox and job["gated"] else norm(job["config"], job["gated"])

        self.input_layernorm = make_norm()
        setattr(self, "attention" if neox else "self_attention", Attention(job))
        self.attend = "attention" if neox else "self_attention"
        self.post_attention_layernorm = make_norm()
        self.mlp = Mlp(job)

    def forward(self, x):
        x = x + getattr(self, self.attend)(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Norm(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.norm = Scale(job["config"]) if job["gated"] else norm(job["config"], False)

    def forward(self, x):
        return self.norm(x)


class Head(nn.Module):
    def __init__(self, job):
        super().__init__()
        name = "final_linear" if job["names"] == "neox" else "lm_head"
        self.head = name
        setattr(self, name, linear(job["config"]["hidden_size"], part(job["vocab"]), False))

    def forward(self, x):
        return getattr(self, self.head)(x)


def same(x):
    return x


def loss_of(out, labels):
    """Of a rank's part of the vocabulary."""
    return functional.cross_entropy(out.float().flatten(0, 1), (labels % out.shape[-1]).flatten())


def layers_of(job):
    neox = job["names"] == "neox"

    def embedding(**more):
        return (TiedLayerSpec("embed", Embedding, job, tied_weight_attr="word_embeddings_weight", **more) if job["tied"]
                else LayerSpec(Embedding, job))

    layers = [LayerSpec(Layer, job) for _ in range(job["config"]["num_hidden_layers"])]
    final = LayerSpec(Norm, job) if neox else norm(job["config"], job["gated"])
    head = embedding(forward_fn=logits) if job["tied"] else LayerSpec(Head, job)
    return [embedding(), same, *layers, same, final, head] if neox else [same, embedding(), *layers, final, head]


class Encoder(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.layers = nn.ModuleList(Layer(job) for _ in range(job["config"]["num_hidden_layers"]))
        self.final_layernorm = norm(job["config"], job["gated"])


class Language(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.embedding, self.encoder = Embedding(job), Encoder(job)


class NoPipeline(nn.Module):
    """Megatron-DeepSpeed's model with --no-pipeline-parallel, with tied embeddings."""

    def __init__(self, job):
        super().__init__()
        self.language_model = Language(job)

    def forward(self, ids, labels):
        x = self.language_model.embedding(ids)
        for layer in self.language_model.encoder.layers:
            x = layer(x)
        return loss_of(logits(self.language_model.embedding, self.language_model.encoder.final_layernorm(x)), labels)

    def nested(self, *_, **more):
        """The state dict that it saves."""
        embedding = self.language_model.embedding
        return {"language_model": {"embedding": {k: module.state_dict() for k, module in embedding.named_children()},
                                   "encoder": self.language_model.encoder.state_dict()}}


def make_engine(job, rank):
    torch.manual_seed(100 + rank % TP["size"])
    topology = PipeModelDataParallelTopology(job["pp"], job["tp"], job["dp"])
    pipeline = job.get("pipeline", True)
    model = PipelineModule(layers_of(job), topology=topology, loss_fn=loss_of, partition_method="type:layer") if pipeline else NoPipeline(job)
    for p in model.parameters():
        p.model_parallel = p.ndim > 1  # else a rank after the first has no gradients for the norm of all
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95))
    settings = {"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": ACCUMULATED, "gradient_clipping": 1.0,
                "bf16": {"enabled": job["bf16"]}, "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False,
                                      mpu=None if pipeline else PipelineParallelGrid(topology))
    return engine


def grid_of(engine):
    return getattr(engine, "grid", None) or engine.mpu


def train(job, engine):
    data = batches(job, engine)
    for _ in range(STEPS):
        if job.get("pipeline", True):
            engine.train_batch(data)
        for _ in range(0 if job.get("pipeline", True) else ACCUMULATED):
            engine.backward(engine(*next(data)))
            engine.step()


def batches(job, engine):
    random = torch.Generator().manual_seed(7 + grid_of(engine).get_data_parallel_rank())
    while True:
        ids = torch.randint(0, job["config"]["vocab_size"], (BATCH, TOKENS), generator=random)
        yield ids, ids


def state_of(engine):
    optimizer = engine.optimizer
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):  # it was done after the step of the first group alone
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    at = deepspeed_engine.step_of(engine)
    return {name: {"weight": p.detach().clone(), **deepspeed_engine.state_of(p), "step": at} for name, p in engine.module.named_parameters()}


def rank_main(job, rank, world, port):
    deepspeed_engine.start(rank, world, port)
    for first in range(0, world, job["tp"]):
        group = dist.new_group(list(range(first, first + job["tp"])))
        if first <= rank < first + job["tp"]:
            TP.update(size=job["tp"], rank=rank - first, group=group)
    engine = make_engine(job, rank)
    train(job, engine)
    state = state_of(engine)
    if grid_of(engine).get_data_parallel_rank() == 0:
        torch.save(state, "%s-%d-%d" % (job["out"], grid_of(engine).get_pipe_parallel_rank(), TP["rank"]))
    if not job.get("pipeline", True):
        engine.module.state_dict = engine.module.nested
    client = {"iteration": STEPS, "args": {k: job["config"][v] for k, v in ARGS.items()}}
    if "universal" in job:
        client["universal_checkpoint_info"] = job["universal"]
    engine.save_checkpoint(job["save"], tag="global_step%d" % STEPS, client_state=client)
    dist.barrier()
    dist.destroy_process_group()


def to_universal(job, *_):
    """As its program does it, beside the checkpoint."""
    tag = pathlib.Path(job["save"]) / ("global_step%d" % STEPS)
    ds_to_universal.main(argparse.Namespace(input_folder=str(tag), output_folder=str(tag) + "_universal", num_extract_workers=1,
                                            num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=False))


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["pp"] * each["dp"])
        if "universal" in each:
            forked_ranks.run(to_universal, each, 1)
