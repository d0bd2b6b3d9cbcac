"""The fake CUDA device (tests/fakecuda): it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted fakecuda_planted_ranks
"""
import re

import pytest

import harness
import planted

PROGRAM = harness.built("fakecuda_planted")
CORRECT = {
    "sum": "y[0] = 32640\n", "shared": "", "warp-memory": "", "vectors": "", "structs": "",
    "event": "host[1] = 2\n", "event-write": "host[1] = 1\n", "atomics": "",
    "large-block": "invalid configuration argument\n", "defined": "",
}
# What the report says, and the kernel or the line that it names.
MISTAKES = {
    "beyond-read": ("a read of 4 bytes at .* outside of every allocation", "add_kernel"),
    "beyond-write": ("a write of 4 bytes at .* outside of every allocation", "add_kernel"),
    "null": ("an access through NULL", "load_at_kernel"),
    "host-pointer": ("a read of host memory at .*, which is not pinned", "add_kernel"),
    "use-after-free": ("a write of 4 bytes at .* outside of every allocation", "add_kernel"),
    "forked": ("forked after CUDA had begun in its parent", ""),
    "free-twice": ("cudaFree of .*, which is not device memory", ""),
    "misaligned": ("a misaligned access: .* is not a multiple of 4", "load_at_kernel"),
    "misaligned-struct": ("a misaligned access: .* is not a multiple of 16", "sum_four_kernel"),
    "misaligned-vector": ("a misaligned access: .* is not a multiple of 16", "copy_four_kernel"),
    "overflow": (r"undefined behaviour: a sum that overflows \(.*planted.cu:[0-9]+\)", "undefined_behaviour_kernel"),
    "shift": ("undefined behaviour: a shift by too many bits", "undefined_behaviour_kernel"),
    "index": ("undefined behaviour: an index outside of its array", "undefined_behaviour_kernel"),
    "float-to-int": ("undefined behaviour: a number that the integer type cannot hold", "undefined_behaviour_kernel"),
    "division": ("undefined behaviour: a division by zero", "undefined_behaviour_kernel"),
    "difference": (r"undefined behaviour: a difference that overflows", "undefined_behaviour_kernel"),
    "multiplication": ("undefined behaviour: a product that overflows", "undefined_behaviour_kernel"),
    "zeros-of-zero": ("undefined behaviour: a count of the zeros of 0", "undefined_behaviour_kernel"),
    "negation": ("undefined behaviour: a negation that overflows", "undefined_behaviour_kernel"),
    "index-shared": ("undefined behaviour: an index outside of its array", "shared_index_kernel"),
    "bool": ("undefined behaviour: a bool or enum that has no such value", "bool_kernel"),
    "host-overflow": (r"undefined behaviour: a sum that overflows \(.*planted.cu:[0-9]+\)", ""),
    "undefined": ("a read of .*, which was never written", "add_kernel"),
    "undefined-far": ("a read of .*, which was never written", "add_kernel"),
    "undefined-shared": ("a read of .*, which was never written", "undefined_shared_kernel"),
    "undefined-half": ("a read of .*, which was never written", "undefined_half_kernel"),
    "undefined-copy": ("a read of .*, which was never written", "a copy"),
    "no-barrier": ("race within a block, in shared memory", "shared_kernel"),
    "vector-read": ("race within a block, in shared memory", "last_number_kernel"),
    "vector-write": ("race within a block, in shared memory", "last_number_kernel"),
    "no-warp-barrier": ("race within a block, in shared memory", "warp_memory_kernel"),
    "blocks": ("race between blocks: a write of .*, and a write", "own_place_kernel"),
    "threads": ("race within a block, in global memory: a write", "own_place_kernel"),
    "in-place-shift": ("race (between blocks|within a block, in global)", "add_kernel"),
    "atomic-and-read": ("race within a block, in global memory", "atomic_and_read_kernel"),
    "not-atomic": ("race (between blocks|within a block, in global)", "count_kernel"),
    "no-event": ("race between streams: .* which no event orders", ""),
    "no-event-write": ("race between streams: .* which no event orders", ""),
    "one-of-two-readers": ("race between streams: .*, and a read by operation 1 of stream 2", "a fill"),
    "different-barriers": ("threads of a block wait at different barriers", "different_barriers_kernel"),
    "stuck": ("stuck_kernel .* waits for ever.* thread 0 waits in .*", "stuck_kernel"),
    "no-such-lane": ("__shfl_sync: the mask 0xffffffff has lane 16, which does not exist|has lane 5, which has ended", ""),
    "ended-lane": ("__shfl_sync: the mask 0xffffffff has lane 5, which has ended", ""),
    "lane-not-in-mask": ("lane [0-9]+ reads lane 20, which is not in the mask 0xffff", ""),
    "mask-without-caller": ("the mask 0xff00 does not have the calling lane", "mask_kernel"),
    "pageable": ("the destination .* is pageable memory", ""),
    "pageable-source": ("the source .* is pageable memory", ""),
    "fill-beyond": ("1024 bytes of the destination .* are outside of every allocation", ""),
    "free-pinned-twice": ("cudaFreeHost of .*, which is not pinned memory", ""),
    "launch-without-stream": ("a launch: the stream does not exist", ""),
    "copy-without-stream": ("cudaMemcpy2DAsync: the stream does not exist", ""),
    "copy-beyond": ("1024 bytes of the source .* are outside of every allocation", ""),
    "wrong-kind": ("the destination .* is pinned memory, and the kind of the copy says otherwise", ""),
}


