"""tests/gpu/gpu_check.py, the script of `make gpu-check`, on the fake CUDA device: its report, and that failures do not end it.

needs: tp-train tp-reshard tp-ckpt kernels_cuda kernels_cuda_products libtp-cuda.so
"""
import json
import os
import subprocess
import sys

import harness

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
    parts = "device,layouts,reshard,training,saving" if harness.LONG else "device,reshard"
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


def test_nothing_begins_after_the_time_is_over(tmp_path):
    code, rows = check(tmp_path, "--seconds", "0", "--only", "layouts,bandwidth")
    assert code in (0, 1) and "no time was left" in rows["layouts"]["why"] + rows["bandwidth"].get("why", ""), rows
