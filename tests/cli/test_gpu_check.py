"""tests/gpu/gpu_check.py, the script of `make gpu-check`, on the fake CUDA device: its report, and that failures do not end it.

needs: tp-train tp-reshard tp-ckpt device_cuda_graph kernels_cuda kernels_cuda_products kernels_cuda_experts kernels_cuda_optimizer libtp-cuda.so
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "gpu"))
import gpu_check  # noqa: E402

SCRIPT = harness.REPO / "tests/gpu/gpu_check.py"


def check(out, *options, build=None, **more):
    """(exit code, {part: row}) of a run with small sizes on one fake GPU."""
    env = {**os.environ, "TP_CUDA_LIBRARY": str(harness.built("libtp-cuda.so")), "FAKECUDA_GPUS": "1", **more}
    r = subprocess.run([sys.executable, "-B", SCRIPT, "--build", build or harness.BUILD, "--bin", harness.BIN, "--out", out,
                        "--small", *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       check=False)
    assert (out / "report.json").exists(), r.stdout
    rows = {row["part"]: row for row in json.loads((out / "report.json").read_text())}
    assert all(part in (out / "report.txt").read_text() for part in rows)
    return r.returncode, rows


def test_the_parts_that_a_fake_device_can_run_pass(tmp_path):
    parts = "device,layouts,reshard,saving,training" if harness.LONG else "device,reshard"
    code, rows = check(tmp_path, "--only", parts)
    assert code == 0 and list(rows) == parts.split(","), rows
    assert all(row["status"] == "passed" and row["figures"] for row in rows.values()), rows
    assert rows["reshard"]["figures"]["cuda_GB_per_s"] > 0


def test_a_part_that_fails_is_reported_and_the_next_one_runs(tmp_path):
    build = tmp_path / "build"
    build.mkdir()
    program = build / "gpu_check"
    program.write_text("#!/bin/sh\necho broken; exit 1\n")
    program.chmod(0o755)
    code, rows = check(tmp_path / "out", "--only", "kernels,bandwidth,attention", build=build)
    assert code == 1, rows
    assert rows["kernels"]["status"] == "not run" and "was not built" in rows["kernels"]["why"]
    assert rows["bandwidth"]["status"] == rows["attention"]["status"] == "FAILED"
    assert "exit 1: broken" in rows["attention"]["why"]


def test_a_machine_without_a_gpu_is_exit_3(tmp_path):
    code, rows = check(tmp_path, FAKECUDA_GPUS="0")
    assert code == 3 and list(rows) == ["device"] and "no GPU" in rows["device"]["why"], rows


def test_what_takes_too_long_ends_with_all_its_processes(tmp_path):
    program, pid = tmp_path / "gpu_check", tmp_path / "pid"
    program.write_text("#!/bin/sh\nsleep 1000 &\necho $! >%s\nwait\n" % pid)
    program.chmod(0o755)
    _, rows = check(tmp_path / "out", "--seconds", "3", "--only", "bandwidth", build=tmp_path)
    assert "took more than" in rows["bandwidth"]["why"] and rows["bandwidth"]["seconds"] < 30, rows
    sleeper = pathlib.Path("/proc", pid.read_text().strip(), "cmdline")
    assert not sleeper.exists() or not sleeper.read_bytes(), "sleep goes on"  # without a command line: it is a zombie


def test_nothing_begins_after_the_time_is_over(tmp_path):
    code, rows = check(tmp_path, "--seconds", "0", "--only", "layouts,bandwidth")
    assert code in (0, 1) and "no time was left" in rows["layouts"]["why"] + rows["bandwidth"].get("why", ""), rows


def test_goals_of_training_are_judged():
    """The numbers: 6 for each weight in a product, 6 L s h for attention; GPT-2 has 124 M parameters with its head."""
    assert 6 * 123e6 < gpu_check.flops_per_token(gpu_check.GPT2_124M, 0) < 6 * 125e6
    gpt2 = gpu_check.flops_per_token(gpu_check.GPT2_124M, 1024)
    assert gpt2 - gpu_check.flops_per_token(gpu_check.GPT2_124M, 0) == 6 * 12 * 1024 * 768
    assert 6 * 1.0e9 < gpu_check.flops_per_token(gpu_check.LLAMA_1B, 0) < 6 * 1.1e9
    assert [gpu_check.peak_of(x) for x in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce", None)] == [989, 312, None, None]
    for rate, compiled, gpu, peak, faster in ((0.5, 1.0, "NVIDIA H200", True, False), (0.4, 0.1, "NVIDIA H200", False, True),
                                              (0.4, "no PyTorch", "another", None, None)):
        row = {"tokens_per_s": rate * 989e12 / gpt2, "pytorch_compile": compiled if isinstance(compiled, str) else compiled * 989e12 / gpt2}
        gpu_check.judge_training(row, gpu_check.GPT2_124M, 1024, gpu)
        assert (row["is_45_percent"], row["is_faster_than_compile"]) == (peak, faster), row


@pytest.mark.parametrize("program,said", [("none", ""), ("gpu_check", "memcheck of gpu_check: SUMMARY: 2 errors"),
                                          ("kernels_cuda_products", "racecheck of tests/kernels_cuda_products: SUMMARY: 2 errors")])
def test_every_tool_of_the_sanitizer_runs_on_every_test_of_kernels(tmp_path, program, said):
    """compute-sanitizer is a script that finds errors in one program."""
    (tmp_path / "tests").mkdir()
    for path in ("gpu_check", *("tests/" + name for name in gpu_check.KERNEL_TESTS), "compute-sanitizer"):
        (tmp_path / path).write_text("#!/bin/sh\ncase \"$*\" in\n*/%s|*/%s\\ *) echo ERROR SUMMARY: 2 errors;;\nesac\n" % (program, program))
        (tmp_path / path).chmod(0o755)
    _, rows = check(tmp_path / "out", "--only", "sanitizer", build=tmp_path, PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    row = rows["sanitizer"]
    if program == "none":
        assert row["status"] == "passed" and row["figures"] == {"runs": 20, "unfinished": []}, row
    else:
        assert row["status"] == "FAILED" and said in row["why"], row
