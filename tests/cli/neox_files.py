"""Writes checkpoints as DeepSpeed does for GPT-NeoX and Megatron-DeepSpeed, with tensor, pipeline and data parallelism, from tensors
with Hugging Face's names: {group: {name: array}}, with weights in bf16 as their bits, or in fp16, and masters."""
import collections
import re

import numpy as np

import foreign_files
import torch_files
from torch_files import Tensor

PADDING = 5  # what rows beyond the vocabulary have
COPIES = 1 / 8  # how far ranks' copies of a vector are from their mean


def split(array, n, axis=0):
    return np.split(array, n, axis)


class Save:
    """A job of tp x pp x dp. names: "neox" or "megatron"; pipeline: False without PipelineModule. The model is GPT-NeoX, Llama or
    GPT-2. qkv_ranks: of Megatron-DeepSpeed since December 2024, where each of so many ranks has its queries, then its keys, then its
    values; 0: before."""

    def __init__(self, config, state, tp, pp, dp, names="neox", pipeline=True, qkv_ranks=0, **more_args):
        self.config, self.state, self.tp, self.pp, self.dp = config, state, tp, pp, dp
        self.neox, self.pipeline, self.kind = names == "neox", pipeline, config["model_type"]
        self.layers = config.get("num_hidden_layers", config.get("n_layer"))
        self.heads = config.get("num_attention_heads", config.get("n_head"))
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.qkv_ranks = tp if self.neox and self.kv_heads < self.heads else qkv_ranks
        self.tied = config["tie_word_embeddings"]
        self.first = 2 if pipeline or self.neox else 0  # module of the first layer
        self.vocab = -(-config["vocab_size"] // (8 * tp)) * 8 * tp
        self.args = {"num_layers": self.layers, "num_attention_heads": self.heads, **more_args}
        if qkv_ranks:
            self.args.update(ds_sequence_parallel_fpdt=False, tensor_model_parallel_size=qkv_ranks)

    # ---- how a tensor is cut: an array for each tensor-parallel rank ----

    def padded(self, array):
        fill = np.full((self.vocab - array.shape[0],) + array.shape[1:], PADDING, array.dtype)
        return split(np.concatenate([array, fill]), self.tp)

    def fused(self, q, k, v):
        """Of all ranks."""
        parts = zip(*(split(x, self.qkv_ranks or self.kv_heads) for x in (q, k, v)))
        return np.concatenate([x for part in parts for x in part])

    def copies(self, array, group, total=False):
        """Copies whose mean is the array, or whose sum. Values of vectors are multiples of 1/8."""
        values = (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)
        total = total and group in ("param", "master")
        out = [values / self.tp if total else values.copy() for _ in range(self.tp)]
        for i, sign in ((0, 1), (self.tp - 1, -1)) if self.tp > 1 else ():
            out[i] = out[i] + np.float32(sign * COPIES)
        return [(np.ascontiguousarray(x).view(np.uint32) >> 16 if array.dtype == np.uint16 else x).astype(array.dtype) for x in out]

    def layer(self, t, group, at):
        """{name without the number: arrays} of layer `at`."""
        attention = "attention." if self.neox else "self_attention."
        return {"gpt_neox": self.neox_layer, "llama": self.llama_layer, "gpt2": self.gpt2_layer}[self.kind](t, group, at, attention)

    def neox_layer(self, t, group, at, attention):
        out = {}
        for name, array in t.items():
            found = re.match(r"gpt_neox\.layers\.%d\.(.*)" % at, name)
            rest = found and found[1]
            if not rest:
                continue
            if rest.endswith(("dense.bias", "dense_4h_to_h.bias")):
                out[rest] = self.copies(array, group, total=self.config["use_parallel_residual"])
            else:
                out[rest] = (self.copies(array, group) if "layernorm" in rest
                             else split(array, self.tp, int(rest.endswith(("dense.weight", "dense_4h_to_h.weight")))))
        return out

    def llama_layer(self, t, group, at, attention):
        head = "model.layers.%d." % at
        q, k, v = (t["%sself_attn.%s_proj.weight" % (head, x)] for x in "qkv")
        gate, up = (split(t["%smlp.%s_proj.weight" % (head, x)], self.tp) for x in ("gate", "up"))
        qkv = split(self.fused(q, k, v), self.tp)
        norm = "scale" if self.neox else "weight"
        first, second = ("linear1", "linear2") if self.neox else ("dense_h_to_4h", "dense_4h_to_h")
        return {"input_layernorm." + norm: self.copies(t[head + "input_layernorm.weight"], group),
                attention + "query_key_value.weight": qkv,
                attention + "dense.weight": split(t[head + "self_attn.o_proj.weight"], self.tp, 1),
                "post_attention_layernorm." + norm: self.copies(t[head + "post_attention_layernorm.weight"], group),
                "mlp.%s.weight" % first: [np.concatenate((u, g) if self.neox else (g, u)) for g, u in zip(gate, up)],
                "mlp.%s.weight" % second: split(t[head + "mlp.down_proj.weight"], self.tp, 1)}

    def gpt2_layer(self, t, group, at, attention):
        out = {}
        for ours, name in (("ln_1", "input_layernorm"), ("attn.c_attn", attention + "query_key_value"), ("attn.c_proj", attention + "dense"),
                           ("ln_2", "post_attention_layernorm"), ("mlp.c_fc", "mlp.dense_h_to_4h"), ("mlp.c_proj", "mlp.dense_4h_to_h")):
            for kind in ("weight", "bias"):
                array = t["transformer.h.%d.%s.%s" % (at, ours, kind)].T  # Conv1D has [in, out]
                if "c_attn" in ours:
                    array = self.fused(*split(array, 3))
                if "ln" in ours or ("c_proj" in ours and kind == "bias"):
                    out["%s.%s" % (name, kind)] = self.copies(array, group)
                else:
                    out["%s.%s" % (name, kind)] = split(array, self.tp, int("c_proj" in ours))
        return out

    def modules(self, group):
        """{number: {name: arrays}} of the pipeline."""
        t = self.state[group]
        embedding, norm, head, positions = {
            "gpt_neox": ("gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm.", "embed_out.weight", None),
            "llama": ("model.embed_tokens.weight", "model.norm.", "lm_head.weight", None),
            "gpt2": ("transformer.wte.weight", "transformer.ln_f.", None, "transformer.wpe.weight")}[self.kind]
        embed = {"word_embeddings.weight": self.padded(t[embedding])}
        if positions:
            embed["position_embeddings.weight"] = self.copies(t[positions], group)
        out = {0 if self.neox else 1: embed}
        out.update((i + 2, self.layer(t, group, i)) for i in range(self.layers))
        last = self.layers + (3 if self.neox else 2)
        kinds = [k for k in ("weight", "bias") if norm + k in t]
        scale = "scale" if self.neox and self.kind == "llama" else None
        out[last] = {("norm." if self.neox else "") + (scale or k): self.copies(t[norm + k], group) for k in kinds}
        out[last + 1] = dict(embed) if self.tied else {"final_linear.weight" if self.neox else "lm_head.weight": self.padded(t[head])}
        return out

    # ---- files ----

    def name(self, module, key, last):
        """A parameter's name in the whole model."""
        if self.pipeline:
            tied = self.tied and key.endswith("_embeddings.weight")
            return "tied_modules.embed." + key if tied else "%d.%s" % (module, key)
        if self.neox:
            return "sequential.%d.%s" % (module, key)
        if "_embeddings" in key:
            return "language_model.embedding." + key
        if key.startswith("lm_head"):
            return "language_model.output_layer.weight"
        return "language_model.encoder.%s" % ("final_layernorm." + key if module == last - 1 else "layers.%d.%s" % (module - 2, key))

    def nested(self, names):
        """The state dict of a model without a pipeline."""
        if self.neox:
            return collections.OrderedDict((k, Tensor(v)) for k, v in names.items())
        out = {"embedding": {}, "encoder": collections.OrderedDict()}
        for name, array in names.items():
            part, rest = name[len("language_model."):].split(".", 1)
            if part == "encoder":
                out[part][rest] = Tensor(array)
            elif part == "embedding":
                out[part].setdefault(rest.split(".")[0], {})[rest.split(".")[1]] = Tensor(array)
            else:
                out[part] = {rest: Tensor(array)}
        return {"language_model": out}

    def stage_of(self, numbers):
        """Modules of each stage: about as many."""
        return {m: i * self.pp // len(numbers) for i, m in enumerate(numbers)}

    def write(self, folder, step, **more):
        groups = {g: self.modules(g) for g in self.state}
        numbers = sorted(groups["param"])
        stages, last = self.stage_of(numbers), numbers[-1]
        for stage in range(self.pp):
            for rank in range(self.tp):
                mine = {g: {self.name(m, k, last): arrays[rank] for m in numbers if stages[m] == stage for k, arrays in modules[m].items()}
                        for g, modules in groups.items()}
                foreign_files.zero1(folder, mine, step, self.dp, mp_rank=stage * self.tp + rank, mp_world_size=self.tp * self.pp,
                                    module=None if self.pipeline else self.nested(mine["param"]),
                                    args=self.args, **more)
        for module in numbers if self.pipeline else ():
            for rank in range(self.tp):
                path = folder / ("global_step%d" % step) / ("layer_%02d-model_%02d-model_states.pt" % (module, rank))
                torch_files.save(path, collections.OrderedDict((k, Tensor(arrays[rank])) for k, arrays in groups["param"][module].items()))

    def write_universal(self, folder, step):
        """What ds_to_universal makes of a job, joined: tp is 1, and the vocabulary has no padding."""
        self.vocab = self.config["vocab_size"]
        groups = {g: self.modules(g) for g in self.state}
        last = max(groups["param"])
        foreign_files.universal(folder, {g: {self.name(m, k, last): arrays[0] for m, module in modules.items() for k, arrays in module.items()}
                                         for g, modules in groups.items()}, step, False, args=self.args)
