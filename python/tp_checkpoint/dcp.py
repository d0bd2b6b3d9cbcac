"""torch.distributed.checkpoint in this format: FSDP2 and DTensor programs save and load checkpoints that tp-ckpt
verifies, tp-reshard converts, and tp-run resumes.

    from tp_checkpoint import dcp

    dcp.save({"model": model_state, "optim": optimizer_state}, "runs/ckpt", step, config=model.config)
    dcp.load({"model": model_state, "optim": optimizer_state}, "runs/ckpt")

or, with torch's own functions, TPWriter and TPReader as storage_writer and storage_reader. Every rank writes its
parts into a file of its own, and the step appears when all of them are on disk: all of it, or nothing.
"""
import pickle

import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp

from . import roots
from .dcp_reader import LoadPlanner, TPReader
from .dcp_writer import TPWriter
from .errors import CheckpointError

__all__ = ["LoadPlanner", "TPReader", "TPWriter", "load", "save"]


def save(state_dict, root, step, config=None, rules=None, train=None, force=False, process_group=None, planner=None):
    """Save a step, on all ranks: torch.distributed.checkpoint.save with a TPWriter."""
    writer = _on_all_ranks(lambda: TPWriter(root, step, config, rules, train, force), process_group)
    try:
        return torch_dcp.save(state_dict, storage_writer=writer, planner=planner, process_group=process_group)
    finally:
        writer.abort()


def load(state_dict, root, step=None, process_group=None, planner=None):
    """Load into a state dict, on all ranks: torch.distributed.checkpoint.load with a TPReader. Returns the
    Checkpoint, whose `step` and `train` say where to continue."""
    if _distributed():  # all ranks load the step that the first one finds
        first = dist.get_rank(process_group) == 0
        chosen = [_on_all_ranks(lambda: roots.open(root, step).path if first else None, process_group)]
        dist.broadcast_object_list(chosen, group=process_group, group_src=0)
        root = chosen[0]
    reader = TPReader(root, step)
    _on_all_ranks(reader.open, process_group)
    torch_dcp.load(state_dict, storage_reader=reader, planner=planner or LoadPlanner(), process_group=process_group)
    return reader.checkpoint


def _distributed():
    return dist.is_available() and dist.is_initialized()


def _on_all_ranks(work, group):
    """The result of work() on this rank. An error of any rank is raised on all of them: the others would wait for a rank
    that has left."""
    result = error = None
    try:
        result = work()
    except Exception as e:
        error = e
    if _distributed():
        errors = [None] * dist.get_world_size(group)
        dist.all_gather_object(errors, _portable(error), group=group)
        rank = next((i for i, e in enumerate(errors) if e is not None), None)
        if error is None and rank is not None:
            other = errors[rank]
            raise type(other)(f"rank {rank}: {other}") if isinstance(other, CheckpointError) else other
    if error is not None:
        raise error
    return result


def _portable(error):
    """An error that can be sent to other ranks."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a class may refuse it in any way
        return CheckpointError(f"{type(error).__name__}: {error}")
    return error
