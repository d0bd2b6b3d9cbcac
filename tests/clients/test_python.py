"""The wheel of the Python package is built and installed, and models of transformers load what it reads.

needs: tp-train tp-ckpt
"""
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from harness import ok  # noqa: E402

sys.path.insert(0, str(harness.REPO / "python"))
import tp_checkpoint  # noqa: E402

FAMILIES = ["llama", "gpt2", "gemma3", "opt"]  # of which some have tied heads


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment into which the wheel was installed, without the network."""
    top = tmp_path_factory.mktemp("wheel")
    source = harness.copy(harness.REPO / "python", top / "python")  # setuptools writes beside the source
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(pip + ["wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", top, source], check=True)
    wheel, = top.glob("tp_checkpoint-*-py3-none-any.whl")
    # what pip installs here: a folder that Python looks into first; the other packages are those of this environment
    subprocess.run(pip + ["install", "--no-index", "--no-deps", "--target", top / "site", wheel], check=True)
    return top / "site"


def python(site, program, *argv):
    r = subprocess.run([sys.executable, "-B", "-c", program, *map(str, argv)], env={"PYTHONPATH": str(site)},
                       cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    return r.stdout


def test_the_wheel_is_installed_and_opens_a_checkpoint(installed, tmp_path):
    harness.train(harness.write_config(tmp_path / "model"), tmp_path / "ckpt", steps=1)
    out = python(installed, "import sys, tp_checkpoint as t; c = t.open(sys.argv[1]); "
                 "print(t.__file__, c.step, c['model.norm.weight'].torch().shape)", tmp_path / "ckpt")
    assert out == "%s/tp_checkpoint/__init__.py 1 torch.Size([64])\n" % installed


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_loads_the_state_dict_of_any_layout(name, tmp_path):
    config = json.loads((harness.REPO / "tests/fixture/families.json").read_text())[name]["config"]
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    model.save_pretrained(tmp_path / "model")
    ok("tp-ckpt", "import", tmp_path / "model", "--layout", "tp2", "-o", tmp_path / "ckpt")
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        loaded = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**ckpt.model_config))
        loaded.load_state_dict(ckpt.load_state_dict())
    ids = torch.arange(20)[None] % 32
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        assert all(v.dtype == torch.bfloat16 for v in ckpt.load_state_dict(torch.bfloat16).values())


def test_only_floating_point_tensors_are_converted(tmp_path):
    counts = np.array([70001, 3], np.int64)  # bf16 has no 70001
    tp_checkpoint.save(tmp_path / "ckpt", 1, {"w": np.ones(2, np.float32), "counts": counts})
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        state = ckpt.load_state_dict(torch.bfloat16)
        assert state["w"].dtype == torch.bfloat16 and state["counts"].tolist() == counts.tolist()
        with pytest.raises(TypeError, match="such as torch.bfloat16, not 'bf16'"):
            ckpt.load_state_dict("bf16")
        with pytest.raises(tp_checkpoint.NotFoundError, match="has no group ema; its groups are param"):
            ckpt.load_state_dict(group="ema")


def test_workers_of_a_data_loader_read_a_checkpoint(tmp_path):
    program = """
import sys, torch, tp_checkpoint
class Rows(torch.utils.data.Dataset):
    def __init__(self, t): self.t = t
    def __len__(self): return len(self.t)
    def __getitem__(self, i): return self.t.torch(i)
if __name__ == "__main__":
    with tp_checkpoint.open(sys.argv[1]) as ckpt:
        t = ckpt["w"]
        whole = t.torch()
        for how in "fork", "spawn":
            loader = torch.utils.data.DataLoader(Rows(t), batch_size=2, num_workers=2, multiprocessing_context=how)
            assert torch.equal(torch.cat(list(loader)), whole), how
        assert torch.equal(t.torch(), whole)
"""
    tp_checkpoint.save(tmp_path / "ckpt", 1, {"w": np.random.default_rng(1).standard_normal((8, 5))})
    (tmp_path / "rows.py").write_text(program)
    subprocess.run([sys.executable, tmp_path / "rows.py", tmp_path / "ckpt"], check=True, cwd=tmp_path, timeout=600,
                   env={"PYTHONPATH": str(harness.REPO / "python"), "PATH": "/usr/bin:/bin"})
