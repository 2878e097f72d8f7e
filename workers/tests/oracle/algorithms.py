"""The oracle for every loss with every correction and aggregation, for advantages, and for whole steps of some of
them, in float64, by the formulas' own definitions: a loop over rollouts, turns and tokens, and autograd.

It writes `algorithms.json` beside itself, which is committed:

    python3 workers/tests/oracle/algorithms.py
"""

import itertools
import json
import math

import torch
from oracle import HERE, TEMPERATURE, WIDTH, hidden_of, initial, logits_of, make_batch, numbers

# Sampled tokens of each turn of each rollout.
TURNS = [[3, 2], [4], [1, 2, 3], [2, 3]]
ADVANTAGES = [1.3, -0.8, -1.7, 0.6]
RESPONSE_TOKENS = 10

LOSSES = [
    {"loss": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28},
    {"loss": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28, "parameters": {"dual_clip": 1.5}},
    {"loss": "policy_gradient"},
    {"loss": "cispo", "clip_low": 0.9, "clip_high": 0.3},
    {"loss": "topr"},
    {"loss": "gspo", "clip_low": 0.03, "clip_high": 0.04},
    {"loss": "segment", "clip_low": 0.1, "clip_high": 0.1},
    {"loss": "kimi", "parameters": {"tau": 0.3}},
    {"loss": "dppo_tv", "parameters": {"delta": 0.05, "pull": 0.002}},
]
CORRECTIONS = [
    {},
    {"weight": "token", "cap": 1.2},
    {"weight": "token", "cap": 0.0},
    {"weight": "sequence", "cap": 1.1},
    {"reject": "sequence", "low": 0.6, "high": 1.8},
    {"reject": "geometric", "low": 0.95, "high": 1.05},
    {"reject": "turn", "low": 0.9, "high": 1.1},
    {"veto": 0.55},
    {"weight": "token", "reject": "sequence", "cap": 1.2, "low": 0.3, "high": 1.8},
]
AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]


def clip(x, low, high):
    return torch.clamp(x, low, high)


def surrogate(ratio, a, low, high, dual):
    """What PPO maximises for one ratio, by cases."""
    held = clip(ratio, 1 - low, 1 + high)
    value = ratio * a if (ratio * a).item() <= (held * a).item() else held * a
    if dual and a < 0 and value.item() < dual * a:
        value = dual * a + 0.0 * ratio
    return value


def token_losses(algorithm, p, o, m, a, turns, whole_ratio):
    """The loss of each token of one rollout. `whole_ratio`: one term for a whole stretch, by the paper's definition;
    else its form by tokens, which is defined where tokens of a stretch weigh differently."""
    name, more = algorithm["loss"], algorithm.get("parameters", {})
    low, high = algorithm.get("clip_low", 0.2), algorithm.get("clip_high", 0.2)
    dual = more.get("dual_clip", 0.0)
    if name in ("gspo", "segment"):
        losses, start = [], 0
        for length in [len(p)] if name == "gspo" else turns:
            part = slice(start, start + length)
            s = torch.exp((p[part] - o[part]).mean())
            for t in range(start, start + length):
                ratio = s if whole_ratio else s.detach() * p[t].exp() / p[t].exp().detach()
                losses.append(-surrogate(ratio, a, low, high, dual))
            start += length
        return losses
    losses = []
    for pt, ot, mt in zip(p, o, m):
        r = torch.exp(pt - ot)
        if name == "ppo_clip":
            losses.append(-surrogate(r, a, low, high, dual))
        elif name == "policy_gradient":
            losses.append(-a * pt)
        elif name == "cispo":
            losses.append(-clip(r, 1 - low, 1 + high).detach() * a * pt)
        elif name == "topr":
            losses.append(-a * pt if a > 0 else -clip(r, 0, 1).detach() * a * pt)
        elif name == "kimi":
            losses.append(-a * pt + more["tau"] / 2 * (pt - ot) ** 2)
        elif name == "dppo_tv":
            moved = pt.exp().item() - mt.exp().item()
            held = moved > more["delta"] if a > 0 else -moved > more["delta"]
            ratio = 0.0 if held else pt.exp() / mt.exp()
            losses.append(-a * ratio + more["pull"] * (pt - mt) ** 2)
    return losses


