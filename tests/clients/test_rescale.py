"""examples/deepspeed: a job of ZeRO-3 loses a node, and continues on the other one under tp-run, with the same losses.

needs: tp-run tp-reshard libtp-progress.so
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from run_job import Job  # noqa: E402

BIN = pathlib.Path(sys.executable).parent
SAVES, AT_LEAST = 10, 14  # every tenth step is saved; node b is lost when some more were made


def example(folder, name, nodes, losses):
    """The job of an example, on other nodes and with losses. Returns it and its environment."""
    top = harness.copy(harness.REPO / "examples", folder / "examples") / name
    text = (top / "job.yaml").read_text()
    assert "nodes: [a, b, c, d]" in text and " --save-every 10" in text
    text = text.replace("nodes: [a, b, c, d]", "nodes: %s" % nodes).replace(" --save-every 10", " --save-every 10 --losses %s" % losses)
    (top / "job.yaml").write_text(text + "watch: {floor: 60s}\nrestart: {settle: 0.2s}\n")
    job = Job.of_file(top / "job.yaml", folder)
    paths = os.pathsep.join([os.environ["TP_FRAMEWORKS"], str(harness.REPO / "progress")])
    return job, {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                 "PATH": "%s:%s:%s" % (harness.BIN, BIN, os.environ["PATH"])}


def test_zero3_loses_a_node_and_continues_on_the_other_one(tmp_path):
    job, env = example(tmp_path, "deepspeed", "[a, b]", tmp_path / "losses")
    with job:
        job.start(env=env)
        job.await_step(AT_LEAST, timeout=200)
        assert job.verb("node", "down", "b").rc == 0
        job.await_event("training", 2, timeout=200)
        job.await_step(2 * SAVES + 1, timeout=200)
        assert job.verb("stop", "--wait").rc == 0 and job.wait() == 75, job.story()
        assert [e["layout"] for e in job.events("launch")] == ["tp1dp2", "tp1"], job.story()
    lines = [json.loads(line) for line in (tmp_path / "losses").read_text().splitlines()]
    two = {line["step"]: line["loss"] for line in lines if line["ranks"] == 2}
    one = {line["step"]: line["loss"] for line in lines if line["ranks"] == 1}
    again = sorted(two.keys() & one.keys())
    assert again == list(range(SAVES + 1, max(two) + 1)) and len(again) >= 3 and max(one) > 2 * SAVES, (two, one)
    for step in again:  # with the moments of the ten steps before
        assert abs(one[step] - two[step]) < 2e-5 * two[step], (step, one[step], two[step])
