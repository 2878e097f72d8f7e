"""Small models of every architecture that is computed, made and read by transformers.

    models.py make FOLDER    a directory for each case, and beside it CASE.json: tokens, logits, greedy text
    models.py greedy MODEL   reads prompts (JSON, lists of tokens) and writes their logits and greedy text
    models.py train MODEL    reads rollouts and settings (JSON) and writes what a plain training loop comes to
    models.py read FOLDER    loads each FOLDER/CASE.v1 unchanged and compares with FOLDER/CASE.v1.json

Started by the tests in torch_decoder/models.rs.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SHAPE = dict(
    vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)


def rope(kind, **more):
    return {"rope_theta": 5000.0, "rope_type": kind, **more}


# Wavelengths on both sides of the bounds: heads are 16 wide and the contexts short.
LLAMA3 = rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0)
YARN_M = rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.5, mscale_all_dim=0.5, truncate=False)
CASES = {
    "llama": LlamaConfig(**SHAPE),
    "llama_tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama_biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama_linear": LlamaConfig(**SHAPE, rope_parameters=rope("linear", factor=3.0)),
    "llama_dynamic": LlamaConfig(**SHAPE, rope_parameters=rope("dynamic", factor=3.0)),
    "llama_llama3": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "llama_yarn": LlamaConfig(**SHAPE, rope_parameters=YARN),
    "llama_old_llama3": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**{**SHAPE, "num_key_value_heads": 1}, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen2_old_yarn": Qwen2Config(**SHAPE, rope_parameters=YARN),
    "qwen3": Qwen3Config(**SHAPE, head_dim=24),
    "qwen3_biases": Qwen3Config(**SHAPE, head_dim=8, attention_bias=True, rope_parameters=YARN_M),
}


def random_model(config, seed):
    """Every number matters: biases and norms are not where a fresh model has them."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.15)
            parameter.copy_(noise + 1.0 if "norm" in name else noise)
    return model.eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float()


def greedy(model, tokens, count):
    tokens, start = list(tokens), len(tokens)
    for _ in range(count):
        tokens.append(logits_of(model, tokens)[-1].argmax().item())
    return tokens[start:]


def older(folder):
    """Rewrites config.json as releases of transformers before 5 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    told = config.pop("rope_parameters")
    config["rope_theta"] = told.pop("rope_theta")
    if told["rope_type"] == "yarn":
        told["type"] = told.pop("rope_type")
    config["rope_scaling"] = told
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


def make(folder):
    for seed, (name, config) in enumerate(CASES.items()):
        model = random_model(config, seed)
        # One case in shards.
        model.save_pretrained(folder / name, max_shard_size="100KB" if name == "llama" else "1GB")
        if "_old_" in name:
            older(folder / name)
        tokens = torch.randint(0, SHAPE["vocab_size"], (100,)).tolist()
        expected = {
            "tokens": tokens,
            "logits": logits_of(model, tokens).tolist(),
            "greedy": greedy(model, tokens[:12], 24),
        }
        expected["bf16_logits"] = logits_of(model.to(torch.bfloat16), tokens).tolist()
        (folder / f"{name}.json").write_text(json.dumps(expected))


def load(folder):
    """Loads a directory as it is: nothing may be missing, nothing left over."""
    dtype = getattr(torch, json.loads((folder / "config.json").read_text())["dtype"])
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert model.dtype == dtype, (folder, model.dtype)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (folder, report)
    return model.eval()


def read(folder):
    for name in sorted(path.name.removesuffix(".v1.json") for path in folder.glob("*.v1.json")):
        model = load(folder / f"{name}.v1")
        assert type(model.config) is type(CASES[name.split(".")[0]]), type(model)
        ours = json.loads((folder / f"{name}.v1.json").read_text())
        off = (logits_of(model, ours["tokens"]) - torch.tensor(ours["logits"])).abs().max().item()
        assert off < ours["bound"], f"{name}: logits are off by {off}"
        print(f"{name} {off:.1e}")


def answer(folder):
    model = load(folder)
    answers = [
        {"logits": logits_of(model, prompt).tolist(), "greedy": greedy(model, prompt, 16)}
        for prompt in json.load(sys.stdin)
    ]
    json.dump(answers, sys.stdout)


def updates(folder, told, dtype):
    """Policy gradients with forward and backward in `dtype`, the loss and AdamW in f32 on weights in f32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
    weights = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}
    optimiser = torch.optim.AdamW(weights.values(), lr=told["rate"], betas=(0.9, 0.95), weight_decay=0.0)
    sampled = sum(len(rollout["wanted"]) for rollout in told["rollouts"])
    first = None
    for _ in range(told["updates"]):
        model.zero_grad()
        for rollout in told["rollouts"]:
            tokens, wanted = torch.tensor(rollout["tokens"]), torch.tensor(rollout["wanted"])
            log_p = model(tokens[None]).logits[0].float().log_softmax(-1)[wanted, tokens[wanted + 1]]
            (-rollout["advantage"] * log_p.sum() / sampled).backward()
        for name, parameter in model.named_parameters():
            weights[name].grad = parameter.grad.float()
        first = first or {name: weight.grad.flatten().tolist() for name, weight in weights.items()}
        optimiser.step()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    return {"gradient": first, "weights": {name: weight.flatten().tolist() for name, weight in weights.items()}}


def train(folder):
    told = json.load(sys.stdin)
    json.dump({"half": updates(folder, told, torch.bfloat16), "full": updates(folder, told, torch.float32)}, sys.stdout)


if __name__ == "__main__":
    # Small models on a machine that has other work: threads would wait for one another.
    torch.set_num_threads(1)
    {"make": make, "read": read, "greedy": answer, "train": train}[sys.argv[1]](Path(sys.argv[2]))
