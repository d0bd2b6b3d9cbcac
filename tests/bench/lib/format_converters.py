#!/usr/bin/env python3
"""The converters of PyTorch, transformers, Megatron-core and DeepSpeed, for bench_formats.py.

    format_converters.py NAME FROM TO

Runs one and prints JSON: wall and CPU seconds, children included, without the start of Python and of its packages, and
the most resident memory. The packages are on PyPI: torch, transformers, megatron-core, deepspeed. The last two may be in the
folder frameworks/ of Python's virtual environment, where tests/clients/run.sh --install puts them.
"""
import argparse
import collections
import contextlib
import json
import multiprocessing.dummy
import os
import pathlib
import resource
import sys
import tempfile
import time
import types

sys.path.append(os.path.join(sys.prefix, "frameworks"))


def dcp_to_torch_save(source, target):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as convert
    return lambda: convert(source, target)


def torch_save_to_dcp(source, target):
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp as convert
    return lambda: convert(source, target)


def save_pretrained(source, target):
    """Weights in safetensors are loaded and saved."""
    from transformers import AutoModelForCausalLM
    return lambda: AutoModelForCausalLM.from_pretrained(source, dtype="float32").save_pretrained(target)


def megatron_core(source, target):
    """dist_checkpointing loads torch_dist and saves it, in one process: what a job at another layout does. It synchronizes with
    a GPU, and writes from a process that it forks: here nothing is synchronized, and a thread writes."""
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    torch.distributed.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *args: None
    filesystem_async.mp = types.SimpleNamespace(get_context=lambda how: multiprocessing.dummy)
    [folder] = map(str, pathlib.Path(source).glob("iter_*"))

    def sharded(tensors):
        return {k: dist_checkpointing.ShardedTensor.from_rank_offsets(k, t) for k, t in tensors.items()}

    def convert():
        known = FileSystemReader(folder).read_metadata().state_dict_metadata
        state = dist_checkpointing.load(sharded({
            k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in known.items()
            if isinstance(m, TensorStorageMetadata)}), folder)
        os.mkdir(target)
        dist_checkpointing.save(sharded({k: t for k, t in state.items() if torch.is_tensor(t)}), target)
    return convert


def ds_to_universal(source, target):
    from deepspeed.checkpoint.ds_to_universal import main as convert
    [folder] = map(str, pathlib.Path(source).glob("global_step*"))
    return lambda: convert(argparse.Namespace(
        input_folder=folder, output_folder=target, num_extract_workers=2, num_merge_workers=2, keep_temp_folder=False,
        strict=True, inject_missing_state=True))


def zero_to_fp32(source, target):
    """Weights only."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert
    return lambda: convert(source, target)


def make_zero(source, target):
    """No converter: writes what DeepSpeed saves at ZeRO-1 with two ranks, from weights in safetensors. The moments are numbers."""
    import torch
    from deepspeed import __version__ as version
    from deepspeed.utils.tensor_fragment import fragment_address
    from safetensors.torch import load_file

    def convert():
        weights = load_file(pathlib.Path(source) / "model.safetensors")
        tag = pathlib.Path(target) / "global_step1"
        tag.mkdir(parents=True)
        groups = [{k: w for k, w in weights.items() if w.dim() == n} for n in (2, 1)]
        shapes = [collections.OrderedDict((k, w.shape) for k, w in g.items()) for g in groups]
        torch.save({"module": weights, "buffer_names": [], "param_shapes": shapes, "shared_params": {},
                    "frozen_param_shapes": None, "frozen_param_fragments": None, "ds_version": version, "lr_scheduler": None,
                    "global_steps": 1, "dp_world_size": 2, "mp_world_size": 1}, tag / "mp_rank_00_model_states.pt")
        flats = [torch.cat([w.flatten() for w in g.values()]) for g in groups]
        for rank in range(2):
            parts, mappings = [], []
            for group, flat in zip(groups, flats):
                size = -(-flat.numel() // 4) * 2  # a multiple of two
                parts.append(torch.nn.functional.pad(flat, (0, 2 * size - flat.numel()))[rank * size:(rank + 1) * size].clone())
                mapping, at = collections.OrderedDict(), 0
                for name, w in group.items():
                    lo, hi = max(at, rank * size), min(at + w.numel(), (rank + 1) * size)
                    if lo < hi:
                        mapping[name] = fragment_address(start=lo - rank * size, numel=hi - lo)
                    at += w.numel()
                mappings.append(mapping)
            state = {i: {"step": torch.tensor(1.0), "exp_avg": p / 8, "exp_avg_sq": p * p} for i, p in enumerate(parts)}
            torch.save({"optimizer_state_dict": {
                "zero_stage": 1, "partition_count": [2, 2], "ds_version": version, "param_slice_mappings": mappings,
                "single_partition_of_fp32_groups": parts, "group_paddings": [0, 0],
                "base_optimizer_state": {"state": state, "param_groups": [{"params": [0]}, {"params": [1]}]}},
                "ds_version": version}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        (tag.parent / "latest").write_text(tag.name)
    return convert


def usage():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both), max(u.ru_maxrss for u in both) << 10


def main():
    name, source, target = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):  # some of them print
        convert = globals()[name](source, target)
        start, cpu = time.monotonic(), usage()[0]
        convert()
        wall, (end, peak) = time.monotonic() - start, usage()
    print(json.dumps({"wall": wall, "cpu": end - cpu, "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main()
