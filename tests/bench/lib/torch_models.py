"""The models of the PyTorch program that the training benchmarks compare with: a Llama and GPT-2.

Both are like those of torchtitan and nanoGPT: scaled dot-product attention and PyTorch's fused norms. The
Llama has separate products for q, k, v, gate and up, GPT-2 one for q, k and v. Parameters have Hugging
Face's names, without the leading "model." and "transformer.".
"""
import os

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, kv = c["hidden_size"], c["num_key_value_heads"] * c["head_dim"]
        self.head_dim = c["head_dim"]
        self.q_proj = nn.Linear(h, h, bias=False)
        self.k_proj = nn.Linear(h, kv, bias=False)
        self.v_proj = nn.Linear(h, kv, bias=False)
        self.o_proj = nn.Linear(h, h, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=k.shape[1] != q.shape[1])
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(h, f, bias=False)
        self.up_proj = nn.Linear(h, f, bias=False)
        self.down_proj = nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = nn.RMSNorm(h, eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(h, eps)
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["hidden_size"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], h)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(h, c["rms_norm_eps"])
        self.lm_head = nn.Linear(h, c["vocab_size"], bias=False)
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).float(),
                            c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float()
                                                / c["head_dim"]))
        self.register_buffer("cos", angle.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angle.sin().repeat(1, 2), persistent=False)

    def forward(self, ids):
        x, t = self.embed_tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.lm_head(self.norm(x))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Projection(nn.Module):
    """A linear layer whose weight is stored as [in][out], as GPT-2's are."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class GPT2Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["n_head"]
        self.c_attn = Projection(c["n_embd"], 3 * c["n_embd"])
        self.c_proj = Projection(c["n_embd"], c["n_embd"])

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for y in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class GPT2MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = Projection(c["n_embd"], c["n_inner"])
        self.c_proj = Projection(c["n_inner"], c["n_embd"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GPT2Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, eps = c["n_embd"], c["layer_norm_epsilon"]
        self.ln_1 = nn.LayerNorm(h, eps)
        self.attn = GPT2Attention(c)
        self.ln_2 = nn.LayerNorm(h, eps)
        self.mlp = GPT2MLP(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["n_embd"]
        self.wte = nn.Embedding(c["vocab_size"], h)
        self.wpe = nn.Embedding(c["n_positions"], h)
        self.h = nn.ModuleList(GPT2Layer(c) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(h, c["layer_norm_epsilon"])

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for layer in self.h:
            x = layer(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def build(c, folder):
    """The model of a config.json with the weights of a Hugging Face folder."""
    from safetensors.torch import load_file
    model = GPT2(c) if c["model_type"] == "gpt2" else Llama(c)
    state = load_file(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({k.removeprefix("model.").removeprefix("transformer."): v
                           for k, v in state.items()})
    return model
