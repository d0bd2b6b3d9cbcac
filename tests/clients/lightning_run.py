"""Trains a model of transformers with PyTorch Lightning, and saves last.ckpt, and the state of the live optimizer.

    lightning_run.py MODEL FOLDER STRATEGY
"""
import os
import pathlib
import sys
import warnings

import pytorch_lightning
import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from live_state import live_state  # noqa: E402

STEPS = 3


class Module(pytorch_lightning.LightningModule):
    def __init__(self, folder, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.register_buffer("seen", torch.zeros(3))

    def training_step(self, batch, _):
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.3)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)]


def main(model, folder, strategy):
    warnings.simplefilter("ignore")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    rows = torch.randint(0, 131, (4 * STEPS * 2, 24), generator=torch.Generator().manual_seed(7))
    module = Module(model)
    trainer = pytorch_lightning.Trainer(max_steps=STEPS, accelerator="cpu", strategy=strategy, devices=1, logger=False,
                                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=4))
    trainer.save_checkpoint(os.path.join(folder, "last.ckpt"))
    save_file(live_state(module.model, trainer.optimizers[0], "llama"), os.path.join(folder, "live.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
