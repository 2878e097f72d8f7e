"""An independent oracle for losses, advantages and whole train steps, in float64.

It shares no code with the crate: plain torch operations, written from the papers' formulas and from the
definition of a Llama decoder. It writes `losses.json` and `step.json` beside itself; both are committed, so
that the tests need no Python:

    python3 workers/torch/tests/oracle/oracle.py
"""

import json
import math
from pathlib import Path

import torch

torch.set_default_dtype(torch.float64)
HERE = Path(__file__).parent


def numbers(count, seed, low=-1.0, high=1.0):
    """Numbers in [low, high) from a linear congruential generator, so that they need no library."""
    state, out = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(low + (high - low) * (state >> 11) / 2**53)
    return out


def losses():
    tokens, vocabulary = 24, 5
    log_p = torch.tensor(numbers(tokens, 1, -4.0, 0.0), requires_grad=True)
    log_old = log_p.detach() + torch.tensor(numbers(tokens, 2, -0.6, 0.6))
    advantage = torch.tensor(numbers(tokens, 3, -2.0, 2.0))
    mask = torch.tensor([float(i % 4 != 3) for i in range(tokens)])
    low, high = 0.2, 0.28

    per_token, clipped = [], []
    for p, o, a in zip(log_p, log_old, advantage):
        r = torch.exp(p - o)
        bounded = min(max(r.item(), 1 - low), 1 + high)
        # Equation 7 of the PPO paper, by cases.
        if r.item() * a.item() <= bounded * a.item():
            per_token.append(-(r * a))
            clipped.append(False)
        else:
            per_token.append(-(bounded * a) + 0.0 * r)
            clipped.append(True)
    ppo = torch.stack(per_token)
    (ppo_grad,) = torch.autograd.grad((ppo * mask).sum() / mask.sum(), log_p)
    pg = -advantage * log_p
    (pg_grad,) = torch.autograd.grad((pg * mask).sum() / mask.sum(), log_p)

    logits = torch.tensor(numbers(4 * vocabulary, 4, -3.0, 3.0)).reshape(4, vocabulary).requires_grad_()
    p = torch.softmax(logits, -1)
    entropy = -(p * torch.log(p)).sum(-1)
    (entropy_grad,) = torch.autograd.grad(entropy.sum(), logits)

    rho = torch.exp(log_p.detach() - log_old)
    kept = mask == 1
    delta = (log_p.detach() - log_old)[kept]
    n = kept.sum().item()
    drift = {
        "logprob_abs": delta.abs().mean().item(),
        "kl_k1": (-delta).mean().item(),
        "kl_k3": (torch.exp(delta) - 1 - delta).mean().item(),
        "logprob_exp_abs": torch.exp(delta.abs()).mean().item(),
        "chi2": (rho[kept] ** 2).mean().item() - 1,
        "ess": (rho[kept].sum() ** 2 / (n * (rho[kept] ** 2).sum())).item(),
    }
    kls = {}
    for name, term in (("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: torch.exp(-d) - 1 + d)):
        value = term(log_p - log_old)
        (grad,) = torch.autograd.grad((value * mask).sum() / mask.sum(), log_p)
        kls[name] = {"value": value.tolist(), "grad": grad.tolist()}
    rewards = numbers(8, 5, 0.0, 1.0)
    mean = sum(rewards) / 8
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 7)
    return {
        "log_p": log_p.tolist(), "log_old": log_old.tolist(), "advantage": advantage.tolist(), "mask": mask.tolist(),
        "low": low, "high": high,
        "ppo": ppo.tolist(), "ppo_clipped": clipped, "ppo_mean": ((ppo * mask).sum() / mask.sum()).item(),
        "ppo_grad": ppo_grad.tolist(), "pg": pg.tolist(), "pg_grad": pg_grad.tolist(),
        "logits": logits.tolist(), "entropy": entropy.tolist(), "entropy_grad": entropy_grad.tolist(),
        "drift": drift, "kl": kls,
        "rewards": rewards, "grpo": [(r - mean) / (std + 1e-6) for r in rewards], "dr_grpo": [r - mean for r in rewards],
    }


VOCABULARY, WIDTH, INNER, LAYERS, HEADS, CONTEXT = 7, 8, 12, 2, 2, 32
TEMPERATURE = 0.8


def shapes():
    out = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{at}{name}.weight"] = (WIDTH,)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            out[f"{at}self_attn.{name}.weight"] = (WIDTH, WIDTH)
        out[f"{at}mlp.gate_proj.weight"] = (INNER, WIDTH)
        out[f"{at}mlp.up_proj.weight"] = (INNER, WIDTH)
        out[f"{at}mlp.down_proj.weight"] = (WIDTH, INNER)
    out["model.norm.weight"] = (WIDTH,)
    out["lm_head.weight"] = (VOCABULARY, WIDTH)
    return out


def initial():
    """The weights, rounded to f32 as a file holds them."""
    weights = {}
    for index, (name, shape) in enumerate(shapes().items()):
        values = torch.tensor(numbers(math.prod(shape), 100 + index, -0.6, 0.6)).reshape(shape)
        weights[name] = (values + (1.0 if len(shape) == 1 else 0.0)).float().double()
    return weights


def rms(x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def rotate(x):
    """Rotary embedding of one head `[T, H]`, pair (i, i + H/2) by angle position / 10000^(2i/H)."""
    length, width = x.shape
    half = width // 2
    out = torch.empty_like(x)
    for i in range(half):
        angle = torch.arange(length, dtype=torch.float64) / 10000.0 ** (2 * i / width)
        a, b = x[:, i], x[:, i + half]
        out = out.index_copy(1, torch.tensor([i]), (a * torch.cos(angle) - b * torch.sin(angle)).unsqueeze(1))
        out = out.index_copy(1, torch.tensor([i + half]), (b * torch.cos(angle) + a * torch.sin(angle)).unsqueeze(1))
    return out


def hidden_of(weights, tokens):
    """One rollout alone, no batch and no cache: what the head is given. `[T, WIDTH]`"""
    x = weights["model.embed_tokens.weight"][torch.tensor(tokens)]
    head = WIDTH // HEADS
    for layer in range(LAYERS):
        w = lambda name: weights[f"model.layers.{layer}.{name}.weight"]
        h = rms(x, w("input_layernorm"))
        q, k, v = (h @ w(f"self_attn.{name}_proj").T for name in "qkv")
        heads = []
        for n in range(HEADS):
            cut = slice(n * head, (n + 1) * head)
            scores = rotate(q[:, cut]) @ rotate(k[:, cut]).T / math.sqrt(head)
            hidden = torch.triu(torch.ones_like(scores), diagonal=1) == 1
            heads.append(torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v[:, cut])
        x = x + torch.cat(heads, -1) @ w("self_attn.o_proj").T
        h = rms(x, w("post_attention_layernorm"))
        gate = h @ w("mlp.gate_proj").T
        x = x + (gate * torch.sigmoid(gate) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    return rms(x, weights["model.norm.weight"])


def logits_of(weights, tokens):
    """`[T, V]`"""
    return hidden_of(weights, tokens) @ weights["lm_head.weight"].T


def make_batch(weights):
    """Three groups of two rollouts of different lengths; the last group has no signal. The recorded
    log-probabilities are off from the policy's by up to 0.5, so that some ratios are clipped."""
    groups, index = [], 0
    for group in range(3):
        rollouts = []
        for _ in range(2):
            length = 6 + 3 * index
            tokens = [int(n) for n in numbers(length, 200 + index, 0, VOCABULARY)]
            turns = [(2, 2), (5, 1)] if length < 9 else [(3, 2), (6, length - 6)]
            with torch.no_grad():
                log_p = torch.log_softmax(logits_of(weights, tokens) / TEMPERATURE, -1)
            noise = numbers(length, 300 + index, -0.5, 0.5)
            made = []
            for at, count in turns:
                logprobs = [log_p[t - 1, tokens[t]].item() + noise[t] for t in range(at, at + count)]
                made.append({"at": at, "logprobs": torch.tensor(logprobs).float().double().tolist()})
            reward = 0.5 if group == 2 else numbers(1, 400 + index, 0.0, 1.0)[0]
            rollouts.append({"tokens": tokens, "turns": made, "reward": reward})
            index += 1
        groups.append(rollouts)
    return groups


def advantages(groups):
    out = []
    for rollouts in groups:
        rewards = [r["reward"] for r in rollouts]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        out.append([0.0 if std <= 1e-6 else (r - mean) / (std + 1e-6) for r in rewards])
    return out


def step(groups, epochs, algorithm):
    """Two passes of PPO-clip with an entropy bonus, each one AdamW update. Gives the first gradient (cut),
    its norm before, and the weights at the end."""
    weights = {name: w.clone().requires_grad_() for name, w in initial().items()}
    optimiser = torch.optim.AdamW(
        [
            {"params": [w for w in weights.values() if w.dim() == 2], "weight_decay": algorithm["weight_decay"]},
            {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
        ],
        lr=algorithm["learning_rate"], betas=(algorithm["adam_beta1"], algorithm["adam_beta2"]), eps=1e-8,
    )
    first, norms, loss_of_first = None, [], None
    for _ in range(epochs):
        optimiser.zero_grad()
        total, count = 0.0, 0
        for rollouts, group in zip(groups, advantages(groups)):
            for rollout, a in zip(rollouts, group):
                logprobs = torch.log_softmax(logits_of(weights, rollout["tokens"]) / TEMPERATURE, -1)
                for turn in rollout["turns"]:
                    for n, m in enumerate(turn["logprobs"]):
                        row = logprobs[turn["at"] + n - 1]
                        r = torch.exp(row[rollout["tokens"][turn["at"] + n]] - m)
                        surrogate = torch.minimum(r * a, torch.clamp(r, 0.8, 1.2) * a)
                        total = total - surrogate + algorithm["entropy"] * (torch.exp(row) * row).sum()
                        count += 1
        loss = total / count
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), algorithm["max_grad_norm"]).item())
        if first is None:
            first = {name: w.grad.clone() for name, w in weights.items()}
            loss_of_first = loss.item()
        optimiser.step()
    flat = lambda tensors: {name: t.detach().reshape(-1).tolist() for name, t in tensors.items()}
    return {"loss": loss_of_first, "grad_norm": sum(norms) / len(norms), "gradient": flat(first), "weights": flat(weights)}


def whole_step():
    weights = initial()
    groups = make_batch(weights)
    algorithm = {
        "learning_rate": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.95, "weight_decay": 0.1,
        "max_grad_norm": 0.05, "entropy": 0.01,
    }
    tokens = groups[2][1]["tokens"]
    return {
        "temperature": TEMPERATURE,
        "algorithm": algorithm,
        "initial": {name: w.reshape(-1).tolist() for name, w in weights.items()},
        "groups": groups,
        "tokens": tokens,
        "logits": logits_of(weights, tokens).reshape(-1).tolist(),
        "one_epoch": step(groups, 1, algorithm),
        "two_epochs": step(groups, 2, algorithm),
    }


if __name__ == "__main__":
    for name, content in (("losses", losses()), ("step", whole_step())):
        (HERE / f"{name}.json").write_text(json.dumps(content) + "\n")
