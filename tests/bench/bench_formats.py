#!/usr/bin/env python3
"""tp-reshard between formats compared with copying the same files, and with PyTorch's own converter.

    bench_formats.py [--width 512] [--rounds 3] [--folder /dev/shm] [--torch PYTHON] [--only FROM,TO]

For each conversion these commands run in turn, from the page cache, and end when everything is on the disk
(in /dev/shm at once):

  A to B     tp-reshard --mem 64M: all checksums of A and the digests of both are computed and compared
  cp -r      the source
  PyTorch    torch.distributed.checkpoint.format_utils: dcp_to_torch_save for dcp as a source, torch_save_to_dcp for dcp as a
             target (of the file that the former wrote). Without the start of Python. Left out without --torch

Prints wall and CPU seconds, the medians of the rounds, their ratio to `cp -r`, and the most resident memory. CPU
seconds mean more on a machine that does other work, too. The checkpoint is a Llama of 8 layers with f32 weights and moments:
0.35 GiB at width 384, 0.6 GiB at 512, 1.8 GiB at 1024; safetensors has a third of it.
"""
import json
import os
import pathlib
import shutil
import tempfile

from bench_reshard import BIN, BUILD, CHECKPOINT, arguments, du, print_medians, run, shell

FORMATS = ["safetensors", "dcp", "megatron", "torch_dist", "deepspeed"]
CONVERSIONS = ([(f, "tp") for f in FORMATS] + [("tp", f) for f in FORMATS] +
               [("megatron", "megatron"), ("dcp", "deepspeed"), ("megatron", "dcp")])
TORCH = """
import json, resource, sys, time
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
start, cpu = time.monotonic(), time.process_time()
{"save": dcp_to_torch_save, "dcp": torch_save_to_dcp}[sys.argv[1]](sys.argv[2], sys.argv[3])
print(json.dumps({"wall": time.monotonic() - start, "cpu": time.process_time() - cpu,
                  "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}))
"""


def make(folder, width):
    """folder/tp, and the same in all formats at tp2pp2."""
    config = folder / "config.json"
    config.write_text(CHECKPOINT % (width, 11 * width // 4, width // 16))
    run([BUILD / "tests" / "make_ckpt", config, "tp2pp2", folder / "tp", 1, 1, "f32"])
    for f in FORMATS:
        run([BIN / "tp-ckpt", "export", folder / "tp", "--format", f, "-o", folder / f])


def torch_command(torch, folder, what, source):
    def command():
        wall, cpu, out = run([torch, "-c", TORCH, what, source, folder / "new"])
        found = json.loads(out)
        return found["wall"], found["cpu"], out
    return command


def commands(folder, source, target, torch):
    """[(name, a function that runs it once)]."""
    new, ckpt = folder / "new", folder / source
    to = "tp4" if target != "safetensors" else "tp1"
    yield (f"{source} to {target}", lambda: run(
        [BIN / "tp-reshard", ckpt, "--to", to, "--format", target, "-o", new, "--mem", "64M", "--json"]))
    yield "cp -r", lambda: shell('cp -r "$1" "$2"; sync -f "$2"', ckpt, new)
    if torch and source == "dcp":
        yield "PyTorch dcp_to_torch_save", torch_command(torch, folder, "save", ckpt)
    if torch and target == "dcp" and source == "tp":
        saved = folder / "saved.pt"
        if not saved.exists():
            run([torch, "-c", TORCH, "save", folder / "dcp", saved])
        yield "PyTorch torch_save_to_dcp", torch_command(torch, folder, "dcp", saved)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def measure(folder, source, target, args):
    all_commands = list(commands(folder, source, target, args.torch))
    times, peaks = {name: [] for name, _ in all_commands}, {}
    for _ in range(args.rounds):
        for name, command in all_commands:
            remove(folder / "new")
            wall, cpu, out = command()
            times[name].append((wall, cpu))
            if out:
                peaks[name] = max(peaks.get(name, 0), json.loads(out)["peak_rss_bytes"])
            remove(folder / "new")
    print_medians(times, peaks)


def main():
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory(prefix="bench-formats-", dir=args.folder) as name:
        folder = pathlib.Path(name)
        make(folder, args.width)
        print(f"{du(folder / 'tp') / 1e9:.2f} GB, {args.rounds} rounds, load {os.getloadavg()[0]:.0f}")
        for source, target in [tuple(args.only.split(","))] if args.only else CONVERSIONS:
            measure(folder, source, target, args)


if __name__ == "__main__":
    main()