def test_every_planted_program_has_a_test():
    assert planted.names(PROGRAM) == set(CORRECT) | set(MISTAKES) | {"early", "host-reads", "host-writes"}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_programs_pass_in_every_order(name):
    planted.assert_passes(PROGRAM, name, CORRECT[name])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_in_every_order(name):
    planted.assert_found(PROGRAM, name, *MISTAKES[name])


@pytest.mark.parametrize("name", ["host-reads", "host-writes"])
def test_device_memory_is_inaccessible_to_the_host(name):
    p = planted.run(PROGRAM, name, 0)
    assert p.returncode == -11
    assert p.stderr == "fakecuda: host code accesses device memory; it may only pass addresses on\n"


def test_nothing_is_done_before_the_host_waits():
    """Sometimes the device is fast, so not for every seed."""
    seen = [planted.run(PROGRAM, "early", seed).stdout.split("\n")[0] for seed in range(8)]
    assert "host[1] = 0" in seen and set(seen) <= {"host[1] = 0", "host[1] = 2"}


@pytest.mark.parametrize("name,before", [("event", "0,4,2"), ("no-event", "0,2,1")])
def test_the_list_of_operations_says_what_precedes_each(tmp_path, name, before):
    """The last one, a copy of stream 2, after the event behind the kernel of stream 1; or after what the host has waited for only."""
    path = tmp_path / "operations"
    planted.run(PROGRAM, name, 0, FAKECUDA_OPERATIONS=str(path))
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [line[1:3] + line[4:] for line in lines[:3]] == [["1", str(n), kind] for n, kind in ((1, "copy"), (2, "copy"), (3, "kernel"))]
    assert lines[3][1] == "2" and lines[3][3:] == [before, "copy"]


# ---- NCCL and cuBLAS: three ranks ----

RANKS_PROGRAM = harness.built("fakecuda_planted_ranks")
LOST = "".join("rank %d: remote process exited or there was a network error\n" % rank for rank in range(3))
RANKS_CORRECT = {"collectives": "", "ring": "", "product": "C[1][2] = 32\n",
                 "bias": "D[1][2] = 34\n", "allocation-in-order": "", "group": "", "graph": "", "lost-network": LOST,
                 "lost-network-graph": LOST}
