#!/usr/bin/env python3
"""tests/gpu/torch_speed.py - PyTorch's speed at what tests/gpu/gpu_check.py measures of ours. It prints JSON.

    torch_speed.py attention                      TFLOP/s of scaled_dot_product_attention, bf16, causal
    torch_speed.py train MODEL SEQ BATCH MODE    tokens per second of a training step; MODE is eager or compile

Exit code 3: PyTorch, transformers or a GPU is missing.
"""
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    if not torch.cuda.is_available():
        raise ImportError("PyTorch finds no GPU")
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


def train(config, seq, batch, mode):
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as e:
        print(e, file=sys.stderr)
        sys.exit(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config), attn_implementation="sdpa").cuda()
    step_model = torch.compile(model) if mode == "compile" else model
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
    print(json.dumps(attention() if sys.argv[1] == "attention" else
                     train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])))
