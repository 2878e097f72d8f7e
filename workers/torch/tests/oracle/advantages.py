"""The part of the oracle in `algorithms.py` that is about rewards and advantages, by the formulas' own definitions."""

import math
import statistics

import torch
from oracle import numbers


def normal(values):
    if len(values) < 2:
        return [0.0] * len(values)
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return [0.0 if std <= 1e-6 else (v - mean) / (std + 1e-6) for v in values]


def advantages_of(name, groups, parameters):
    """Per group, rollout and turn. A rollout is a list of (reward, state) of its turns."""
    rewards = [[sum(r for r, _ in rollout) for rollout in group] for group in groups]
    returns = lambda rollout, gamma: [
        sum(gamma ** (j - k) * rollout[j][0] for j in range(k, len(rollout))) for k in range(len(rollout))
    ]
    if name == "chunk":
        return [[returns(rollout, parameters["discount"]) for rollout in group] for group in groups]
    if name == "gi_gpo":
        out = []
        for group, of in zip(groups, rewards):
            values = [returns(rollout, parameters["discount"]) for rollout in group]
            a = [[episode] * len(rollout) for episode, rollout in zip(normal(of), group)]
            for state in {state for rollout in group for _, state in rollout}:
                at = [(i, k) for i, rollout in enumerate(group) for k, (_, s) in enumerate(rollout) if s == state]
                for (i, k), step in zip(at, normal([values[i][k] for i, k in at])):
                    a[i][k] += parameters["turn_weight"] * step
            out.append(a)
        return out
    everyone = [r for of in rewards for r in of]
    flat, spread = normal(everyone), statistics.stdev(everyone)
    out = []
    for group, of in zip(groups, rewards):
        n, mean = len(of), sum(of) / len(of)
        batch, flat = flat[:n], flat[n:]
        each = {
            "grpo": normal(of),
            "dr_grpo": [r - mean for r in of],
            "rloo": [r - (sum(of) - r) / (n - 1) for r in of],
            "max_rl": [(r - mean) / mean if mean > 1e-6 else 0.0 for r in of],
            "reinforce_plus_plus": batch,
            "lite_ppo": [0.0 if spread <= 1e-6 else (r - mean) / (spread + 1e-6) for r in of],
            "reinforce": of,
            "raft": [1.0 if r == max(of) else 0.0 for r in of],
        }[name]
        out.append([[a] * len(rollout) for a, rollout in zip(each, group)])
    return out


def normalised(groups, norm, before):
    """The groups with rewards normalised, `before` being all rewards of earlier batches: turns are divided, and the last
    one loses the mean."""
    rewards = [[math.fsum(r for r, _ in rollout) for rollout in group] for group in groups]
    batch = [r for of in rewards for r in of]
    out = []
    for group, of in zip(groups, rewards):
        over = {"group": of, "batch": batch, "running": before + batch}
        mean = statistics.fmean(over[norm["mean"]]) if "mean" in norm else 0.0
        spread = statistics.stdev(over[norm["std"]]) if "std" in norm else None
        divide = lambda x: x if spread is None else 0.0 if spread <= 1e-6 else x / (spread + 1e-6)
        out.append([
            [(divide(r - (mean if k + 1 == len(rollout) else 0.0)), state) for k, (r, state) in enumerate(rollout)]
            for rollout in group
        ])
    return out


NORMS = [
    {"mean": "group"}, {"mean": "group", "std": "group"}, {"mean": "group", "std": "batch"}, {"std": "batch"},
    {"mean": "batch", "std": "batch"}, {"mean": "running", "std": "running"}, {"mean": "group", "std": "running"},
]


def norms(groups, parameters):
    before = numbers(7, 77, -1.0, 3.0)
    cases = [
        {"norm": norm, "advantage": name, "values": advantages_of(name, normalised(groups, norm, before), parameters)}
        for norm in NORMS for name in ("reinforce", "chunk")
    ]
    tokens = numbers(11, 78, -2.0, 5.0)
    white = [(x - statistics.fmean(tokens)) / (statistics.stdev(tokens) + 1e-6) for x in tokens]
    return {"before": before, "cases": cases, "tokens": tokens, "white": white}


def advantages():
    """Three groups of four; turns bring quarters, so that states meet again and rewards may be alike."""
    drawn = iter(numbers(400, 21, 0.0, 1.0))
    groups = [
        [[(int(next(drawn) * 5) / 4, int(next(drawn) * 3)) for _ in range(1 + int(next(drawn) * 3))] for _ in range(4)]
        for _ in range(3)
    ]
    parameters = {"discount": 0.9, "turn_weight": 0.5}
    names = [
        "grpo", "dr_grpo", "rloo", "max_rl", "reinforce_plus_plus", "lite_ppo", "reinforce", "raft", "chunk", "gi_gpo",
    ]
    return {
        "groups": groups, "parameters": parameters,
        "values": {name: advantages_of(name, groups, parameters) for name in names},
        "norms": norms(groups, parameters),
    }


def gae_of(discount, decay, rewards, values):
    """Of each token, by the definition: the sum of all later surprises, each less the further away it is."""
    following = values[1:] + [0.0]
    surprises = [r + discount * after - v for r, v, after in zip(rewards, values, following)]
    return [
        sum((discount * decay) ** (later - t) * surprises[later] for later in range(t, len(rewards)))
        for t in range(len(rewards))
    ]


def critics():
    """Advantages by tokens, and the critic's loss by cases with its gradient."""
    rewards, values = numbers(9, 31, 0.0, 1.0), numbers(9, 32, -0.5, 1.5)
    cases = [
        {"discount": discount, "lambda": decay, "advantages": gae_of(discount, decay, rewards, values)}
        for discount, decay in [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.9, 0.0)]
    ]
    now = torch.tensor(numbers(9, 33, -0.5, 1.5), requires_grad=True)
    losses = []
    for bound in (0.0, 0.3):
        each = []
        for v, old, aim in zip(now, values, numbers(9, 34, -1.0, 2.0)):
            plain = (v - aim) ** 2 / 2
            held = (min(max(v.item(), old - bound), old + bound) - aim) ** 2 / 2
            # Where the value has moved beyond the bound it is a constant, and counts if it is the worse one.
            outside = bound > 0 and abs(v.item() - old) > bound
            each.append(held + 0.0 * v if outside and held > plain.item() else plain)
        loss = torch.stack(each)
        (gradient,) = torch.autograd.grad(loss.sum(), now)
        losses.append({"clip": bound, "loss": loss.tolist(), "gradient": gradient.tolist()})
    held = [sum(g == 0 for g in case["gradient"]) for case in losses]
    assert held[0] == 0 < held[1] < 9, held
    return {
        "rewards": rewards, "values": values, "cases": cases,
        "now": now.tolist(), "returns": numbers(9, 34, -1.0, 2.0), "losses": losses,
    }
