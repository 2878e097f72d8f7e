"""Makes a model directory whose weights are drawn, of the shape of Qwen3-0.6B: no machine with a GPU has the network to
fetch one, and speed does not depend on the numbers. Our programs and transformers load it.

    python3 model.py DIR [--small]

`bench weights` and a run file draw weights too, but without grouped key heads and norms of heads. Needs torch and nothing
else: the file is written by hand.
"""

import argparse
import ctypes
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

Shape = dict[str, int]

QWEN3_06B: Shape = {
    "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 151_936, "max_position_embeddings": 40_960,
}
# The same but for its size, to try the programs with.
SMALL: Shape = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 96, "vocab_size": 12_000, "max_position_embeddings": 2048,
}
# Of the weights.
SPREAD = 0.02


def config(shape: Shape) -> dict:
    """`config.json`."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **shape, "hidden_act": "silu",
        "attention_bias": False, "attention_dropout": 0.0, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
        "tie_word_embeddings": True, "initializer_range": SPREAD, "use_sliding_window": False, "sliding_window": None,
        "use_cache": True, "bos_token_id": None, "eos_token_id": shape["vocab_size"] - 1, "dtype": "bfloat16",
    }


def tensors(shape: Shape) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes, in the order of the file. What has one axis is a norm."""
    width, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    query, kv = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [shape["vocab_size"], width]
    for layer in range(shape["num_hidden_layers"]):
        for name, axes in [
            ("input_layernorm", [width]), ("self_attn.q_proj", [query, width]), ("self_attn.k_proj", [kv, width]),
            ("self_attn.v_proj", [kv, width]), ("self_attn.q_norm", [head]), ("self_attn.k_norm", [head]),
            ("self_attn.o_proj", [width, query]), ("post_attention_layernorm", [width]),
            ("mlp.gate_proj", [inner, width]), ("mlp.up_proj", [inner, width]), ("mlp.down_proj", [width, inner]),
        ]:
            yield f"model.layers.{layer}.{name}.weight", axes
    yield "model.norm.weight", [width]


def header(shape: Shape) -> bytes:
    """What a safetensors file begins with: https://huggingface.co/docs/safetensors#format."""
    fields: dict = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, axes in tensors(shape):
        size = 2
        for axis in axes:
            size *= axis
        fields[name] = {"dtype": "BF16", "shape": axes, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(folder: Path, shape: Shape, seed: int = 1) -> None:
    """All files of the directory; the weights last, so that a directory with weights is whole."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n", encoding="utf-8")
    generation = {"do_sample": True, "temperature": 1.0, "eos_token_id": shape["vocab_size"] - 1, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    draws = torch.Generator().manual_seed(seed)
    half = folder / "model.safetensors.part"
    with half.open("wb") as file:
        file.write(header(shape))
        for _, axes in tensors(shape):
            weights = torch.ones(axes) if len(axes) == 1 else torch.empty(axes).normal_(0, SPREAD, generator=draws)
            numbers = weights.to(torch.bfloat16).contiguous()
            # Without numpy, which torch can do without.
            file.write(ctypes.string_at(numbers.data_ptr(), 2 * numbers.numel()))
    half.replace(folder / "model.safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    shape = SMALL if args.small else QWEN3_06B
    write(args.folder, shape)
    weights = (args.folder / "model.safetensors").stat().st_size
    print(f"{args.folder}: {weights / 1e6:.1f} MB of weights of {shape['num_hidden_layers']} layers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
