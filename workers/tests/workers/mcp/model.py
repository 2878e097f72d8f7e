"""Writes a tiny random model whose tokens are calls of tools and answers: `model.py FOLDER`.

So that a policy that knows nothing calls tools, and calls them wrongly, as often as it answers.
"""

import json
import pathlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

WORDS = [
    "?",
    '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 4}}</tool_call>',
    '<tool_call>{"name": "divide", "arguments": {"a": 10, "b": 2}}</tool_call>',
    '<tool_call>{"name": "divide", "arguments": {"a": 1, "b": 0}}</tool_call>',
    '<tool_call>{"name": "../../etc", "arguments": {}}</tool_call>',
    '<tool_call>{"name": ',
    "5",
    "7",
    "<|im_end|>",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main(folder):
    end = WORDS.index("<|im_end|>")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8192, bos_token_id=0, eos_token_id=end, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    added = {"id": end, "content": "<|im_end|>", "special": True} | dict.fromkeys(
        ["single_word", "lstrip", "rstrip", "normalized"], False
    )
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    vocabulary = {word: id for id, word in enumerate(WORDS)}
    tokenizer = {
        "version": "1.0", "added_tokens": [added], "pre_tokenizer": split, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    }  # fmt: skip
    settings = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    for name, content in [("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)]:
        (pathlib.Path(folder) / name).write_text(json.dumps(content))


main(sys.argv[1])
