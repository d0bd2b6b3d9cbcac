"""tp-train --device cuda at every layout of the CPU's tests, on the fake CUDA device: 5 steps, 3 seeds, the CPU's losses.

A seed decides in which order the device runs what it may. A failing test prints its seeds; TP_SEED=n repeats them.

needs: tp-train libtp-cuda.so
"""
import pytest

import cuda_runs
from cuda_runs import EVERY, SEED, assert_close, on_fake, train

pytestmark = pytest.mark.long
STEPS, SEEDS = 5, 3


def case(number, seed):
    """The seeds of a run stay with one worker of pytest, which trains on the CPU once for all of them."""
    model, layout, options, dtype = EVERY[number]
    name = "-".join([model, layout, dtype, *(x.strip("-") for x in options), "seed%d" % seed])
    return pytest.param(number, seed, id=name, marks=pytest.mark.xdist_group("cuda_matrix %d" % number))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    cuda_runs.write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def known():
    """{number: losses and gradient norms of the CPU}"""
    return {}


@pytest.mark.parametrize("number,seed", [case(n, seed) for n in range(len(EVERY)) for seed in range(SEEDS)])
def test_losses_are_the_cpus_for_five_steps(tmp_path, inputs, known, number, seed):
    model, layout, options, dtype = EVERY[number]
    run = model, layout, "--dtype", dtype, *options
    order = SEED + SEEDS * number + seed
    print(*run, "TP_SEED", SEED, "seed", order)
    if number not in known:
        known[number] = train(inputs, tmp_path / "cpu", *run, steps=STEPS)
    got = train(inputs, tmp_path / "cuda", *run, "--device", "cuda", env=on_fake(order), steps=STEPS)
    assert len(got) == STEPS
    assert_close(got, known[number], dtype, order)
