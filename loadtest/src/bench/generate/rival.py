"""Samples with transformers: told the model first, then what to sample, in lines of JSON; answers with seconds."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

settings = json.loads(sys.stdin.readline())
torch.set_num_threads(settings["threads"])
print(json.dumps("ready"), flush=True)
models = {}
seed = 0
for line in sys.stdin:
    work = json.loads(line)
    dtype = work["dtype"]
    if dtype not in models:
        models[dtype] = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=getattr(torch, dtype)).eval()
        models[dtype].generation_config = GenerationConfig(pad_token_id=0)
    seed += 1
    torch.manual_seed(seed)
    ids = torch.randint(0, 10_000, (work["sequences"], settings["prompt"]))
    start = time.perf_counter()
    out = models[dtype].generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=work["tokens"], use_cache=True
    )
    seconds = time.perf_counter() - start
    assert out.shape[1] == settings["prompt"] + work["tokens"], out.shape
    print(json.dumps(seconds), flush=True)
