"""Samples with vLLM: told the model first, to which it answers null, then what to sample, to which it answers with seconds,
all in lines of JSON. Started by `millrace-loadtest bench generate`, in the Python of `infra/dev/engines.sh setup vllm`."""

import json
import os
import random
import sys
import time

settings = json.loads(sys.stdin.readline())
# The engine writes its log to standard output.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
threads = str(settings["threads"])
os.environ |= {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": threads, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip

from vllm import LLM, SamplingParams  # noqa: E402

engines = {}


def engine(dtype):
    """The model in these numbers, compiled as vLLM does by itself. Prompts are random, so no prefix is worth a cache."""
    if dtype not in engines:
        engines[dtype] = LLM(
            settings["model"], dtype=dtype, max_model_len=settings["context"], max_num_seqs=settings["sequences"],
            enable_prefix_caching=False,
        )  # fmt: skip
        sample(engines[dtype], settings["sequences"], 8)
    return engines[dtype]


def sample(llm, sequences, tokens):
    prompts = [
        {"prompt_token_ids": [random.randrange(10_000) for _ in range(settings["prompt"])]} for _ in range(sequences)
    ]
    how = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    done = llm.generate(prompts, how, use_tqdm=False)
    seconds = time.perf_counter() - start
    assert [len(one.outputs[0].token_ids) for one in done] == [tokens] * sequences, done
    return seconds


def answer(value):
    print(json.dumps(value), file=answers, flush=True)


if __name__ == "__main__":
    answer(None)
    for line in sys.stdin:
        work = json.loads(line)
        answer(sample(engine(work["dtype"]), work["sequences"], work["tokens"]))
