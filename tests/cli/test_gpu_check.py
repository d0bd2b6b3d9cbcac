"""tests/gpu/gpu_check.py, the script of `make gpu-check`, on the fake CUDA device: its report, and that failures do not end it.

needs: tp-train tp-reshard tp-ckpt device_cuda_graph kernels_cuda kernels_cuda_products kernels_cuda_experts kernels_cuda_head_norm kernels_cuda_loss kernels_cuda_optimizer kernels_cuda_shapes libtp-cuda.so
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "gpu"))
import bundle  # noqa: E402
import gpu_check  # noqa: E402
import training_goals  # noqa: E402

SCRIPT = harness.REPO / "tests/gpu/gpu_check.py"
pytestmark = pytest.mark.sanitized(0)  # the script is tested; other tests run its programs


def check(out, *options, build=None, programs=None, **more):
    """(exit code, {part: row}) of a run with small sizes on one fake GPU. programs: the folder of tp-train and the others."""
    env = {**os.environ, "TP_CUDA_LIBRARY": str(harness.built("libtp-cuda.so")), "FAKECUDA_GPUS": "1", **more}
    r = subprocess.run([sys.executable, "-B", SCRIPT, "--build", build or harness.BUILD, "--bin", programs or harness.BIN, "--out", out,
                        "--small", *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       check=False)
    assert (out / "report.json").exists(), r.stdout
    rows = {row["part"]: row for row in json.loads((out / "report.json").read_text())}
    assert all(part in (out / "report.txt").read_text() for part in rows)
    return r.returncode, rows


def test_the_parts_that_a_fake_device_can_run_pass(tmp_path):
    parts = "device,losses,layouts,reshard,saving,training" if harness.LONG else "device,losses,reshard"
    code, rows = check(tmp_path, "--only", parts)
    assert code == 4 and list(rows) == parts.split(","), rows  # gpu_check is for a GPU
    whole = [name for name in rows if name not in ("device", "training")]
    assert all(rows[name]["status"] == "passed" and rows[name]["figures"] for name in whole), rows
    assert rows["device"]["status"] == "in part" and rows["device"]["not_run"][0].endswith("/gpu_check was not built"), rows
    assert rows["reshard"]["figures"]["cuda_GB_per_s"] > 0
    assert not list(tmp_path.glob("**/*.h5")), "the folder has checkpoints, and is sent"
    assert len(rows["losses"]["figures"]) == len(gpu_check.MODELS) * 2, rows


@pytest.mark.parametrize("options,message", [(["--only", "device,kernel"], "there is no part kernel; the parts are device, kernels, "),
                                             (["--only", ","], "it names no part; the parts are device, kernels, "), (["--at-once", "0"], "0 is less than 1"),
                                             (["--out", "/proc/report"], "the report cannot be written: ")])
def test_a_wrong_request_is_refused_in_one_sentence(tmp_path, options, message):
    r = subprocess.run([sys.executable, "-B", SCRIPT, "--out", tmp_path / "out", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, check=False)
    assert r.returncode == 2 and message in r.stdout and "Traceback" not in r.stdout, r.stdout
    assert not (tmp_path / "out").exists()


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def trains(folder, cases, losses="1.0"):
    """A tp-train that logs all its steps with one loss, unless one of the cases, which are bash's, sets another, also one of late steps,
    or ends it."""
    script(folder / "bin/tp-train", """loss=%s
case "$*" in
%s
esac
while [ $# -gt 0 ]; do
    case $1 in --log) log=$2;; --steps) steps=$2;; esac
    shift
done
for ((i = 0; i < steps; i++)); do
    [ $i -lt 2 ] || loss=${late:-$loss}
    echo "{\\"step\\": $i, \\"loss\\": $loss, \\"tokens_per_s\\": 7}"
done >>"$log"
""" % (losses, cases))


@pytest.mark.parametrize("said,status", [("GPU 0: a product failed: an illegal memory access", "FAILED"), (None, "not run")])
def test_a_tp_train_that_fails_does_not_end_the_check(tmp_path, said, status):
    """Its exit code 3 is a failure; only gpu_check and torch_speed.py say with 3 that something is missing."""
    if said:
        script(tmp_path / "bin/tp-train", "echo '%s'; exit 3\n" % said)
    script(tmp_path / "build/gpu_check", "echo 'contiguous   4000 GB/s   cudaMemcpy2DAsync   3200 GB/s'\n"
                                         "echo 'best contiguous copy   5000 GB/s'\n")
    code, rows = check(tmp_path / "out", "--only", "device,bandwidth", build=tmp_path / "build", programs=tmp_path / "bin")
    assert code == 1 and rows["device"]["status"] == status and (said or "was not built") in rows["device"]["why"], rows
    assert rows["bandwidth"]["figures"]["contiguous"]["of_card"] == 0.8, rows


def test_a_layout_that_fails_is_tried_without_graphs(tmp_path):
    """The CPU's losses, and NCCL ranks that fail in a graph only."""
    trains(tmp_path, "*--cuda-graphs\\ off*) ;;\n*--device\\ cuda*) echo 'it hangs in a graph'; exit 3;;")
    code, rows = check(tmp_path / "out", "--only", "layouts", programs=tmp_path / "bin")
    assert code == 1 and rows["layouts"]["status"] == "FAILED", rows
    assert rows["layouts"]["why"].count("it hangs in a graph") == rows["layouts"]["why"].count("without CUDA graphs: it ends well") == len(gpu_check.LAYOUTS), rows


