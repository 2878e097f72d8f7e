"""A plain PyTorch and transformers training loop, to be timed beside Millrace's trainer.

Reads one JSON line with the settings, loads the model, answers `"ready"`; then makes one optimiser step for each
line that it gets and answers with the figures of that step. Started by `millrace-loadtest bench train`, after
`matmul.py`, which says DEVICE.
"""

import json
import resource
import sys
import time

import torch
import torch.nn.functional as F
import transformers


def peak_bytes():
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def microbatches(rollouts, most):
    """Rollouts of like length together, at most `most` tokens with their padding."""
    order = sorted(rollouts, key=lambda rollout: -len(rollout["tokens"]))
    packed = []
    for rollout in order:
        if packed and (len(packed[-1]) + 1) * len(packed[-1][0]["tokens"]) <= most:
            packed[-1].append(rollout)
        else:
            packed.append([rollout])
    return packed


def tensors(rollouts):
    longest = max(len(rollout["tokens"]) for rollout in rollouts)
    shape = (len(rollouts), longest)
    tokens = torch.zeros(shape, dtype=torch.long)
    attention = torch.zeros(shape, dtype=torch.long)
    weight = torch.zeros((shape[0], longest - 1))
    for row, rollout in enumerate(rollouts):
        length = len(rollout["tokens"])
        tokens[row, :length] = torch.tensor(rollout["tokens"])
        attention[row, :length] = 1
        weight[row, rollout["prompt"] - 1 : length - 1] = rollout["advantage"]
    return tokens.to(DEVICE), attention.to(DEVICE), weight.to(DEVICE)


def step(model, optimiser, rollouts, settings):
    sampled = sum(len(rollout["tokens"]) - rollout["prompt"] for rollout in rollouts)
    optimiser.zero_grad()
    total = 0.0
    for micro in microbatches(rollouts, settings["microbatch"]):
        tokens, attention, weight = tensors(micro)
        logits = model(input_ids=tokens, attention_mask=attention, use_cache=False).logits[:, :-1]
        minus_log_p = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        loss = (minus_log_p * weight.flatten()).sum() / sampled
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"]).item()
    optimiser.step()
    return total, norm


def main():
    settings = json.loads(sys.stdin.readline())
    torch.set_num_threads(settings["threads"])
    dtype = getattr(torch, settings["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype=dtype, attn_implementation="sdpa")
    model.to(DEVICE).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        if json.loads(line)["recompute"]:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        start, busy = time.perf_counter(), time.process_time()
        loss, norm = step(model, optimiser, settings["rollouts"], settings)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        figures = {
            "seconds": time.perf_counter() - start,
            "busy_seconds": time.process_time() - busy,
            "loss": loss,
            "grad_norm": norm,
            "peak_bytes": peak_bytes(),
            "matmul_flops": matmul(dtype),
        }
        print(json.dumps(figures), flush=True)


main()
