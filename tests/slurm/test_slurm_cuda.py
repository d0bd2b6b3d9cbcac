"""srun starts tp-train --device cuda on two nodes; each has two fake GPUs (tests/fakecuda). The losses are the CPU's."""
import pytest

import cuda_runs
from cuda_runs import LIBRARY, assert_close, on_fake, train

LAYOUT = "tp2dp2zero1"
SRUN = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]


@pytest.mark.skipif(not LIBRARY.exists(), reason="needs %s (make tests)" % LIBRARY)
def test_losses_are_the_cpus_below_srun(tmp_path, cluster):
    """A rank's GPU is the one of its place on its node: no node has four. The nodes have /dev/shm of their own."""
    cuda_runs.write_inputs(tmp_path)
    want = train(tmp_path, tmp_path / "cpu", "llama", LAYOUT)
    got = train(tmp_path, tmp_path / "cuda", "llama", LAYOUT, "--device", "cuda", launcher=SRUN,
                env=on_fake(GPUS=2, SHARED=tmp_path))
    assert len(got) > 1
    assert_close(got, want, "fp32")
