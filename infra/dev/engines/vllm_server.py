"""`vllm serve` on the processor."""

import http.client
import json

from common import MODEL, Server, Turn


class Vllm(Server):
    dialect = "vllm"
    renews_tied = False
    settings = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip

    def command(self, program):
        return [
            program, "serve", MODEL, "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32",
            "--max-model-len", "512", "--enforce-eager", "--logprobs-mode", "processed_logprobs",
            "--enable-prompt-tokens-details",
        ]  # fmt: skip

    def complete(self, prompt, **more):
        body = {
            "prompt": prompt, "top_p": 1.0, "top_k": -1, "ignore_eos": True, "logprobs": 1, "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }  # fmt: skip
        return self.call("POST", "/v1/completions", body | more)

    def sample(self, prompt, most=16, temperature=1.0, stop=()):
        reply = self.complete(prompt, max_tokens=most, temperature=temperature, stop_token_ids=list(stop))
        choice, cached = reply["choices"][0], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert choice["prompt_token_ids"] == prompt, "it sampled after other ids"
        return Turn(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"], cached)

    def cut(self, prompt, most):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"prompt": prompt, "max_tokens": most, "ignore_eos": True, "stream": True, "return_token_ids": True, "logprobs": 1}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply, lines = connection.getresponse(), []
        while len(lines) < 3:
            if (line := reply.readline()).startswith(b"data: {"):
                lines.append(json.loads(line[6:]))
        self.call("POST", "/pause?mode=abort")
        lines += [json.loads(line[6:]) for line in reply.read().splitlines() if line.startswith(b"data: {")]
        choices = [line["choices"][0] for line in lines if line["choices"]]
        self.call("POST", "/resume")
        tokens = [token for choice in choices for token in choice["token_ids"]]
        logprobs = [at for choice in choices if choice["logprobs"] for at in choice["logprobs"]["token_logprobs"]]
        return Turn(tokens, logprobs, choices[-1]["finish_reason"], 0)

    def probe(self, tokens):
        reply = self.complete(tokens, max_tokens=1, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        return [at[str(token)]["logprob"] for at, token in zip(reply[1:], tokens[1:], strict=True)]

    def reload(self, folder):
        self.call("POST", "/pause?mode=abort")
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.call("POST", "/collective_rpc", call)
        self.call("POST", "/reset_prefix_cache")
        self.call("POST", "/resume")
