"""tests/gpu/machine.py - what a report of tests/gpu/gpu_check.py says of the machine: versions, and the state of its GPUs."""
import shutil

from findings import Failed, Missing

# Each is a query of its own, because nvidia-smi refuses all fields where a driver lacks one.
QUERIES = {
    "gpu": "name,driver_version,memory.total,memory.used",
    "clocks": "clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem",
    "power": "power.draw,power.limit,temperature.gpu,pstate",
    "ecc": "ecc.mode.current,ecc.errors.uncorrected.volatile.total,ecc.errors.uncorrected.aggregate.total",
    "modes": "compute_mode,persistence_mode,mig.mode.current",
}


def lines_of_smi(c, query):
    """One for each GPU or process; or what nvidia-smi says against the query."""
    try:
        return [line.strip() for line in c.run("nvidia-smi", query, "--format=csv,noheader", seconds=30).splitlines() if line.strip()]
    except Failed as e:
        return [str(e)]


def state(c):
    """{what: text of each GPU}; other processes on a GPU make every figure of speed wrong, and so do low clocks."""
    if not shutil.which("nvidia-smi"):
        raise Missing("nvidia-smi is not installed")
    found = {name: lines_of_smi(c, "--query-gpu=" + fields) for name, fields in QUERIES.items()}
    found["other processes"] = lines_of_smi(c, "--query-compute-apps=pid,process_name,used_memory") or ["none"]
    return {name: "; ".join(lines) for name, lines in found.items()}


def versions(c):
    """{library: version} of what our programs load, the number of GPUs, and the name of the first one, by gpu_check."""
    said = c.run(c.program("gpu_check"), "--versions", seconds=30)
    return dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)


def known_versions(c):
    try:
        return versions(c)
    except (Missing, Failed):
        return {}


def n_gpus(c):
    """How many GPUs our programs see; None where that is not known."""
    n = known_versions(c).get("GPUs", "")
    return int(n) if n.isdigit() else None


def gpu_name(c):
    """CUDA's name of the GPU that our programs use. nvidia-smi may list others before it: its order is another one, and it does not
    know CUDA_VISIBLE_DEVICES."""
    return known_versions(c).get("GPU 0")
