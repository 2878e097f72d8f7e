"""SGLang's server on the processor, by torch alone."""

import concurrent.futures
import itertools
import time

from common import MODEL, Server, Turn


class Sglang(Server):
    dialect = "sglang"
    # Threads that wait for one another in a loop are slow beside other processes.
    settings = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    names = itertools.count()

    def command(self, program):
        return [
            program, "-m", "sglang.launch_server", "--model-path", MODEL, "--host", "127.0.0.1", "--port", str(self.port),
            "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32",
            "--context-length", "512", "--max-total-tokens", "16384", "--skip-server-warmup",
        ]  # fmt: skip

    def generate(self, prompt, name, **sampling):
        body = {
            "rid": name, "input_ids": prompt, "sampling_params": {"top_p": 1.0, "top_k": -1, **sampling},
            "return_logprob": True, "return_text_in_logprobs": False,
        }  # fmt: skip
        reply = self.call("POST", "/generate", body)
        meta = reply["meta_info"]
        pairs = meta["output_token_logprobs"]
        assert reply["output_ids"] == [pair[1] for pair in pairs], "log-probabilities are of other ids"
        tokens, logprobs = [pair[1] for pair in pairs], [pair[0] for pair in pairs]
        return Turn(tokens, logprobs, meta["finish_reason"]["type"], meta["cached_tokens"])

    def sample(self, prompt, most=16, temperature=1.0, stop=()):
        ends = {"stop_token_ids": list(stop), "ignore_eos": not stop}
        return self.generate(prompt, f"turn-{next(self.names)}", max_new_tokens=most, temperature=temperature, **ends)

    def is_busy(self):
        return any(load["num_running_reqs"] for load in self.call("GET", "/v1/loads")["loads"])

    def cut(self, prompt, most):
        name = f"turn-{next(self.names)}"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            turn = pool.submit(self.generate, prompt, name, max_new_tokens=most, temperature=1.0, ignore_eos=True)
            while not self.is_busy() and not turn.done():
                time.sleep(0.01)
            # Its first tokens.
            time.sleep(0.2)
            self.call("POST", "/abort_request", {"rid": name})
            return turn.result()

    def probe(self, tokens):
        body = {
            "input_ids": tokens, "sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "logprob_start_len": 0,
            "return_text_in_logprobs": False,
        }  # fmt: skip
        reported = self.call("POST", "/generate", body)["meta_info"]["input_token_logprobs"][1:]
        assert [at[1] for at in reported] == tokens[1:], "log-probabilities are of other ids"
        return [at[0] for at in reported]

    def reload(self, folder):
        body = {"model_path": str(folder), "weight_version": folder.name, "abort_all_requests": True, "flush_cache": True}
        reply = self.call("POST", "/update_weights_from_disk", body)
        assert reply["success"], reply
        assert self.call("GET", "/model_info")["weight_version"] == folder.name
