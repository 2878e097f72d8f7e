"""A plain PyTorch and transformers training loop, to be timed beside Millrace's trainer.

Reads one JSON line with the settings, loads the model, answers whose memory its peaks are of; then makes one
optimiser step for each line that it gets and answers with the figures of that step, or with why there are none: where
memory was short, it makes no further step and only times products. Layers compute in the settings' numbers; the
optimiser's weights and state are in f32, as Millrace's. Started by `millrace-loadtest bench train`, after `matmul.py`, which says DEVICE.
"""

import json
import resource
import sys
import time

import torch
import torch.nn.functional as F
import transformers


def peak_bytes():
    if DEVICE == "cuda":
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


class Loop:
    """The model, and the weights that the optimiser moves: its own, or those in f32 beside weights in 16 bits."""

    def __init__(self, settings):
        dtype = getattr(torch, settings["dtype"])
        model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=dtype, attn_implementation="sdpa"
        )
        self.settings, self.model = settings, model.to(DEVICE).train()
        own = list(model.parameters())
        self.beside = [] if dtype == torch.float32 else [(p, p.detach().float().requires_grad_()) for p in own]
        self.weights = [wide for _, wide in self.beside] or own
        fused = DEVICE == "cuda" or None
        self.optimiser = torch.optim.AdamW(
            self.weights, lr=settings["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0, fused=fused
        )
        # Bytes that libtorch kept for itself after the step before.
        self.kept = 0

    def step(self):
        rollouts, settings = self.settings["rollouts"], self.settings
        sampled = sum(len(rollout["tokens"]) - rollout["prompt"] for rollout in rollouts)
        self.model.zero_grad()
        total = 0.0
        for micro in microbatches(rollouts, settings["microbatch"]):
            tokens, attention, weight = tensors(micro)
            logits = self.model(input_ids=tokens, attention_mask=attention, use_cache=False).logits[:, :-1]
            minus_log_p = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
            loss = (minus_log_p * weight.flatten()).sum() / sampled
            loss.backward()
            total += loss.item()
        for half, wide in self.beside:
            wide.grad, half.grad = half.grad.float(), None
        norm = torch.nn.utils.clip_grad_norm_(self.weights, settings["max_grad_norm"]).item()
        self.optimiser.step()
        with torch.no_grad():
            for half, wide in self.beside:
                half.copy_(wide)
        return total, norm

    def timed(self, recompute):
        """The figures of a step."""
        if recompute:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()
        self.take_memory()
        start, busy = time.perf_counter(), time.process_time()
        loss, norm = self.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return {
            "seconds": time.perf_counter() - start,
            "busy_seconds": time.process_time() - busy,
            "loss": loss,
            "grad_norm": norm,
            "peak_bytes": peak_bytes(),
        }

    def take_memory(self):
        """Takes back what `give_memory` gave, so that a step's time is that of one after another."""
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            missing = self.kept - torch.cuda.memory_reserved()
            try:
                torch.empty(max(missing, 0), dtype=torch.uint8, device=DEVICE)
            except torch.cuda.OutOfMemoryError:
                # The step says itself whether what is left is enough.
                pass
            torch.cuda.reset_peak_memory_stats()

    def give_memory(self):
        """Gives memory that is only kept to the other side, which computes on the same GPU in between."""
        if DEVICE == "cuda":
            self.kept = torch.cuda.memory_reserved()
            torch.cuda.empty_cache()


def main():
    settings = json.loads(sys.stdin.readline())
    torch.set_num_threads(settings["threads"])
    loop, failed = Loop(settings), None
    print(json.dumps("device" if DEVICE == "cuda" else "host"), flush=True)
    for line in sys.stdin:
        figures = None
        if loop is not None:
            try:
                figures = loop.timed(json.loads(line)["recompute"])
                loop.give_memory()
            except torch.cuda.OutOfMemoryError as error:
                failed = "out of memory: " + str(error).split(". ")[0]
                loop = None
        if failed and DEVICE == "cuda":
            torch.cuda.empty_cache()
        product = matmul(getattr(torch, settings["dtype"]))
        print(json.dumps({"step": figures, "failed": failed, "matmul_flops": product}), flush=True)


main()
