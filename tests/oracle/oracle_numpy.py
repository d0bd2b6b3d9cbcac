#!/usr/bin/python3
"""The losses and norms that tp-train must print, computed independently: Llama, GPT-2, GPT-NeoX and OPT in numpy, in
float64, in one process, with backward passes written by hand.

The rules:
  tokens     the bytes of the data file, 0 .. 255 (or a list of numbers).
  samples    their number is (bytes - 1) // T. Sequence b of step s (both from 0) is sample
             (s * B + b) % samples. Its inputs are T bytes; its targets are shifted by one byte.
  loss       mean over the B * T targets of -log softmax(logits)[target].
  norm       L2 norm of the gradients of all parameters; a tied matrix counts once. With clip > 0
             each gradient is multiplied by min(1, clip / (norm + 1e-6)).
  rate       lr (s + 1) / warmup while s < warmup; then half a cosine from lr to min_lr over the
             remaining max(1, steps - warmup) steps.
  AdamW      t = s + 1; matrices (also the embedding and the head, but not norms and biases) are
             first multiplied by 1 - rate * weight_decay; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g;
             p -= rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

As a program, it compares its numbers with the trace of another program:
    oracle_numpy.py MODEL_FOLDER TRACE.jsonl DATA
The trace has lines {"step": 0, "loss": ..., "grad_norm": ...}. Its first line may have options.
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np

OPTIONS = dict(steps=20, batch=8, seq=64, lr=1e-3, min_lr=1e-4, warmup=5, wd=0.1, clip=1.0,
               beta1=0.9, beta2=0.95, eps=1e-8)


# ---- weights ------------------------------------------------------------------------------------


def is_gpt2(c):
    return c["architectures"] == ["GPT2LMHeadModel"]


OPT = "model.decoder."


def gpt2_shapes(c):
    """{name: shape} of a GPT-2. Its matrices are [in, out] (Conv1D)."""
    dim, ffn = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
    s = {"transformer.wte.weight": (c["vocab_size"], dim),
         "transformer.wpe.weight": (c["n_positions"], dim)}
    for i in range(c["n_layer"]):
        p = "transformer.h.%d." % i
        for name, shape in (("ln_1", (dim,)), ("attn.c_attn", (dim, 3 * dim)),
                            ("attn.c_proj", (dim, dim)), ("ln_2", (dim,)),
                            ("mlp.c_fc", (dim, ffn)), ("mlp.c_proj", (ffn, dim))):
            s[p + name + ".weight"], s[p + name + ".bias"] = shape, shape[-1:]
    s["transformer.ln_f.weight"] = s["transformer.ln_f.bias"] = (dim,)
    return s


def opt_shapes(c):
    """{name: shape} of an OPT. Its table of positions has two rows that no token uses."""
    dim, ffn = c["hidden_size"], c["ffn_dim"]
    s = {OPT + "embed_tokens.weight": (c["vocab_size"], dim),
         OPT + "embed_positions.weight": (c["max_position_embeddings"] + 2, dim)}
    for i in range(c["num_hidden_layers"]):
        p = OPT + "layers.%d." % i
        for name, shape in [("self_attn." + x, (dim, dim)) for x in ("q_proj", "k_proj", "v_proj", "out_proj")] + [
                ("self_attn_layer_norm", (dim,)), ("final_layer_norm", (dim,)), ("fc1", (ffn, dim)), ("fc2", (dim, ffn))]:
            s[p + name + ".weight"], s[p + name + ".bias"] = shape, shape[:1]
    s[OPT + "final_layer_norm.weight"] = s[OPT + "final_layer_norm.bias"] = (dim,)
    if not c.get("tie_word_embeddings", True):
        s["lm_head.weight"] = (c["vocab_size"], dim)
    return s


def is_neox(c):
    return c["model_type"] == "gpt_neox"


def neox_shapes(c):
    """{name: shape} of a GPT-NeoX."""
    dim, ffn = c["hidden_size"], c["intermediate_size"]
    s = {"gpt_neox.embed_in.weight": (c["vocab_size"], dim)}
    for i in range(c["num_hidden_layers"]):
        p = "gpt_neox.layers.%d." % i
        biases = c.get("attention_bias", True)
        for name, shape, has_bias in (
                ("input_layernorm", (dim,), True), ("post_attention_layernorm", (dim,), True),
                ("attention.query_key_value", (3 * dim, dim), biases), ("attention.dense", (dim, dim), biases),
                ("mlp.dense_h_to_4h", (ffn, dim), True), ("mlp.dense_4h_to_h", (dim, ffn), True)):
            s[p + name + ".weight"] = shape
            if has_bias:
                s[p + name + ".bias"] = shape[:1]
    s["gpt_neox.final_layer_norm.weight"] = s["gpt_neox.final_layer_norm.bias"] = (dim,)
    if not c.get("tie_word_embeddings"):
        s["embed_out.weight"] = (c["vocab_size"], dim)
    return s


def expert_names(c, p):
    """(the router, the format of an expert's gate, up and down) of the layer with the prefix p."""
    if c["model_type"] == "mixtral":
        p += "block_sparse_moe."
        return p + "gate", [p + "experts.%d." + name for name in ("w1", "w3", "w2")]
    p += "mlp."
    return p + "gate", [p + "experts.%d." + name for name in ("gate_proj", "up_proj", "down_proj")]


def expert_shapes(c, p):
    """{name: shape} of a mixture of experts."""
    dim, ffn = c["hidden_size"], c.get("moe_intermediate_size") or c["intermediate_size"]
    router, (gate, up, down) = expert_names(c, p)
    s = {router + ".weight": (experts_of(c), dim)}
    for e in range(experts_of(c)):
        s[gate % e + ".weight"] = s[up % e + ".weight"] = (ffn, dim)
        s[down % e + ".weight"] = (dim, ffn)
    return s


def experts_of(c):
    return c.get("num_experts") or c.get("num_local_experts") or 0


def is_tied_by_default(c):
    return c["model_type"].startswith("gemma") or c["model_type"] == "smollm3"


def is_olmo(c):
    return c["model_type"] in ("olmo2", "olmo3")


def has_post_norms(c):
    return c["model_type"] in ("gemma2", "gemma3_text") or is_olmo(c)


def has_rope(c, layer):
    """Whether a layer has a rotary embedding; in SmolLM3 some have none."""
    if c["model_type"] != "smollm3":
        return True
    listed = c.get("no_rope_layers")
    return bool(listed[layer]) if listed else (layer + 1) % c.get("no_rope_layer_interval", 4) != 0


def layer_types(c):
    """Of Gemma 2 and 3 and SmolLM3; of others only whether there is a sliding window."""
    n = c["num_hidden_layers"]
    if c["model_type"] == "smollm3":
        windows = c.get("use_sliding_window") and c.get("sliding_window")
        return c.get("layer_types") or [
            ("sliding" if windows and not has_rope(c, i) else "full") + "_attention" for i in range(n)]
    if not has_post_norms(c) or c["model_type"] == "olmo2":
        has_window = c["model_type"] in ("mistral", "mixtral", "phi3") and c.get("sliding_window")
        return n * ["sliding_attention" if has_window else "full_attention"]
    every = {"gemma2": 2, "gemma3_text": 6, "olmo3": 4}[c["model_type"]]
    return c.get("layer_types") or [("sliding" if (i + 1) % every else "full") + "_attention" for i in range(n)]


def fused_parts(c, p):
    """{name of a tensor: those of a Llama that it has one after the other} of the layer with the prefix p."""
    if c["model_type"] != "phi3":
        return {}
    return {p + fused + ".weight": [p + part + ".weight" for part in parts] for fused, parts in (
        ("self_attn.qkv_proj", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]))}


