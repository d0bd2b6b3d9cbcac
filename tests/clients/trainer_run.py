"""Trains small models with transformers' Trainer, which may be of an earlier version or in several processes (DDP), and writes what
the live optimizer has.

    trainer_run.py FOLDER FAMILY...    FOLDER/FAMILY/checkpoint-2, and FOLDER/FAMILY/live.safetensors: {"group/name": tensor}

Prints a line for each family: the sizes of the optimizer's groups, or that this version does not have it."""
import logging
import os
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

import family_models

MOMENTS = ("exp_avg", "exp_avg_sq")


def train(name, folder):
    kind, config = family_models.FAMILIES[name]
    config = {k: v for k, v in config.items() if k != "rope_parameters"}
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**config)).float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape))
    rows = torch.randint(0, 131, (16, 24))
    data = [{"input_ids": r, "labels": r} for r in rows]
    t = transformers.Trainer(model=model.train(), train_dataset=data, args=transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, save_steps=2, per_device_train_batch_size=8, use_cpu=True, report_to="none",
        disable_tqdm=True, ddp_backend="gloo" if "RANK" in os.environ else None, learning_rate=1e-2, weight_decay=0.1,
        optim="adamw_torch"))
    t.train()
    live = {"param/" + k: p.detach().clone() for k, p in model.named_parameters()}
    for group in MOMENTS:
        live.update({"%s/%s" % (group, k): t.optimizer.state[p][group].clone() for k, p in model.named_parameters()})
    if int(os.environ.get("RANK", 0)) == 0:
        save_file(live, folder / "live.safetensors")
    return [len(g["params"]) for g in t.optimizer.param_groups]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    for family in sys.argv[2:]:
        if hasattr(transformers, family_models.FAMILIES[family][0]):
            print(family, "groups", *train(family, pathlib.Path(sys.argv[1]) / family))
        else:
            print(family, "missing")
