"""The fake CUDA device counts the sectors and wavefronts of a warp's accesses: planted kernels, of which they are known.

needs: fakecuda_planted_traffic
"""
import pytest

import harness
import planted

PROGRAM = harness.built("fakecuda_planted_traffic")
NONE = (0, 0, 0)
STORE = (1, 4, 4)  # 32 floats, next to each other
# Of loads and stores of global memory, then of shared memory: requests, sectors or wavefronts, the fewest for the same bytes.
PLANTED = {
    "coalesced": ("read_kernel", (1, 4, 4), STORE, NONE, NONE),
    "strided": ("read_kernel", (1, 32, 4), STORE, NONE, NONE),
    "misaligned": ("read_kernel", (1, 5, 4), STORE, NONE, NONE),
    "broadcast": ("read_kernel", (1, 1, 1), STORE, NONE, NONE),
    "structs": ("structs_kernel", (2, 64, 32), (2, 64, 32), NONE, NONE),
    "branches": ("branches_kernel", (2, 8, 4), STORE, NONE, NONE),
    "rounds": ("rounds_kernel", (6, 21, 21), STORE, NONE, NONE),
    "column": ("column_kernel<float,32>", NONE, NONE, NONE, (1, 32, 1)),
    "padded-column": ("column_kernel<float,33>", NONE, NONE, NONE, (1, 1, 1)),
    "wide-column": ("column_kernel<float2,16>", NONE, NONE, NONE, (1, 32, 2)),
    "row": ("row_kernel", NONE, STORE, (1, 1, 1), (1, 1, 1)),
    "matrices": ("matrices_kernel<64>", (1, 12, 12), STORE, (1, 32, 4), (1, 32, 4)),
    "padded-matrices": ("matrices_kernel<72>", (1, 12, 12), STORE, (1, 4, 4), (1, 4, 4)),
}


def test_every_planted_kernel_has_a_test():
    assert planted.names(PROGRAM) == set(PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_sectors_and_wavefronts_are_counted_in_every_order(name, tmp_path):
    for seed in planted.SEEDS:
        file = tmp_path / str(seed)
        r = planted.run(PROGRAM, name, seed, FAKECUDA_TRAFFIC=str(file))
        assert (r.returncode, r.stderr) == (0, ""), seed
        kernel, *numbers = file.read_text().split()
        assert (kernel, *zip(*[map(int, numbers)] * 3)) == PLANTED[name], seed