def shapes(c):
    """{name: shape} of the model with this config.json."""
    if is_gpt2(c):
        return gpt2_shapes(c)
    if c["model_type"] == "opt":
        return opt_shapes(c)
    if is_neox(c):
        return neox_shapes(c)
    dim, ffn, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    width = c.get("head_dim") or dim // heads
    s = {"model.embed_tokens.weight": (vocab, dim)}
    biases = c.get("attention_bias") or c["model_type"] == "qwen2"
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        if not is_olmo(c):
            s[p + "input_layernorm.weight"] = (dim,)
        s[p + "self_attn.q_proj.weight"] = (heads * width, dim)
        s[p + "self_attn.k_proj.weight"] = (kv * width, dim)
        s[p + "self_attn.v_proj.weight"] = (kv * width, dim)
        s[p + "self_attn.o_proj.weight"] = (dim, heads * width)
        s[p + "post_attention_layernorm.weight"] = (dim,)
        if has_post_norms(c):
            s[p + "post_feedforward_layernorm.weight"] = (dim,)
            if not is_olmo(c):
                s[p + "pre_feedforward_layernorm.weight"] = (dim,)
            else:
                s[p + "self_attn.q_norm.weight"], s[p + "self_attn.k_norm.weight"] = (heads * width,), (kv * width,)
        if experts_of(c):
            s.update(expert_shapes(c, p))
        else:
            s[p + "mlp.gate_proj.weight"] = (ffn, dim)
            s[p + "mlp.up_proj.weight"] = (ffn, dim)
            s[p + "mlp.down_proj.weight"] = (dim, ffn)
        if biases:
            s[p + "self_attn.q_proj.bias"] = (heads * width,)
            s[p + "self_attn.k_proj.bias"] = s[p + "self_attn.v_proj.bias"] = (kv * width,)
        if c.get("attention_bias"):
            s[p + "self_attn.o_proj.bias"] = (dim,)
        if c.get("mlp_bias"):
            s[p + "mlp.gate_proj.bias"] = s[p + "mlp.up_proj.bias"] = (ffn,)
            s[p + "mlp.down_proj.bias"] = (dim,)
        if c["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
            s[p + "self_attn.q_norm.weight"] = s[p + "self_attn.k_norm.weight"] = (width,)
        for fused, parts in fused_parts(c, p).items():
            s[fused] = (sum(s.pop(part)[0] for part in parts), dim)
    s["model.norm.weight"] = (dim,)
    if not c.get("tie_word_embeddings", is_tied_by_default(c)):
        s["lm_head.weight"] = (vocab, dim)
    return s


def random_weights(c, seed):
    """Matrices and biases are N(0, 0.02); norms are 1 + N(0, 0.1), so that swapped norms are found."""
    rng = np.random.Generator(np.random.Philox(seed))
    w = {}
    for name, shape in shapes(c).items():
        r = rng.standard_normal(shape)
        is_norm = len(shape) == 1 and name.endswith("weight")
        w[name] = (1 + 0.1 * r if is_norm else 0.02 * r).astype(np.float32)
    return w


def save_safetensors(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x, np.float32).tobytes())


