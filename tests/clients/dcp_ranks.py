"""What test_dcp.py runs on four ranks below torchrun: dcp_ranks.py ROOT. Every rank asserts."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tp_checkpoint
from tp_checkpoint import dcp, dcp_writer, roots

ROOT = sys.argv[1]


def tensors():
    g = torch.Generator().manual_seed(5)
    shapes = {"uneven": (7, 3), "few": (2, 5), "matrix": (12, 10), "columns": (64, 8192), "vector": (9,), "scalar": ()}
    made = {k: torch.randn(s, generator=g) for k, s in shapes.items()}
    made["low"] = torch.randn(33, 4, generator=g).to(torch.bfloat16)
    return made


def placed(mesh, how, values):
    """Each tensor with the placements of `how`, or of its default; "plain" is not a DTensor."""
    out = {}
    for name, value in values.items():
        p = how.get(name, how["*"]) if value.ndim else "plain"
        out[name] = value.clone() if p == "plain" else distribute_tensor(value, mesh, p)
    return out


def check(state, values):
    for name, value in values.items():
        found = state["model"][name]
        found = found.full_tensor() if isinstance(found, DTensor) else found
        assert torch.equal(found, value), name


def there_and_back(rank):
    """Saved with one mesh, loaded with others."""
    values, flat, grid = tensors(), init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    both = [Shard(0), Shard(1)]
    how = {"*": [Shard(0), Shard(0)], "matrix": both, "columns": [Replicate(), Shard(1)],
           "few": [Replicate(), Shard(0)], "vector": "plain"}
    saved = placed(grid, how, values)
    dcp.save({"model": saved, "mine": {"rank%d" % rank: [rank, "text"]}, "all": {"epoch": 3}}, ROOT, 5)
    zeros = {k: torch.zeros_like(v) for k, v in values.items()}
    for mesh, how in ((flat, {"*": [Shard(0)]}), (flat, {"*": [Replicate()], "columns": [Shard(1)]}),
                      (grid, {"*": "plain", "matrix": both[::-1]})):
        state = {"model": placed(mesh, how, zeros), "mine": {"rank%d" % rank: None}, "all": {"epoch": 0}}
        assert dcp.load(state, ROOT).step == 5
        check(state, values)
        assert state["mine"] == {"rank%d" % rank: [rank, "text"]} and state["all"] == {"epoch": 3}


def fsdp_and_tensor_parallelism():
    """FSDP2 over dp of what tensor parallelism cut: rows, then rows again, and columns."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def model(seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Linear(12, 6))
        whole = {k: v.clone() for k, v in net.state_dict().items()}
        parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        return fully_shard(net, mesh=mesh["dp"]).state_dict(), whole

    state, whole = model(1)
    dcp.save({"model": state}, ROOT, 4)
    other = {"model": model(2)[0]}
    dcp.load(other, ROOT, 4)
    check(other, whole)
    flat = {"model": {k: torch.zeros_like(v) for k, v in whole.items()}}
    dcp.load(flat, ROOT, 4)
    check(flat, whole)


def an_error_of_a_rank_leaves_nothing(rank):
    real = dcp_writer.ShardFile.finish
    if rank == 2:
        dcp_writer.ShardFile.finish = lambda self: 1 / 0
    state = {"model": placed(init_device_mesh("cpu", (4,)), {"*": [Shard(0)]}, tensors())}
    try:
        dcp.save(state, ROOT, 6)
    except CheckpointException as e:
        assert "ZeroDivisionError" in str(e), e
    else:
        raise AssertionError("the save of a rank that failed succeeded")
    dcp_writer.ShardFile.finish = real
    dist.barrier()
    assert sorted(n for n in os.listdir(ROOT) if "step-" in n) == ["step-00000004", "step-00000005"], os.listdir(ROOT)
    dcp.save(state, ROOT, 6)


def an_error_of_the_first_rank_reaches_all():
    """The others wait for the step that it finds."""
    for root, step, error in (ROOT, "4", tp_checkpoint.CheckpointError), (None, None, TypeError):
        try:
            dcp.load({"x": torch.zeros(2)}, root, step)
        except error:
            continue
        raise AssertionError("a load of %r was accepted" % root)


def an_error_of_another_rank_reaches_all(rank):
    """A rank that cannot open the checkpoint, or has another config, and the functions of torch."""
    real = roots.open
    if rank == 2:
        roots.open = lambda *_: real(os.path.join(ROOT, "nowhere"))
    state = {"model": placed(init_device_mesh("cpu", (4,)), {"*": [Shard(0)]}, tensors())}
    config = {"scale": float("nan")} if rank == 2 else None
    prefix = "" if rank == 2 else "rank 2: "
    for error, message, call in (
            (tp_checkpoint.NotFoundError, prefix + ROOT + "/nowhere: there is no such", lambda: dcp.load(state, ROOT)),
            (tp_checkpoint.CheckpointError, prefix + "config is {'scale': nan}", lambda: dcp.save(state, ROOT, 7, config)),
            (CheckpointException, "nowhere: there is no such", lambda: dist_cp.load(state, storage_reader=dcp.TPReader(ROOT)))):
        try:
            call()
        except error as e:
            assert message in str(e), e
            continue
        raise AssertionError("an error of rank 2 did not reach rank %d" % rank)
    roots.open = real
    dist.barrier()


def heads_are_compared_with_embeddings_of_other_ranks(rank):
    """torch lets two ranks write what all have; pipeline parallelism gives the head and the embedding to two ranks; and the
    parts of both may be other ones."""
    flat = init_device_mesh("cpu", (4,))
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 40, "num_attention_heads": 4, "tie_word_embeddings": True}
    embedding, names = torch.randn((64, 40), generator=torch.Generator().manual_seed(6)), ("model.embed_tokens.weight", "lm_head.weight")
    other = embedding.clone()
    other[63, 39] += 1
    for case, head in enumerate([embedding.clone(), other] * 3):
        state = dict(zip(names, (embedding, head)))
        if case // 2 == 1:
            state = {name: state[name] for name, owner in zip(names, (1, 3)) if owner == rank}
        if case // 2 == 2:
            state = dict(zip(names, (distribute_tensor(embedding, flat, [Shard(0)]), distribute_tensor(head, flat, [Shard(1)]))))
        try:
            dcp.save({"model": state, "of": {"rank%d" % rank: rank}}, os.path.join(ROOT, "tied"), case, config=config)
            assert case % 2 == 0, case
        except CheckpointException as e:
            assert case % 2 and "have different values" in str(e), (case, e)
    dist.barrier()
    assert list(tp_checkpoint.steps(os.path.join(ROOT, "tied"))) == [0, 2, 4]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fsdp_and_tensor_parallelism()
    there_and_back(rank)
    an_error_of_a_rank_leaves_nothing(rank)
    an_error_of_the_first_rank_reaches_all()
    an_error_of_another_rank_reaches_all(rank)
    heads_are_compared_with_embeddings_of_other_ranks(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
