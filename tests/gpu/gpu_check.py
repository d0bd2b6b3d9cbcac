#!/usr/bin/env python3
"""tests/gpu/gpu_check.py - everything that only a GPU can show, in one report; `make gpu-check` runs it.

    gpu_check.py --build BUILD --bin BIN --out FOLDER [--seconds 600] [--small] [--only PART,...]

Each part is a function below. A part that fails, takes too long, or needs what is not installed says so, and the next one
runs. FOLDER gets report.txt, report.json, and the output of every command. --small: sizes for the fake CUDA device, on
which the script itself is tested.

Exit code: 0 no part failed, 1 a part failed, 3 there is no GPU that can be used.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
LAYOUTS = {"tp2": 2, "pp2": 2, "dp2": 2, "tp2pp2": 4, "dp2zero3": 2, "ep2dp2": 2}  # ep2dp2: a mixture of experts
TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "hidden_act": "silu"}
EXPERTS = {**TINY, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
           "num_experts_per_tok": 2}
GPT2_124M = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
             "n_positions": 4096, "n_inner": 3072, "vocab_size": 50304, "activation_function": "gelu_new",
             "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
             "attn_pdrop": 0.0}
LLAMA_1B = {**TINY, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000}
# How several ranks use one GPU: NCCL takes ranks with different host names for ranks of different hosts, which then
# communicate by sockets. Timings of such runs mean nothing.
SHARED_GPU = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
              "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_RAS_ENABLE": "0",
              "NCCL_MAX_CTAS": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}


# TFLOP/s of dense bf16 products, by NVIDIA's data sheets.
PEAKS = {"A100": 312, "A800": 312, "H100": 989, "H200": 989, "GH200": 989, "H800": 989, "B200": 2250, "GB200": 2250}
KERNEL_TESTS = ("kernels_cuda", "kernels_cuda_products", "kernels_cuda_experts", "kernels_cuda_optimizer")

# Seconds that a part may take; 90 where nothing is said. PyTorch compiles its models in training, which may use up all
# time, so it comes late.
SHARES = {"kernels": 150, "layouts": 120, "training": 270, "sanitizer": 240}


class Missing(Exception):
    """A part cannot run here: something is not installed."""


class Failed(Exception):
    """A part found something wrong."""


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out.resolve()
        self.bin, self.build = options.bin.resolve(), options.build.resolve()
        self.end = self.deadline = time.monotonic() + options.seconds
        self.number = 0

    def begin(self, part):
        """Let a part have its share of the time that is left."""
        self.deadline = min(self.end, time.monotonic() + SHARES.get(part.__name__, 90))

    def run(self, *argv, seconds=120, env=None, codes=(0,)):
        """Run a command and return its output, which a file of `out` also gets."""
        left = self.deadline - time.monotonic()
        if left <= 1:
            raise Missing("no time was left")
        self.number += 1
        log = self.out / ("%02d-%s.log" % (self.number, pathlib.Path(str(argv[0])).name))
        try:  # in a session of its own, so that all ranks of mpirun end with it
            p = subprocess.Popen([str(a) for a in argv], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.out, text=True,
                                 errors="replace", start_new_session=True)
        except OSError as e:
            raise Missing(str(e)) from e
        try:
            text, _ = p.communicate(timeout=min(seconds, left))
        except subprocess.TimeoutExpired as e:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            p.stdout.close()
            log.write_text(str(e.stdout))
            raise Failed("%s took more than %d s" % (argv[0], min(seconds, left))) from e
        log.write_text(" ".join(map(str, argv)) + "\n" + text)
        if p.returncode == 3 and 3 not in codes:
            raise Missing(last_line(text) or "exit 3")
        if p.returncode not in codes:
            raise Failed("%s: exit %d: %s (all of it is in %s)" % (argv[0], p.returncode, last_line(text), log.name))
        return text

    def program(self, name):
        path = self.bin / name if name.startswith("tp-") else self.build / name
        if not path.exists():
            raise Missing("%s was not built" % path)
        return path

    def config(self, name, model):
        folder = self.out / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(model))
        return folder / "config.json"

    def text(self):
        path = self.out / "text"
        if not path.exists():
            path.write_bytes(b"".join(b"%d: the quick brown fox jumps over %d lazy dogs\n" % (i, i * i % 97)
                                      for i in range(40000)))
        return "bytes:%s" % path

    def losses(self, log):
        return [json.loads(line) for line in log.read_text().splitlines() if "\"loss\"" in line]


def last_line(text):
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


# ---- the parts: each returns {figure: value} ----

def device(c):
    """The GPU, the driver, and that tp-train can use it."""
    found = {}
    if shutil.which("nvidia-smi"):
        text = c.run("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", seconds=30)
        found["gpu"] = text.splitlines()[0] if text else "?"
    log = c.out / "first.jsonl"
    c.run(c.program("tp-train"), "--model", c.config("tiny", TINY), "--data", c.text(), "--device", "cuda", "--steps", 2,
          "--batch", 2, "--seq", 16, "--quiet", "--log", log, codes=(0,))
    found["first_loss"] = c.losses(log)[0]["loss"]
    return found


def kernels(c):
    """The kernels of copies and casts, bit for bit, every other operation against the CPU's, and graphs."""
    found = {}
    for name in ("device_cuda_graph", *KERNEL_TESTS):
        text = c.run(c.program("tests/" + name), seconds=180)
        found[name] = last_line(text)
    if not c.options.small:
        found["gpu_check"] = c.run(c.program("gpu_check"), seconds=120).splitlines()[1:]
    return found