def load_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    types = {"F32": np.float32, "I64": np.int64}
    return {name: np.frombuffer(raw[8 + n + h["data_offsets"][0]:8 + n + h["data_offsets"][1]],
                                types[h["dtype"]]).reshape(h["shape"])
            for name, h in head.items() if name != "__metadata__"}


def save_model(folder, config, weights):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_safetensors(folder / "model.safetensors", weights)
    return folder


# ---- the model ----------------------------------------------------------------------------------


def product(x, w):
    """x w^T. The copy makes it twice as fast with Debian's default BLAS."""
    return x @ np.ascontiguousarray(w.T)


def norm_forward(x, w, eps):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * r * w, r


def norm_backward(dy, x, w, r):
    """(dx, dw)"""
    unit, dunit = x * r, dy * w
    return r * (dunit - unit * (dunit * unit).mean(-1, keepdims=True)), (dy * unit).sum((0, 1))


def capped(x, cap):
    """(cap tanh(x / cap), its derivative); x itself without a cap."""
    if not cap:
        return x, 1.0
    t = np.tanh(x / cap)
    return cap * t, 1 - t * t


def linear(x, w, p):
    """x W^T and the bias, where there is one."""
    y = product(x, w[p + ".weight"])
    return y + w[p + ".bias"] if p + ".bias" in w else y


def linear_backward(dy, x, w, p, g):
    """The gradients of the weight and of the bias go to g; returns that of x."""
    g[p + ".weight"] = outer(dy, x)
    if p + ".bias" in w:
        g[p + ".bias"] = dy.reshape(-1, dy.shape[-1]).sum(0)
    return dy @ w[p + ".weight"]


def rotary_width(c, width):
    """How many elements of a head are rotated: in some models only the first ones."""
    return int(width * c.get("rope_parameters", c).get("partial_rotary_factor", 1.0))


def frequencies(c, width, layer_type, seq):
    """(angle per position of each pair, factor of cos and sin), as transformers' rope_parameters say, in sequences of this
    length."""
    r = c.get("rope_parameters", c)
    r = r.get(layer_type, r)
    theta, kind = r.get("rope_theta", 10000.0), r.get("rope_type", "default")
    f = theta ** (-np.arange(0, width, 2) / width)
    if kind in ("default", "dynamic"):
        return f, 1.0
    if kind == "longrope":
        before = c["original_max_position_embeddings"]
        s = r.get("factor", c["max_position_embeddings"] / before)
        f = f / np.array(r["long_factor" if seq > before else "short_factor"])
        return f, r.get("attention_factor") or (math.sqrt(1 + math.log(s) / math.log(before)) if s > 1 else 1.0)
    s, before = r["factor"], r.get("original_max_position_embeddings", c["max_position_embeddings"])
    if kind == "linear":
        return f / s, 1.0
    if kind == "llama3":
        low, high = r["low_freq_factor"], r["high_freq_factor"]
        keep = np.clip((before * f / (2 * np.pi) - low) / (high - low), 0, 1)
        return f * keep + f / s * (1 - keep), 1.0
    assert kind == "yarn"
    at = [width * math.log(before / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1)]
    low, high = max(math.floor(at[0]), 0), min(math.ceil(at[1]), width - 1)
    part = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    return f / s * part + f * (1 - part), 0.1 * math.log(s) + 1