@pytest.mark.parametrize("says,wrong", [("loss=1.000001", []), ("loss=1.001", ["fp32"]), ("loss=1.1", ["fp32", "bf16"]), ("loss=null", ["fp32", "bf16"]),
                                        ("late=null", ["fp32", "bf16"])])
def test_losses_of_one_rank_are_compared_with_the_cpus(tmp_path, says, wrong):
    """In each type as exactly as it is. tp-train logs NaN as null; the first steps may be right."""
    trains(tmp_path, "*--device\\ cuda*) %s;;" % says)
    code, rows = check(tmp_path / "out", "--only", "losses", programs=tmp_path / "bin")
    row = rows["losses"]
    assert (code, row["status"]) == ((1, "FAILED") if wrong else (0, "passed")), row
    assert [t for t in ("fp32", "bf16") if "gpt2-tiny %s: losses [" % t in row.get("why", "")] == wrong, row


def test_what_nobody_expected_of_one_model_leaves_the_figures_of_the_others(tmp_path):
    trains(tmp_path, "*gpt2-tiny*--device\\ cuda*) loss='oh, a full disk';;")
    code, rows = check(tmp_path / "out", "--only", "losses", programs=tmp_path / "bin")
    row = rows["losses"]
    assert code == 1 and row["why"].count("gpt2-tiny ") == row["why"].count("JSONDecodeError: ") == 2, row
    assert sorted(row["figures"]) == sorted("%s %s" % (m, t) for m in gpu_check.MODELS if m != "gpt2-tiny" for t in gpu_check.TOLERANCES), row


def test_a_part_of_which_something_did_not_run_has_not_passed(tmp_path):
    """In the text, in JSON and in the exit code."""
    script(tmp_path / "gpu_check", "echo '%s'\n" % EXPERTS)
    for name in gpu_check.ALL_KERNEL_TESTS[1:]:
        script(tmp_path / "tests" / name, "echo 5 tests\n")
    code, rows = check(tmp_path / "out", "--only", "kernels,experts", build=tmp_path)
    text = (tmp_path / "out/report.txt").read_text()
    assert code == 4 and rows["experts"]["status"] == "passed", rows
    assert rows["kernels"]["status"] == "in part" and rows["kernels"]["not_run"] == [
        "device_cuda_graph: %s/tests/device_cuda_graph was not built" % tmp_path], rows
    assert text.startswith("gpu-check: 1 passed, 1 in part, 0 failed, 0 not run\n") and "    did not run: device_cuda_graph: " in text, text
    script(tmp_path / "tests/device_cuda_graph", "echo 5 tests\n")
    code, rows = check(tmp_path / "out", "--only", "kernels,experts", build=tmp_path)
    assert code == 0 and set(rows["kernels"]["figures"]) == set(gpu_check.ALL_KERNEL_TESTS) and "not_run" not in rows["kernels"], rows