def correct(correction, o, m, turns):
    """Weight and mask of each token of one rollout."""
    rho = torch.exp(o - m)
    cap = correction.get("cap", 2.0) or math.inf
    kind = correction.get("weight", "none")
    weights = [
        {"none": 1.0, "token": min(x.item(), cap), "sequence": min(rho.prod().item(), cap)}[kind] for x in rho
    ]
    low, high = correction.get("low"), correction.get("high")
    kept, start = [], 0
    for length in turns:
        of_turn = rho[start:start + length].prod().item() ** (1 / length)
        start += length
        value = {
            "none": None,
            "sequence": rho.prod().item(),
            "geometric": rho.prod().item() ** (1 / len(rho)),
            "turn": of_turn,
        }[correction.get("reject", "none")]
        kept += [1.0 if value is None or low <= value <= high else 0.0] * length
    if correction.get("veto") and (rho < correction["veto"]).any():
        kept = [0.0] * len(kept)
    return weights, kept


def aggregate(kind, losses, response_tokens):
    """`losses`: for each rollout those of its tokens, masked ones as 0."""
    if kind == "token_mean":
        return sum(sum(of) for of in losses) / sum(len(of) for of in losses)
    if kind == "seq_mean_token_mean":
        return sum(sum(of) / len(of) for of in losses) / len(losses)
    return sum(sum(of) / response_tokens for of in losses) / len(losses)


def total(algorithm, p, o, m, advantages, turns):
    """The loss of a batch; all arguments per rollout. Also the masks."""
    correction = algorithm.get("correction", {})
    by_token = correction.get("weight") == "token" or correction.get("reject") == "turn"
    losses, masks = [], []
    for p_r, o_r, m_r, a, t in zip(p, o, m, advantages, turns):
        weights, kept = correct(correction, o_r.detach(), m_r, t)
        each = token_losses(algorithm, p_r, o_r, m_r, a, t, not by_token)
        losses.append([w * k * x for w, k, x in zip(weights, kept, each)])
        masks.append(kept)
    response_tokens = algorithm.get("parameters", {}).get("response_tokens")
    return aggregate(algorithm.get("aggregation", "token_mean"), losses, response_tokens), masks


def with_aggregation(algorithm, aggregation):
    algorithm = {**algorithm, "aggregation": aggregation}
    if aggregation == "seq_mean_token_sum_norm":
        algorithm["parameters"] = {**algorithm.get("parameters", {}), "response_tokens": RESPONSE_TOKENS}
    return algorithm


def losses():
    count = sum(map(sum, TURNS))
    log_p = torch.tensor(numbers(count, 11, -3.0, -0.1))
    log_old = log_p + torch.tensor(numbers(count, 13, -0.7, 0.7))
    log_m = log_old + torch.tensor(numbers(count, 67, -0.7, 0.7))
    lengths = [sum(t) for t in TURNS]
    cases = []
    for loss, correction, aggregation in itertools.product(LOSSES, CORRECTIONS, AGGREGATIONS):
        algorithm = with_aggregation({**loss, "correction": correction}, aggregation)
        leaf = log_p.clone().requires_grad_()
        value, masks = total(
            algorithm, leaf.split(lengths), log_old.split(lengths), log_m.split(lengths), ADVANTAGES, TURNS
        )
        (gradient,) = torch.autograd.grad(value, leaf)
        cases.append({"algorithm": algorithm, "loss": value.item(), "gradient": gradient.tolist(), "kept": sum(masks, [])})
    # Each bound is in force somewhere and not everywhere, or the numbers would say nothing of it.
    plain = {json.dumps(c["algorithm"]["correction"]): c for c in cases if c["algorithm"]["loss"] == "policy_gradient"}
    for correction, case in plain.items():
        rejects = any(word in correction for word in ("reject", "veto"))
        assert (0 < sum(case["kept"]) < count) == rejects, (correction, case["kept"])
    for cases_of in (list(plain.values()), [c for c in cases if not c["algorithm"]["correction"]]):
        values = [case["gradient"] for case in cases_of]
        assert all(a != b for i, a in enumerate(values) for b in values[:i]), "two cases are the same"
    return {
        "turns": TURNS, "advantages": ADVANTAGES,
        "log_p": log_p.tolist(), "log_old": log_old.tolist(), "log_m": log_m.tolist(), "cases": cases,
    }


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
    flat = normal([r for of in rewards for r in of])
    out = []
    for group, of in zip(groups, rewards):
        n, mean = len(of), sum(of) / len(of)
        batch, flat = flat[:n], flat[n:]
        each = {
            "grpo": normal(of),
            "dr_grpo": [r - mean for r in of],
            "rloo": [r - (sum(of) - r) / (n - 1) for r in of],
            "max_rl": [(r - mean) / mean for r in of],
            "reinforce_plus_plus": batch,
            "raft": [1.0 if r == max(of) else 0.0 for r in of],
        }[name]
        out.append([[a] * len(rollout) for a, rollout in zip(each, group)])
    return out