class Llama:
    """Also Mistral (a sliding window), Qwen2 (biases), Qwen3 (norms of each head's queries and keys), Gemma 1 to 3,
    SmolLM3 (layers without a rotary embedding), Phi-3 (fused tensors), Granite (factors), OLMo 2 and 3 (no norm before a block, and
    norms of all queries and of all keys), and Mixtral and Qwen3-MoE (mixtures of experts)."""

    def __init__(self, config, seq):
        c = self.c = config
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.is_normalized = c["model_type"] == "mixtral" or c.get("norm_topk_prob")
        self.balances = bool(experts_of(c) and c.get("output_router_logits"))
        self.width = c.get("head_dim") or c["hidden_size"] // self.heads
        self.is_gemma = c["model_type"].startswith("gemma")  # norms of 1 + weight, a gated gelu, a scaled embedding
        self.eps, self.tied = c["rms_norm_eps"], bool(c.get("tie_word_embeddings", is_tied_by_default(c)))
        self.post_norms = has_post_norms(c)
        self.kinds = [(kind, has_rope(c, i)) for i, kind in enumerate(layer_types(c))]
        self.root = math.sqrt(c["query_pre_attn_scalar"] if self.is_gemma and self.post_norms else self.width)
        is_granite = c["model_type"] == "granite"
        self.embedding, self.residual, self.scores, self.divisor = (is_granite and c.get(key, 1.0) or 1.0 for key in (
            "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"))
        if self.is_gemma:
            self.embedding = math.sqrt(c["hidden_size"])
        if is_granite:
            self.root = 1 / self.scores
        self.score_cap = c.get("attn_logit_softcapping") if c["model_type"] == "gemma2" else None
        self.logit_cap = c.get("final_logit_softcapping") if self.is_gemma and self.post_norms else None
        self.tables, self.masks = {}, {}
        for kind in set(self.kinds):
            turned = rotary_width(c, self.width)
            each, factor = frequencies(c, turned, kind[0], seq) if kind[1] else (np.zeros(turned // 2), 1.0)
            angle = np.arange(seq)[:, None] * each
            self.tables[kind] = factor * np.cos(angle), factor * np.sin(angle)
            self.masks[kind] = np.triu(np.ones((seq, seq), bool), 1)
            if kind[0] == "sliding_attention":
                self.masks[kind] |= np.tril(np.ones((seq, seq), bool), -c["sliding_window"])

    def rotate(self, x, kind, sign=1):
        """RoPE rotates element i of a head together with element i + n / 2 of the n that it rotates."""
        cos, sin = self.tables[kind]
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        s = sign * sin
        return np.concatenate((a * cos - b * s, b * cos + a * s, rest), -1)

    def split(self, x, n):
        return x.reshape(*x.shape[:2], n, self.width).swapaxes(1, 2)

    @staticmethod
    def join(x):
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def attention_forward(self, n, w, p, kind):
        q0, k0 = linear(n, w, p + "q_proj"), linear(n, w, p + "k_proj")
        q, rq = self.head_norm(q0, w, p + "q_norm.weight", self.heads)
        k, rk = self.head_norm(k0, w, p + "k_norm.weight", self.kv)
        q, k, v = self.rotate(q, kind), self.rotate(k, kind), self.split(linear(n, w, p + "v_proj"), self.kv)
        group = self.heads // self.kv
        kk, vv = k.repeat(group, 1), v.repeat(group, 1)
        s, slope = capped(q @ kk.swapaxes(2, 3) / self.root, self.score_cap)
        s = np.where(self.masks[kind], -np.inf, s)
        e = np.exp(s - s.max(-1, keepdims=True))
        a = e / e.sum(-1, keepdims=True)
        o = self.join(a @ vv)
        return linear(o, w, p + "o_proj"), (n, q, kk, vv, a, o, q0, rq, k0, rk, slope, kind)

    def head_norm(self, x, w, name, n):
        """(the n heads of x, normed over each head, or over all of them in OLMo, for backward); without the norm where
        there is none."""
        if name in w and is_olmo(self.c):
            x, r = norm_forward(x, w[name], self.eps)
            return self.split(x, n), r
        x = self.split(x, n)
        return norm_forward(x, self.unit(w[name]), self.eps) if name in w else (x, None)

    def head_norm_backward(self, dy, x, w, name, r, g):
        """The gradient of x, all heads side by side."""
        if r is None:
            return self.join(dy)
        if is_olmo(self.c):
            dx, g[name] = norm_backward(self.join(dy), x, w[name], r)
            return dx
        dx, dw = norm_backward(dy, self.split(x, dy.shape[1]), self.unit(w[name]), r)
        g[name] = dw.sum(0)
        return self.join(dx)

    def attention_backward(self, d, saved, w, p, g):
        n, q, kk, vv, a, o, q0, rq, k0, rk, slope, kind = saved
        do = self.split(linear_backward(d, o, w, p + "o_proj", g), self.heads)
        da = do @ vv.swapaxes(2, 3)
        ds = a * (da - (da * a).sum(-1, keepdims=True)) * slope / self.root
        dq, dkk, dvv = ds @ kk, ds.swapaxes(2, 3) @ q, a.swapaxes(2, 3) @ do
        b, _, t, _ = dkk.shape
        dk, dv = (x.reshape(b, self.kv, -1, t, self.width).sum(2) for x in (dkk, dvv))
        dq = self.head_norm_backward(self.rotate(dq, kind, -1), q0, w, p + "q_norm.weight", rq, g)
        dk = self.head_norm_backward(self.rotate(dk, kind, -1), k0, w, p + "k_norm.weight", rk, g)
        return sum(linear_backward(dx, n, w, p + name + "_proj", g)
                   for name, dx in (("q", dq), ("k", dk), ("v", self.join(dv))))

    def unit(self, w):
        """What a norm with this weight multiplies by."""
        return 1 + w if self.is_gemma else w

    def mlp_forward(self, n, w, p):
        gate, up = linear(n, w, p + "gate_proj"), linear(n, w, p + "up_proj")
        inner = 2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3) if self.is_gemma else gate
        sig = 1 / (1 + np.exp(-inner))
        h = gate * sig * up
        return linear(h, w, p + "down_proj"), (n, gate, up, sig, h)

    def mlp_backward(self, d, saved, w, p, g):
        n, gate, up, sig, h = saved
        dh = linear_backward(d, h, w, p + "down_proj", g)
        slope = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * gate ** 2) if self.is_gemma else 1
        dup, dgate = dh * gate * sig, dh * up * sig * (1 + gate * (1 - sig) * slope)
        return linear_backward(dgate, n, w, p + "gate_proj", g) + linear_backward(dup, n, w, p + "up_proj", g)

    # Mixtures of experts. A token's weights are the k largest probabilities of the router (of equal ones those of
    # the first experts), divided by their sum if the family does so. The loss that balances the experts is that of
    # transformers for each sequence by itself: experts * sum_e(fraction of e's tokens * mean probability of e), with
    # both means over the tokens of all layers; the mean over the sequences times its factor is added to the loss.

    def experts_forward(self, n, w, p):
        c, (router, (gate, up, down)) = self.c, expert_names(self.c, p)
        s = linear(n, w, router)
        e = np.exp(s - s.max(-1, keepdims=True))
        probs = e / e.sum(-1, keepdims=True)
        chosen = np.argsort(-probs, -1, kind="stable")[..., :c["num_experts_per_tok"]]
        mask = np.zeros_like(probs)
        np.put_along_axis(mask, chosen, 1.0, -1)
        sums = (probs * mask).sum(-1, keepdims=True) if self.is_normalized else 1.0
        weights, y, saved = probs * mask / sums, np.zeros_like(n), []
        for i in range(experts_of(c)):
            rows = np.nonzero(mask[..., i])
            x = n[rows]
            g, u = x @ w[gate % i + ".weight"].T, x @ w[up % i + ".weight"].T
            sig = 1 / (1 + np.exp(-g))
            h = g * sig * u
            out = h @ w[down % i + ".weight"].T
            y[rows] += weights[..., i][rows][:, None] * out
            saved.append((rows, x, g, u, sig, h, out))
        return y, (n, probs, mask, weights, sums, saved)

    def experts_backward(self, d, saved, w, p, g, balance):
        router, (gate, up, down) = expert_names(self.c, p)
        n, probs, mask, weights, sums, experts = saved
        dn, dweights = np.zeros_like(n), np.zeros_like(probs)
        for i, (rows, x, a, u, sig, h, out) in enumerate(experts):
            dy = d[rows]
            dweights[..., i][rows] = (dy * out).sum(-1)
            dy = dy * weights[..., i][rows][:, None]
            g[down % i + ".weight"] = dy.T @ h
            dh = dy @ w[down % i + ".weight"]
            du, da = dh * a * sig, dh * u * sig * (1 + a * (1 - sig))
            g[gate % i + ".weight"], g[up % i + ".weight"] = da.T @ x, du.T @ x
            dn[rows] += da @ w[gate % i + ".weight"] + du @ w[up % i + ".weight"]
        if self.is_normalized:
            dweights = mask * (dweights - (dweights * weights).sum(-1, keepdims=True)) / sums
        dprobs = dweights + balance
        ds = probs * (dprobs - (dprobs * probs).sum(-1, keepdims=True))
        return dn + linear_backward(ds, n, w, router, g)

    def load(self, saved):
        """(for each sequence and expert the number of tokens, the sum of probabilities) over all layers."""
        moes = [layer[-1] for layer in saved]
        return sum(m[2].sum(1) for m in moes), sum(m[1].sum(1) for m in moes)

    def balance_factor(self, ids):
        return self.c["router_aux_loss_coef"] * experts_of(self.c) / (
            ids.shape[0] * (self.c["num_hidden_layers"] * ids.shape[1]) ** 2)

    def extra_loss(self, saved):
        """What is added to the mean over the tokens."""
        if not self.balances:
            return 0.0
        counts, sums = self.load(saved[1])
        return self.balance_factor(saved[0]) * float((counts * sums).sum())

    def fused(self):
        """{name of a fused tensor: (the names of its parts, the rows where all but the first begin)}"""
        c = self.c
        q, kv, ffn = self.heads * self.width, self.kv * self.width, c["intermediate_size"]
        return {name: (parts, [q, q + kv] if len(parts) == 3 else [ffn]) for i in range(c["num_hidden_layers"])
                for name, parts in fused_parts(c, "model.layers.%d." % i).items()}

    def apart(self, w):
        """The weights with the names of a Llama."""
        w = dict(w)
        for name, (parts, at) in self.fused().items():
            w.update(zip(parts, np.split(w.pop(name), at)))
        return w

    def forward(self, w, ids):
        """(logits, values for backward)"""
        w = self.apart(w)
        x, saved = w["model.embed_tokens.weight"][ids] * self.embedding, []
        for i in range(self.c["num_hidden_layers"]):
            p = "model.layers.%d." % i
            n, r = self.pre_norm(x, w, p + "input_layernorm.weight")
            y, attention = self.attention_forward(n, w, p + "self_attn.", self.kinds[i])
            y, attention_post = self.post_norm(y, w, p + "post_attention_layernorm.weight")
            mid = x + y * self.residual
            n, r2 = self.pre_norm(mid, w, p + self.mlp_norm())
            y, mlp = self.experts_forward(n, w, p) if experts_of(self.c) else self.mlp_forward(n, w, p + "mlp.")
            y, mlp_post = self.post_norm(y, w, p + "post_feedforward_layernorm.weight")
            saved.append((x, r, attention, attention_post, mid, r2, mlp_post, mlp))
            x = mid + y * self.residual
        n, r = norm_forward(x, self.unit(w["model.norm.weight"]), self.eps)
        logits, slope = capped(product(n, self.head(w)) / self.divisor, self.logit_cap)
        return logits, (ids, saved, x, r, n, slope / self.divisor)

    def pre_norm(self, x, w, name):
        """(what a block reads, for backward); x itself where no norm is before the blocks."""
        return (x, None) if is_olmo(self.c) else norm_forward(x, self.unit(w[name]), self.eps)

    def mlp_norm(self):
        return "pre_feedforward_layernorm.weight" if self.post_norms else "post_attention_layernorm.weight"

    def post_norm(self, y, w, name):
        """(a block's result normed, for backward); y itself where no norm follows a block."""
        if not self.post_norms:
            return y, None
        out, r = norm_forward(y, self.unit(w[name]), self.eps)
        return out, (y, r, name)

    def post_norm_backward(self, d, saved, w, g):
        if saved is None:
            return d
        y, r, name = saved
        dy, g[name] = norm_backward(d, y, self.unit(w[name]), r)
        return dy

    def head(self, w):
        return w["model.embed_tokens.weight" if self.tied else "lm_head.weight"]

    def backward(self, w, dlogits, saved):
        """{name: gradient}"""
        ids, layers, x, r, n, slope = saved
        w, dlogits = self.apart(w), dlogits * slope
        balance = self.balance_factor(ids) * self.load(layers)[0][:, None] if self.balances else 0.0
        g, dhead = {}, outer(dlogits, n)
        d, g["model.norm.weight"] = norm_backward(dlogits @ self.head(w), x,
                                                  self.unit(w["model.norm.weight"]), r)
        for i in reversed(range(len(layers))):
            p, (x, r, attention, attention_post, mid, r2, mlp_post, mlp) = "model.layers.%d." % i, layers[i]
            for norm, post, inner, residual, rr in (
                    (self.mlp_norm(), mlp_post,
                     lambda d: self.experts_backward(d, mlp, w, p, g, balance) if experts_of(self.c)
                     else self.mlp_backward(d, mlp, w, p + "mlp.", g), mid, r2),
                    ("input_layernorm.weight", attention_post,
                     lambda d: self.attention_backward(d, attention, w, p + "self_attn.", g), x, r)):
                dn = inner(self.post_norm_backward(d * self.residual, post, w, g))
                if rr is not None:
                    dn, g[p + norm] = norm_backward(dn, residual, self.unit(w[p + norm]), rr)
                d = d + dn
        d = d * self.embedding
        table = np.zeros_like(w["model.embed_tokens.weight"])
        np.add.at(table, ids.reshape(-1), d.reshape(-1, d.shape[-1]))
        if self.tied:
            table += dhead
        else:
            g["lm_head.weight"] = dhead
        g["model.embed_tokens.weight"] = table
        for name, (parts, _) in self.fused().items():
            g[name] = np.concatenate([g.pop(part) for part in parts])
        return g


