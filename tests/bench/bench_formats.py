#!/usr/bin/env python3
"""tp-reshard between formats compared with copying the same files, and with the converters of other frameworks.

    bench_formats.py [--width 512] [--rounds 3] [--folder /dev/shm] [--torch PYTHON] [--only FROM,TO] [--least]

For each conversion these commands run in turn, from the page cache, and end when everything is on the disk
(in /dev/shm at once):

  A to B     tp-reshard --mem 64M: all checksums of A and the digests of both are computed and compared
  cp -r      what tp-reshard wrote
  others     the framework's own converter for the same files, if it has one (lib/format_converters.py), once: PyTorch's
             dcp_to_torch_save and torch_save_to_dcp; transformers loads and saves safetensors; Megatron-core loads and saves
             torch_dist; DeepSpeed's ds_to_universal, and zero_to_fp32, which keeps only weights. Without the start of
             Python. One that cannot run gets a line that says why. PYTHON has torch, transformers, megatron-core, deepspeed

Prints wall and CPU seconds, the medians of the rounds, their ratio to `cp -r`, and the most resident memory. --least
prints the least of the rounds: in a virtual machine, memory that the host must supply first makes commands slower. CPU
seconds mean more on a machine that does other work, too. The checkpoint is a Llama of 8 layers with f32 weights and moments:
0.35 GiB at width 384, 0.6 GiB at 512, 1.8 GiB at 1024; safetensors has a third of it, zero (ZeRO-1) and deepspeed (Universal)
four thirds. The folder needs four times as much.
"""
import json
import os
import pathlib
import shutil
import tempfile

from bench_reshard import BIN, BUILD, CHECKPOINT, LIB, arguments, du, print_times, run_counted, shell

CONVERSIONS = [("tp", "safetensors"), ("safetensors", "tp"), ("safetensors", "safetensors"),
               ("tp", "trainer"), ("trainer", "tp"), ("trainer", "trainer"),
               ("tp", "dcp"), ("dcp", "tp"), ("dcp", "deepspeed"),
               ("tp", "accelerate"), ("accelerate", "tp"), ("accelerate", "accelerate"),
               ("tp", "megatron"), ("megatron", "tp"), ("megatron", "megatron"), ("megatron", "dcp"),
               ("tp", "torch_dist"), ("torch_dist", "tp"), ("torch_dist", "torch_dist"),
               ("tp", "deepspeed"), ("deepspeed", "tp"), ("zero", "tp"), ("zero", "deepspeed")]
OTHERS = {("dcp", "tp"): [("PyTorch", "dcp_to_torch_save")],
          ("tp", "dcp"): [("PyTorch", "torch_save_to_dcp")],
          ("safetensors", "safetensors"): [("transformers", "save_pretrained")],
          ("torch_dist", "torch_dist"): [("Megatron-core", "megatron_core")],
          ("zero", "deepspeed"): [("DeepSpeed", "ds_to_universal"), ("DeepSpeed", "zero_to_fp32")]}


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def converter(args, name, source, target):
    """Wall and CPU seconds, peak memory."""
    _, _, out = run_counted([args.torch, LIB / "format_converters.py", name, source, target])
    return [json.loads(out)[key] for key in ("wall", "cpu", "peak_rss_bytes")]


def make(folder, name, args):
    """folder/NAME: the checkpoint at tp2pp2, as a format. Another format that was made before is removed."""
    if (folder / name).exists():
        return
    for other in folder.iterdir():
        if other.name not in ("config.json", "tp"):
            remove(other)
    config = folder / "config.json"
    if name == "tp":
        config.write_text(CHECKPOINT % (args.width, 11 * args.width // 4, args.width // 16))
        run_counted([BUILD / "tests" / "make_ckpt", config, "tp2pp2", folder / "tp", 1, 1, "f32"])
    elif name == "zero":
        run_counted([BIN / "tp-ckpt", "export", folder / "tp", "--format", "safetensors", "-o", folder / "safetensors"])
        converter(args, "make_zero", folder / "safetensors", folder / "zero")
        remove(folder / "safetensors")
        shutil.copy(config, folder / "zero")
    else:
        run_counted([BIN / "tp-ckpt", "export", folder / "tp", "--format", name, "-o", folder / name])


def print_others(folder, source, target, args, cp):
    """A line for each converter of a framework. cp: wall and CPU seconds of `cp -r`."""
    for framework, name in OTHERS.get((source, target), []):
        label, at = f"{framework} {name}", folder / source
        try:
            if name == "torch_save_to_dcp":
                make(folder, "dcp", args)
                at = folder / "saved.pt"
                converter(args, "dcp_to_torch_save", folder / "dcp", at)
            wall, cpu, peak = converter(args, name, at, folder / "new")
            print(f"{label:26} {wall:7.2f} s {wall / cp[0]:6.2f} x  {cpu:7.2f} s cpu {cpu / cp[1]:6.2f} x "
                  f"{peak / 2**20:6.0f} MiB", flush=True)
        except SystemExit as e:
            print(f"{label:26} did not run: {str(e).strip().splitlines()[-1]}", flush=True)
        remove(folder / "new")


def measure(folder, source, target, args):
    make(folder, source, args)
    new, copied = folder / "new", folder / "copied"
    ours = [BIN / "tp-reshard", folder / source, "--to", "tp1" if target in ("safetensors", "trainer") else "tp4", "--format", target,
            "--mem", "64M", "--json", "-o"]
    run_counted([*ours, copied])
    name, times, peak = f"{source} to {target}", {}, 0
    for _ in range(args.rounds):
        wall, cpu, out = run_counted([*ours, new])
        times.setdefault(name, []).append((wall, cpu))
        peak = max(peak, json.loads(out)["peak_rss_bytes"])
        remove(new)
        times.setdefault("cp -r", []).append(shell('cp -r "$1" "$2"; sync -f "$2"', copied, new)[:2])
        remove(new)
    remove(copied)
    cp = print_times(times, {name: peak}, args.of)["cp -r"]
    if args.torch:
        print_others(folder, source, target, args, cp)


def main():
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory(prefix="bench-formats-", dir=args.folder) as name:
        folder = pathlib.Path(name)
        make(folder, "tp", args)
        print(f"{du(folder / 'tp') / 1e9:.2f} GB, {args.rounds} rounds, load {os.getloadavg()[0]:.0f}")
        for source, target in [tuple(args.only.split(","))] if args.only else CONVERSIONS:
            if source == "zero" and not args.torch:
                print(f"zero to {target}: not measured, because DeepSpeed is needed to make it")
            else:
                measure(folder, source, target, args)


if __name__ == "__main__":
    main()
