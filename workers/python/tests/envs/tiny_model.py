"""A model directory with the tokenizer of another one and a transformer of one tiny layer, drawn at random."""

import json
import pathlib
import shutil
import struct

import numpy

HIDDEN, HEADS, INNER = 16, 2, 32


def make(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / name, folder)
    config = json.loads((source / "config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=HEADS)
    config.update(num_key_value_heads=1, head_dim=HIDDEN // HEADS)
    (folder / "config.json").write_text(json.dumps(config))
    head, layer = HIDDEN // HEADS, "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (head, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (head, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
    }
    draw, header, blobs, at = numpy.random.default_rng(1), {}, [], 0
    for name, shape in shapes.items():
        drawn = numpy.ones(shape) if len(shape) == 1 else draw.normal(0, 0.1, shape)
        blob = drawn.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return folder