class GPT2:
    """LayerNorm with bias, learned positions, q k v in one matrix, gelu_new, a tied head."""

    names = dict(embedding="transformer.wte.weight", positions="transformer.wpe.weight", layer="transformer.h.%d.", norm="ln_1",
                 attention="attn.", norm2="ln_2", mlp="mlp.", last="transformer.ln_f", out="c_proj", up="c_fc", down="c_proj")
    unused = 0  # rows at the beginning of the table of positions
    is_parallel = False  # the MLP reads the same residual as attention

    @staticmethod
    def extra_loss(saved):
        return 0.0

    def __init__(self, config, seq):
        self.c, self.seq, self.layers, self.head = config, seq, config["n_layer"], "transformer.wte.weight"
        self.heads, self.width = config["n_head"], config["n_embd"] // config["n_head"]
        self.eps = config["layer_norm_epsilon"]
        self.mask = np.triu(np.ones((seq, seq), bool), 1)

    def norm(self, x, w, p):
        d = x - x.mean(-1, keepdims=True)
        r = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps)
        return d * r * w[p + ".weight"] + w[p + ".bias"], (d * r, r)

    @staticmethod
    def norm_backward(dy, saved, w, p, g):
        unit, r = saved
        g[p + ".weight"], g[p + ".bias"] = (dy * unit).sum((0, 1)), dy.sum((0, 1))
        d = dy * w[p + ".weight"]
        return r * (d - d.mean(-1, keepdims=True) - unit * (d * unit).mean(-1, keepdims=True))

    @staticmethod
    def linear(x, w, p):
        return x @ w[p + ".weight"] + w[p + ".bias"]

    @staticmethod
    def linear_backward(dy, x, w, p, g):
        g[p + ".weight"], g[p + ".bias"] = outer(x, dy), dy.sum((0, 1))
        return product(dy, w[p + ".weight"])

    def split(self, x):
        return x.reshape(*x.shape[:2], self.heads, self.width).swapaxes(1, 2)

    def qkv(self, n, w, p):
        return np.split(self.linear(n, w, p + "c_attn"), 3, -1)

    def qkv_backward(self, parts, n, w, p, g):
        return self.linear_backward(np.concatenate(parts, -1), n, w, p + "c_attn", g)

    def attention(self, n, w, p):
        q, k, v = (self.split(x) for x in self.qkv(n, w, p))
        s = np.where(self.mask, -np.inf, q @ k.swapaxes(2, 3) / math.sqrt(self.width))
        e = np.exp(s - s.max(-1, keepdims=True))
        a = e / e.sum(-1, keepdims=True)
        o = Llama.join(a @ v)
        return self.linear(o, w, p + self.names["out"]), (n, q, k, v, a, o)

    def attention_backward(self, d, saved, w, p, g):
        n, q, k, v, a, o = saved
        do = self.split(self.linear_backward(d, o, w, p + self.names["out"], g))
        da = do @ v.swapaxes(2, 3)
        ds = a * (da - (da * a).sum(-1, keepdims=True)) / math.sqrt(self.width)
        parts = ds @ k, ds.swapaxes(2, 3) @ q, a.swapaxes(2, 3) @ do
        return self.qkv_backward([Llama.join(x) for x in parts], n, w, p, g)

    @staticmethod
    def activation(u):
        """gelu_new, and its slope."""
        t = np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3))
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * u ** 2)
        return 0.5 * u * (1 + t), 0.5 * (1 + t + u * (1 - t * t) * inner)

    def mlp(self, n, w, p):
        y, slope = self.activation(self.linear(n, w, p + self.names["up"]))
        return self.linear(y, w, p + self.names["down"]), (n, y, slope)

    def mlp_backward(self, d, saved, w, p, g):
        n, y, slope = saved
        dh = self.linear_backward(d, y, w, p + self.names["down"], g)
        return self.linear_backward(dh * slope, n, w, p + self.names["up"], g)

    def forward(self, w, ids):
        """(logits, values for backward)"""
        names = self.names
        x, saved = w[names["embedding"]][ids], []
        if names["positions"]:
            x = x + w[names["positions"]][self.unused:self.unused + self.seq]
        for i in range(self.layers):
            p = names["layer"] % i
            n, norm = self.norm(x, w, p + names["norm"])
            y, attention = self.attention(n, w, p + names["attention"])
            n, norm2 = self.norm(x if self.is_parallel else x + y, w, p + names["norm2"])
            z, mlp = self.mlp(n, w, p + names["mlp"])
            saved.append((norm, attention, norm2, mlp))
            x = x + y + z
        n, norm = self.norm(x, w, names["last"])
        return product(n, w[self.head]), (ids, saved, norm, n)

    def backward(self, w, dlogits, saved):
        """{name: gradient}"""
        ids, layers, norm, n = saved
        names = self.names
        g = {self.head: outer(dlogits, n)}
        d = self.norm_backward(dlogits @ w[self.head], norm, w, names["last"], g)
        for i in reversed(range(len(layers))):
            p, (norm, attention, norm2, mlp) = names["layer"] % i, layers[i]
            dn = self.mlp_backward(d, mlp, w, p + names["mlp"], g)
            mid = d + self.norm_backward(dn, norm2, w, p + names["norm2"], g)
            dn = self.attention_backward(d if self.is_parallel else mid, attention, w, p + names["attention"], g)
            d = mid + self.norm_backward(dn, norm, w, p + names["norm"], g)
        embedding = g.setdefault(names["embedding"], np.zeros_like(w[names["embedding"]]))
        np.add.at(embedding, ids.reshape(-1), d.reshape(-1, d.shape[-1]))
        if not names["positions"]:
            return g
        g[names["positions"]] = np.zeros_like(w[names["positions"]])
        g[names["positions"]][self.unused:self.unused + self.seq] = d.sum(0)
        return g


