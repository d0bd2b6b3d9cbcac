"""A stand-in for Transformer Engine 2, which needs a GPU: what Megatron-core takes from it, for CPUs.

install() makes it the package transformer_engine, before Megatron-core is imported, whose own layers of Transformer Engine
(megatron/core/extensions/transformer_engine.py) are then made of these modules. Their parameters have the names, the order and the
attributes that those of Transformer Engine have (transformer_engine/pytorch/module/ and ops/), and each module that saves a state
there does so here: without FP8 it is an empty tensor, and None is taken too. A module whose state a checkpoint lacks cannot be
loaded, but for attention. Products, norms and attention are PyTorch's.
"""
import importlib.machinery
import math
import sys
import types

from fused_adam import FusedAdam
import torch
import torch.distributed as dist
from torch.nn import functional

VERSION = "2.9.0"


class Stateful(torch.nn.Module):
    """What has a state of FP8."""

    def __init__(self):
        super().__init__()
        self.fp8_meta, self.fp8, self.fp8_calibration = {"fp8_checkpoint": False}, False, False

    def init_fp8_metadata(self, num_gemms=1):
        pass

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        assert state is None or state.numel() == 0


def new(*shape, dtype, device, **attributes):
    parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
    vars(parameter).update(attributes)
    return parameter


def cut(dim):
    """Attributes of a parameter that tensor parallelism cuts."""
    return dict(tensor_model_parallel=True, partition_dim=dim, partition_stride=1)


def normed(kind, x, weight, bias, eps):
    if kind == "RMSNorm":
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


class Linear(Stateful):
    def __init__(self, in_features, out_features, sequence_parallel=False, tp_group=None, tp_size=1, init_method=None, bias=True,
                 return_bias=False, params_dtype=None, parallel_mode=None, device="cuda", **_):
        super().__init__()
        self.tp_group, self.tp_size = tp_group, tp_size if tp_group is None else dist.get_world_size(tp_group)
        self.parallel_mode, self.use_bias, self.return_bias = parallel_mode, bias, return_bias
        self.in_features = in_features // (self.tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (self.tp_size if parallel_mode == "column" else 1)
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        of_all = dict(dtype=params_dtype, device=device)
        self.make_norm(of_all)
        self.weight = new(self.out_features, self.in_features, **of_all, **cut(1 if parallel_mode == "row" else 0))
        if bias:
            of_bias = {"column": cut(0), "row": dict(sequence_parallel=self.sequence_parallel)}.get(parallel_mode, {})
            self.bias = new(self.out_features, **of_all, **of_bias)
        else:
            self.bias = torch.empty(0, **of_all)
        init_method(self.weight)

    def make_norm(self, of_all):
        pass

    def forward(self, x, is_first_microbatch=None):
        x = functional.linear(x, self.weight)
        if self.parallel_mode == "row" and self.tp_size > 1:
            dist.all_reduce(x, group=self.tp_group)
        if self.return_bias:
            return x, self.bias
        return x + self.bias if self.use_bias else x


class LayerNormLinear(Linear):
    def __init__(self, *args, eps=1e-5, normalization="LayerNorm", zero_centered_gamma=False, **more):
        assert not zero_centered_gamma
        self.of_norm = (normalization, eps)
        super().__init__(*args, **more)

    def make_norm(self, of_all):
        mark = dict(sequence_parallel=self.sequence_parallel)
        self.layer_norm_weight = new(self.in_features, **of_all, **mark)
        self.layer_norm_bias = new(self.in_features, **of_all, **mark) if self.of_norm[0] == "LayerNorm" else None
        torch.nn.init.ones_(self.layer_norm_weight)

    def forward(self, x, is_first_microbatch=None):
        return super().forward(normed(self.of_norm[0], x, self.layer_norm_weight, self.layer_norm_bias, self.of_norm[1]))