def test_what_was_found_is_in_the_report_when_the_script_is_killed(tmp_path):
    """Also of the part that runs."""
    began = tmp_path / "pid"
    trains(tmp_path, "*tiny-pp2-fp32-cuda*) echo $$ >%s; exec sleep 1000;;" % began)
    argv = [sys.executable, "-B", SCRIPT, "--bin", tmp_path / "bin", "--build", tmp_path, "--out", tmp_path / "out", "--small", "--only",
            "losses,layouts,experts", "--at-once", "1"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as p:
        while not (began.exists() and began.read_text().endswith("\n")):
            assert p.poll() is None
            time.sleep(0.05)
        p.kill()
    os.kill(int(began.read_text()), signal.SIGKILL)  # nobody else ends it now
    losses, layouts, experts = json.loads((tmp_path / "out/report.json").read_text())
    text = (tmp_path / "out/report.txt").read_text()
    assert losses["status"] == "passed" and len(losses["figures"]) == len(gpu_check.MODELS) * 2, losses
    assert layouts["status"] == "in part" and layouts["figures"] == {"tp2": 0} and layouts["not_run"] == ["the rest: it had not ended"], layouts
    assert experts["status"] == "not run" and experts["why"] == "it had not begun", experts
    assert text.startswith("gpu-check: 1 passed, 1 in part, 0 failed, 1 not run\n"), text


class Clock:
    """A process that ends at once, and how long it could have taken."""

    pid, returncode, allowed = 0, 0, []

    def communicate(self, timeout):
        self.allowed.append(timeout)
        return "", None


@pytest.mark.parametrize("only,seconds,share,command", [(["sanitizer"], 3600, 3600, 2160), (["sanitizer", "layouts"], 3600, 2520, 1512),
                                                        ([], 600, 150, 90), ([], 1200, 300, 180), ([], 300, 75, 75)])
def test_the_time_of_a_part_follows_that_of_all(tmp_path, monkeypatch, only, seconds, share, command):
    """A part has its share, or all that is not for those after it; its commands have a part of that."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build/gpu_check").touch()
    script(tmp_path / "compute-sanitizer", "exit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Clock, "allowed", [])
    c = gpu_check.Check(argparse.Namespace(out=tmp_path, bin=tmp_path, build=tmp_path / "build", seconds=seconds, small=False, at_once=1))
    monkeypatch.setattr(c.commands, "begin", lambda *argv, **options: Clock())
    groups = list(gpu_check.groups_of([part for part in gpu_check.PARTS if not only or part.__name__ in only], 4))
    (i,) = [i for i, group in enumerate(groups) if gpu_check.sanitizer in group]
    own = c.of(gpu_check.sanitizer, sum(max(map(gpu_check.share_of, group)) for group in groups[i + 1:]))
    assert own.deadline - time.monotonic() == pytest.approx(share, abs=20)
    gpu_check.sanitizer(own)
    assert len(Clock.allowed) == 4 and all(t == pytest.approx(command, abs=20) for t in Clock.allowed), Clock.allowed


def test_a_command_that_the_end_of_its_time_ends_has_not_failed(tmp_path):
    script(tmp_path / "gpu_check", "exec sleep 1000\n")
    code, rows = check(tmp_path / "out", "--seconds", "3", "--only", "experts", build=tmp_path)
    assert code == 4 and rows["experts"]["status"] == "not run" and "no time was left" in rows["experts"]["why"], rows


def test_a_program_that_prints_no_figures_has_not_passed(tmp_path):
    script(tmp_path / "gpu_check", "echo gpu-check on a GPU; echo nothing else\n")
    code, rows = check(tmp_path / "out", "--only", "bandwidth,attention,experts", build=tmp_path)
    assert code == 1 and all(row["status"] == "FAILED" and row["why"].endswith("printed no figures: nothing else") for row in rows.values()), rows


def test_short_rows_have_no_goal(tmp_path):
    """The names are those of gpu_check.cu."""
    rates = {"best contiguous copy": 5000, "a quarter of rows of 256 B": 2800, "half of rows of 1 KiB": 4500, "table of 256: rows of 64 f32 to bf16": 2000,
             "table of 1: rows of 128 f32 to bf16": 3000}
    script(tmp_path / "gpu_check", "".join("printf '%%-40s %%8d GB/s\\n' '%s' %d\n" % rate for rate in rates.items()))
    _, rows = check(tmp_path / "out", "--only", "bandwidth", build=tmp_path)
    goals = {what: row["is_85_percent"] for what, row in rows["bandwidth"]["figures"].items()}
    assert list(goals.values()) == [True, None, True, None, False] and list(goals) == list(rates), goals
    source = (harness.REPO / "tests/gpu/gpu_check.cu").read_text()
    assert '"a quarter of rows of 256 B"' in source and '"table of %d: rows of %lld f32 to %s"' in source


def test_the_peak_is_that_of_the_gpu_that_cuda_uses(tmp_path):
    """nvidia-smi has another order, and does not know CUDA_VISIBLE_DEVICES."""
    script(tmp_path / "path/nvidia-smi", "echo NVIDIA A100-SXM4-80GB\n")
    script(tmp_path / "build/gpu_check", "echo 'GPUs: 2'; echo 'GPU 0: NVIDIA H100 PCIe'\n")
    trains(tmp_path, "")
    _, rows = check(tmp_path / "out", "--only", "training", build=tmp_path / "build", programs=tmp_path / "bin",
                    PATH="%s:%s" % (tmp_path / "path", os.environ["PATH"]))
    (row,) = rows["training"]["figures"].values()
    assert row["of_peak"] == pytest.approx(7 * training_goals.flops_per_token(training_goals.TINY, 16) / 756e12), row


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_what_runs_and_leaves_the_report(tmp_path, number):
    """Commands are in sessions of their own, which would go on and hold the GPU."""
    began = tmp_path / "pid"
    trains(tmp_path, "*tiny-tp1-fp32-cuda*) ;;\n*--device\\ cuda*) echo $$ >%s; sleep 1000;;" % began)
    argv = [sys.executable, "-B", SCRIPT, "--bin", tmp_path / "bin", "--build", tmp_path, "--out", tmp_path / "out", "--small", "--only",
            "losses,layouts"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as p:
        while not (began.exists() and began.read_text().endswith("\n")):
            assert p.poll() is None
            time.sleep(0.05)
        p.send_signal(number)
        assert p.wait(30) == 1
    trainer = pathlib.Path("/proc", began.read_text().strip(), "cmdline")
    rows = {row["part"]: row for row in json.loads((tmp_path / "out/report.json").read_text())}
    assert not trainer.exists() or not trainer.read_bytes(), "tp-train goes on"  # without a command line: it is a zombie
    assert rows["losses"]["figures"]["tiny fp32"] == 0, rows
    assert signal.Signals(number).name + " ended the check" in rows["layouts"]["why"], rows


EXPERTS = "experts 128 rows 32 together 90.5 apart 12.0 TFLOP/s"


def test_a_report_that_nobody_prints_is_written(tmp_path):
    """As when the terminal is gone, or `| head` has ended."""
    script(tmp_path / "build/gpu_check", "echo 'best contiguous copy   5000 GB/s'; echo '%s'\n" % EXPERTS)
    r = subprocess.run(["bash", "-c", "'%s' -B '%s' --build '%s' --out '%s' --small --only bandwidth,experts >/dev/full" % (
        sys.executable, SCRIPT, tmp_path / "build", tmp_path / "out")], stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in r.stderr, r.stderr
    assert [row["status"] for row in json.loads((tmp_path / "out/report.json").read_text())] == ["passed", "passed"]


def test_a_python_that_does_not_answer_is_asked_once_for_pytorch(tmp_path, monkeypatch):
    """Its packages may be on a slow file system; the check has ten minutes. The tree's .venv may have PyTorch."""
    script(tmp_path / "python3", "echo asked >>%s/asked; exit 1\n" % tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setattr(gpu_check, "REPO", tmp_path)
    gpu_check.torch_python.cache_clear()
    findings = gpu_check.Findings()
    for _ in range(2):
        gpu_check.train_pytorch(None, findings, [("tiny", {"model_type": "gpt2"}, 16, 1)])
        with pytest.raises(gpu_check.Missing, match="PyTorch is not installed"):
            gpu_check.torch_speed(None)
    gpu_check.torch_python.cache_clear()
    assert findings.not_run == 2 * ["PyTorch is not installed"]
    assert (tmp_path / "asked").read_text().splitlines() == ["asked"]


def test_each_training_run_has_a_log_of_its_own(tmp_path):
    """A tp-train that ends well with graphs and logs nothing; logs of an earlier check are there."""
    trains(tmp_path, "*--cuda-graphs\\ on*) exit 0;;")
    (tmp_path / "out").mkdir()
    for name in ("tiny-16", "tiny-16-graphs-on", "tiny-16-graphs-off"):
        (tmp_path / "out" / (name + ".jsonl")).write_text('{"step": 0, "loss": 1, "tokens_per_s": 5}\n' * 6)
    code, rows = check(tmp_path / "out", "--only", "training", programs=tmp_path / "bin")
    row = rows["training"]
    assert code == 1 and "has steps [], and 6 were trained" in row["why"], row
    figures = row["figures"]["tiny, sequence 16"]
    assert figures["tokens_per_s_without_graphs"] == 7 and "tokens_per_s" not in figures, row


TIMES = """100000\t10000\tvoid adamw_kernel(adamw_table)
1000000\t50000\tcopy
1100000\t200000\tembedding_forward_kernel<4>(embedding_forward)
1250000\t150000\tvoid cublasLt::epilogue::product<(dtype)1, float>(int, void const*)
1500000\t100000\tadamw_kernel(adamw_table)
1610000\t40000\tadamw_kernel(adamw_table)
2000000\t50000\tembedding_forward_kernel<4>(embedding_forward)
"""


@pytest.mark.parametrize("times", (TIMES, TIMES[:40], None))
def test_the_times_of_kernels_are_those_of_the_last_whole_step(tmp_path, times):
    """Some run at the same time; the file may lack steps, or not be written."""
    (tmp_path / "times").write_text(times or "")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/libkernel_times.so").touch()
    trains(tmp_path, "*) %s;;" % ('cp "%s" "$KERNEL_TIMES"' % (tmp_path / "times") if times else ":"))
    code, rows = check(tmp_path / "out", "--only", "step_times", build=tmp_path / "build", programs=tmp_path / "bin")
    row = rows["step_times"]
    if times == TIMES:
        assert code == 0 and row["figures"] == {
            "step_ms": 0.65, "between_operations_ms": 0.16, "operations": 5, "embedding_forward_kernel<4>": {"ms": 0.2, "times": 1},
            "product<(dtype)1, float>": {"ms": 0.15, "times": 1}, "adamw_kernel": {"ms": 0.14, "times": 2}, "copy": {"ms": 0.05, "times": 1}}, row
    else:
        assert row["status"] == ("FAILED" if times else "not run"), row
        assert ("no two steps were recorded" if times else "CUDA did not load") in row["why"], row


def test_the_report_has_the_ends_of_logs_of_what_failed(tmp_path):
    script(tmp_path / "build/gpu_check", "for i in $(seq 100); do echo line $i; done; exit 1\n")
    _, rows = check(tmp_path / "out", "--only", "bandwidth,experts", build=tmp_path / "build")
    for part in "bandwidth", "experts":
        (end,) = rows[part]["log_ends"]
        assert "gpu_check.log ends with:" in end and "line 81\n" in end and "line 80\n" not in end and end.endswith("line 100"), rows
    assert (tmp_path / "out/report.txt").read_text().count("line 99\n") == 2


VERSIONS = "CUDA of the driver: 13.1\nCUDA: 13.0\ncuBLAS: 13.1.0\nNCCL: 2.28.9\nGPUs: %d\n"


def test_the_report_has_versions_and_the_state_of_the_gpu(tmp_path):
    """This driver's nvidia-smi lacks the fields of ECC."""
    script(tmp_path / "build/gpu_check", "echo '%s'\n" % (VERSIONS % 1))
    script(tmp_path / "path/nvidia-smi", """case $1 in
*ecc*) echo 'Field "ecc.mode.current" is not a valid field to query.'; exit 2;;
*compute-apps*) echo '77, python3, 900 MiB';;
*clocks*) echo '345 MHz, 1980 MHz';;
*) echo "value of $1";;
esac
""")
    _, rows = check(tmp_path / "out", "--only", "device", build=tmp_path / "build", PATH="%s:%s" % (tmp_path / "path", os.environ["PATH"]))
    figures = rows["device"]["figures"]
    assert rows["device"]["status"] == "passed" and figures["NCCL"] == "2.28.9" and figures["CUDA of the driver"] == "13.1", rows
    assert figures["clocks"] == "345 MHz, 1980 MHz" and figures["other processes"] == "77, python3, 900 MiB", rows
    assert "is not a valid field" in figures["ecc"] and "power.draw" in figures["power"] and "driver_version" in figures["gpu"], rows


OF_TWO = "tp2, pp2, cp2, dp2, dp2zero3, ep2dp2"  # ranks


@pytest.mark.parametrize("gpus,ranks", [
    (1, "all share a GPU"), (2, "each has one of 2 GPUs: %s; they share 2 GPUs: tp2pp2" % OF_TWO),
    (3, "each has one of 3 GPUs: %s; they share 3 GPUs: tp2pp2" % OF_TWO), (4, "each has one of 4 GPUs"),
    (None, "how many GPUs there are is not known, so all were started as if ranks shared one")])
def test_ranks_have_gpus_of_their_own_where_there_are_enough(tmp_path, gpus, ranks):
    """Then NCCL chooses everything itself."""
    if gpus:
        script(tmp_path / "build/gpu_check", "echo '%s'\n" % (VERSIONS % gpus))
    trains(tmp_path, "*--device\\ cuda*) while [ \"$1\" != --layout ]; do shift; done; env | grep -c ^NCCL >%s/seen-$2;;" % tmp_path)
    code, rows = check(tmp_path / "out", "--only", "layouts", build=tmp_path / "build", programs=tmp_path / "bin")
    assert code == 0 and rows["layouts"]["figures"]["ranks"] == ranks, rows
    for layout in gpu_check.LAYOUTS:
        is_own = (gpus or 1) >= (4 if layout == "tp2pp2" else 2)
        seen = int((tmp_path / ("seen-" + layout)).read_text())
        assert seen == len(gpu_check.OWN_GPUS if is_own else gpu_check.SHARED_GPU), layout


def test_figures_are_kept_beside_a_failure(tmp_path):
    for name in ("device_cuda_graph", *gpu_check.KERNEL_TESTS[1:]):
        script(tmp_path / "tests" / name, "echo 5 tests of %s\nexit %d\n" % (name, name == "kernels_cuda_products"))
    code, rows = check(tmp_path / "out", "--only", "kernels", build=tmp_path)
    row = rows["kernels"]
    assert set(row["figures"]) == {"device_cuda_graph", *gpu_check.KERNEL_TESTS[1:]} - {"kernels_cuda_products"}, row
    assert code == 1 and row["status"] == "FAILED" and "kernels_cuda_products: exit 1" in row["why"].replace(str(tmp_path / "tests") + "/", ""), row
    assert row["figures"]["kernels_cuda_experts"] == "5 tests of kernels_cuda_experts", row
    assert row["not_run"][0].endswith("tests/kernels_cuda was not built"), row


ATTENTION = "attention seq 1024 head_dim 64 forward 276.5 backward 209.0 TFLOP/s (wgmma)"


def test_pytorch_is_asked_of_the_python_that_has_it(tmp_path):
    """The shell's may have it, and not the system's, which runs this script."""
    said = {"tokens_per_s": 5.0, "long": "x" * 1000}
    script(tmp_path / "path/python3", "case $1 in -c) ;; *) echo a warning; echo '%s';; esac\n" % json.dumps(said))
    script(tmp_path / "build/gpu_check", "echo '%s'\n" % ATTENTION)
    _, rows = check(tmp_path / "out", "--only", "attention", build=tmp_path / "build", PATH="%s:%s" % (tmp_path / "path", os.environ["PATH"]))
    assert rows["attention"]["figures"]["pytorch"] == said, rows


@pytest.mark.parametrize("at_once", [1, 2])
def test_parts_that_measure_no_speed_run_side_by_side(tmp_path, at_once):
    """A program of one part waits for one of another. The report has them in their order, and layouts run apart. One at a time, the
    sanitizer is the last, because it takes as much time as there is."""
    wait = "touch {0}/%s; for i in {{1..%d}}; do [ -e {0}/%s ] && exit 0; sleep 0.1; done; exit 1\n"
    rounds = 100 if at_once > 1 else 3
    script(tmp_path / "tests/device_cuda_graph", wait.format(tmp_path) % ("kernels", rounds, "sanitizer"))
    script(tmp_path / "gpu_check", "true\n")
    script(tmp_path / "compute-sanitizer", wait.format(tmp_path) % ("sanitizer", rounds, "kernels"))
    _, rows = check(tmp_path / "out", "--only", "sanitizer,layouts,kernels", "--at-once", str(at_once), build=tmp_path, programs=tmp_path / "none",
                    PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    assert list(rows) == (["kernels", "layouts", "sanitizer"] if at_once == 1 else ["kernels", "sanitizer", "layouts"]), rows
    assert ("device_cuda_graph: " in rows["kernels"].get("why", "")) == (at_once == 1), rows


def test_products_of_experts_are_measured_together_and_apart(tmp_path):
    script(tmp_path / "build/gpu_check", "echo '%s'\n" % EXPERTS)
    _, rows = check(tmp_path / "out", "--only", "experts", build=tmp_path / "build")
    assert rows["experts"]["figures"] == {"ours": [{"experts": 128, "rows": 32, "together": 90.5, "apart": 12.0}]}, rows


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
    """As mpirun's, one has a process group of its own. What it had printed is kept."""
    pid = tmp_path / "pid"
    script(tmp_path / "gpu_check", "set -m\necho it hangs\nsleep 1000 &\necho $! >%s\nwait\n" % pid)
    _, rows = check(tmp_path / "out", "--seconds", "3", "--only", "bandwidth", build=tmp_path)
    assert "took more than" in rows["bandwidth"]["why"] and rows["bandwidth"]["seconds"] < 30, rows
    sleeper = pathlib.Path("/proc", pid.read_text().strip(), "cmdline")
    assert "it hangs" in next((tmp_path / "out").glob("*-gpu_check.log")).read_text()
    assert not sleeper.exists() or not sleeper.read_bytes(), "sleep goes on"  # without a command line: it is a zombie


def test_a_process_that_cannot_be_ended_does_not_hold_the_check(tmp_path):
    """It left the session and keeps the pipe open, as one does whose exit the driver holds. The report says meanwhile which part runs."""
    script(tmp_path / "gpu_check", "echo it hangs\ncp %s/out/report.txt %s\nsetsid sleep 40 &\nsleep 1000\n" % (tmp_path, tmp_path))
    _, rows = check(tmp_path / "out", "--seconds", "3", "--only", "bandwidth", build=tmp_path)
    assert "took more than" in rows["bandwidth"]["why"] and rows["bandwidth"]["seconds"] < 30, rows
    assert "it hangs" in next((tmp_path / "out").glob("*-gpu_check.log")).read_text()
    assert "bandwidth: not run" in (tmp_path / "report.txt").read_text()


def test_a_bundle_runs_apart_from_the_source_tree(tmp_path):
    """With the fake device's library. All that a program needs and that is not of the machine comes from the bundle."""
    archive = tmp_path / "bundle.tar.gz"
    subprocess.run([sys.executable, "-B", harness.REPO / "tests/gpu/bundle.py", "--build", harness.BUILD, "--bin", harness.BIN, "--libtp-cuda.so",
                    harness.built("libtp-cuda.so"), "-o", archive], check=True)
    subprocess.run(["tar", "xf", archive], cwd=tmp_path, check=True)
    root = tmp_path / "gpu-check"
    env = {**os.environ, "FAKECUDA_GPUS": "1"}
    env.pop("TP_CUDA_LIBRARY", None)
    r = subprocess.run([sys.executable, "-B", root / "tests/gpu/gpu_check.py", "--small", "--only", "device", "--out", tmp_path / "out"], env=env,
                       stdout=subprocess.PIPE, text=True, check=False)
    assert r.returncode == 4 and " 1 in part, 0 failed" in r.stdout, r.stdout  # gpu_check is for a GPU
    for program in ("bin/tp-train", "bin/tp-reshard", "bin/tp-ckpt", "build/plain/tests/kernels_cuda"):
        said = subprocess.run(["ldd", root / program], env={**os.environ, "LD_LIBRARY_PATH": str(root / "lib/bundled")}, stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        others = [line for line in said.splitlines() if "=>" in line and str(root) not in line]
        assert others and all(bundle.OF_THE_MACHINE.match(line.strip()) for line in others), others
    assert not (root / "lib/bundled/libc.so.6").exists()


def test_cublas_and_nccl_of_pytorch_are_found_for_a_bundle(tmp_path, monkeypatch):
    site = tmp_path / "site/nvidia"
    for file in ("cu13/lib/libcublas.so.13", "nccl/lib/libnccl.so.2", "cudnn/lib/libcudnn.so.9"):
        (site / file).parent.mkdir(parents=True)
        (site / file).touch()
    for name in ("BUNDLED", "LIBRARY"):
        monkeypatch.setattr(gpu_check, name, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.delenv("TP_CUDA_LIBRARY", raising=False)
    found = gpu_check.own_environment()
    assert found["TP_CUDA_LIBRARY"] == str(tmp_path)
    assert found["LD_LIBRARY_PATH"].split(":")[:4] == [str(tmp_path), "/before", str(site / "cu13/lib"), str(site / "nccl/lib")]


def test_nothing_begins_after_the_time_is_over(tmp_path):
    code, rows = check(tmp_path, "--seconds", "0", "--only", "layouts,bandwidth")
    assert code == 4 and "no time was left" in rows["layouts"]["why"], rows


def test_goals_of_training_are_judged():
    """The numbers: 6 for each weight in a product, 6 L s h for attention; GPT-2 has 124 M parameters with its head."""
    assert 6 * 123e6 < training_goals.flops_per_token(training_goals.GPT2_124M, 0) < 6 * 125e6
    gpt2 = training_goals.flops_per_token(training_goals.GPT2_124M, 1024)
    assert gpt2 - training_goals.flops_per_token(training_goals.GPT2_124M, 0) == 6 * 12 * 1024 * 768
    assert 6 * 1.0e9 < training_goals.flops_per_token(training_goals.LLAMA_1B, 0) < 6 * 1.1e9
    peaks = {"NVIDIA H200": 989, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA GeForce": None, None: None, "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756,
             "NVIDIA H200 NVL": 835, "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None, "NVIDIA GB200": 2500}
    assert {name: training_goals.peak_of(name) for name in peaks} == peaks
    for rate, compiled, gpu, peak, faster in ((0.5, 1.0, "NVIDIA H200", True, False), (0.4, 0.1, "NVIDIA H200", False, True),
                                              (0.4, "no PyTorch", "another", None, None)):
        row = {"tokens_per_s": rate * 989e12 / gpt2, "pytorch_compile": compiled if isinstance(compiled, str) else compiled * 989e12 / gpt2}
        training_goals.judge_training(row, training_goals.GPT2_124M, 1024, gpu)
        assert (row["is_45_percent"], row["is_faster_than_compile"]) == (peak, faster), row
    for whole, layers, faster in (("late", 1.0, True), (1.0, 3.0, False), (3.0, 1.0, False), ("late", "no PyTorch", None)):
        row = {"tokens_per_s": 2.0, "pytorch_compile": whole, "pytorch_compile_layers": layers}
        training_goals.judge_training(row, training_goals.LLAMA_1B, 1024, "NVIDIA H200")
        assert row["is_faster_than_compile"] == faster, row


def test_pytorch_is_measured_in_the_order_of_the_goals(tmp_path):
    """A Llama's layers are compiled before anything that may use up the time."""
    script(tmp_path / "path/python3", "case $1 in -c) ;; *) shift; echo \"$*\" >>%s/asked; echo '{\"tokens_per_s\": 1.5}';; esac\n" % tmp_path)
    code, rows = check(tmp_path / "out", "--only", "training", PATH="%s:%s" % (tmp_path / "path", os.environ["PATH"]))
    (row,) = rows["training"]["figures"].values()
    assert code == 0 and rows["training"]["status"] == "passed" and [line.split()[-1] for line in (tmp_path / "asked").read_text().splitlines()] == ["compile_layers", "eager", "compile"]
    assert row["pytorch_compile_layers"] == row["pytorch_eager"] == row["pytorch_compile"] == 1.5, row


@pytest.mark.parametrize("program,said", [("none", ""), ("gpu_check", "memcheck of gpu_check: SUMMARY: 2 errors"),
                                          ("kernels_cuda_products", "racecheck of kernels_cuda_products: SUMMARY: 2 errors"),
                                          ("tp-train", "memcheck of training gpt2-tiny: SUMMARY: 2 errors")])
def test_every_tool_of_the_sanitizer_runs_on_every_test_of_kernels_and_memcheck_on_training(tmp_path, program, said):
    """compute-sanitizer is a script that finds errors in one program."""
    (tmp_path / "tests").mkdir()
    for path in ("gpu_check", *("tests/" + name for name in gpu_check.KERNEL_TESTS), "compute-sanitizer"):
        (tmp_path / path).write_text("#!/bin/sh\ncase \"$*\" in\n*/%s|*/%s\\ *) echo ERROR SUMMARY: 2 errors;;\nesac\n" % (program, program))
        (tmp_path / path).chmod(0o755)
    _, rows = check(tmp_path / "out", "--only", "sanitizer", build=tmp_path, PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    row = rows["sanitizer"]
    if program == "none":
        assert row["status"] == "passed" and row["figures"] == {"runs": 4 * (1 + len(gpu_check.KERNEL_TESTS)) + len(gpu_check.SANITIZED)}, row
    else:
        assert row["status"] == "FAILED" and said in row["why"], row


def test_the_library_for_times_finds_cupti_in_the_folder_of_cuda(tmp_path):
    """The loader does not search CUDA's folder of CUPTI on every machine."""
    nvcc, library = tmp_path / "cuda/bin/nvcc", tmp_path / "libkernel_times.so"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    said = harness.ok("make", "-n", "-C", harness.REPO, "NVCC=%s" % nvcc, "BUILD=%s" % tmp_path, library).out.replace("\\\n", "")
    (link,) = [line for line in said.splitlines() if " -lcupti " in line]
    assert all(flag + "%s/cuda/extras/CUPTI/lib64 " % tmp_path in link for flag in ("-L", "-Xlinker -rpath=")), link


@pytest.mark.parametrize("goal", ["gpu-check", "gpu-check-bundle"])
def test_make_builds_what_the_check_needs_and_no_more(tmp_path, goal):
    """Nothing of tp-run, and no comparison of the library with limits."""
    nvcc, build = tmp_path / "cuda/bin/nvcc", tmp_path / "build"
    script(nvcc.parent / "nvcc", "")
    said = harness.ok("make", "-n", "-C", harness.REPO, "NVCC=%s" % nvcc, "BUILD=%s" % build, "BIN=%s" % (tmp_path / "bin"), goal).out
    linked = {line.split()[-1].strip('"') for line in said.splitlines() if line.startswith('echo "  LINK')}
    assert linked == {str(path) for path in (*(tmp_path / "bin" / name for name in bundle.PROGRAMS), build / "cuda/libtp-cuda.so",
                                             *(build / "tests" / name for name in gpu_check.ALL_KERNEL_TESTS))}, linked
    assert "orchestrator/" not in said and "kernel_resources.py" not in said and "fsyntax-only" not in said, said


@pytest.mark.parametrize("has", ["nothing", "nccl", "nccl cu13"])
def test_make_cuda_finds_what_came_with_pytorch(tmp_path, has):
    """A toolkit without NCCL or cuBLAS, and PyPI's packages of them, whose libraries have no links for the linker."""
    nvcc, site = tmp_path / "cuda/bin/nvcc", tmp_path / "site"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    for part, header in (("nccl", "nccl.h"), ("cu13", "cublasLt.h")):
        folder = (site / "nvidia" / part if part in has else tmp_path / "cuda") / "include"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / header).touch()
    said = subprocess.run(["make", "-n", "NVCC=%s" % nvcc, "CUDA_SYSTEM=%s" % tmp_path, "BUILD=%s" % tmp_path, tmp_path / "cuda/libtp-cuda.so"], cwd=harness.REPO,
                          env={**os.environ, "PYTHONPATH": str(site)}, text=True, stdout=subprocess.PIPE, check=True).stdout
    (compile_c,) = [line for line in said.splitlines() if "nccl_lane.c -o" in line]
    (compile_cu,) = [line for line in said.splitlines() if "gemm_bias.cu -o" in line]
    (link,) = [line for line in said.splitlines() if " -shared " in line]
    for part, library, link_name in (("nccl", "libnccl.so.2", "-lnccl"), ("cu13", "libcublasLt.so.13", "-lcublasLt")):
        folder = "%s/nvidia/%s" % (site, part)
        assert all(("-isystem %s/include" % folder in line) == (part in has) for line in (compile_c, compile_cu)), said
        assert ("-rpath=%s/lib" % folder in link and "-l:%s" % library in link) == (part in has), link
        assert (link_name + " " in link) == (part not in has), link
