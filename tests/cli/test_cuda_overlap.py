"""tp-train and tp-reshard --device cuda: what is sent and copied while kernels run, by the events of the fake CUDA device.

The device lists each operation with those that precede it, by its stream, by an event or because the host has waited. Two
operations of which neither precedes the other may run at the same time.

needs: tp-train tp-reshard make_ckpt libtp-cuda.so
"""
import json

import pytest

import harness
from cuda_runs import LLAMA, SEED, on_fake, train, write_inputs

LAYERS, MICROBATCHES = 2, 2
# Each layer's gradients fill a bucket. The buckets of the embedding and of what comes last are sent at the end.
WIDE = {**LLAMA, "hidden_size": 16, "intermediate_size": 6000, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "vocab_size": 128, "num_hidden_layers": LAYERS}
NARROW = {**WIDE, "intermediate_size": 24}
KERNELS = {"kernel", "product", "product with a bias"}
A_FEW = 5  # kernels, fewer than a pass of a layer has
# Of the calls of a rank in a step, at least so many may run beside more than a few kernels. zero3: all gathers but those before the
# first layer, and the reductions of all layers. pp: all but the last one.
LEAST = {
    "dp2": (WIDE, {"ncclAllReduce": LAYERS}),
    "dp2zero1": (WIDE, {"ncclReduceScatter": LAYERS}),
    "dp2zero3": (NARROW, {"ncclAllGather": MICROBATCHES * 2 * LAYERS, "ncclReduceScatter": MICROBATCHES * LAYERS}),
    "pp2": (NARROW, {"ncclSend": MICROBATCHES - 1}),
}


def operations(path):
    """{process: [(stream, number, what precedes it: a number for each stream, name)]}"""
    found = {}
    for line in path.read_text().splitlines():
        process, stream, number, before, name = line.split(" ", 4)
        found.setdefault(process, []).append((int(stream), int(number), [int(n) for n in before.split(",")], name))
    return found


def precedes(a, b):
    return a[0] < len(b[2]) and b[2][a[0]] >= a[1]


def beside(call, kernels):
    """How many kernels may run while the call does."""
    return sum(not precedes(k, call) and not precedes(call, k) for k in kernels)


@pytest.mark.parametrize("layout", LEAST if harness.LONG else ["dp2", "dp2zero3"])
def test_collectives_run_beside_kernels(tmp_path, layout):
    model, least = LEAST[layout]
    ranks, path = 2 if layout.startswith("dp") else 1, tmp_path / "operations"
    write_inputs(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(model))
    train(tmp_path, tmp_path / "out", "model", layout, "--device", "cuda", "--micro", 1, "--batch", MICROBATCHES * ranks,
          steps=1, env=on_fake(OPERATIONS=path))
    seen = operations(path)
    assert len(seen) == 2
    for process, all_of_it in seen.items():
        kernels = [o for o in all_of_it if o[3] in KERNELS]
        computing = {k[0] for k in kernels}
        counts = {name: [beside(o, kernels) for o in all_of_it if o[3] == name and o[0] not in computing] for name in least}
        print("process", process, "kernels beside each call:", counts)
        assert all(sum(n > A_FEW for n in counts[name]) >= at_least for name, at_least in least.items()), (SEED, counts)


@pytest.mark.parametrize("cp", [2, 3])
def test_blocks_travel_beside_attention(tmp_path, cp):
    """A block arrives while the rank computes with the one before, for which at least one kernel is needed. Only the gradients of a
    rank's own block, which are the last to arrive, find nothing to compute. What is received on a stream that computes would not
    begin to travel before the kernels that precede it end."""
    path = tmp_path / "operations"
    write_inputs(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(NARROW))
    train(tmp_path, tmp_path / "out", "model", f"cp{cp}", "--device", "cuda", "--micro", 1, "--batch", MICROBATCHES, "--seq", 12,
          steps=1, env=on_fake(OPERATIONS=path))
    ends = MICROBATCHES * LAYERS
    seen = operations(path)
    assert len(seen) == cp
    for process, all_of_it in seen.items():
        kernels = [o for o in all_of_it if o[3] in KERNELS]
        messages = [o for o in all_of_it if o[3] == "group of messages"]  # to the next rank and from the previous one
        counts = [beside(o, kernels) for o in messages]
        print("process", process, "kernels beside each exchange:", counts)
        assert not {o[0] for o in messages} & {k[0] for k in kernels}, process
        assert len(counts) == 1 + 3 * (cp - 1) * ends, counts  # the first one connects the ranks
        assert sum(n > 0 for n in counts[1:]) >= (3 * (cp - 1) - 1) * ends, (SEED, counts)