class GroupedLinear(Stateful):
    def __init__(self, num_gemms, in_features, out_features, tp_group=None, tp_size=1, init_method=None, bias=True, params_dtype=None,
                 parallel_mode=None, device="cuda", **_):
        super().__init__()
        assert not bias
        self.use_bias = bias
        self.num_gemms, tp_size = num_gemms, tp_size if tp_group is None else dist.get_world_size(tp_group)
        self.in_features = in_features // (tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (tp_size if parallel_mode == "column" else 1)
        for i in range(num_gemms):
            weight = new(self.out_features, self.in_features, dtype=params_dtype, device=device,
                         **cut(1 if parallel_mode == "row" else 0))
            self.register_parameter("weight%d" % i, weight)
            init_method(weight)
            setattr(self, "bias%d" % i, torch.empty(0, dtype=params_dtype, device=device))

    def forward(self, x, m_splits, is_first_microbatch=None):
        return torch.cat([functional.linear(part, getattr(self, "weight%d" % i)) for i, part in enumerate(x.split(m_splits))])


class Norm(Stateful):
    def __init__(self, normalized_shape=None, eps=1e-5, sequence_parallel=None, zero_centered_gamma=False, params_dtype=None, device=None,
                 hidden_size=None):
        super().__init__()
        assert not zero_centered_gamma
        hidden_size = normalized_shape or hidden_size
        self.eps, of_all = eps, dict(dtype=params_dtype, device=device, sequence_parallel=sequence_parallel)
        self.weight = new(hidden_size, **of_all)
        if type(self) is LayerNorm:
            self.bias = new(hidden_size, **of_all)
        torch.nn.init.ones_(self.weight)

    def forward(self, x):
        return normed(type(self).__name__, x, self.weight, getattr(self, "bias", None), self.eps)


class LayerNorm(Norm):
    pass


class RMSNorm(Norm):
    pass


class DotProductAttention(Stateful):
    """Causal attention of [sequence, batch, heads, width]."""

    def __init__(self, softmax_scale=None, attn_mask_type="causal", **_):
        super().__init__()
        assert attn_mask_type == "causal"
        self.softmax_scale = softmax_scale
        self.register_load_state_dict_post_hook(self.may_lack_state)

    @staticmethod
    def may_lack_state(module, incompatible):
        """torch_dist does not have it."""
        for key in [key for key in incompatible.missing_keys if "core_attention._extra_state" in key]:
            incompatible.missing_keys.remove(key)

    def forward(self, query, key, value, attention_mask, **_):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        scale = self.softmax_scale or 1 / math.sqrt(q.shape[-1])
        x = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return x.permute(2, 0, 1, 3).flatten(2)


class Unused:
    """What is imported or derived from, but not called."""


# The modules of the package, and what each has.
PACKAGE = {
    "": dict(__version__=VERSION),
    "common": {}, "common.recipe": dict(DelayedScaling=Unused),
    "pytorch": dict(Linear=Linear, LayerNormLinear=LayerNormLinear, GroupedLinear=GroupedLinear, LayerNorm=LayerNorm, RMSNorm=RMSNorm,
                    DotProductAttention=DotProductAttention, cpu_offload=None),
    "pytorch.distributed": dict(CudaRNGStatesTracker=Unused, activation_recompute_forward=Unused),
    "pytorch.fp8": dict(FP8GlobalStateManager=Unused, fp8_autocast=Unused, fp8_model_init=Unused),
    "pytorch.optimizers": dict(FusedAdam=FusedAdam, FusedSGD=torch.optim.SGD),
    "pytorch.ops": dict(Sequential=Unused, FusibleOperation=Unused),
    "pytorch.router": dict(fused_topk_with_score_function=None, fused_compute_score_for_moe_aux_loss=None, fused_moe_aux_loss=None),
    "pytorch.tensor": dict(QuantizedTensor=Unused),
}


def install():
    for name, contents in PACKAGE.items():
        full = ".".join(filter(None, ("transformer_engine", name)))
        module = sys.modules[full] = types.ModuleType(full)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(full, None, is_package=True)
        vars(module).update(contents)
        parent, _, own = full.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
