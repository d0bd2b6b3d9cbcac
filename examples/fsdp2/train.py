"""Train a model of transformers with FSDP2, and save checkpoints of tp: any number of ranks can continue them.

    torchrun --nproc-per-node 2 train.py --model CONFIG --data TEXT --ckpt ROOT --steps 100

CONFIG is a config.json, or a folder that has one. The text is read as bytes. A step is the same mathematics on any
number of ranks: sample i of the data is the same, and the loss is the mean over the global batch. On SIGTERM
all ranks save after the same step and exit with 75. Started again, also with another number of ranks, the
program continues from the newest complete step. The data and the loss are those of tp-train, which can continue, too.
"""
import argparse
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
import transformers
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tp_checkpoint
from tp_checkpoint import dcp

try:
    from tp_progress import Progress  # tp-run then sees steps and losses
except ImportError:
    Progress = None

SAVED_AND_STOPPED = 75
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def arguments():
    p = argparse.ArgumentParser(description="Train with FSDP2; save checkpoints of tp.")
    for name in "model", "data", "ckpt":
        p.add_argument("--" + name, required=True)
    for name, default in ("steps", 100), ("save-every", 10), ("batch", 8), ("seq", 64), ("seed", 1):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--losses", help="rank 0 appends a JSON line for each step")
    return p.parse_args()


def make_model(path, seed):
    """The same random weights on every rank, and then each rank's part of them."""
    config = transformers.AutoConfig.from_pretrained(path)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), config


def samples(text, first, count, seq):
    """Sequences first .. first + count - 1 of the data, and the token after each of theirs: those of tp-train."""
    n = (len(text) - 1) // seq
    rows = [list(text[w * seq:w * seq + seq + 1]) for w in ((first + i) % n for i in range(count))]
    ids = torch.tensor(rows, device=DEVICE)
    return ids[:, :-1], ids[:, 1:]


class Trainer:
    def __init__(self, o):
        self.o, self.rank, self.world = o, dist.get_rank(), dist.get_world_size()
        with open(o.data, "rb") as f:
            self.text = f.read()
        if o.batch % self.world:
            sys.exit(f"train.py: --batch {o.batch} is not a multiple of the {self.world} ranks, which have equal parts of it")
        if len(self.text) <= o.seq:
            sys.exit(f"train.py: {o.data} has {len(self.text)} bytes, expected more than --seq, {o.seq}")
        self.model, self.config = make_model(o.model, o.seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=o.lr)
        self.steps_done = 0

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def resume(self):
        if not os.path.isdir(self.o.ckpt) or not tp_checkpoint.steps(self.o.ckpt):
            return
        state = self.state()
        ckpt = dcp.load(state, self.o.ckpt)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.steps_done = ckpt.step
        if self.rank == 0:
            print(f"continues after step {ckpt.step}, which {ckpt.layout} wrote", flush=True)

    def save(self):
        train = {"next_sample": self.steps_done * self.o.batch, "tokens": self.steps_done * self.o.batch * self.o.seq,
                 "seed": self.o.seed}
        dcp.save(self.state(), self.o.ckpt, self.steps_done, config=self.config, train=train, force=True)

    def step(self):
        """The loss of the global batch before the step."""
        mine = self.o.batch // self.world
        ids, targets = samples(self.text, self.steps_done * self.o.batch + self.rank * mine, mine, self.o.seq)
        logits = self.model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps_done += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        return mean.item() / self.world


def any_rank(asked):
    """Whether a rank was asked to stop: they all save after the same step."""
    ranks = torch.tensor([len(asked)], device=DEVICE)
    dist.all_reduce(ranks)
    return ranks.item() > 0


def main():
    o, asked = arguments(), []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    trainer = Trainer(o)
    progress = Progress(trainer.rank, trainer.world) if Progress else None
    trainer.resume()
    if progress:
        progress.phase(Progress.TRAIN)
    while trainer.steps_done < o.steps:
        loss = trainer.step()
        if progress:
            progress.step(trainer.steps_done, loss)
        if trainer.rank == 0 and o.losses:
            with open(o.losses, "a", encoding="utf-8") as f:
                f.write(json.dumps({"step": trainer.steps_done, "loss": loss, "ranks": trainer.world}) + "\n")
        stop = any_rank(asked)
        if stop or trainer.steps_done % o.save_every == 0 or trainer.steps_done == o.steps:
            trainer.save()
            if trainer.rank == 0:
                print(f"saved step {trainer.steps_done} of {o.steps}, loss {loss:.4f}", flush=True)
        if stop:
            break
    if progress:
        progress.close()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0 if trainer.steps_done >= o.steps else SAVED_AND_STOPPED)


if __name__ == "__main__":
    main()
