"""tests/clients/test_torch_speed.py - the PyTorch models that tests/gpu/gpu_check.py compares with, on a CPU: what is compiled
computes the loss of what is not, and all layers of a model share one graph, which is why they compile in time."""
import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import torch_speed  # noqa: E402
import training_goals  # noqa: E402


@pytest.mark.parametrize("config", [{**training_goals.TINY, "num_hidden_layers": 10}, {**training_goals.GPT2_TINY, "n_layer": 10}],
                         ids=["llama", "gpt2"])
def test_compiled_layers_share_a_graph_and_have_the_models_loss(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids, losses = torch.arange(24).reshape(2, 12), []
    for mode in ("eager", "compile_layers"):
        torch.manual_seed(0)
        model = torch_speed.model_of(tmp_path, "cpu")
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        losses.append(torch_speed.compiled(model, mode, backend="aot_eager")(input_ids=ids, labels=ids).loss.item())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, torch._dynamo.utils.counters  # a layer, and the loss
    assert abs(losses[0] - losses[1]) < 1e-5, losses
