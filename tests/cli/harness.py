"""Helpers for the tests of programs: run programs, write small models, compare trees of files.

TP_BIN (default: bin/) and TP_BUILD (default: build/plain/) are the folders of the programs.
"""
import functools
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import stat
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/runner"))
import selection  # noqa: E402

BIN = pathlib.Path(os.environ.get("TP_BIN", REPO / "bin"))
BUILD = pathlib.Path(os.environ.get("TP_BUILD", REPO / "build/plain"))
SANITIZE = os.environ.get("TP_SANITIZE", "")
# With a sanitizer, tp-run is tested with the ordinary tp-train: these jobs train hundreds of steps, and other
# tests run the trainer's code with the sanitizer. `make test` builds it.
JOB_TRAIN = str(REPO / "bin/tp-train") if SANITIZE else "tp-train"
LONG = bool(os.environ.get("TP_LONG"))
TEXT = "/usr/share/common-licenses/GPL-3"

if os.geteuid() == 0:  # without these mpirun refuses to run as root
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")  # Open MPI 4
os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")  # Open MPI 5
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the fake CUDA device reads it too

# Every power of two up to 8 divides the heads and widths. With only 4 KV heads, tp8 replicates them.
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}


class Result:
    """The exit code of a program, and what it wrote to stdout and stderr."""

    def __init__(self, argv, rc, out, err):
        self.argv, self.rc, self.out, self.err = argv, rc, out, err

    @property
    def lines(self):
        return [line for line in self.err.splitlines() if line.strip()]

    def __repr__(self):
        return "\n$ %s\nexit %d\n-- stdout\n%s\n-- stderr\n%s" % (
            " ".join(map(str, self.argv)), self.rc, self.out[-3000:], self.err[-3000:])


@functools.lru_cache(None)
def declared(test_file):
    """The names of a test file's `needs:` line."""
    if (REPO / test_file).is_file():
        return selection.head(test_file, "needs")
    return None


def check_declared(name):
    """`make test T=one` builds only what the test's file declares, so the file must declare what it runs."""
    test_file = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[0]
    names = declared(test_file)
    if names is None and not test_file.startswith("tests/cli/"):  # make builds all programs for these
        return
    assert name in (names or []), "%s runs %s; add it to the line `needs: %s`" % (
        test_file, name, " ".join(names or []))


def built(name):
    """The path of a program or library that `make tests` builds: make_ckpt, fault/shim.so."""
    return BUILD / "tests" / name


def ignore_hangup():
    """In a new process, before exec: what nohup does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def of_each_rank(*commands):
    """A command that is one of these for each rank under mpirun. Open MPI 5.0.7's mpirun crashes when it gets several."""
    cases = ("%d) exec %s;;" % (rank, shlex.join(map(str, words))) for rank, words in enumerate(commands))
    return ["sh", "-c", "case $OMPI_COMM_WORLD_RANK in %s esac" % " ".join(cases)]


def command(argv):
    """argv with each of our programs as its full path."""
    argv = [str(a) for a in argv]
    tests = str(built(""))
    for i, word in enumerate(argv):
        if word.startswith("tp-") and (BIN / word).exists():
            check_declared(word)
            argv[i] = str(BIN / word)
        elif word.startswith(tests + "/"):
            check_declared(word[len(tests) + 1:])
    return argv


def run(*argv, env=None, cwd=None, timeout=900, stdin=None):
    """Run a program to its end. Any exit code is accepted, but not a signal or a timeout. (On a busy machine, what takes
    seconds elsewhere may take minutes.)"""
    p = subprocess.run(command(argv), env={**os.environ, **(env or {})}, cwd=cwd, timeout=timeout,
                       stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, errors="replace")
    r = Result(argv, p.returncode, p.stdout, p.stderr)
    assert r.rc >= 0, "killed by a signal: %r" % r
    return r


def ok(*argv, **kw):
    """Run a program. It must exit with 0."""
    r = run(*argv, **kw)
    assert r.rc == 0, repr(r)
    return r


def write_config(folder, **changes):
    """Write FOLDER/config.json, TINY with changes (None removes a key). Returns its path."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {k: v for k, v in {**TINY, **changes}.items() if v is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def make_large_shards(folder):
    """Write FOLDER/ckpt, a checkpoint of four shards that are uploaded in several parts. Returns its root."""
    config = write_config(folder, hidden_size=256, intermediate_size=768, head_dim=32)
    ok(built("make_ckpt"), config, "tp4", folder / "ckpt", 1, 11, "bf16")
    return folder / "ckpt"


def train_args(model, root=None, steps=2, layout="tp2", **options):
    """The command line of a small training run. options: long names and values; True for a flag."""
    argv = ["tp-train", "--model", model, "--data", TEXT, "--steps", steps, "--layout", layout,
            "--seq", 32, "--batch", 4, "--warmup", 2]
    if root:
        argv += ["--ckpt", root]
    for name, value in options.items():
        name = "--" + name.replace("_", "-")
        argv.append(name if value is True else "%s=%s" % (name, value))
    return argv


def train(model, root=None, **kw):
    return ok(*train_args(model, root, **kw))


def read_log(path):
    """The lines of a --log file."""
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def losses(log):
    """The losses in a --log file."""
    return [line["loss"] for line in read_log(log)]


def digest(ckpt):
    """The digest of all tensors of a checkpoint."""
    return ok("tp-ckpt", "digest", ckpt).out.splitlines()[-1].split()[0]


def steps(root):
    """The complete step directories of a root, oldest first."""
    return sorted(p for p in pathlib.Path(root).glob("step-*") if ".tmp" not in p.name)


def tree(*roots, but=()):
    """{path: its content, target or mode} of everything below roots, to compare before and after.

    but: names to leave out.
    """
    seen = {}
    for root in map(str, roots):
        for folder, dirs, files in os.walk(root):
            for name in dirs + files:
                path = os.path.join(folder, name)
                if name in but:
                    continue
                mode = os.lstat(path).st_mode
                if stat.S_ISREG(mode):
                    with open(path, "rb") as f:
                        seen[path] = hashlib.sha256(f.read()).hexdigest()
                elif stat.S_ISLNK(mode):
                    seen[path] = "-> " + os.readlink(path)
                else:
                    seen[path] = stat.filemode(mode)
    return seen


def copy(src, dst):
    shutil.copytree(src, dst, symlinks=True)
    return pathlib.Path(dst)


# A small process runs the program, because ru_maxrss includes the memory of the process that called exec.
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as f:
    f.write("%d %d %g" % (os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024,
                          usage.ru_utime + usage.ru_stime))
"""


def measure(tmp_path, *argv):
    """Run a program; (exit code, peak bytes, CPU seconds, output)."""
    result = tmp_path / "measured"
    p = subprocess.run([sys.executable, "-S", "-E", "-c", _MEASURE, str(result), *command(argv)],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=300)
    code, peak, seconds = result.read_text().split()
    return int(code), int(peak), float(seconds), p.stdout + p.stderr
