"""What the tests of programs share: running them, small models, trees of files to compare.

The environment says where the programs are: TP_BIN (default: bin/) and TP_BUILD (build/plain/).
"""
import functools
import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/runner"))
import selection  # noqa: E402

BIN = pathlib.Path(os.environ.get("TP_BIN", REPO / "bin"))
BUILD = pathlib.Path(os.environ.get("TP_BUILD", REPO / "build/plain"))
SANITIZE = os.environ.get("TP_SANITIZE", "")
LONG = bool(os.environ.get("TP_LONG"))
TEXT = "/usr/share/common-licenses/GPL-3"

if os.geteuid() == 0:  # mpirun asks for it
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")

# 8 heads and 8 shares of everything, so that every power of two up to 8 divides it; fewer KV heads
# than that, so that tp8 repeats them.
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}


class Result:
    """What a program did: rc, out, err, and err's lines."""

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
    """`make test T=one` builds what the test's file declares, so it must declare what it runs."""
    test_file = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[0]
    names = declared(test_file)
    assert name in (names or [name]), "%s runs %s; add it to the line `needs: %s`" % (
        test_file, name, " ".join(names))


def built(name):
    """The path of something that `make tests` builds for tests: make_ckpt, fault/shim.so."""
    return BUILD / "tests" / name


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


def run(*argv, env=None, cwd=None, timeout=300, stdin=None):
    """Run to the end, whatever it answers; a program that hangs or is killed is an error here."""
    p = subprocess.run(command(argv), env={**os.environ, **(env or {})}, cwd=cwd, timeout=timeout,
                       stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, errors="replace")
    r = Result(argv, p.returncode, p.stdout, p.stderr)
    assert r.rc >= 0, "killed by a signal: %r" % r
    return r


def ok(*argv, **kw):
    """Run; it must answer 0."""
    r = run(*argv, **kw)
    assert r.rc == 0, repr(r)
    return r


def write_config(folder, **changes):
    """Write a config.json: TINY with changes (None removes a key); its path."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {k: v for k, v in {**TINY, **changes}.items() if v is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def train_args(model, root=None, steps=2, layout="tp2", **options):
    """The command line of a small run; options by their long names, True for a flag."""
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


def losses(log):
    """[loss of step 0, ...] of a --log file."""
    return [json.loads(line)["loss"] for line in open(log)]


def digest(ckpt):
    """Digest of all tensors of a checkpoint, by tp-ckpt."""
    return ok("tp-ckpt", "digest", ckpt).out.splitlines()[-1].split()[0]


def steps(root):
    """Committed step directories of a root, oldest first."""
    return sorted(p for p in pathlib.Path(root).glob("step-*") if ".tmp" not in p.name)


def tree(*roots, but=()):
    """{path: what it is} of everything under roots, to compare before and after.

    but: names that may come and go.
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