def test_transfers_of_a_reshard_run_beside_kernels(tmp_path):
    """Both ways, if a batch is before or after on the device: not the first and the last one, and those beside a tile that the
    processor moves. Two processes, because one alone begins with short rounds, each of which ends before the next begins."""
    path, root = tmp_path / "operations", tmp_path / "ckpt"
    config = harness.write_config(tmp_path, vocab_size=9001)
    harness.ok(harness.built("make_ckpt"), config, "tp2", root, 1, 11, "bf16")
    harness.ok("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, "tp-reshard", root, "--to", "tp4", "-o", tmp_path / "out",
               "--device", "cuda", "--device-mem", "1M", env=on_fake(OPERATIONS=path))
    for process, seen in operations(path).items():
        kernels = [o for o in seen if o[3] in KERNELS]
        copies = [o for o in seen if o[3] == "copy" and o[0] not in {k[0] for k in kernels}]
        counts = {stream: [beside(o, kernels) for o in copies if o[0] == stream] for stream in {o[0] for o in copies}}
        print("process", process, "kernels beside each copy of a stream:", counts)
        assert len(counts) == 2, (SEED, counts)
        assert all(sum(n > 0 for n in several) > len(several) / 3 for several in counts.values()), (SEED, counts)


def beside_saves(folder, seed, saves):
    """For each copy of a state that is saved: how many kernels of training may run beside it."""
    path = folder / "operations"
    train(folder, folder / "out", "model", "tp1", "--device", "cuda", "--ckpt", folder / "ckpt", "--save-every", 1, steps=saves,
          env=on_fake(seed, OPERATIONS=path))
    (seen,) = operations(path).values()
    (computing,) = {o[0] for o in seen if o[3] == "product"}
    kernels = [o for o in seen if o[3] in KERNELS and o[0] == computing]
    return [beside(o, kernels) for o in seen if o[3] in ("kernel", "copy") and o[0] != computing]


def test_a_save_is_copied_beside_the_next_step(tmp_path):
    """The optimizer of the next step waits for the copies; what comes before it does not. After the last step nothing comes. A seed
    may let the host see that a copy is complete before the next step begins; another one does not."""
    saves, seen = 3, []
    for seed in range(SEED, SEED + 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        write_inputs(folder)
        (folder / "model.json").write_text(json.dumps(NARROW))
        seen.append(beside_saves(folder, seed, saves))
        if sum(n > A_FEW for n in seen[-1]) >= len(seen[-1]) / saves > 0:
            return
    raise AssertionError((SEED, seen))


@pytest.mark.parametrize("layout", ["tp2", "dp2zero3"])
def test_a_save_needs_no_kernel(tmp_path, layout):
    """A kernel that writes to the host would take processors from training for as long as the bus needs."""
    path = tmp_path / "operations"
    write_inputs(tmp_path)
    train(tmp_path, tmp_path / "out", "llama", layout, "--device", "cuda", "--ckpt", tmp_path / "ckpt", steps=1, env=on_fake(OPERATIONS=path))
    for process, seen in operations(path).items():
        computing = {o[0] for o in seen if o[3] == "product"}
        saves = [o[3] for o in seen if o[0] == max(x[0] for x in seen)]
        print("process", process, "streams that compute:", computing, "operations of the last stream:", saves)
        assert saves and set(saves) == {"copy"}, saves