def sanitizer(c):
    """compute-sanitizer's tools on the kernels of copies and casts; then, as far as time goes, on all tests of kernels."""
    if not shutil.which("compute-sanitizer"):
        raise Missing("compute-sanitizer is not installed")
    tools, wrong, unfinished = ("memcheck", "racecheck", "initcheck", "synccheck"), [], []
    programs = [("gpu_check", "--quick"), *(("tests/" + name,) for name in KERNEL_TESTS)]
    for name, *options in programs:
        for tool in tools:
            try:  # each test of a program is a process of its own
                text = c.run("compute-sanitizer", "--tool", tool, "--target-processes", "all", "--error-exitcode", "1",
                             c.program(name), *options, seconds=90)
                if summary := re.search(r"SUMMARY: [1-9].*", text):
                    wrong.append("%s of %s: %s" % (tool, name, summary[0]))
            except (Failed, Missing) as e:
                if isinstance(e, Missing) and name == "gpu_check":
                    raise
                late = isinstance(e, Missing) or "took more than" in str(e)
                (unfinished if late and name != "gpu_check" else wrong).append("%s of %s: %s" % (tool, name, e))
    if wrong:
        raise Failed("; ".join(wrong))
    return {"runs": len(programs) * len(tools) - len(unfinished), "unfinished": unfinished}


def layouts(c):
    """Several NCCL ranks on one GPU have the CPU's losses. From step 3 on, steps are CUDA graphs."""
    if not shutil.which("mpirun"):
        raise Missing("mpirun is not installed")
    found, wrong = {}, []
    for layout, ranks in LAYOUTS.items():
        model = c.config("experts", EXPERTS) if "ep" in layout else c.config("tiny", TINY)
        common = [c.program("tp-train"), "--model", model, "--data", c.text(), "--layout", layout, "--steps",
                  5, "--batch", 4, "--seq", 32 if not c.options.small else 8, "--warmup", 1, "--quiet"]
        logs = [c.out / ("%s-%s.jsonl" % (layout, on)) for on in ("cpu", "cuda")]
        try:
            c.run(*common, "--log", logs[0])
            # each rank says that it is on a host of its own
            c.run("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, "bash", "-c",
                  'NCCL_HOSTID=r$OMPI_COMM_WORLD_RANK exec "$@"', "rank", *common, "--device", "cuda", "--log", logs[1],
                  env=SHARED_GPU, seconds=90)
            cpu, gpu = ([x["loss"] for x in c.losses(log)] for log in logs)
            found[layout] = max(abs(a - b) / abs(a) for a, b in zip(cpu, gpu))
            if len(cpu) != len(gpu) or found[layout] > 1e-5:
                wrong.append("%s: losses %s, the CPU's %s" % (layout, gpu, cpu))
        except Failed as e:
            wrong.append("%s: %s" % (layout, e))
    if wrong:
        raise Failed("; ".join(wrong))
    return {"relative_difference_of_losses": found}


def reshard(c):
    """tp-reshard writes the same files on both; its speed."""
    root = c.out / "ckpt"
    shutil.rmtree(root, ignore_errors=True)
    model = c.config("tiny", TINY) if c.options.small else c.config("gpt2-124m", GPT2_124M)
    c.run(c.program("tp-train"), "--model", model, "--data", c.text(), "--device", "cuda", "--dtype", "bf16", "--steps", 1,
          "--batch", 1, "--seq", 16, "--quiet", "--ckpt", root)
    found = {}
    for on in ("cpu", "cuda"):
        shutil.rmtree(c.out / ("ckpt-" + on), ignore_errors=True)
        text = c.run(c.program("tp-reshard"), root, "--to", "tp2", "-o", c.out / ("ckpt-" + on), "--device", on, "--json",
                     *(["--device-mem", "1M"] if c.options.small else []))
        done, _ = json.JSONDecoder().raw_decode(text[text.index("{\n"):])  # progress lines are objects, too
        found[on + "_GB_per_s"] = done["bytes_written"] / max(done["seconds"], 1e-9) / 1e9
    c.run(c.program("tp-ckpt"), "diff", c.out / "ckpt-cpu", c.out / "ckpt-cuda")
    return found