class Opt(GPT2):
    """A GPT-2 with relu, linear layers [out, in], q k v apart, and positions that begin in the third row of their table."""

    names = dict(embedding=OPT + "embed_tokens.weight", positions=OPT + "embed_positions.weight", layer=OPT + "layers.%d.",
                 norm="self_attn_layer_norm", attention="self_attn.", norm2="final_layer_norm", mlp="",
                 last=OPT + "final_layer_norm", out="out_proj", up="fc1", down="fc2")
    unused = 2

    def __init__(self, config, seq):
        self.c, self.seq, self.layers = config, seq, config["num_hidden_layers"]
        self.heads, self.width = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]
        self.eps, self.mask = 1e-5, np.triu(np.ones((seq, seq), bool), 1)
        self.head = OPT + "embed_tokens.weight" if config.get("tie_word_embeddings", True) else "lm_head.weight"

    linear, linear_backward = staticmethod(linear), staticmethod(linear_backward)

    def qkv(self, n, w, p):
        return [linear(n, w, p + x) for x in ("q_proj", "k_proj", "v_proj")]

    def qkv_backward(self, parts, n, w, p, g):
        return sum(linear_backward(d, n, w, p + x, g) for d, x in zip(parts, ("q_proj", "k_proj", "v_proj")))

    @staticmethod
    def activation(u):
        return np.maximum(u, 0), u > 0


