"""Every command of docs/TUTORIAL.md runs and prints what the page shows."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from console_page import run_page  # noqa: E402

SAVED_AND_STOPPED = 75


def wanted_status(command):
    return SAVED_AND_STOPPED if "--exit-step" in command else 0


def test_every_command_of_the_tutorial(tmp_path):
    env = dict(os.environ, HOME=str(tmp_path), PIP_NO_INPUT="1",
               PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    assert run_page(ROOT / "docs" / "TUTORIAL.md", ROOT, env, wanted_status) > 15