def bandwidth(c):
    """Gather, split and cast in GB/s beside the card's own copy. The goal is 85 % for rows of 512 bytes and more."""
    rows = {}
    for line in c.run(c.program("gpu_check"), "--bandwidth").splitlines():
        if m := re.match(r"(.*\S) +(\d+) GB/s(?: +cudaMemcpy2DAsync +(\d+) GB/s)?", line):
            rows[m[1]] = {"GB_per_s": int(m[2]), "cudaMemcpy2DAsync": int(m[3]) if m[3] else None}
    card = rows.get("contiguous", {}).get("cudaMemcpy2DAsync")
    for row in rows.values():
        row["of_card"] = row["GB_per_s"] / card if card else None
        row["is_85_percent"] = row["of_card"] >= 0.85 if card else None
    return rows


def attention(c):
    """TFLOP/s of causal attention in bf16, beside PyTorch's."""
    rows = []
    for line in c.run(c.program("gpu_check"), "--attention").splitlines():
        if m := re.match(r"attention seq (\d+) head_dim (\d+) forward ([\d.]+) backward ([\d.]+)", line):
            rows.append({"seq": int(m[1]), "head_dim": int(m[2]), "forward": float(m[3]), "backward": float(m[4])})
    try:
        theirs = json.loads(last_line(c.run(sys.executable, HERE / "torch_speed.py", "attention")))
    except (Missing, Failed, ValueError) as e:
        theirs = str(e)
    return {"ours": rows, "pytorch": theirs}


def flops_per_token(model, seq):
    """Of a training step, without recomputation: three times the forward pass, with half of the scores."""
    if model["model_type"] == "gpt2":
        hidden, layers, vocab = model["n_embd"], model["n_layer"], model["vocab_size"]
        layer, width = 4 * hidden * hidden + 2 * hidden * model["n_inner"], hidden
    else:
        hidden, layers, vocab = model["hidden_size"], model["num_hidden_layers"], model["vocab_size"]
        width = model["num_attention_heads"] * model["head_dim"]
        kv = model["num_key_value_heads"] * model["head_dim"]
        layer = 2 * hidden * (width + kv) + 3 * hidden * model["intermediate_size"]
    return 3 * (2 * (layers * layer + vocab * hidden) + 2 * layers * seq * width)


def peak_of(gpu):
    """TFLOP/s of a GPU's name; None: it is not in the table."""
    return next((PEAKS[word] for word in re.split(r"\W+", gpu or "") if word in PEAKS), None)


def judge_training(row, model, seq, gpu):
    """Add the part of the peak, and whether the goals are reached: 45 % of it, and faster than torch.compile."""
    rate, compiled, peak = row.get("tokens_per_s"), row.get("pytorch_compile"), peak_of(gpu)
    row["of_peak"] = rate * flops_per_token(model, seq) / (peak * 1e12) if rate and peak else None
    row["is_45_percent"] = row["of_peak"] >= 0.45 if row["of_peak"] is not None else None
    row["is_faster_than_compile"] = rate > compiled if rate and isinstance(compiled, float) else None


def gpu_name(c):
    try:
        return c.run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", seconds=30).split("\n")[0]
    except (Missing, Failed):
        return None