# What the reports of all ranks together say.
RANKS_MISTAKES = {
    "another-count": "rank 1 calls ncclAllReduce of 19999 f32 as call 1, and rank [02] ncclAllReduce of 20000 f32",
    "graph-of-some-ranks": r"rank [012] calls ncclAllReduce of 20000 f32 as call 1( in a graph)?, and rank [012] .* as call 1",
    "aborted-twice": "rank 0: ncclCommAbort of a communicator that was aborted",
    "destroyed-after-abort": "rank 1: ncclCommDestroy of a communicator that was aborted",
    "call-after-abort": "rank 2: ncclAllReduce of a communicator that was aborted",
    "graph-after-its-communicator": "ncclCommDestroy waits for ever for a graph with calls of the communicator",
    "another-type": "rank 2 calls ncclAllGather of 8 i64 as call 1, and rank [01] ncclAllGather of 8 f64",
    "another-operation": r"rank 0 calls ncclAllReduce of 8 f32 \(max\) as call 1, and rank [12] ncclAllReduce of 8 f32",
    "another-order": "rank 0 calls ncclAllReduce of 8 f32 as call 1, and rank [12] ncclAllGather of 8 f32 as call 1",
    "missing-first-call": "rank [02] waits for ever in its first collective of a communicator, ncclAllReduce, for which all its ranks connect",
    "missing-call": "the device waits for ever for other ranks: ncclAllReduce of stream 1",
    "message-of-another-size": "rank 1 calls ncclRecv of 11 f32 as call 1, and rank 0 ncclSend of 10 f32",
    "sends-that-wait-for-each-other": "the device waits for ever for other ranks: ncclSend of stream 1",
    "ring-not-connected": "rank [012] waits for ever in its first ncclSend with rank 1, which has not made its side",
    "ring-destroyed-one-by-one": "rank [012] waits for ever: not all ranks have called ncclCommDestroy",
    "kernels-loaded-between-messages": "the device waits for ever for other ranks: ncclSend of stream 2",
    "products-between-messages": "the device waits for ever for other ranks: ncclSend of stream 2",
    "allocation-between-messages": "the device waits for ever for other ranks: ncclSend of stream 2",
    "message-to-nobody": "rank 0 of 3: ncclSend with rank 3",
    "group-overlap": "rank 0: two receives of a group overlap",
    "group-of-two-streams": "the calls of a group are of several communicators or streams",
    "group-not-begun": "ncclGroupEnd without ncclGroupStart",
    "closed-with-calls": "rank 2 destroys a communicator that has 1 queued calls",
    "host-memory": "rank 1: ncclAllReduce of 8 f32 as call 1: the input, 32 bytes at .*, is not device memory",
    "beyond": "the output, 240000 bytes at .*, is not device memory",
    "overlap": "rank 2: ncclAllReduce of 8 f32 .* input and output overlap",
    "undefined-message": "a read of .*, which was never written\nfakecuda: by operation 2 of stream 1, a ncclAllReduce",
    "no-event": "race between streams: .* which no event orders",
    "message-overwritten": "race between streams: .* which no event orders",
    "product-no-event": "race between streams: .* which no event orders",
    "product-narrow": "the leading dimension of A is 3, and it has 4 rows",
    "product-misaligned": "A at .* is misaligned",
    "product-scalar-on-device": "alpha and beta are in host memory",
    "product-beyond": "320000 bytes of A at .* are not in device memory",
    "product-of-undefined": "a read of .*, which was never written\nfakecuda: by operation 2 of stream 1, a product",
    "product-in-host-memory": "48 bytes of A at .* are not in device memory",
    "bias-another-shape": "the algorithm was chosen for another product",
    "bias-misaligned": "C at .* is not a multiple of 256, for which the algorithm was chosen",
    "bias-workspace": "1024 bytes of the workspace at .* are not in device memory",
    "bias-in-host-memory": "16 bytes of the bias at .* are not in device memory",
}
RANKS_THAT_WAIT = {"group-overlap", "group-of-two-streams", "message-overwritten", "missing-call", "missing-first-call", "ring-not-connected",
                   "ring-destroyed-one-by-one", "kernels-loaded-between-messages", "products-between-messages", "allocation-between-messages",
                   "message-of-another-size", "sends-that-wait-for-each-other"}


def run_ranks(name, seed):
    patience = "1" if name in RANKS_THAT_WAIT else "60"
    lost = {"FAKECUDA_LOSE_NCCL": "1 0"} if RANKS_CORRECT.get(name) == LOST else {}
    return planted.run(RANKS_PROGRAM, name, seed, timeout=120, FAKECUDA_GPUS="3", FAKECUDA_PATIENCE=patience, **lost)


def test_every_planted_program_with_ranks_has_a_test():
    assert planted.names(RANKS_PROGRAM) == set(RANKS_CORRECT) | set(RANKS_MISTAKES)


@pytest.mark.parametrize("name", RANKS_CORRECT)
def test_ranks_that_agree_get_the_result_in_every_order(name):
    for seed in planted.SEEDS:
        p = run_ranks(name, seed)
        assert (p.returncode, p.stderr) == (0, ""), (seed, p)
        ended = "".join("rank %d ended: no error\n" % rank for rank in range(3))
        assert sorted(p.stdout.splitlines()) == sorted((RANKS_CORRECT[name] + ended).splitlines()), seed


def test_kernels_that_are_loaded_at_the_start_wait_for_nothing():
    for seed in planted.SEEDS:
        p = planted.run(RANKS_PROGRAM, "kernels-loaded-between-messages", seed, FAKECUDA_GPUS="3", CUDA_MODULE_LOADING="EAGER")
        assert (p.returncode, p.stderr) == (0, ""), (seed, p)


@pytest.mark.parametrize("name", RANKS_MISTAKES)
def test_a_mistake_of_ranks_is_found_and_named(name):
    for seed in planted.SEEDS[:2]:
        p = run_ranks(name, seed)
        assert p.returncode == 86, (seed, p)
        assert re.search("fakecuda: .*" + RANKS_MISTAKES[name], p.stderr), (seed, p.stderr)
