"""Checkpoints of tp: sharded HDF5, written at any layout of tensor, pipeline and data parallelism.

    import tp_checkpoint

    ckpt = tp_checkpoint.open("runs/ckpt")                  # the newest complete step
    ckpt["model.embed_tokens.weight"][:10]                  # some rows, as an array of numpy
    ckpt.tensor("model.norm.weight", "exp_avg")[...]        # a moment of AdamW
    model.load_state_dict(ckpt.load_state_dict())           # transformers

tp_checkpoint.dcp has a StorageReader and a StorageWriter for torch.distributed.checkpoint.
"""
from .checkpoint import Checkpoint, Tensor, bf16_to_float32
from .errors import CheckpointError, DamagedError, NotFoundError, UnsupportedError
from .roots import open, steps
from .step_writer import save
from .transaction import ExistsError, StaleError

__version__ = "0.1.0"
__all__ = ["Checkpoint", "CheckpointError", "DamagedError", "ExistsError", "NotFoundError", "StaleError", "Tensor",
           "UnsupportedError", "bf16_to_float32", "open", "save", "steps"]
