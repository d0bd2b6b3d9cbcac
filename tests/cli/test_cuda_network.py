"""tp-train --device cuda when a GPU loses the network, on the fake CUDA device of tests/fakecuda: collectives hang then, and only
ncclCommGetAsyncError says why. tests/cli/test_run_cuda.py has the same below tp-run.

needs: tp-train tp-ckpt libtp-cuda.so
covers: comm/cuda/nccl_watch
"""
import re

import pytest

import cuda_runs
import harness
from cuda_runs import SEED, arguments, on_fake

# layout, options, the step that is lost, from 1. With graphs, step 7 after the save of step 6 is queued, and step 8 is replayed.
LOST = {"queued": ("tp2", ["--cuda-graphs", "off"], 5), "replayed": ("tp2", [], 8), "messages": ("pp2", ["--micro", "2"], 8),
        "units": ("dp2zero3", ["--cuda-graphs", "off"], 5)}
# Both ends of a connection are told, so the other rank says it of its GPU if it is quicker, or too.
SENTENCE = (r"tp-train: rank ([01]): GPU \1: a collective of NCCL failed: remote process exited or there was a network error \(error 6\)\. "
            r"Check this GPU and the network between the ranks .*; --resume continues from the last checkpoint")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    cuda_runs.write_inputs(folder)
    return folder


def operations(inputs, out, layout, options):
    """The operations of NCCL of a rank: those of one step, and those of a run of one step."""
    counts = []
    for steps in 1, 2:
        path = out / ("calls-%d" % steps)
        r = harness.run(*arguments(inputs, out, "llama", layout, *options, "--device", "cuda", steps=steps), env=on_fake(CALLS=path))
        assert r.rc == 0, (SEED, r)
        counts.append(len(path.read_text().splitlines()) // 2)
    return counts[1] - counts[0], counts[0]


@pytest.mark.parametrize("name", LOST if harness.LONG else ["replayed", "units"])
def test_a_rank_without_a_network_says_so_and_the_job_ends(tmp_path, inputs, name):
    """The rank itself and not a watcher: without one, the fake device would end the run after 120 s, with exit code 86."""
    layout, options, step = LOST[name]
    save = ["--ckpt", tmp_path / "ckpt", "--save-every", 2]
    of_step, of_first = operations(inputs, tmp_path, layout, options)
    after = of_first + (step - 2) * of_step + of_step // 2
    command = [x for x in arguments(inputs, tmp_path, "llama", layout, *options, "--device", "cuda", steps=2000) if x != "--quiet"]
    r = harness.run(*command, *save, env=on_fake(LOSE_NCCL="1 %d" % after))
    assert r.rc == 3, (SEED, r)
    said = [line for line in r.lines if "rank " in line and "NCCL" in line]
    assert 1 <= len(said) <= 2 and r.lines[-1] in said and all(re.fullmatch(SENTENCE, line) for line in said), (SEED, r)
    assert re.findall(r"^step (\d+)/", r.out, re.M)[-1] == str(step - 1), (SEED, r)
    harness.ok("tp-ckpt", "verify", tmp_path / "ckpt/step-00000002")
    r = harness.run(*command, *save, "--resume=must", "--exit-step", step, env=on_fake())
    assert r.rc == 75 and "resumed from" in r.err, (SEED, r)


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_a_rank_that_fails_alone_does_not_wait_for_the_others(tmp_path, inputs, layout):
    """Its GPU works, and NCCL ends communicators when all their ranks do; the others wait for this rank inside of the next step. The
    fake device ends ranks that wait for ever, with 86."""
    r = harness.run(*arguments(inputs, tmp_path, "llama", layout, "--device", "cuda", steps=2000), "--log", "/dev/full", env=on_fake())
    assert r.rc == 3, (SEED, r)
    assert re.fullmatch("tp-train: rank 0: --log /dev/full: .*No space left on device.*", r.lines[-1]), (SEED, r)
    assert len([line for line in r.lines if line.startswith("tp-train: rank ")]) == 1, (SEED, r)


def test_a_rank_that_nccl_does_not_connect_says_so(tmp_path, inputs):
    """Before the first step, when the others only know that a rank is missing."""
    r = harness.run(*arguments(inputs, tmp_path, "llama", "pp2", "--device", "cuda"), env=on_fake(FAIL_NCCL="1 0"))
    assert r.rc == 3, (SEED, r)
    assert re.fullmatch(r"tp-train: rank 1: NCCL: the first message to a neighbour failed: unhandled system error \(error 2\)", r.lines[-1]), (SEED, r)


def test_an_abort_that_hangs_does_not_keep_the_rank(tmp_path, inputs):
    """NCCL may let an abort wait for others. The process ends without it, and without destructors that would wait, too."""
    r = harness.run(*arguments(inputs, tmp_path, "llama", "tp2", "--device", "cuda", steps=2000),
                    env=on_fake(FAIL="1 719 600", HANG_ABORT="1"))
    assert r.rc == 3, (SEED, r)
    assert re.fullmatch("tp-train: rank 1: GPU 1: .* unspecified launch failure .*", r.lines[-1]), (SEED, r)


def test_a_gpu_whose_failure_nccl_meets_first_is_named(tmp_path, inputs):
    """NCCL says "unhandled cuda error", and tp-run looks for what the rank reports as a failure of a GPU."""
    r = harness.run(*arguments(inputs, tmp_path, "llama", "tp2", "--device", "cuda"), env=on_fake(FAIL_IN_NCCL="1 20"))
    assert r.rc == 3, (SEED, r)
    assert re.fullmatch(r"tp-train: rank 1: GPU 1: an all-reduce failed: unspecified launch failure \(CUDA error 719\)", r.lines[-1]), (SEED, r)


def test_a_gpu_that_fails_is_the_only_one_that_speaks(tmp_path, inputs):
    """The other rank notices that rank 1 has closed its connections, and leaves the reason to it."""
    r = harness.run(*arguments(inputs, tmp_path, "llama", "tp2", "--device", "cuda", steps=2000), env=on_fake(FAIL="1 719 600"))
    assert r.rc == 3 and re.fullmatch("tp-train: rank 1: GPU 1: .* unspecified launch failure .*", r.lines[-1]), (SEED, r)
    assert len([line for line in r.lines if "rank " in line and ": GPU " in line]) == 1, (SEED, r)
