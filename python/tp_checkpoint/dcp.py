"""torch.distributed.checkpoint in this format: FSDP2 and DTensor programs save and load checkpoints that tp-ckpt
verifies, tp-reshard converts, and tp-run resumes.

    from tp_checkpoint import dcp

    dcp.save({"model": model_state, "optim": optimizer_state}, "runs/ckpt", step, config=model.config)
    dcp.load({"model": model_state, "optim": optimizer_state}, "runs/ckpt")

or, with torch's own functions, TPWriter and TPReader as storage_writer and storage_reader. Every rank writes its
parts into a file of its own, and the step appears when all of them are on disk: all of it, or nothing.
"""
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp

from . import roots
from .dcp_reader import LoadPlanner, TPReader
from .dcp_writer import TPWriter

__all__ = ["LoadPlanner", "TPReader", "TPWriter", "load", "save"]


def save(state_dict, root, step, config=None, rules=None, train=None, force=False, process_group=None, planner=None):
    """Save a step, on all ranks: torch.distributed.checkpoint.save with a TPWriter."""
    writer = TPWriter(root, step, config, rules, train, force)
    try:
        return torch_dcp.save(state_dict, storage_writer=writer, planner=planner, process_group=process_group)
    finally:
        writer.abort()


def load(state_dict, root, step=None, process_group=None, planner=None):
    """Load into a state dict, on all ranks: torch.distributed.checkpoint.load with a TPReader. Returns the
    Checkpoint, whose `step` and `train` say where to continue."""
    if dist.is_available() and dist.is_initialized():  # all ranks load the step that the first one finds
        chosen = [None]
        if dist.get_rank(process_group) == 0:
            try:
                chosen = [roots.open(root, step).path]
            except Exception as e:  # any error must reach the other ranks, which wait
                chosen = [e]
        dist.broadcast_object_list(chosen, group=process_group, group_src=0)
        if isinstance(chosen[0], Exception):
            raise chosen[0]
        root = chosen[0]
    reader = TPReader(root, step)
    torch_dcp.load(state_dict, storage_reader=reader, planner=planner or LoadPlanner(), process_group=process_group)
    return reader.checkpoint
