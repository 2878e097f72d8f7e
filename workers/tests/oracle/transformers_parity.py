"""Loads a version that the crate wrote in transformers, unchanged, and compares logits.

Needs transformers, which the pinned environment has not:

    MILLRACE_PARITY_DIR=/tmp/parity cargo test --release -p millrace-workers --features torch \\
        --test torch_decoder -- --ignored writes_a_directory
    python3 workers/tests/oracle/transformers_parity.py /tmp/parity
"""

import json
import sys
from pathlib import Path

import torch
import transformers

folder = Path(sys.argv[1])
ours = json.loads((folder / "logits.json").read_text())
model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert type(model).__name__ == "LlamaForCausalLM", type(model)
assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
with torch.no_grad():
    logits = model(torch.tensor([ours["tokens"]])).logits[0]
off = (logits - torch.tensor(ours["logits"])).abs().max().item()
print(f"transformers {transformers.__version__}: largest difference of logits {off:.2e}, of {logits.abs().max():.2f}")
assert off < 1e-4
