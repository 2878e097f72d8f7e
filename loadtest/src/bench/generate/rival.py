"""Samples with transformers: told the model first, then what to sample, in lines of JSON; answers with seconds. Or
scores rows of tokens: answers with the log-probability of each, and whether it is the likeliest. Or times a matrix
product. Or says how many bytes of the GPU it had at most since it said so last. Says first where it computes.
Started by `millrace-loadtest bench generate`, after `matmul.py`, which says DEVICE."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

settings = json.loads(sys.stdin.readline())
torch.set_num_threads(settings["threads"])
print(json.dumps(DEVICE), flush=True)
models = {}
seed = 0


def model_in(dtype):
    if dtype not in models:
        model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=getattr(torch, dtype))
        models[dtype] = model.to(DEVICE).eval()
        models[dtype].generation_config = GenerationConfig(pad_token_id=0)
    return models[dtype]


@torch.no_grad()
def score(model, rows, start):
    logprobs, greedy = [], []
    for row in rows:
        ids = torch.tensor([row], device=DEVICE)
        every = torch.log_softmax(model(ids).logits[0, start - 1 : -1].float(), -1)
        drawn = ids[0, start:]
        logprobs.append(every.gather(1, drawn[:, None])[:, 0].tolist())
        greedy.append((every.argmax(-1) == drawn).tolist())
    return {"logprobs": logprobs, "greedy": greedy}


for line in sys.stdin:
    work = json.loads(line)
    if "matmul" in work:
        print(json.dumps(matmul(getattr(torch, work["matmul"]))), flush=True)
        continue
    if "peak" in work:
        cuda = DEVICE == "cuda"
        print(json.dumps(torch.cuda.max_memory_allocated() if cuda else None), flush=True)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        continue
    model = model_in(work["dtype"])
    if "score" in work:
        print(json.dumps(score(model, work["score"], work["from"])), flush=True)
        continue
    seed += 1
    torch.manual_seed(seed)
    ids = torch.randint(0, 10_000, (work["sequences"], settings["prompt"]), device=DEVICE)
    start = time.perf_counter()
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=work["tokens"], use_cache=True
    )
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    assert out.shape[1] == settings["prompt"] + work["tokens"], out.shape
    print(json.dumps(seconds), flush=True)
