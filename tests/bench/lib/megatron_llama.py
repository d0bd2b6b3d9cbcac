"""The same Llama in Megatron-core with tensor parallelism. bench_parallel.py uses it if it is installed.

    PYTHON -m pip install --no-deps megatron-core       (tested with 0.16.1)

Megatron is made for GPUs. Here its local layers (not Transformer Engine's) run, with PyTorch's scaled
dot-product attention instead of Megatron's unfused attention, which stores every score.
"""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn


class Attention(nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, q, k, v, *_, **__):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=k.shape[1] != q.shape[1])
        return y.permute(2, 0, 1, 3).flatten(2)


def build(c):
    """The model without weights, sharded over all ranks."""
    torch.cuda.current_device = lambda: "cpu"  # where Megatron allocates its tensors
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    config = TransformerConfig(
        num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"],
        ffn_hidden_size=c["intermediate_size"], num_attention_heads=c["num_attention_heads"],
        num_query_groups=c["num_key_value_heads"], kv_channels=c["head_dim"],
        normalization="RMSNorm", layernorm_epsilon=c["rms_norm_eps"], gated_linear_unit=True,
        activation_func=F.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=dist.get_world_size(), use_cpu_initialization=True,
        perform_initialization=False, pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(config, spec, c["vocab_size"], c["max_position_embeddings"],
                    position_embedding_type="rope", rotary_base=int(c["rope_theta"]),
                    share_embeddings_and_output_weights=False)


def load(model, folder, c):
    """This rank's part of each of Hugging Face's weights, under Megatron's names."""
    s = load_file(os.path.join(folder, "model.safetensors"))
    rank, n = dist.get_rank(), dist.get_world_size()

    def cut(name, dim=0):
        return s[name + ".weight"].chunk(n, dim)[rank]

    out = {"embedding.word_embeddings": cut("model.embed_tokens"), "output_layer": cut("lm_head"),
           "decoder.final_layernorm": s["model.norm.weight"]}
    for i in range(c["num_hidden_layers"]):
        hf, to = "model.layers.%d." % i, "decoder.layers.%d." % i
        groups = c["num_key_value_heads"] // n
        qkv = [cut(hf + "self_attn.%s_proj" % x).unflatten(0, (groups, -1)) for x in "qkv"]
        out |= {to + "self_attention.linear_qkv": torch.cat(qkv, 1).flatten(0, 1),
                to + "self_attention.linear_proj": cut(hf + "self_attn.o_proj", 1),
                to + "mlp.linear_fc1": torch.cat([cut(hf + "mlp.%s_proj" % x)
                                                  for x in ("gate", "up")]),
                to + "mlp.linear_fc2": cut(hf + "mlp.down_proj", 1),
                to + "input_layernorm": s[hf + "input_layernorm.weight"],
                to + "pre_mlp_layernorm": s[hf + "post_attention_layernorm.weight"]}
    r = model.load_state_dict({k + ".weight": v for k, v in out.items()}, strict=False)
    wrong = r.unexpected_keys + [k for k in r.missing_keys if not k.endswith("_extra_state")]
    if wrong:
        raise SystemExit("Megatron's names have changed: %s" % ", ".join(wrong))


def loss_of(model, x):
    """The mean loss of the token windows x."""
    at = torch.arange(x.shape[1] - 1)[None].expand(x.shape[0], -1)
    return model(x[:, :-1].contiguous(), at, None, labels=x[:, 1:].contiguous()).mean()
