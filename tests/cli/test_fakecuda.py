"""The fake CUDA device (tests/fakecuda): it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted
"""
import os
import re
import subprocess

import pytest

import harness

PROGRAM = harness.built("fakecuda_planted")
SEEDS = range(4)
CORRECT = {
    "sum": "y[0] = 32640\n", "shared": "", "warp-memory": "", "vectors": "", "structs": "",
    "event": "host[1] = 2\n", "event-write": "host[1] = 1\n", "atomics": "",
    "large-block": "invalid configuration argument\n",
}
# What the report says, and the kernel or the line that it names.
MISTAKES = {
    "beyond-read": ("a read of 4 bytes at .* outside of every allocation", "add_kernel"),
    "beyond-write": ("a write of 4 bytes at .* outside of every allocation", "add_kernel"),
    "null": ("an access through NULL", "load_at_kernel"),
    "host-pointer": ("a read of host memory at .*, which is not pinned", "add_kernel"),
    "use-after-free": ("a write of 4 bytes at .* outside of every allocation", "add_kernel"),
    "free-twice": ("cudaFree of .*, which is no device memory", ""),
    "misaligned": ("a misaligned access: .* is no multiple of 4", "load_at_kernel"),
    "misaligned-struct": ("a misaligned access: .* is no multiple of 16", "sum_four_kernel"),
    "misaligned-vector": ("a misaligned access: .* is no multiple of 16", "copy_four_kernel"),
    "undefined": ("a read of .*, which was never written", "add_kernel"),
    "undefined-shared": ("a read of .*, which was never written", "undefined_shared_kernel"),
    "undefined-copy": ("a read of .*, which was never written", "a copy"),
    "no-barrier": ("race within a block, in shared memory", "shared_kernel"),
    "no-warp-barrier": ("race within a block, in shared memory", "warp_memory_kernel"),
    "blocks": ("race between blocks: a write of .*, and a write", "own_place_kernel"),
    "threads": ("race within a block, in global memory: a write", "own_place_kernel"),
    "in-place-shift": ("race (between blocks|within a block, in global)", "add_kernel"),
    "not-atomic": ("race (between blocks|within a block, in global)", "count_kernel"),
    "no-event": ("race between streams: .* which no event orders", ""),
    "no-event-write": ("race between streams: .* which no event orders", ""),
    "one-of-two-readers": ("race between streams: .*, and a read by operation 1 of stream 2", "a fill"),
    "different-barriers": ("threads of a block wait at different barriers", "different_barriers_kernel"),
    "stuck": ("stuck_kernel .* waits for ever.* thread 0 waits in .*", "stuck_kernel"),
    "ended-lane": ("__shfl_sync: the mask 0xffffffff has lane 5, which has ended", ""),
    "lane-not-in-mask": ("lane [0-9]+ reads lane 20, which is not in the mask 0xffff", ""),
    "mask-without-caller": ("the mask 0xff00 does not have the calling lane", "mask_kernel"),
    "pageable": ("the destination .* is pageable memory", ""),
    "copy-beyond": ("1024 bytes of the source .* are outside of every allocation", ""),
    "wrong-kind": ("the destination .* is pinned memory, and the kind of the copy says otherwise", ""),
}


def run(name, seed):
    return subprocess.run([PROGRAM, name], env={**os.environ, "FAKECUDA_SEED": str(seed)}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)


def test_every_planted_program_has_a_test():
    names = set(subprocess.run([PROGRAM], stdout=subprocess.PIPE, text=True, check=False).stdout.split())
    assert names == set(CORRECT) | set(MISTAKES) | {"early", "host-reads", "host-writes"}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_programs_pass_in_every_order(name):
    for seed in SEEDS:
        p = run(name, seed)
        assert (p.returncode, p.stdout, p.stderr) == (0, CORRECT[name] + "ended: no error\n", ""), seed


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_in_every_order(name):
    message, place = MISTAKES[name]
    for seed in SEEDS:
        p = run(name, seed)
        assert p.returncode == 86, (seed, p.stdout, p.stderr)
        assert re.search("fakecuda: .*" + message, p.stderr), (seed, p.stderr)
        assert place in p.stderr, (seed, p.stderr)


@pytest.mark.parametrize("name", ["host-reads", "host-writes"])
def test_device_memory_is_inaccessible_to_the_host(name):
    p = run(name, 0)
    assert p.returncode == -11
    assert p.stderr == "fakecuda: host code accesses device memory; it may only pass addresses on\n"


def test_nothing_is_done_before_the_host_waits():
    """Sometimes the device is fast, so not for every seed."""
    seen = [run("early", seed).stdout.split("\n")[0] for seed in range(8)]
    assert "host[1] = 0" in seen and set(seen) <= {"host[1] = 0", "host[1] = 2"}
