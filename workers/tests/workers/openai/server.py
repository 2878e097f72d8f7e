"""An inference server for tests: transformers behind the calls of vLLM, SGLang and llama.cpp's server.

    server.py make FOLDER SEED...         a tiny random model for each seed: FOLDER/v<seed>/, with probe.json
    server.py serve FOLDER [--port P]     serves the model in FOLDER; prints its port
    server.py load PORT                   makes the one at that port read $MILLRACE_WEIGHTS

`POST /test/set` makes it misbehave, `GET /test/journal` tells what it sampled, `POST /test/logprobs` is the oracle:
one forward over the whole sequence, with weights read anew.
"""

import argparse
import http.client
import json
import os
import pathlib
import select
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if sys.argv[1:2] != ["load"]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

VOCABULARY = 64
PROBE = [(7 * place * place + 3) % VOCABULARY for place in range(24)]


def make(folder, seeds):
    for seed in seeds:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, eos_token_id=None, bos_token_id=0,
            tie_word_embeddings=True,
        )  # fmt: skip
        model = LlamaForCausalLM(config).eval()
        path = pathlib.Path(folder) / f"v{seed}"
        model.save_pretrained(path)
        logprobs = whole(model, PROBE[:1], PROBE[1:], {})
        (path / "probe.json").write_text(json.dumps({"tokens": PROBE, "logprobs": logprobs}))


def distribution(logits, how):
    """What is drawn from: after the temperature, in this order, a bound on tokens, top-k, top-p, min-p."""
    logits = logits.float() / (how.get("temperature", 1.0) or 1.0)
    if how.get("below") is not None:
        logits = torch.where(torch.arange(len(logits)) < how["below"], logits, -torch.inf)
    if how.get("temperature", 1.0):
        if how.get("top_k", 0) > 0:
            logits = torch.where(logits < logits.topk(how["top_k"]).values[-1], -torch.inf, logits)
        sorted_, order = logits.softmax(-1).sort(descending=True)
        beyond = order[sorted_.cumsum(-1) - sorted_ >= how.get("top_p", 1.0)]
        logits[beyond] = -torch.inf
        probabilities = logits.softmax(-1)
        logits = torch.where(probabilities < how.get("min_p", 0.0) * probabilities.max(), -torch.inf, logits)
    return torch.log_softmax(logits, -1)


def whole(model, context, tokens, how):
    """Log-probabilities of `tokens` after `context`, by one forward."""
    logits = model(torch.tensor([context + tokens])).logits[0]
    rows = range(len(context) - 1, len(context) + len(tokens) - 1)
    return [distribution(logits[row], how)[token].item() for row, token in zip(rows, tokens)]


class State:
    def __init__(self, folder):
        self.lock = threading.RLock()
        self.oracles, self.active, self.journal, self.violations, self.loads = {}, {}, [], 0, 0
        self.wicked, self.paused, self.label = {}, False, "default"
        self.read(folder)

    def read(self, folder):
        with self.lock:
            self.folder = str(folder)
            self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            self.loads += 1

    def oracle(self, folder):
        with self.lock:
            if folder not in self.oracles:
                self.oracles[folder] = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            return self.oracles[folder]

    def reload(self, folder, label, packs=False):
        """Whoever lets requests run on while the weights change shows here. `packs`: as vLLM on a CPU."""
        deadline = time.monotonic() + 1.0
        while any(still_open(connection) for connection in list(self.active.values())):
            if time.monotonic() > deadline:
                self.violations += 1
                break
            time.sleep(0.01)
        if not self.wicked.get("lie"):
            old = self.model.lm_head.weight
            self.read(folder)
            separate = (pathlib.Path(folder) / "output_layer.safetensors").exists()
            if packs and self.model.config.tie_word_embeddings and not separate:
                self.model.lm_head.weight = old
        self.label = label

    def sample(self, name, connection, prompt, count, how, seed, stop, keep=True):
        """Yields (token, log-probability, log-probabilities of all) one by one."""
        wicked = self.wicked
        prompt = prompt[1:] if wicked.get("truncate") else prompt
        generator = torch.Generator().manual_seed(seed % 2**63)
        cache, step, entry = None, prompt, {"prompt": prompt, "tokens": [], "how": how}
        self.active[name] = connection
        if keep:
            self.journal.append(entry)
        try:
            for _ in range(count):
                time.sleep(wicked.get("slow", 0.0) if keep else 0.0)
                if name not in self.active:
                    return
                with self.lock:
                    out = self.model(torch.tensor([step]), past_key_values=cache, use_cache=True)
                cache, logits = out.past_key_values, out.logits[0, -1]
                drawn = distribution(logits, how)
                told = distribution(logits, {}) if wicked.get("raw") else drawn
                if how["temperature"]:
                    token = torch.multinomial(drawn.exp(), 1, generator=generator).item()
                else:
                    token = drawn.argmax().item()
                entry["tokens"].append(token)
                step = [token]
                logprob = told[token].item()
                if keep and "logprob" in wicked:
                    logprob = {"nan": float("nan"), "null": None, "clamped": -9999.0}[wicked["logprob"]]
                yield (10_000 if keep and wicked.get("outside") else token), logprob, told
                if token in stop:
                    return
        finally:
            self.active.pop(name, None)


