"""Train a model of transformers with DeepSpeed's ZeRO-3, on any number of ranks, of checkpoints of any number of ranks.

    torchrun --nproc-per-node 2 train.py --model CONFIG --data TEXT --ckpt FOLDER --steps 100

CONFIG is a config.json, or a folder that has one. The text is read as bytes. A step is the same mathematics on any number
of ranks. FOLDER has what DeepSpeed saves, which is for this number of ranks, or a Universal checkpoint, as
`tp-reshard --format deepspeed` makes it; the newer one is loaded. On SIGTERM all ranks save after the same step and exit with 75.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import sys

import torch

if not torch.cuda.is_available():
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
import deepspeed  # noqa: E402
import transformers  # noqa: E402

try:
    from tp_progress import Progress  # tp-run then sees steps and losses
except ImportError:
    Progress = None

SAVED_AND_STOPPED = 75
if not torch.cuda.is_available():  # its communication through shared memory would be compiled for minutes; gloo does without
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def arguments():
    p = argparse.ArgumentParser(description="Train with ZeRO-3, on any number of ranks.")
    for name in "model", "data", "ckpt":
        p.add_argument("--" + name, required=True, type=pathlib.Path)
    for name, default in ("steps", 100), ("save-every", 10), ("batch", 8), ("seq", 64), ("seed", 1):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--losses", help="rank 0 appends a JSON line for each step")
    return p.parse_args()


def newest_step(folder, name):
    """The step that a file such as `latest` names; 0: there is none."""
    path = folder / name
    return int(re.search("[0-9]+", path.read_text())[0]) if path.exists() else 0


def make_engine(o, universal):
    torch.manual_seed(o.seed)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(o.model), dtype=torch.float32)
    settings = {"train_batch_size": o.batch, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 3},
                "checkpoint": {"load_universal": universal}}
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)[0]


def resume(o):
    """The engine, with the newest checkpoint if there is one."""
    universal, own = newest_step(o.ckpt, "latest_universal"), newest_step(o.ckpt, "latest")
    engine = make_engine(o, universal > own)
    if universal or own:
        path, _ = engine.load_checkpoint(str(o.ckpt))
        if not path or engine.global_steps != max(universal, own):
            sys.exit(f"train.py: {o.ckpt}: expected step {max(universal, own)}, and DeepSpeed loaded {path}")
    return engine


def samples(text, first, count, seq):
    """Sequences first .. first + count - 1 of the data, and the token after each of theirs: those of tp-train."""
    n = (len(text) - 1) // seq
    rows = [list(text[w * seq:w * seq + seq + 1]) for w in ((first + i) % n for i in range(count))]
    ids = torch.tensor(rows)
    return ids[:, :-1], ids[:, 1:]


def train_step(o, engine, text):
    """The loss of the global batch before the step."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mine = o.batch // world
    ids, targets = (t.to(engine.device) for t in samples(text, engine.global_steps * o.batch + rank * mine, mine, o.seq))
    logits = engine(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    torch.distributed.all_reduce(mean)
    return mean.item() / world


def any_rank(asked, device):
    """Whether a rank was asked to stop: they all save after the same step."""
    ranks = torch.tensor([len(asked)], device=device)
    torch.distributed.all_reduce(ranks)
    return ranks.item() > 0


def main():
    o, asked = arguments(), []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    deepspeed.init_distributed()
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    text = o.data.read_bytes()
    if o.batch % world:
        sys.exit(f"train.py: --batch {o.batch} is not a multiple of the {world} ranks, which have equal parts of it")
    if len(text) <= o.seq:
        sys.exit(f"train.py: {o.data} has {len(text)} bytes, expected more than --seq, {o.seq}")
    progress = Progress(rank, world) if Progress else None
    engine = resume(o)
    if progress:
        progress.phase(Progress.TRAIN)
    while engine.global_steps < o.steps:
        loss, step = train_step(o, engine, text), engine.global_steps
        if progress:
            progress.step(step, loss)
        if rank == 0 and o.losses:
            with open(o.losses, "a", encoding="utf-8") as f:
                f.write(json.dumps({"step": step, "loss": loss, "ranks": world}) + "\n")
        stop = any_rank(asked, engine.device)
        if stop or step % o.save_every == 0 or step == o.steps:
            engine.save_checkpoint(str(o.ckpt))
        if stop:
            break
    if progress:
        progress.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.exit(0 if engine.global_steps >= o.steps else SAVED_AND_STOPPED)


if __name__ == "__main__":
    main()
