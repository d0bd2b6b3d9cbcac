"""Asks vLLM, on the processor and in f32, what it computes with a folder.

    vllm_run.py < job.json

A job has folder, tp, load_format ("auto" or "sharded_state"), prompts (lists of tokens, or texts), steps, and save: a
folder for vLLM's own sharded state, or null. Prints {"prompts": the tokens of each prompt, "tokens": its greedy
continuation, "logprobs": the logarithms of the probabilities of its tokens but the first, after those before}.

On the processor vLLM packs the matrices of linear layers for its kernels and drops them, which graphics processors do
not, and so what it saves there would lack them. Where `save` or sharded_state asks for it, they stay as they are.
"""
import json
import os
import sys

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", OMP_NUM_THREADS="1",
                  TORCHDYNAMO_DISABLE="1", VLLM_LOGGING_LEVEL="WARNING", CUDA_VISIBLE_DEVICES="")

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.model_executor.layers import utils  # noqa: E402


KEEPS = "VLLM_RUN_KEEPS_WEIGHTS"


def keep_weights(layer, remove_weight):
    layer.cpu_linear = torch.nn.functional.linear


if KEEPS in os.environ:  # a worker runs this file too, by another name
    utils.dispatch_cpu_unquantized_gemm = keep_weights


def main():
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)  # vLLM prints a lot
    job = json.load(sys.stdin)
    if job["save"] or job["load_format"] == "sharded_state":
        os.environ[KEEPS] = "1"
        utils.dispatch_cpu_unquantized_gemm = keep_weights
    texts = any(isinstance(p, str) for p in job["prompts"])
    llm = vllm.LLM(model=job["folder"], tensor_parallel_size=job["tp"], load_format=job["load_format"], dtype="float32",
                   enforce_eager=True, max_model_len=32, max_num_seqs=4, max_num_batched_tokens=64, enable_prefix_caching=False,
                   skip_tokenizer_init=not texts, distributed_executor_backend="mp" if job["tp"] > 1 else None)
    if job["save"]:
        os.makedirs(job["save"], exist_ok=True)
        llm.llm_engine.engine_core.save_sharded_state(path=job["save"])
    params = vllm.SamplingParams(temperature=0.0, max_tokens=job["steps"], prompt_logprobs=0, detokenize=False, ignore_eos=True)
    answers = llm.generate([p if texts else dict(prompt_token_ids=p) for p in job["prompts"]], params, use_tqdm=False)
    print(json.dumps(dict(
        version=vllm.__version__, prompts=[list(a.prompt_token_ids) for a in answers],
        tokens=[list(a.outputs[0].token_ids) for a in answers],
        logprobs=[[at[token].logprob for token, at in zip(a.prompt_token_ids[1:], a.prompt_logprobs[1:])]
                  for a in answers])), file=out, flush=True)


if __name__ == "__main__":
    main()
