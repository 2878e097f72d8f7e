"""The oracle for every loss with every correction and aggregation, for advantages, and for whole steps of some of
them, in float64, by the formulas' own definitions: a loop over rollouts, turns and tokens, and autograd. Losses whose
ratio is that of a whole rollout or turn come from the gradients that their papers write out, since one with weights of
single tokens is no function that could be differentiated; where tokens weigh alike, autograd of the whole must agree.

It writes `algorithms.json` beside itself, which is committed:

    python3 workers/torch/tests/oracle/algorithms.py
"""

import itertools
import json
import math
import statistics

import torch
from advantages import advantages, advantages_of, critics, gae_of, normal, normalised
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
    {"loss": "topr", "ratio": "turn"},
    {"loss": "cispo", "ratio": "rollout", "clip_low": 0.03, "clip_high": 0.04},
    {"loss": "kimi", "parameters": {"tau": 0.3}},
    {"loss": "kimi", "ratio": "token", "parameters": {"tau": 0.3}},
    {"loss": "dppo_tv", "parameters": {"delta": 0.05, "pull": 0.002}},
]
CORRECTIONS = [
    {},
    {"weight": "token", "cap": 1.2},
    {"weight": "token", "cap": 0.0},
    {"weight": "turn", "cap": 1.1},
    {"weight": "sequence", "cap": 1.1},
    {"weight": "token", "cap": 0.0, "reject": "token", "low": 0.6, "high": 1.5},
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


def level(algorithm):
    """Which tokens share one ratio."""
    return algorithm.get("ratio", {"gspo": "rollout", "kimi": "rollout", "segment": "turn"}.get(algorithm["loss"], "token"))


def stretches(algorithm, count, turns):
    """First token and one past the last of each stretch with one ratio."""
    ends = list(itertools.accumulate({"token": [1] * count, "turn": turns, "rollout": [count]}[level(algorithm)]))
    return list(zip([0] + ends, ends))


def written_out(algorithm, p, o, a, turns):
    """Value and gradient of each token of one rollout, in plain numbers, where stretches of tokens share a ratio. GSPO:
    equations 13 and 17 of its paper, s A ∇log p where the clip leaves it free; TOPR and CISPO: their weight times A ∇log p;
    Kimi: τ times the rollout's log-ratio times ∇log p, from equation 3."""
    name, more = algorithm["loss"], algorithm.get("parameters", {})
    low, high, dual = algorithm.get("clip_low", 0.2), algorithm.get("clip_high", 0.2), more.get("dual_clip", 0.0)
    out = []
    for start, end in stretches(algorithm, len(p), turns):
        ratios = [p[t] - o[t] for t in range(start, end)]
        s = math.exp(math.fsum(ratios) / len(ratios))
        for t in range(start, end):
            if name in ("gspo", "segment"):
                held = min(max(s, 1 - low), 1 + high)
                value, slope = (-s * a, -s * a) if s * a <= held * a else (-held * a, 0.0)
                if dual and a < 0 and -value < dual * a:
                    value, slope = -dual * a, 0.0
            elif name == "kimi":
                tau, sum_of = more["tau"], math.fsum(ratios)
                value, slope = -a * p[t] + tau / 2 * sum_of**2 / len(ratios), -a + tau * sum_of
            else:
                w = min(max(s, 1 - low), 1 + high) if name == "cispo" else min(s, 1.0) if a <= 0 else 1.0
                value, slope = -w * a * p[t], -w * a
            out.append((value, slope))
    return out


def total_written_out(algorithm, p, o, m, advantages, turns):
    """As `total`, with the gradient by each token, all of numbers."""
    each, masks = [], []
    for p_r, o_r, m_r, a, t in zip(p, o, m, advantages, turns):
        weights, kept = correct(algorithm.get("correction", {}), o_r, m_r, t)
        terms = written_out(algorithm, p_r.tolist(), o_r.tolist(), a, t)
        each.append([(w * k * value, w * k * slope) for w, k, (value, slope) in zip(weights, kept, terms)])
        masks.append(kept)
    constant = algorithm.get("parameters", {}).get("response_tokens")
    of = lambda losses: aggregate(algorithm.get("aggregation", "token_mean"), losses, constant)
    gradient = []
    for r, tokens in enumerate(each):
        for t, (_, slope) in enumerate(tokens):
            # What the aggregation makes of this token alone.
            gradient.append(of([[slope if (i, j) == (r, t) else 0.0 for j in range(len(x))] for i, x in enumerate(each)]))
    return of([[value for value, _ in tokens] for tokens in each]), gradient, masks


def token_losses(algorithm, p, o, m, a, turns):
    """The loss of each token of one rollout; tokens that share a ratio each have an equal part of its one term."""
    name, more = algorithm["loss"], algorithm.get("parameters", {})
    low, high = algorithm.get("clip_low", 0.2), algorithm.get("clip_high", 0.2)
    dual = more.get("dual_clip", 0.0)
    losses = []
    shared = [(p[i:j] - o[i:j], j - i) for i, j in stretches(algorithm, len(p), turns) for _ in range(i, j)]
    for pt, mt, (log_ratios, length) in zip(p, m, shared):
        r = torch.exp(log_ratios.mean())
        if name in ("ppo_clip", "gspo", "segment"):
            losses.append(-surrogate(r, a, low, high, dual))
        elif name == "policy_gradient":
            losses.append(-a * pt)
        elif name == "cispo":
            losses.append(-clip(r, 1 - low, 1 + high).detach() * a * pt)
        elif name == "topr":
            losses.append(-a * pt if a > 0 else -clip(r, 0, 1).detach() * a * pt)
        elif name == "kimi":
            losses.append(-a * pt + more["tau"] / 2 * log_ratios.sum() ** 2 / length)
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
    low, high = correction.get("low"), correction.get("high")
    weights, kept, start = [], [], 0
    for length in turns:
        of_turn = rho[start:start + length].prod().item() ** (1 / length)
        for x in rho[start:start + length]:
            of = {
                "none": None, "token": x.item(), "turn": of_turn, "sequence": rho.prod().item(),
                "geometric": rho.prod().item() ** (1 / len(rho)),
            }
            weights.append(1.0 if kind == "none" else min(of[kind], cap))
            value = of[correction.get("reject", "none")]
            kept.append(1.0 if value is None or low <= value <= high else 0.0)
        start += length
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


def total(algorithm, p, o, m, advantages, turns, reached=None):
    """The loss of a batch; all arguments per rollout. Also the masks."""
    correction, imitated = algorithm.get("correction", {}), algorithm.get("imitation", 0.0)
    losses, masks = [], []
    for p_r, o_r, m_r, a, t, good in zip(p, o, m, advantages, turns, reached or [False] * len(p)):
        weights, kept = correct(correction, o_r.detach(), m_r, t)
        each = token_losses(algorithm, p_r, o_r, m_r, a, t)
        losses.append([k * (w * x - good * imitated * x_p) for w, k, x, x_p in zip(weights, kept, each, p_r)])
        masks.append(kept)
    response_tokens = algorithm.get("parameters", {}).get("response_tokens")
    return aggregate(algorithm.get("aggregation", "token_mean"), losses, response_tokens), masks


def with_aggregation(algorithm, aggregation):
    algorithm = {**algorithm, "aggregation": aggregation}
    if aggregation == "seq_mean_token_sum_norm":
        algorithm["parameters"] = {**algorithm.get("parameters", {}), "response_tokens": RESPONSE_TOKENS}
    return algorithm


def coefficients(algorithm, p, o, m, _, turns):
    """What the tokens of each stretch with one ratio are multiplied by."""
    out = []
    for o_r, m_r, t in zip(o, m, turns):
        weights, kept = correct(algorithm.get("correction", {}), o_r, m_r, t)
        each = [w * k for w, k in zip(weights, kept)]
        out += [each[i:j] for i, j in stretches(algorithm, len(each), t)]
    return out


def losses():
    count = sum(map(sum, TURNS))
    log_p = torch.tensor(numbers(count, 11, -3.0, -0.1))
    log_old = log_p + torch.tensor(numbers(count, 13, -0.7, 0.7))
    log_m = log_old + torch.tensor(numbers(count, 67, -0.7, 0.7))
    lengths = [sum(t) for t in TURNS]
    cases, differing = [], 0
    for loss, correction, aggregation in itertools.product(LOSSES, CORRECTIONS, AGGREGATIONS):
        algorithm = with_aggregation({**loss, "correction": correction}, aggregation)
        leaf = log_p.clone().requires_grad_()
        batch = leaf.split(lengths), log_old.split(lengths), log_m.split(lengths), ADVANTAGES, TURNS
        value, masks = total(algorithm, *batch)
        (gradient,) = torch.autograd.grad(value, leaf)
        value, gradient = value.item(), gradient.tolist()
        if level(algorithm) != "token":
            by_autograd = [value, *gradient]
            value, gradient, masks = total_written_out(algorithm, *batch)
            alike = all(len(set(part)) == 1 for part in coefficients(algorithm, *batch))
            same = all(abs(x - y) < 1e-13 for x, y in zip(by_autograd, [value, *gradient]))
            assert same or not alike, algorithm
            differing += not same
        cases.append({"algorithm": algorithm, "loss": value, "gradient": gradient, "kept": sum(masks, [])})
    assert differing > 20, f"{differing} cases have tokens of a stretch that weigh differently"
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
    {"loss": "kimi", "epochs": 2},
    {"loss": "kimi", "ratio": "token", "advantage": "chunk", "epochs": 2},
    {"loss": "topr", "ratio": "turn", "old": "proximal", "advantage": "chunk", "imitation": 0.1, "epochs": 2,
     "reward_norm": {"mean": "group", "std": "group"},
     "correction": {"weight": "turn", "cap": 0.98, "reject": "turn", "low": 0.0, "high": 1.05}},
    {"loss": "ppo_clip", "advantage": "lite_ppo", "epochs": 1},
    {"loss": "ppo_clip", "advantage": "reinforce", "reward_norm": {"mean": "running", "std": "running"},
     "whiten_advantages": True, "advantage_clip": 0.9, "epochs": 1},
    {"loss": "ppo_clip", "old": "proximal", "epochs": 2,
     "correction": {"weight": "token", "cap": 0.0, "reject": "token", "low": 0.8, "high": 1.3}},
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
    all_scored = []
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
        all_scored.append(scored)
    all_scored = normalised(all_scored, algorithm.get("reward_norm", {}), [])
    values = advantages_of(algorithm.get("advantage", "grpo"), all_scored, {"discount": 0.95, "turn_weight": 1.0})
    out = []
    for rollouts, of_group in zip(groups, values):
        for rollout, a in zip(rollouts, of_group):
            out.append([v for v, turn in zip(a, rollout["turns"]) for _ in turn["logprobs"]])
    if algorithm.get("whiten_advantages"):
        flat = [v for a in out for v in a]
        out = [[(v - statistics.fmean(flat)) / (statistics.stdev(flat) + 1e-6) for v in a] for a in out]
    most = algorithm.get("advantage_clip", math.inf)
    return [[min(max(v, -most), most) for v in a] for a in out]


def step(algorithm, groups):
    algorithm = {**algorithm}
    if algorithm["loss"] == "dppo_tv":
        algorithm["parameters"] = {"pull": 1e-3, **algorithm["parameters"]}
    if algorithm["loss"] == "kimi":
        algorithm["parameters"] = {"tau": 0.1}
    rollouts = [rollout for group in groups for rollout in group]
    turns = [[len(t["logprobs"]) for t in rollout["turns"]] for rollout in rollouts]
    m = [torch.tensor([x for t in rollout["turns"] for x in t["logprobs"]]) for rollout in rollouts]
    reached = [rollout["reward"] >= 0.5 for rollout in rollouts]
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
            good = [success for success, t in zip(reached, lengths) for _ in t]
            loss, masks = total(algorithm, split(p), split(old), split(m), flat, [[n] for t in lengths for n in t], good)
        else:
            loss, masks = total(algorithm, p, old, m, [v[0] for v in values], turns, reached)
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
