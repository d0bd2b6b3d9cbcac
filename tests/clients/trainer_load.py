"""Has transformers' Trainer resume from a folder without another step, and writes what its model and optimizer have then.

    trainer_load.py FOLDER FILE    FILE: {"group/name": tensor}"""
import json
import logging
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import save_file

MOMENTS = ("exp_avg", "exp_avg_sq")

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    folder = pathlib.Path(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    data = [{"input_ids": r, "labels": r} for r in torch.randint(0, 131, (8 * step, 24))]
    with tempfile.TemporaryDirectory() as out:
        t = transformers.Trainer(model=model, train_dataset=data, args=transformers.TrainingArguments(
            output_dir=out, max_steps=step, per_device_train_batch_size=8, use_cpu=True, report_to="none", disable_tqdm=True,
            save_strategy="no", optim="adamw_torch"))
        t.train(resume_from_checkpoint=str(folder))
    live = {"param/" + k: p.detach() for k, p in model.named_parameters()}
    for group in MOMENTS:
        live.update({"%s/%s" % (group, k): t.optimizer.state[p][group] for k, p in model.named_parameters()})
    save_file({k: v.clone() for k, v in live.items()}, sys.argv[2])
    print("steps %s, global_step %d, lr %s" % ({float(x["step"]) for x in t.optimizer.state.values()}, t.state.global_step,
                                               [g["lr"] for g in t.optimizer.param_groups]))