class NeoX(GPT2):
    """A GPT-2 with linear layers [out, in], q k v of each head side by side, a rotary embedding of a part of each head, gelu
    with erf or with tanh, and by default an MLP that reads the same residual as attention."""

    names = dict(embedding="gpt_neox.embed_in.weight", positions=None, layer="gpt_neox.layers.%d.", norm="input_layernorm",
                 attention="attention.", norm2="post_attention_layernorm", mlp="mlp.", last="gpt_neox.final_layer_norm",
                 out="dense", up="dense_h_to_4h", down="dense_4h_to_h")

    def __init__(self, config, seq):
        c = self.c = config
        self.layers, self.heads = c["num_hidden_layers"], c["num_attention_heads"]
        self.width = c["hidden_size"] // self.heads
        self.eps, self.mask = c["layer_norm_eps"], np.triu(np.ones((seq, seq), bool), 1)
        self.head = self.names["embedding"] if c.get("tie_word_embeddings") else "embed_out.weight"
        self.is_parallel = c.get("use_parallel_residual", True)
        each, factor = frequencies(c, rotary_width(c, self.width), None, seq)
        angle = np.arange(seq)[:, None] * each
        self.tables = {None: (factor * np.cos(angle), factor * np.sin(angle))}

    linear, linear_backward = staticmethod(linear), staticmethod(linear_backward)

    def rotate(self, x, sign=1):
        """x has all heads side by side."""
        return Llama.join(Llama.rotate(self, self.split(x), None, sign))

    def qkv(self, n, w, p):
        x = self.linear(n, w, p + "query_key_value")
        q, k, v = np.moveaxis(x.reshape(*x.shape[:2], self.heads, 3, self.width), 3, 0).reshape(3, *n.shape[:2], -1)
        return self.rotate(q), self.rotate(k), v

    def qkv_backward(self, parts, n, w, p, g):
        dq, dk, dv = parts
        d = np.stack([x.reshape(*x.shape[:2], self.heads, self.width) for x in (self.rotate(dq, -1), self.rotate(dk, -1), dv)], 3)
        return self.linear_backward(d.reshape(*n.shape[:2], -1), n, w, p + "query_key_value", g)

    def activation(self, u):
        if self.c["hidden_act"] != "gelu":
            return GPT2.activation(u)
        share = (1 + np.vectorize(math.erf, otypes=[float])(u / math.sqrt(2))) / 2
        return u * share, share + u * np.exp(-u * u / 2) / math.sqrt(2 * math.pi)


