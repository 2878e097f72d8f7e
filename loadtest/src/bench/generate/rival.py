"""Samples with transformers: for each line "SEQUENCES DTYPE TOKENS" says how many seconds it took."""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

folder, prompt, threads = sys.argv[1], *map(int, sys.argv[2:4])
torch.set_num_threads(threads)
models = {}
seed = 0
for line in sys.stdin:
    sequences, dtype, tokens = line.split()
    if dtype not in models:
        models[dtype] = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        models[dtype].generation_config = GenerationConfig(pad_token_id=0)
    seed += 1
    torch.manual_seed(seed)
    ids = torch.randint(0, 10_000, (int(sequences), prompt))
    start = time.perf_counter()
    out = models[dtype].generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=int(tokens), use_cache=True
    )
    seconds = time.perf_counter() - start
    assert out.shape[1] == prompt + int(tokens), out.shape
    print(seconds, flush=True)