def advantages():
    """Three groups of four; turns bring quarters, so that states meet again and rewards may be alike."""
    drawn = iter(numbers(400, 21, 0.0, 1.0))
    groups = [
        [[(int(next(drawn) * 5) / 4, int(next(drawn) * 3)) for _ in range(1 + int(next(drawn) * 3))] for _ in range(4)]
        for _ in range(3)
    ]
    parameters = {"discount": 0.9, "turn_weight": 0.5}
    names = ["grpo", "dr_grpo", "rloo", "max_rl", "reinforce_plus_plus", "raft", "chunk", "gi_gpo"]
    return {
        "groups": groups, "parameters": parameters,
        "values": {name: advantages_of(name, groups, parameters) for name in names},
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


STEPS = [
    {"loss": "gspo", "clip_low": 0.02, "clip_high": 0.03, "aggregation": "seq_mean_token_mean", "epochs": 1},
    {"loss": "segment", "clip_low": 0.05, "clip_high": 0.05, "aggregation": "seq_mean_token_sum_norm",
     "parameters": {"response_tokens": 20}, "epochs": 1},
    {"loss": "ppo_clip", "old": "proximal", "correction": {"weight": "token", "cap": 0.0}, "epochs": 2},
    {"loss": "policy_gradient", "old": "proximal", "correction": {"weight": "sequence", "cap": 1.5, "veto": 0.3},
     "aggregation": "seq_mean_token_mean", "epochs": 1},
    {"loss": "cispo", "clip_high": 0.1, "old": "proximal", "epochs": 2,
     "correction": {"reject": "turn", "low": 0.9, "high": 1.2}},
    {"loss": "topr", "advantage": "rloo", "epochs": 2},
    {"loss": "kimi", "advantage": "chunk", "epochs": 2},
    {"loss": "dppo_tv", "parameters": {"delta": 0.01}, "epochs": 2},
    {"loss": "ppo_clip", "advantage": "gae", "critic": {"discount": 0.9, "lambda": 0.8, "clip": 0.0}, "epochs": 1},
    {"loss": "ppo_clip", "advantage": "gae", "critic": {"coefficient": 2.0, "clip": 0.002}, "epochs": 3},
    {"loss": "ppo_clip", "kl": {"coefficient": 0.2, "estimator": "k1", "place": "reward"}, "epochs": 1},
]
SEEN = ["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"]
CRITIC = {"discount": 1.0, "lambda": 0.95, "coefficient": 0.5, "clip": 0.2}
CRITIC_ROW = torch.tensor(numbers(WIDTH, 99, -0.5, 0.5)).float().double()
SETTINGS = {"learning_rate": 1e-3, "max_grad_norm": 0.05}


def places(rollout):
    return [t["at"] + n for t in rollout["turns"] for n in range(len(t["logprobs"]))]


def log_probs(weights, rollout):
    """Of the sampled tokens of one rollout."""
    all_of = torch.log_softmax(logits_of(weights, rollout["tokens"]) / TEMPERATURE, -1)
    return torch.stack([all_of[at - 1, rollout["tokens"][at]] for at in places(rollout)])


def values_of(weights, rollout):
    """What the critic expects before each sampled token of one rollout."""
    hidden = hidden_of(weights, rollout["tokens"])
    return torch.stack([hidden[at - 1] @ weights["score.weight"] for at in places(rollout)])


def expected(weights, groups, critic):
    """Advantages, normalised over all tokens, and returns of each token of each rollout. Turns bring their tenths with
    their last token, the last what is left of the reward."""
    advantages, returns = [], []
    for rollout in (rollout for group in groups for rollout in group):
        rewards, left = [], rollout["reward"]
        for index, turn in enumerate(rollout["turns"]):
            last = index + 1 == len(rollout["turns"])
            brought = left if last else 0.1 * (index + 1)
            left -= brought
            rewards += [0.0] * (len(turn["logprobs"]) - 1) + [brought]
        values = values_of(weights, rollout).tolist()
        a = gae_of(critic["discount"], critic["lambda"], rewards, values)
        advantages.append(a)
        returns.append([x + v for x, v in zip(a, values)])
    flat = normal([x for a in advantages for x in a])
    return [[flat.pop(0) for _ in a] for a in advantages], returns


def critic_loss(weights, rollouts, before, returns, critic):
    """The mean over all tokens of the worse of the plain and the bounded square."""
    each = []
    for rollout, old, aims in zip(rollouts, before, returns):
        for v, o, aim in zip(values_of(weights, rollout), old, aims):
            bound = critic["clip"] or math.inf
            held = o + torch.clamp(v - o, -bound, bound)
            each.append(torch.maximum((v - aim) ** 2, (held - aim) ** 2) / 2)
    return sum(each) / len(each)


def step_advantages(algorithm, groups, reference):
    """One number for each token of each rollout. Turns bring their index, the last what is left of the reward."""
    out = []
    for rollouts in groups:
        scored = []
        for rollout in rollouts:
            left, turns, at = rollout["reward"], [], 0
            m = [x for t in rollout["turns"] for x in t["logprobs"]]
            if algorithm.get("kl"):
                left -= algorithm["kl"]["coefficient"] * sum(a - b for a, b in zip(m, log_probs(reference, rollout)))
                left = left.item()
            for index, turn in enumerate(rollout["turns"]):
                last = index + 1 == len(rollout["turns"])
                brought = left if last else 0.1 * (index + 1)
                left -= brought
                turns.append((brought, at))
                at += len(turn["logprobs"])
            scored.append(turns)
        name = algorithm.get("advantage", "grpo")
        ((values),) = advantages_of(name, [scored], {"discount": 0.95, "turn_weight": 1.0})
        for rollout, a in zip(rollouts, values):
            out.append([v for v, turn in zip(a, rollout["turns"]) for _ in turn["logprobs"]])
    return out


def step(algorithm, groups):
    algorithm = {**algorithm}
    if algorithm["loss"] == "dppo_tv":
        algorithm["parameters"] = {"pull": 1e-3, **algorithm["parameters"]}
    if algorithm["loss"] == "kimi":
        algorithm["parameters"] = {"tau": 0.1}
    rollouts = [rollout for group in groups for rollout in group]
    turns = [[len(t["logprobs"]) for t in rollout["turns"]] for rollout in rollouts]
    m = [torch.tensor([x for t in rollout["turns"] for x in t["logprobs"]]) for rollout in rollouts]
    has_critic, critic = algorithm.get("advantage") == "gae", {**CRITIC, **algorithm.get("critic", {})}
    weights = {name: w.clone().requires_grad_() for name, w in initial().items()}
    if has_critic:
        weights["score.weight"] = CRITIC_ROW.clone().requires_grad_()
    with torch.no_grad():
        reference = {name: w * 1.1 for name, w in weights.items()}
        proximal = [log_probs(weights, rollout) for rollout in rollouts]
        if has_critic:
            values, returns = expected(weights, groups, critic)
            before = [values_of(weights, rollout).tolist() for rollout in rollouts]
        else:
            values = step_advantages(algorithm, groups, {name: w.float().double() for name, w in reference.items()})
    old = proximal if algorithm.get("old") == "proximal" else m
    optimiser = torch.optim.AdamW(
        weights.values(), lr=SETTINGS["learning_rate"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    norms, totals, squares, critics_losses = [], [], [], []
    for _ in range(algorithm["epochs"]):
        optimiser.zero_grad()
        p = [log_probs(weights, rollout) for rollout in rollouts]
        if algorithm.get("advantage") in ("chunk", "gae"):
            # Advantages differ within a rollout: each turn or token is its own, which token_mean does not mind.
            lengths = [[1] * sum(t) for t in turns] if has_critic else turns
            split = lambda of: [part for x, t in zip(of, lengths) for part in torch.as_tensor(x).split(t)]
            flat = [v[0].item() for v in split([torch.tensor(v) for v in values])]
            loss, masks = total(algorithm, split(p), split(old), split(m), flat, [[n] for t in lengths for n in t])
        else:
            loss, masks = total(algorithm, p, old, m, [v[0] for v in values], turns)
        whole = loss
        if has_critic:
            of_critic = critic_loss(weights, rollouts, before, returns, critic)
            critics_losses.append(of_critic.item())
            whole = loss + critic["coefficient"] * of_critic
        whole.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), SETTINGS["max_grad_norm"]).item())
        totals.append(loss.item())
        rejected = 1 - sum(map(sum, masks)) / sum(map(len, masks))
        squares += [torch.exp(a.detach() - b).prod().item() ** 2 for a, b in zip(p, m)]
        optimiser.step()
    return {
        "loss": sum(totals) / len(totals), "grad_norm": sum(norms) / len(norms), "rejected_share": rejected,
        "sequence_chi2": sum(squares) / len(squares) - 1,
        "value_loss": sum(critics_losses) / len(critics_losses) if has_critic else None,
        "critic": weights["score.weight"].tolist() if has_critic else None,
        "weights": {name: weights[name].detach().reshape(-1).tolist() for name in SEEN},
    }


def steps():
    groups = make_batch(initial())
    return {"settings": SETTINGS, "critic": CRITIC_ROW.tolist(), "steps": [{"algorithm": a, **step(a, groups)} for a in STEPS]}


if __name__ == "__main__":
    content = {"losses": losses(), "advantages": advantages(), "critics": critics(), "steps": steps()}
    (HERE / "algorithms.json").write_text(json.dumps(content) + "\n")