def training(c):
    """Tokens per second, with CUDA graphs and without, and the part of the GPU's peak, bf16, one GPU, beside PyTorch's eager
    and compiled model."""
    sizes = [("gpt2-124m", GPT2_124M, 1024, 16), ("gpt2-124m", GPT2_124M, 4096, 4), ("llama-1b", LLAMA_1B, 1024, 8),
             ("llama-1b", LLAMA_1B, 4096, 2)]
    found, wrong, gpu = {}, [], gpu_name(c)
    for name, model, seq, batch in [("tiny", TINY, 16, 2)] if c.options.small else sizes:
        row = found["%s, sequence %d" % (name, seq)] = {}
        log = c.out / ("%s-%d.jsonl" % (name, seq))
        try:
            for graphs, key in ("off", "tokens_per_s_without_graphs"), ("on", "tokens_per_s"):
                c.run(c.program("tp-train"), "--model", c.config(name, model), "--data", c.text(), "--device", "cuda", "--dtype",
                      "bf16", "--steps", 6, "--batch", batch, "--seq", seq, "--cuda-graphs", graphs, "--quiet", "--log", log,
                      seconds=90)
                row[key] = max(x["tokens_per_s"] for x in c.losses(log))
        except Failed as e:
            wrong.append("%s, sequence %d: %s" % (name, seq, e))
        for mode in ("eager", "compile"):
            try:
                text = c.run(sys.executable, HERE / "torch_speed.py", "train", c.out / name / "config.json", seq, batch, mode, seconds=90)
                row["pytorch_" + mode] = json.loads(last_line(text))["tokens_per_s"]
            except (Missing, Failed, ValueError) as e:
                row["pytorch_" + mode] = str(e)
        judge_training(row, model, seq, gpu)
    if wrong:
        raise Failed("; ".join(wrong))
    return found


def saving(c):
    """The seconds by which saves delay a step, and how fast a run resumes, with its start and a step."""
    root, log = c.out / "saves", c.out / "saves.jsonl"
    shutil.rmtree(root, ignore_errors=True)
    model = c.config("tiny", TINY) if c.options.small else c.config("gpt2-124m", GPT2_124M)
    common = [c.program("tp-train"), "--model", model, "--data", c.text(), "--device", "cuda", "--dtype", "bf16", "--batch",
              4, "--seq", 16 if c.options.small else 1024, "--ckpt", root, "--log", log]
    c.run(*common, "--steps", 6, "--save-every", 2, "--quiet")
    stall = max(x["save_seconds"] for x in c.losses(log))
    n_bytes = sum(f.stat().st_size for f in max(root.glob("step-*")).iterdir())
    start = time.monotonic()
    c.run(*common, "--steps", 7, "--resume=must", "--quiet")
    seconds = time.monotonic() - start
    return {"longest_save_stall_s": stall, "resume_and_one_step_s": seconds, "resume_GB_per_s_with_start_and_step": n_bytes / seconds / 1e9}


PARTS = [device, kernels, layouts, reshard, bandwidth, attention, saving, training, sanitizer]


# ---- the report ----

def run_part(c, part):
    start = time.monotonic()
    c.begin(part)
    row = {"part": part.__name__, "what": part.__doc__}
    try:
        row.update(status="passed", figures=part(c))
    except Missing as e:
        row.update(status="not run", why=str(e))
    except Failed as e:
        row.update(status="FAILED", why=str(e))
    except Exception as e:  # a part must not end the others
        row.update(status="FAILED", why="%s: %s" % (type(e).__name__, e))
    row["seconds"] = round(time.monotonic() - start, 1)
    print("%-8s %-10s %6.1f s  %s" % (row["status"], row["part"], row["seconds"], row.get("why", "")), flush=True)
    return row


def text_of(rows):
    lines = ["gpu-check: %d passed, %d failed, %d not run" % tuple(
        sum(r["status"] == s for r in rows) for s in ("passed", "FAILED", "not run")), ""]
    for r in rows:
        lines.append("%s: %s (%.1f s) - %s" % (r["part"], r["status"], r["seconds"], r["what"]))
        if "why" in r:
            lines.append("    " + r["why"])
        for key, value in (r.get("figures") or {}).items():
            lines.append("    %s: %s" % (key, json.dumps(value) if not isinstance(value, str) else value))
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--build", type=pathlib.Path, default=REPO / "build/plain")
    p.add_argument("--bin", type=pathlib.Path, default=REPO / "bin")
    p.add_argument("--out", type=pathlib.Path, default=REPO / "build/gpu-check")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--small", action="store_true")
    p.add_argument("--only", default="")
    options = p.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    c = Check(options)
    wanted = [part for part in PARTS if not options.only or part.__name__ in options.only.split(",")]
    rows = []
    for part in wanted:
        rows.append(run_part(c, part))
        if part is device and rows[0]["status"] != "passed":
            break  # without a GPU all other parts would say the same
    (c.out / "report.json").write_text(json.dumps(rows, indent=1) + "\n")
    (c.out / "report.txt").write_text(text_of(rows))
    print("the report is in %s/report.txt and report.json" % c.out)
    if rows and rows[0]["part"] == "device" and rows[0]["status"] != "passed":
        sys.exit(3)
    sys.exit(any(r["status"] == "FAILED" for r in rows))


if __name__ == "__main__":
    main()
