#!/usr/bin/env python3
"""tests/gpu/torch_speed.py - PyTorch's speed at what tests/gpu/gpu_check.py measures of ours. It prints JSON.

    torch_speed.py attention                      TFLOP/s of scaled_dot_product_attention, bf16, causal
    torch_speed.py train MODEL SEQ BATCH MODE    tokens per second of a training step

MODE is eager; compile: the whole model; or compile_layers: each decoder layer and the loss. All layers of a model share one
graph, so this compiles in a fraction of the time, and PyTorch recommends it for deep models ("regional compilation").

Exit code 3: PyTorch, transformers or a GPU is missing.
"""
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except (ImportError, AttributeError) as e:
    print(e, file=sys.stderr)
    sys.exit(3)


def fastest(work, rounds=10):
    """Seconds of the fastest call."""
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def attention():
    rows = []
    for seq in (1024, 4096):
        for head_dim in (64, 128):
            shape = (16384 // seq, 16, seq, head_dim)
            q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
            flops = 2 * shape[0] * 16 * seq * seq * head_dim
            forward = fastest(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            d_out = torch.randn_like(out)
            backward = fastest(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
            rows.append({"seq": seq, "head_dim": head_dim, "forward": flops / forward / 1e12,
                         "backward": 2.5 * flops / backward / 1e12})
    return rows


def model_of(config, device):
    """Without the cache of keys and values, which training does not need, and because of which each layer has its own graph."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as e:
        print(e, file=sys.stderr)
        sys.exit(3)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config, use_cache=False), attn_implementation="sdpa")
    model.loss_type = "ForCausalLM"  # for GPT-2 it would say with a warning that it chooses that, which ends a graph
    return model


def compiled(model, mode, backend="inductor"):
    if mode == "compile":
        return torch.compile(model, backend=backend)
    if mode == "compile_layers":
        body = model.base_model
        for layer in body.h if hasattr(body, "h") else body.layers:
            layer.compile(backend=backend)
        model.loss_function = torch.compile(model.loss_function, backend=backend)
    return model


def train(config, seq, batch, mode):
    model = model_of(config, "cuda")
    step_model = compiled(model, mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 255, (batch, seq), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step_model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    return {"tokens_per_s": batch * seq / fastest(step, 5)}


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(attention() if sys.argv[1] == "attention" else
                     train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])))