def still_open(connection):
    try:
        ready, _, _ = select.select([connection], [], [], 0)
        return not ready or connection.recv(1, socket.MSG_PEEK) != b""
    except (OSError, ValueError):
        return False


def likeliest(told, count):
    values, ids = told.topk(count)
    return [(token.item(), value.item()) for value, token in zip(values, ids)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, value, status=200, headers=()):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, header in headers:
            self.send_header(name, header)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        state = self.server.state
        match self.path.split("?")[0]:
            case "/health" | "/health_generate":
                # An engine that died behind its server: 503.
                self.say({}, 503 if state.wicked.get("dead") else 200)
            case "/v1/models":
                self.say({"data": [{"id": "model", "max_model_len": state.wicked.get("longest", 1 << 20)}]})
            case "/get_server_info":
                self.say({"context_length": state.wicked.get("longest")})
            case "/model_info" if not state.wicked.get("older"):
                self.say({"model_path": state.folder, "weight_version": state.label})
            case "/get_model_info" if state.wicked.get("older"):
                self.say({"model_path": state.folder, "weight_version": state.label})
            case "/version":
                self.say({"version": state.wicked.get("version", "0.32.0")})
            case "/props":
                self.say({"model_path": state.folder})
            case "/test/journal":
                names = ("journal", "violations", "loads", "folder")
                self.say({name: getattr(state, name) for name in names} | {"active": len(state.active)})
            case _:
                self.say({"error": "no such path"}, 404)

    def do_POST(self):
        state = self.server.state
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        path = self.path.split("?")[0]
        if path in ("/v1/completions", "/generate", "/completion"):
            busy = state.wicked.get("busy")
            if state.wicked.get("dead"):
                return self.say({"error": "the engine is dead"}, state.wicked["dead"])
            if busy and busy[1]:
                busy[1] -= 1
                return self.say({"error": "no room"}, busy[0], [("Retry-After", "1")])
        if path in ("/pause", "/resume", "/collective_rpc", "/reset_prefix_cache") and state.wicked.get("no_dev"):
            return self.say({"error": "no such path"}, 404)
        match path:
            case "/test/set":
                state.wicked = body
                self.say({})
            case "/test/logprobs":
                model = state.oracle(body["folder"])
                with state.lock:
                    self.say(whole(model, body["context"], body["tokens"], body["how"]))
            case "/test/load":
                state.reload(body["path"], body["label"])
                self.say({})
            case "/v1/completions":
                self.vllm(state, body)
            case "/pause":
                state.paused = True
                self.say({"status": "paused"})
            case "/resume":
                state.paused = False
                self.say({"status": "resumed"})
            case "/collective_rpc":
                assert body["method"] == "reload_weights" and state.paused
                state.reload(body["kwargs"]["weights_path"], "default", packs=True)
                self.say({"results": [None]})
            case "/reset_prefix_cache":
                self.say({})
            case "/generate":
                self.sglang(state, body)
            case "/abort_request":
                state.active.pop(body["rid"], None)
                self.say({})
            case "/update_weights_from_disk":
                state.reload(body["model_path"], body["weight_version"])
                self.say({"success": True, "message": "read", "num_paused_requests": 0})
            case "/completion":
                self.llama_cpp(state, body)
            case _:
                self.say({"error": "no such path"}, 404)

    def vllm(self, state, body):
        prompt, wicked = body["prompt"], state.wicked
        if "seed" in body and "cpu" in wicked.get("version", ""):
            os._exit(1)  # As vLLM's engine does: "CPU Generator does not use offset".
        if not body.get("stream"):
            one = next(self.pieces(state, body, f"probe-{time.monotonic_ns()}", prompt, 1, keep=False))
            top = {f"token_id:{token}": value for token, value in likeliest(one[2], body.get("logprobs") or 1)}
            choice = {"text": "?", "logprobs": {"top_logprobs": [top]}}
            if "prompt_logprobs" in body and not wicked.get("no_prompt_logprobs"):
                with state.lock:
                    said = whole(state.model, prompt[:1], prompt[1:], {})
                said = [{str(token): {"logprob": value, "rank": 1}} for token, value in zip(prompt[1:], said)]
                choice["prompt_logprobs"] = [None, *said]
            return self.say({"choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        first = {"prompt_token_ids": prompt[1:] if wicked.get("truncate") else prompt}
        pieces = self.pieces(state, body, body["request_id"], prompt, body["max_tokens"])
        try:
            for token, logprob, told in pieces:
                said = {"tokens": [f"token_id:{token}"], "token_logprobs": [logprob]}
                choice = {"index": 0, "text": "?", "logprobs": said, "token_ids": [token], "finish_reason": None}
                if wicked.get("omit") == "ids":
                    del choice["token_ids"]
                    said["tokens"] = ["?"]
                if wicked.get("omit") == "logprobs":
                    choice["logprobs"] = None
                if wicked.get("omit") == "one":
                    choice["token_ids"] = [token, token]
                self.event({"choices": [choice | first]})
                first = {}
            usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": 3}}
            self.event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            pieces.close()

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def pieces(self, state, body, name, prompt, count, keep=True):
        seed, stop = body.get("seed") or 0, body.get("stop_token_ids") or []
        names = ("temperature", "top_p", "top_k", "min_p")
        how = {"temperature": 1.0} | {name: body[name] for name in names if name in body}
        if "allowed_token_ids" in body:
            how["below"] = len(body["allowed_token_ids"])
        return state.sample(name, self.connection, prompt, count, how, seed, stop, keep)

    def sglang(self, state, body):
        prompt, wanted, wicked = body["input_ids"], body["sampling_params"], state.wicked
        name = body.get("rid") or f"probe-{time.monotonic_ns()}"
        params = wanted | {"seed": wanted.get("sampling_seed", 0)}
        keep = "rid" in body
        sampled = list(self.pieces(state, params, name, prompt, wanted["max_new_tokens"], keep=keep))
        meta = {
            "id": name, "prompt_tokens": len(prompt) - bool(wicked.get("truncate")), "cached_tokens": 3,
            "completion_tokens": len(sampled), "weight_version": state.label, "finish_reason": {"type": "length"},
            "output_token_logprobs": [[logprob, token, None] for token, logprob, _ in sampled],
        }  # fmt: skip
        if body.get("top_logprobs_num"):
            top = likeliest(sampled[0][2], body["top_logprobs_num"])
            meta["output_top_logprobs"] = [[[value, token, None] for token, value in top]]
        if body.get("logprob_start_len") == 0 and not wicked.get("no_prompt_logprobs"):
            with state.lock:
                said = whole(state.model, prompt[:1], prompt[1:], {})
            meta["input_token_logprobs"] = [[p, t, None] for p, t in zip([None, *said], prompt)]
        if wicked.get("omit") == "logprobs" and keep:
            del meta["output_token_logprobs"]
        if wicked.get("omit") == "one" and keep:
            meta["output_token_logprobs"].pop()
        self.say({"text": "?" * len(sampled), "output_ids": [s[0] for s in sampled], "meta_info": meta})

    def llama_cpp(self, state, body):
        prompt, wicked = body["prompt"], state.wicked
        name, keep = f"llama-{time.monotonic_ns()}", "seed" in body
        sampled = list(self.pieces(state, body, name, prompt, body["n_predict"], keep=keep))
        post = body.get("post_sampling_probs")
        said = []
        for token, logprob, told in sampled:
            exp = lambda value: torch.tensor(value, dtype=torch.float64).exp().item()
            one = {"id": token, "prob": exp(logprob)} if post else {"id": token, "logprob": logprob}
            if post:
                one["top_probs"] = [{"id": t, "prob": exp(p)} for t, p in likeliest(told, body["n_probs"])]
            said.append(one)
        reply = {
            "tokens": [s[0] for s in sampled], "completion_probabilities": said, "stop": True, "truncated": False,
            "tokens_evaluated": len(prompt) - bool(wicked.get("truncate")), "timings": {"cache_n": 3},
        }  # fmt: skip
        if wicked.get("omit") == "ids" and keep:
            reply["tokens"] = []
        self.say(reply)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def load(port):
    body = {"path": os.environ["MILLRACE_WEIGHTS"], "label": os.environ["MILLRACE_WEIGHTS_LABEL"]}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/test/load", json.dumps(body))
    assert connection.getresponse().status == 200


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder")
    making.add_argument("seeds", type=int, nargs="+")
    serving = commands.add_parser("serve")
    serving.add_argument("folder")
    serving.add_argument("--port", type=int, default=0)
    commands.add_parser("load").add_argument("port", type=int)
    args = parser.parse_args()
    if args.command == "make":
        return make(args.folder, args.seeds)
    if args.command == "load":
        return load(args.port)
    server = Server(("127.0.0.1", args.port), Handler)
    server.state = State(args.folder)
    print(f"port {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
