"""The oracle: trains a model with transformers and torch.optim by the rules of docs/TRAINING.md.

The numbers that tp-train logs must be the same at every layout, up to fp32 rounding:

  samples  n = (bytes of data - 1) // T; sequence b of step s is sample w = (s*B + b) % n, whose
           inputs are bytes w*T .. w*T+T-1 and whose targets are bytes w*T+1 .. w*T+T
  loss     mean over the B*T targets of -log softmax(logits)[target]
  norm     L2 norm of all gradients before clipping (a tied matrix counts once); then each one is
           multiplied by min(1, clip / (norm + 1e-6))
  lr       lr*(s+1)/W while s < W; then from lr to min_lr by half a cosine over N-W steps
  AdamW    weight decay for tensors of two or more dimensions, none for norms

usage: oracle_torch.py MODEL_DIR DATA [--steps N] ... > trace.jsonl
"""
import argparse
import json
import math

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

DEFAULTS = dict(steps=20, batch=8, seq=64, lr=1e-3, min_lr=1e-4, warmup=5, beta1=0.9, beta2=0.95,
                eps=1e-8, weight_decay=0.1, clip=1.0)


def make_model(folder, seed=1, sharpen=1.0, **changes):
    """Write a Llama with random weights to folder. They depend only on seed; norm weights are near 1.

    sharpen: a factor for q and k. With larger ones, errors in attention change the logits more.
    """
    config = dict(vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=4,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                  rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=False,
                  mlp_bias=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = LlamaForCausalLM(LlamaConfig(**{**config, **changes})).float()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=random)
            p.copy_(1 + 0.1 * noise if p.dim() == 1 else 0.02 * noise)
            if "q_proj" in name or "k_proj" in name:
                p.mul_(sharpen)
    model.save_pretrained(folder)
    return folder


def samples(data, step, batch, seq):
    """Inputs and targets of a step, [batch, seq] each."""
    n = (len(data) - 1) // seq
    starts = [(step * batch + b) % n * seq for b in range(batch)]
    rows = torch.tensor([list(data[at:at + seq + 1]) for at in starts])
    return rows[:, :-1], rows[:, 1:]


def learning_rate(step, o):
    if step < o["warmup"]:
        return o["lr"] * (step + 1) / o["warmup"]
    part = (step - o["warmup"]) / max(1, o["steps"] - o["warmup"])
    return o["min_lr"] + (o["lr"] - o["min_lr"]) * (1 + math.cos(math.pi * part)) / 2


def clip_(params, most):
    """The norm of all gradients. If it is larger than `most`, the gradients are scaled to it."""
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in params))
    if most > 0 and norm + 1e-6 > most:
        for p in params:
            p.grad.mul_(most / (norm + 1e-6))
    return norm


def train(folder, data_path, **options):
    """Train the model in folder in fp32 on one thread. Returns [{step, loss, grad_norm, lr}, ...]."""
    o = {**DEFAULTS, **options}
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager").train()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params if p.dim() >= 2], "weight_decay": o["weight_decay"]},
         {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}],
        betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)
    with open(data_path, "rb") as f:
        data = f.read()
    trace = []
    for step in range(o["steps"]):
        lr = learning_rate(step, o)
        for group in optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = samples(data, step, o["batch"], o["seq"])
        optimizer.zero_grad()
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = clip_(params, o["clip"])
        optimizer.step()
        trace.append({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": lr})
    return trace


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("data")
    for name, value in DEFAULTS.items():
        ap.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    a = vars(ap.parse_args())
    for record in train(a.pop("model"), a.pop("data"), **a):
        print(json.dumps(record))


if __name__ == "__main__":
    main()
