"""The CUDA kernels, in shapes of models, take as few sectors of global memory and wavefronts of shared memory as traffic_limits.txt
allows; tests/check/kernel_traffic.py finds those that take more.

needs: kernels_cuda_shapes libtp-cuda.so
"""
import os
import subprocess
import sys

import pytest

import harness

SCRIPT = harness.REPO / "tests/check/kernel_traffic.py"
LAUNCHES = "one 1 4 4 1 4 4 0 0 0 2 2 2\none 1 5 4 1 4 4 0 0 0 2 4 2\n"


def check(file, limits=None):
    env = {**os.environ, **({"TRAFFIC_LIMITS": str(limits)} if limits else {})}
    r = subprocess.run([sys.executable, "-B", SCRIPT, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                       check=False)
    return r.returncode, r.stdout + r.stderr


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    """The launches of all shapes, which take a minute to run."""
    file = tmp_path_factory.mktemp("shapes") / "traffic"
    env = {**os.environ, "FAKECUDA_TRAFFIC": str(file), "TP_BUILD": str(harness.BUILD), "TP_SEED": "1"}
    r = subprocess.run([harness.built("kernels_cuda_shapes")], env=env, text=True, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, check=False)
    assert r.returncode == 0, r.stdout
    return file


def test_kernels_access_memory_within_their_limits(traffic):
    code, out = check(traffic)
    assert code == 0, out


def test_gradients_of_norms_read_what_they_need_once(traffic):
    """x, dy, dx and w, for sums of columns too; and the sums of each block of rows, once more. Rows of up to 8192 columns."""
    rows, seen = 9, []
    for line in traffic.read_text().splitlines():
        name, _, sectors, *_ = line.split()
        if "norm_forward_row_kernel" in name:  # x, the residual and w of each row; layer norm's b
            cols = int(sectors) * 32 // (4 * rows * (4 if "layer" in name else 3))
        if "norm_backward" in name and "head_norm" not in name:
            seen.append(cols)
            assert int(sectors) * 32 <= 16 * rows * cols * 1.03, line
    assert set(seen) == {768, 2048, 4096, 8192} and len(seen) == 16, seen


def test_attention_on_warpgroups_reads_out_once(traffic):
    """Its kernel of dq computes delta from the d_out that it has; the other paths have a kernel for it."""
    names = [line.split("<")[0].split()[0] for line in traffic.read_text().splitlines()]
    count = {part: names.count(f"attention_{part}_kernel") for part in ("delta", "dq", "mma_dq", "wgmma_dq")}
    assert count["wgmma_dq"] > 0 and count["delta"] == count["dq"] + count["mma_dq"], count


def test_each_breach_is_named(tmp_path):
    for limits, code, said in [
            ("one 1.13 1 0 1.5\n", 0, "1 kernels"),
            ("one 1.11 1 0 1.5\n", 1, "one: global_loads: 1.12, and the limit is 1.11"),
            ("one 1.13 1 0 1\n", 1, "one: shared_stores: 1.5, and the limit is 1.0"),
            ("one 1.13 1 0 1.5\ntwo 1 1 1 1\n", 1, "two has limits, but was not run"),
            ("", 1, "one has no limits: [1.12, 1.0, 0.0, 1.5]")]:
        (tmp_path / "launches").write_text(LAUNCHES)
        (tmp_path / "limits").write_text("# kernel\n" + limits)
        got, out = check(tmp_path / "launches", tmp_path / "limits")
        assert got == code and said in out, (limits, out)
