"""Writes checkpoints as Megatron-LM and DeepSpeed do, from tensors with Hugging Face's names.

State is {group: {name: array}}, with the groups param, exp_avg, exp_avg_sq and, for bf16, master.
"""
import collections
import itertools
import sys

import numpy as np

import torch_files
from torch_files import Tensor

FLAT_ALIGN = 64
LAST_ROW = "last row"  # what padding has when it is written here
MOMENTS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def _opaque(module, name):
    """A class that readers must not need."""
    if module not in sys.modules:
        torch_files._module(module)
    cls = torch_files._class()
    cls.__module__, cls.__qualname__, cls.__name__ = module, name, name
    setattr(sys.modules[module], name, cls)
    return cls


# ---- Megatron ----

class Megatron:
    """Megatron's tensors of a model: fused, with padding, for a mesh of tp, pp, vpp and ep."""

    fill = 7  # in padding, or LAST_ROW
    param_groups = ()  # of the optimizer
    common_step = None  # of torch_dist's
    block = 0  # of gate and up in experts, which are then in turn

    def __init__(self, config, tp=1, pp=1, vpp=1, padding=8, dp=1, bucket_size=None, engine=False, ep=1, stacked=False,
                 sequential=False):
        self.config, self.tp, self.pp, self.vpp, self.dp, self.ep = config, tp, pp, vpp, dp, ep
        self.experts = config.get("num_local_experts", config.get("num_experts", 0))
        self.bucket_size, self.engine, self.grouped_mlp = bucket_size, engine, stacked
        self.grouped_linear = engine and not sequential
        self.vocab = -(-config["vocab_size"] // (padding * tp)) * padding * tp
        self.counts = [config["num_hidden_layers"] // (pp * vpp)] * (pp * vpp)  # layers of the first chunks, then of the second
        self.more_root = {}
        self.more_args = {"data_parallel_size": dp, "overlap_grad_reduce": bucket_size is not None,
                          "ddp_bucket_size": bucket_size, "moe_grouped_gemm": stacked or (self.grouped_linear and self.experts > 0),
                          "transformer_impl": "transformer_engine" if engine else "local"}

    def padded(self, array):
        shape = (self.vocab - array.shape[0],) + array.shape[1:]
        row = array[-1:] if self.fill is LAST_ROW else np.array(self.fill, array.dtype)
        return np.concatenate([array, np.broadcast_to(row, shape)])

    def qkv(self, q, k, v):
        groups, hd = self.config["num_key_value_heads"], self.config["head_dim"]
        rows = [np.split(a, groups) for a in (q, k, v)]
        assert rows[1][0].shape[0] == hd
        return np.concatenate([part for group in zip(*rows) for part in group])

    def layer(self, t, number):
        """{name: (whole tensor, how it is cut)} of a layer, in the order of Megatron's modules."""
        p = "model.layers.%d." % number
        attention = [t[p + "self_attn.%s_proj.weight" % x] for x in "qkv"]
        out = {
            "input_layernorm.weight": (t[p + "input_layernorm.weight"], None),
            "self_attention.linear_proj.weight": (t[p + "self_attn.o_proj.weight"], 1),
            "self_attention.linear_qkv.weight": (self.qkv(*attention), 0)}
        if p + "self_attn.q_norm.weight" in t:
            for x in "qk":
                out["self_attention.%s_layernorm.weight" % x] = (t[p + "self_attn.%s_norm.weight" % x], None)
        out["pre_mlp_layernorm.weight"] = (t[p + "post_attention_layernorm.weight"], None)
        return {**out, **(self.moe(t, p) if self.experts else {
            "mlp.linear_fc1.weight": ((t[p + "mlp.gate_proj.weight"], t[p + "mlp.up_proj.weight"]), "fc1"),
            "mlp.linear_fc2.weight": (t[p + "mlp.down_proj.weight"], 1)})}

    def moe(self, t, p):
        """The router and all experts; an expert's number is that of the model."""
        mixtral = p + "block_sparse_moe.gate.weight" in t
        p, gate, up, down = (p + "block_sparse_moe.", "w1", "w3", "w2") if mixtral else (p + "mlp.", *(
            x + "_proj" for x in ("gate", "up", "down")))
        out = {"mlp.router.weight": (t[p + "gate.weight"], None)}
        for e in range(self.experts):
            own = {x: t["%sexperts.%d.%s.weight" % (p, e, x)] for x in (gate, up, down)}
            out["mlp.experts.local_experts.%d.linear_fc1.weight" % e] = ((own[gate], own[up]), "expert_fc1")
            out["mlp.experts.local_experts.%d.linear_fc2.weight" % e] = (own[down], 1)
        return out

    def local_expert(self, name, ep_rank):
        """A name as ep_rank has it; None: another rank has this expert."""
        if ".local_experts." not in name:
            return name
        head, _, tail = name.partition(".local_experts.")
        number, _, kind = tail.partition(".")
        number = int(number) - ep_rank * self.experts // self.ep
        if not 0 <= number < self.experts // self.ep:
            return None
        if self.grouped_linear:
            return "%s.%s%d" % (head, kind, number)
        return "%s.local_experts.%d.%s" % (head, number, kind)

    def engine_name(self, name):
        """The name of a layer's parameter in Transformer Engine's modules: linear layers have the norm before them."""
        name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
        return name if self.experts else name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")

    def extra_states(self, names):
        """What else the state dict of these parameters has: of linear layers, and with Transformer Engine of norms and attention."""
        modules = {name.rpartition(".")[0] for name in names}
        states = {m for m in modules if m.rpartition(".")[2].startswith(("linear_", "output_layer"))}
        if self.engine:
            states |= {m for m in modules if m.endswith("layernorm")}
            states |= {m.replace("linear_proj", "core_attention") for m in modules if "linear_proj" in m}
        return {m + "._extra_state" for m in states}

    def as_stacked(self, layer):
        """All experts' matrices as [in, out], one after the other, in two tensors whose shapes say nothing."""
        out = {k: v for k, v in layer.items() if ".experts." not in k}
        for i, shape in ((1, (self.config["hidden_size"], -1)), (2, (-1, self.config["hidden_size"]))):
            out["mlp.experts.weight%d" % i] = np.concatenate(
                [v.T.reshape(-1) for k, v in layer.items() if "experts." in k and "linear_fc%d" % i in k]).reshape(shape)
        return out

    def in_blocks(self, block):
        """Transformer Engine's grouped layers with --moe-mlp-glu-interleave-size."""
        self.block = block
        self.more_args.update(moe_mlp_glu_interleave_size=block, moe_grouped_gemm=True)
        return self

    def expert_fc1(self, gate, up, rank, ranks):
        """What a rank has of an expert's gate and up."""
        gate, up = (np.split(a, ranks)[rank] for a in (gate, up))
        n = len(gate) // self.block if self.block else 1
        return np.concatenate([part for pair in zip(np.split(gate, n), np.split(up, n)) for part in pair])

    def all_expert_fc1(self, gate, up):
        """The first halves of all ranks' rows, then the second ones, as apply_swiglu_sharded_factory places them."""
        ranks = self.more_args.get("expert_tensor_parallel_size", self.tp)
        halves = [np.split(self.expert_fc1(gate, up, rank, ranks), 2) for rank in range(ranks)]
        return np.concatenate([half[i] for i in range(2) for half in halves])

    def cut(self, array, how, rank):
        if how is None:
            return array
        if how == "expert_fc1":
            return self.expert_fc1(*array, rank, self.tp)
        if how == "fc1":
            return np.concatenate([np.split(a, self.tp)[rank] for a in array])
        return np.ascontiguousarray(np.split(array, self.tp, axis=how)[rank])

    def chunk(self, t, tp_rank, pp_rank, chunk, ep_rank=0):
        """The parameters of a model chunk of a rank, in the order of its modules."""
        out = {}
        if pp_rank == 0 and chunk == 0:
            out["embedding.word_embeddings.weight"] = self.cut(self.padded(t["model.embed_tokens.weight"]), 0, tp_rank)
        stage = chunk * self.pp + pp_rank
        for i in range(self.counts[stage]):
            modules = list(self.layer(t, sum(self.counts[:stage]) + i).items())
            if self.engine:  # the norm is a part of linear_qkv, which is made after linear_proj
                modules.sort(key=lambda m: "linear_proj" not in m[0] and
                             1 + (self.grouped_linear and "experts" in m[0]) * (1 + ("fc2" in m[0])))
            layer = {}
            for name, (array, how) in modules:
                name = self.local_expert(self.engine_name(name) if self.engine else name, ep_rank)
                if name:
                    layer[name] = self.cut(array, how, tp_rank)
            out.update(("decoder.layers.%d.%s" % (i, k), v) for k, v in (self.as_stacked(layer) if self.grouped_mlp else layer).items())
        if pp_rank == self.pp - 1 and chunk == self.vpp - 1:
            out["decoder.final_layernorm.weight"] = t["model.norm.weight"]
            if not self.config.get("tie_word_embeddings"):
                out["output_layer.weight"] = self.cut(self.padded(t["lm_head.weight"]), 0, tp_rank)
            elif self.pp > 1:
                out["output_layer.weight"] = self.cut(self.padded(t["model.embed_tokens.weight"]), 0, tp_rank)
        return out

    def buckets(self, chunk, pp_rank, number):
        """[[(name, begin)], elements] of each bucket: the rule of Megatron's ParamAndGradBuffer."""
        shared = self.pp > 1 and self.config.get("tie_word_embeddings")
        size = self.bucket_size if pp_rank == 0 and number == 0 else None
        out, params, at = [], [], 0
        for name in reversed(list(chunk)):
            at += -at % FLAT_ALIGN
            alone = shared and name in ("embedding.word_embeddings.weight", "output_layer.weight")
            if alone and params:
                out.append((params, at))
                params, at = [], 0
            params.append((name, at))
            at += chunk[name].size
            if alone or (size and at >= size):
                out.append((params, at))
                params, at = [], 0
        return out + ([(params, at)] if params else [])

    def args(self):
        cls = _opaque("argparse_of_megatron", "Namespace")
        args = cls()
        args.__dict__.update({"tensor_model_parallel_size": self.tp, "pipeline_model_parallel_size": self.pp,
                              "virtual_pipeline_model_parallel_size": self.vpp if self.vpp > 1 else None,
                              "expert_model_parallel_size": self.ep, "num_experts": self.experts or None,
                              **self.more_args})
        return args

    def chunks(self, state, tp_rank, pp_rank, ep_rank=0):
        """[{group: {name: array}}] of each model chunk."""
        return [{g: self.chunk(t, tp_rank, pp_rank, c, ep_rank) for g, t in state.items()} for c in range(self.vpp)]

    def folder(self, tp_rank, pp_rank, ep_rank):
        return "mp_rank_%02d" % tp_rank + ("_%03d" % pp_rank if self.pp > 1 else "") + (
            "_%03d" % ep_rank if self.ep > 1 else "")

    def legacy(self, folder, state, step, distributed=False):
        """Write FOLDER as save_checkpoint of ckpt_format "torch" does."""
        folder.mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
        for tp_rank, pp_rank, ep_rank in itertools.product(range(self.tp), range(self.pp), range(self.ep)):
            rank = folder / ("iter_%07d" % step) / self.folder(tp_rank, pp_rank, ep_rank)
            chunks = self.chunks(state, tp_rank, pp_rank, ep_rank)
            root = {"args": self.args(), "checkpoint_version": 3.0, "iteration": step, "rng_state": [{}], **self.more_root}
            for number, chunk in enumerate(chunks):
                key = "model%d" % number if self.vpp > 1 else "model"
                root[key] = collections.OrderedDict((k, Tensor(v)) for k, v in chunk["param"].items())
                root[key]["decoder.layers.0.mlp.linear_fc1._extra_state"] = None
            if distributed:
                states = [self.flat(c, pp_rank) for c in self.by_optimizer(chunks)]
                if ep_rank > 0:  # the first expert-parallel rank has saved the same
                    states[0] = None
                torch_files.save(rank / "distrib_optim.pt", states if self.ep > 1 else states[0])
                root["optimizer"] = {"optimizer": {"param_groups": []}}
            else:
                root["optimizer"] = self.optimizers(chunks, step)
            torch_files.save(rank / "model_optim_rng.pt", root)

    def optimizers(self, chunks, step):
        """With expert parallelism, experts have one of their own."""
        states = [self.ordinary(c, step) for c in self.by_optimizer(chunks)]
        return states if self.ep > 1 else states[0]

    def by_optimizer(self, chunks):
        """The chunks of each optimizer."""
        if self.ep == 1:
            return [chunks]
        return [[{g: {k: v for k, v in t.items() if (".experts." in k) == experts} for g, t in c.items()} for c in chunks]
                for experts in (False, True)]

    def ordinary(self, chunks, step):
        """Matrices first, then vectors: the order of weight decay."""
        groups = [[(c, k) for c in chunks for k, v in c["param"].items() if v.ndim == ndim] for ndim in (2, 1)]
        state = {i: {"step": Tensor(np.array(step, np.float32)), **{m: Tensor(c[m][k]) for m in MOMENTS}}
                 for i, (c, k) in enumerate(groups[0] + groups[1])}
        out = {"optimizer": {"state": state, "param_groups": list(self.param_groups)}}
        if "master" in chunks[0]:
            out["fp32_from_fp16_params"] = [[Tensor(c["master"][k], wrap="type") for c, k in g] for g in groups]
        return out

    def filled(self, params, numel, tensors):
        """A bucket, zero between parameters."""
        out = np.zeros(numel, np.float32)
        for name, begin in params:
            out[begin:begin + tensors[name].size] = tensors[name].reshape(-1)
        return out

    def flat(self, chunks, pp_rank):
        """The buffer of each chunk: its buckets without the padding between them."""
        root = {"buckets_coalesced": True}
        for number, (c, chunk) in enumerate((c, chunk) for c, chunk in enumerate(chunks) if chunk["param"]):
            buckets = self.buckets(chunk["param"], pp_rank, c)
            buffers = {key: Tensor(np.concatenate([self.filled(*b, chunk[group]) for b in buckets]))
                       for key, group in {"param": "master", **MOMENTS}.items()}
            buffers["numel_unpadded"] = sum(numel for _, numel in buckets)
            root[number] = {(torch_files.torch.bfloat16, torch_files.torch.float32): buffers}
        return root

    def pieces(self, params, numel, tensors):
        """Where dp_reshardable cuts a bucket: at parameters, at padding, and between data-parallel ranks."""
        part = -(-numel // np.lcm(self.dp, 128)) * np.lcm(self.dp, 128) // self.dp
        cuts = {0, numel, *range(0, numel, int(part))}
        for name, begin in params:
            cuts |= {begin, begin + tensors[name].size}
        cuts = sorted(cuts)
        return [((a,), (b - a,)) for a, b in zip(cuts, cuts[1:])]

    def flat_optimizer(self, state, kind):
        """(tensors, objects) of the distributed optimizer as dp_reshardable or dp_zero_gather_scatter."""
        tensors, objects = {}, {}
        for pp_rank, ep_rank, tp_rank in itertools.product(range(self.pp), range(self.ep), range(self.tp)):
            for i, chunks in enumerate(self.by_optimizer(self.chunks(state, tp_rank, pp_rank, ep_rank))):
                if i == 0 and ep_rank > 0:
                    continue
                group = (pp_rank * self.ep + ep_rank if i else pp_rank) * self.tp + tp_rank
                head = ("chained_%d." % i if self.ep > 1 else "") + "optimizer.distributed.dp_group_idx_%d." % group
                objects[head + "optimizer/shard_0_1"] = [{"param_groups": [{"lr": 0.1}]}]
                if kind == "dp_zero_gather_scatter":
                    objects[head + "param_state/shard_0_1"] = [self.flat(chunks, pp_rank)]
                else:
                    objects[head + "per_bucket_numel/shard_0_1"] = [[]]
                    tensors.update(self.flat_tensors(head, chunks, pp_rank))
        return tensors, objects

    def flat_tensors(self, head, chunks, pp_rank):
        """The buckets of a rank's buffers; a chunk without parameters has none."""
        out = {}
        for number, (c, chunk) in enumerate((c, chunk) for c, chunk in enumerate(chunks) if chunk["param"]):
            for b, (params, numel) in enumerate(self.buckets(chunk["param"], pp_rank, c)):
                key = head + "gbuf_idx_%d.dtype_(torch.bfloat16, torch.float32).bucket_idx_%d." % (number, b)
                for name, group in {"param": "master", **MOMENTS}.items():
                    out[key + name] = (self.filled(params, numel, chunk[group]), self.pieces(params, numel, chunk["param"]))
        return out

    def stacked(self, one, t):
        """{name: (tensor of all layers, and then experts; how it is cut)}"""
        layers = [one.layer(t, i) for i in range(self.config["num_hidden_layers"])]
        expert = "mlp.experts.local_experts.%d."
        out = {"decoder.layers." + name: (np.stack([one.cut(layer[name][0], how, 0) for layer in layers]), how)
               for name, (_, how) in layers[0].items() if "experts" not in name}
        for x, how in {"linear_fc1.weight": "fc1", "linear_fc2.weight": 1}.items() if self.experts else ():
            out["decoder.layers.mlp.experts.experts." + x] = (np.stack([np.stack([
                self.all_expert_fc1(*layer[expert % e + x][0]) if how == "fc1" else layer[expert % e + x][0]
                for e in range(self.experts)]) for layer in layers]), how)
        return out

    def torch_dist(self, folder, state, step, kind=None, change=None, chained=""):
        """Write FOLDER as ckpt_format "torch_dist" does: layers stacked, cut over tp and layers. kind: of the distributed
        optimizer, which is flat. change: a function that damages tensors and objects, and the shapes of those that
        fully_sharded_model_space has cut."""
        one = type(self)({**self.config}, 1, 1, 1, 8 * self.tp)
        cut = {} if kind == "fully_sharded_model_space" else None
        flat = kind and cut is None
        tensors, objects = self.flat_optimizer(state, kind) if flat else ({}, {})
        heads = {"param": "", "master": "optimizer.state.fp32_param.", **{m: "optimizer.state.%s." % m for m in MOMENTS}}
        for group, t in {"param": state["param"]}.items() if flat else state.items():
            whole = one.chunk(t, 0, 0, 0)
            head = heads[group]
            for name, (stacked, how) in self.stacked(one, t).items():
                axes = stacked.shape[:-2 if stacked.ndim > 2 else -1]
                boxes = [(at + lo, (1,) * len(at) + size) for at in np.ndindex(axes)
                         for lo, size in self.boxes(stacked[at], how)]
                tensors[(chained if "experts" in name and group != "param" else "") + head + name] = (stacked, boxes)
            for name, array in whole.items():
                if not name.startswith("decoder.layers."):
                    tensors[head + name] = (array, self.boxes(array, 0 if array.ndim == 2 else None))
        inside = folder / ("iter_%07d" % step)
        for name in [] if cut is None else [n for n in tensors if "optimizer.state." in n]:
            cut[name] = tensors[name][0].shape
            tensors[name] = self.cut_flat(name, *tensors[name])
        if change:
            change(tensors, objects, *[] if cut is None else [cut])
        torch_files.dcp(inside, tensors, {"rng_state/shard_0.0_1.1": 1, **objects}, cut=cut)
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
        (inside / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
        counter = {} if self.common_step is None else {"state": {"common_step": self.common_step}}
        torch_files.save(inside / "common.pt", {"args": self.args(), "iteration": step, **self.more_root, "optimizer": {
            "optimizer": {"param_groups": list(self.param_groups), **counter}}})

    def fsdp_dtensor(self, folder, state, step, change=None, options=None, joined=False):
        """Write FOLDER as Megatron-FSDP does with ckpt_format "fsdp_dtensor": whole tensors of each layer and expert, cut between
        rows by dp; gate and up are apart, but joined: not those of experts. Weights are the masters, if there are any. options: of
        parameters, by the ends of their names. change: a function that damages tensors and objects."""
        one = type(self)({**self.config}, 1, 1, 1, 8 * self.tp, engine=self.engine, sequential=not self.grouped_linear)
        tensors, objects = {}, {"args": self.args(), "iteration": step, "checkpoint_version": 3.0}
        for key, value in self.more_root.items():
            inside = isinstance(value, dict)
            objects.update({"%s.%s" % (key, k): v for k, v in value.items()} if inside else {key: value})
        groups = {"master" if "master" in state else "param": ("model.module.", "")}
        groups.update({m: ("optimizer.state.module.module.module.", "." + m) for m in MOMENTS if m in state})
        for group, (head, tail) in groups.items():
            for name, array in one.chunk(state[group], 0, 0, 0).items():
                gated = "linear_fc1.weight" in name and "n_embd" not in self.config and not (joined and "experts" in name)
                for half, part in dict(zip(("_w", "_v"), np.split(array, 2))).items() if gated else (("", array),):
                    tensors[head + name + half + tail] = (part, self.uneven(part))
                own = {"lr": 0.1, "wd_mult": float(array.ndim > 1), "betas": (0.9, 0.95), "step": step}
                own.update(next((v for k, v in (options or {}).items() if name.endswith(k)), {}))
                if group in MOMENTS:
                    objects.update(("optimizer.param_to_group_meta.module.module.module.%s.%s" % (name, k), v) for k, v in own.items())
        if change:
            change(tensors, objects)
        torch_files.dcp(folder / ("iter_%07d" % step), tensors, objects)
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))

    def uneven(self, array):
        """Boxes of whole rows, one less in the first than it should be."""
        cuts = sorted({0, len(array)} | {max(1, i * len(array) // self.dp - 1) for i in range(1, self.dp)})
        return [((a,) + (0,) * (array.ndim - 1), (b - a,) + array.shape[1:]) for a, b in zip(cuts, cuts[1:])]

    def cut_flat(self, name, array, boxes):
        """A tensor as fully_sharded_model_space has it: a grid of parts, each flat and cut over the data-parallel ranks. The rows
        of gate and of up are parts of their own."""
        if "linear_fc1.weight" in name:
            boxes = [(lo[:-2] + (at, lo[-1]), size[:-2] + (size[-2] // 2, size[-1])) for lo, size in boxes
                     for at in (lo[-2], lo[-2] + size[-2] // 2)]
        part = boxes[0][1]
        n = int(np.prod(part))
        out, intervals = np.zeros([a // b for a, b in zip(array.shape, part)] + [n], array.dtype), []
        cuts = sorted({0, n} | {i * n // self.dp + i for i in range(1, self.dp)})
        for lo, size in boxes:
            at = tuple(a // b for a, b in zip(lo, size))
            assert size == part
            out[at] = array[tuple(slice(a, a + b) for a, b in zip(lo, size))].reshape(-1)
            intervals += [(at + (a,), (1,) * len(at) + (b - a,)) for a, b in zip(cuts, cuts[1:])]
        return out, intervals

    def boxes(self, array, how):
        if how is None:
            return torch_files.rows(array, 1)
        return torch_files.columns(array, self.tp) if how == 1 else torch_files.rows(array, self.tp)


class MegatronGpt2(Megatron):
    """GPT-2 in Megatron: biases, LayerNorm, learned positions, and matrices that Hugging Face stores transposed."""

    def __init__(self, config, *sizes, **more):
        super().__init__({**config, "num_hidden_layers": config["n_layer"], "num_key_value_heads": config["n_head"],
                          "head_dim": config["n_embd"] // config["n_head"]}, *sizes, **more)

    def layer(self, t, number):
        p, out = "transformer.h.%d." % number, {}
        for theirs, ours, how in (("input_layernorm", "ln_1", None), ("self_attention.linear_proj", "attn.c_proj", 1),
                                  ("self_attention.linear_qkv", "attn.c_attn", 0), ("pre_mlp_layernorm", "ln_2", None),
                                  ("mlp.linear_fc1", "mlp.c_fc", 0), ("mlp.linear_fc2", "mlp.c_proj", 1)):
            weight, bias = np.ascontiguousarray(t[p + ours + ".weight"].T), t[p + ours + ".bias"]
            if ours == "attn.c_attn":
                weight, bias = (self.qkv(*np.split(x, 3)) for x in (weight, bias))
            out[theirs + ".weight"], out[theirs + ".bias"] = (weight, how), (bias, None if how == 1 else how)
        return out

    def chunk(self, t, *place):
        names = {"model.embed_tokens.weight": "transformer.wte.weight", "model.norm.weight": "transformer.ln_f.weight"}
        out = {}
        for name, array in super().chunk({**t, **{k: t[v] for k, v in names.items()}}, *place).items():
            out[name] = array
            if name == "embedding.word_embeddings.weight":
                out["embedding.position_embeddings.weight"] = t["transformer.wpe.weight"]
            if name == "decoder.final_layernorm.weight":
                out["decoder.final_layernorm.bias"] = t["transformer.ln_f.bias"]
        return out


# ---- DeepSpeed ----

def _size(shape):
    return torch_files._size(shape)


def _model_states(module, groups, step, dp, frozen):
    """frozen: {name: (shape, what this rank has of it)} of parameters that are not trained."""
    return {"module": collections.OrderedDict(module), "param_shapes": [
        collections.OrderedDict((k, _size(a.shape)) for k, a in g.items()) for g in groups],
        "global_steps": step, "dp_world_size": dp, "mp_world_size": 1, "lr_scheduler": None,
        "frozen_param_shapes": collections.OrderedDict((k, _size(shape)) for k, (shape, _) in frozen.items()),
        "frozen_param_fragments": collections.OrderedDict((k, Tensor(part)) for k, (_, part) in frozen.items())}


def _frozen(state, part=lambda array: array):
    """Weights without masters."""
    return {k: (v.shape, part(v)) for k, v in state["param"].items() if k not in state.get("master", state["param"])}


def _groups(tensors):
    """Two groups of the optimizer: matrices and vectors."""
    groups = [{k: v for k, v in sorted(tensors.items()) if min(v.ndim, 2) == n} for n in (2, 1)]
    return [g for g in groups if g]


def _step(step, count):
    """AdamW's counter. count: what another one says instead; DeepSpeed's own Adam has an int."""
    return Tensor(np.array(step, np.float32)) if count is None else count


def zero1(folder, state, step, dp, count=None, elastic=False, mp_rank=0, **more):
    """ZeRO-1: each group flattened, padded, cut into dp intervals. elastic: with "elastic_checkpoint", moments have no padding.
    mp_rank: whose state it is; more: of its model states."""
    tag = folder / ("global_step%d" % step)
    masters = state.get("master", state["param"])
    torch_files.save(tag / ("mp_rank_%02d_model_states.pt" % mp_rank), {**_model_states(
        {k: Tensor(v) for k, v in state["param"].items()}, _groups(masters), step, dp, _frozen(state)), **more})
    fragment = _opaque("deepspeed_tensor_fragment", "fragment_address")
    flats = {g: [np.concatenate([a.reshape(-1) for a in group.values()]) for group in _groups(t)]
             for g, t in (("fp32", masters), *((m, state[m]) for m in MOMENTS))}
    for rank in range(dp):
        parts, mappings = {g: [] for g in flats}, []
        for number, group in enumerate(_groups(masters)):
            size = -(-flats["fp32"][number].size // (2 * dp)) * 2
            for g, flat in flats.items():
                padded = np.concatenate([flat[number], np.zeros(size * dp - flat[number].size, np.float32)])
                # Only the weights are without the padding at the end.
                parts[g].append(padded[rank * size:(rank + 1) * size][:flat[number].size - rank * size if g == "fp32" or elastic else size])
            mapping, at = {}, 0
            for name, array in group.items():
                lo, hi = max(at, rank * size), min(at + array.size, (rank + 1) * size)
                if at < (rank + 1) * size and at + array.size > rank * size:  # so an empty one inside is there too
                    mapping[name] = torch_files._make(fragment, start=lo - rank * size, numel=hi - lo)
                at += array.size
            mappings.append(mapping)
        base = {i: {"step": _step(step, count), **{m: Tensor(parts[m][i]) for m in MOMENTS}}
                for i in range(len(mappings))}
        torch_files.save(tag / ("zero_pp_rank_%d_mp_rank_%02d_optim_states.pt" % (rank, mp_rank)), {"optimizer_state_dict": {
            "single_partition_of_fp32_groups": [Tensor(p) for p in parts["fp32"]],
            "base_optimizer_state": list(base.values()) if elastic else {"state": base, "param_groups": []}, "param_slice_mappings": mappings}})
    (folder / "latest").write_text(tag.name)


def _part(array, rank, dp):
    """ZeRO-3: a rank's part of a parameter, padded and cut by itself."""
    size = -(-array.size // dp)
    padded = np.concatenate([array.reshape(-1), np.full(size * dp - array.size, 7, array.dtype)])
    return padded[rank * size:(rank + 1) * size]


def _zero3_model_states(tag, state, groups, step, dp):
    """A file of each rank, without weights but those that are not trained."""
    empty = {k: Tensor(np.zeros(0, np.uint16)) for k in state["param"]}
    for rank in range(dp):
        torch_files.save(tag / ("zero_pp_rank_%d_mp_rank_00_model_states.pt" % rank),
                         _model_states(empty, groups, step, dp, _frozen(state, lambda a: _part(a, rank, dp))))


def zero3(folder, state, step, dp, count=None):
    """ZeRO-3: each parameter padded and cut by itself."""
    tag = folder / ("global_step%d" % step)
    groups = _groups(state["master"])
    _zero3_model_states(tag, state, groups, step, dp)
    for rank in range(dp):
        flat = {g: [np.concatenate([_part(t[k], rank, dp) for k in group]) for group in groups]
                for g, t in (("fp32", state["master"]), *((m, state[m]) for m in MOMENTS))}
        base = {i: {"step": _step(step, count), **{m: Tensor(flat[m][i]) for m in MOMENTS}}
                for i in range(len(groups))}
        torch_files.save(tag / ("bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank), {"optimizer_state_dict": {
            "fp32_flat_groups": [Tensor(f) for f in flat["fp32"]], "optimizer_state_dict": {"state": base}}})
    (folder / "latest").write_text(tag.name)


def universal(folder, state, step, bare, count=None, **more):
    """A folder for each parameter. bare: as it is made from ZeRO-3, flat and without steps. more: of the model states else."""
    tag = folder / ("global_step%d_universal" % step)
    if bare:
        _zero3_model_states(tag, state, [state["master"]], step, 2)
    else:
        torch_files.save(tag / "mp_rank_00_model_states.pt", {**_model_states(
            {k: Tensor(v) for k, v in state["param"].items()}, [state["master"]], step, 2, _frozen(state)), **more})
    for key in state["master"]:
        for file, group in (("fp32", "master"), *((m, m) for m in MOMENTS)):
            array = state[group][key]
            torch_files.save(tag / "zero" / key / (file + ".pt"),
                             Tensor(array.reshape(-1)) if bare else {"param": Tensor(array), "cat_dim": 0})
        if not bare:
            torch_files.save(tag / "zero" / key / "step.pt", _step(step, count))
    (folder / "latest_universal").write_text(tag.name)