def model_class(c):
    """The class of the model with this config.json."""
    kinds = {"gpt2": GPT2, "opt": Opt, "gpt_neox": NeoX}
    return GPT2 if is_gpt2(c) else kinds.get(c["model_type"], Llama)


def outer(dy, x):
    """The gradient of a weight [out, in]: the sum of dy x^T over all tokens."""
    return dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])


# ---- training -----------------------------------------------------------------------------------


def rate_of(o, s):
    if s < o["warmup"]:
        return o["lr"] * (s + 1) / o["warmup"]
    part = (s - o["warmup"]) / max(1, o["steps"] - o["warmup"])
    return o["min_lr"] + (o["lr"] - o["min_lr"]) * (1 + math.cos(math.pi * part)) / 2


def batch_of(data, o, s):
    """(inputs, targets) of step s."""
    t, samples = o["seq"], (len(data) - 1) // o["seq"]
    starts = [(s * o["batch"] + b) % samples * t for b in range(o["batch"])]
    rows = np.array([list(data[at:at + t + 1]) for at in starts], np.int64)
    return rows[:, :-1], rows[:, 1:]


def loss_of(logits, targets):
    """(loss, its gradient)"""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    at = np.take_along_axis(p, targets[..., None], -1)
    d = p.copy()
    np.put_along_axis(d, targets[..., None], at - 1, -1)
    return -np.log(at).mean(), d / targets.size


def adamw(o, s, rate, w, g, m, v):
    t = s + 1
    for name, p in w.items():
        if p.ndim >= 2:
            p *= 1 - rate * o["wd"]
        m[name] = o["beta1"] * m[name] + (1 - o["beta1"]) * g[name]
        v[name] = o["beta2"] * v[name] + (1 - o["beta2"]) * g[name] ** 2
        p -= rate * (m[name] / (1 - o["beta1"] ** t)) / (
            np.sqrt(v[name] / (1 - o["beta2"] ** t)) + o["eps"])


def train(config, weights, data, **options):
    """([{step, loss, grad_norm, lr}], final weights)"""
    o = {**OPTIONS, **options}
    model = model_class(config)(config, o["seq"])
    w = {k: x.astype(np.float64) for k, x in weights.items()}
    m, v = ({k: np.zeros_like(x) for k, x in w.items()} for _ in range(2))
    trace = []
    for s in range(o["steps"]):
        ids, targets = batch_of(data, o, s)
        logits, saved = model.forward(w, ids)
        loss, dlogits = loss_of(logits, targets)
        loss += model.extra_loss(saved)
        g = model.backward(w, dlogits, saved)
        norm = math.sqrt(sum(float((x * x).sum()) for x in g.values()))
        scale = min(1, o["clip"] / (norm + 1e-6)) if o["clip"] > 0 else 1
        rate = rate_of(o, s)
        adamw(o, s, rate, w, {k: x * scale for k, x in g.items()}, m, v)
        trace.append(dict(step=s, loss=float(loss), grad_norm=norm, lr=rate))
    return trace, w


def deviation(trace, other):
    """(the largest difference of losses, the largest relative difference of norms) of two traces with
    the same steps."""
    assert [x["step"] for x in trace] == [x["step"] for x in other]
    return (max(abs(a["loss"] - b["loss"]) for a, b in zip(trace, other)),
            max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(trace, other)))


def main(folder, trace, data):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    lines = [json.loads(line) for line in open(trace)]
    options = {k: v for line in lines for k, v in line.items() if k in OPTIONS and "step" not in line}
    own, _ = train(config, load_safetensors(pathlib.Path(folder) / "model.safetensors"),
                    pathlib.Path(data).read_bytes(), **options)
    print("largest |dloss| %.2e, largest relative dnorm %.2e"
          % deviation([x for x in lines if "step" in x], own))


if __name__ == "__main__":
    main(*sys.argv[1:])
