"""What llama.cpp's example converts, and what it refuses to."""

import importlib.util
import tempfile
import unittest
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama_cpp.py"
spec = importlib.util.spec_from_file_location("llama_cpp", EXAMPLE)
llama_cpp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(llama_cpp)

PLAIN = {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2, "rope_theta": 10_000.0}


class Refusals(unittest.TestCase):
    def test_a_plain_model_is_converted(self):
        scalings = [{}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}]
        for more in [*scalings, {"attention_bias": False}, {"eos_token_id": 0}, {"eos_token_id": [2, 3]}]:
            self.assertIsNone(llama_cpp.refusal(PLAIN | more), more)

    def test_what_it_would_get_wrong_is_refused_by_name(self):
        wrong = [
            ("architectures=['Qwen3ForCausalLM']", {"architectures": ["Qwen3ForCausalLM"]}),
            ("architectures=None", {"architectures": None}),
            ("rope_type=llama3", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
            ("rope_type=linear", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
            ("rope_type=yarn", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e5}}),
            ("attention_bias", {"attention_bias": True}),
            ("mlp_bias", {"mlp_bias": True}),
            ("eos_token_id", {"eos_token_id": None}),
        ]
        for why, more in wrong:
            self.assertIn(why, llama_cpp.refusal(PLAIN | more) or "", more)


class Tensors(unittest.TestCase):
    def test_the_numbers_are_those_of_the_file_whatever_they_are_in(self):
        numbers = torch.randn(3, 5)
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "model.safetensors"
                save_file({"one": numbers.to(kind)}, file)
                [(name, read)] = llama_cpp.tensors(file)
                self.assertEqual(name, "one")
                numpy.testing.assert_array_equal(read, numbers.to(kind).float().numpy())

    def test_numbers_that_it_does_not_know_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            save_file({"one": torch.ones(2, dtype=torch.int8)}, file)
            with self.assertRaisesRegex(SystemExit, "one is I8; this reads F32, F16, BF16"):
                list(llama_cpp.tensors(file))


if __name__ == "__main__":
    unittest.main()
