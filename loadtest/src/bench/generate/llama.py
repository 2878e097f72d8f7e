"""Samples with llama.cpp's own server: told the model first, to which it answers why that cannot be served or with null,
then what to sample, to which it answers with seconds, all in lines of JSON.
Started by `millrace-loadtest bench generate`, which hands it what serves a model by llama.cpp as `server`."""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import types
import urllib.request
from pathlib import Path

settings = json.loads(sys.stdin.readline())
llama = types.ModuleType("llama_cpp")
exec(settings["server"], llama.__dict__)
folder = tempfile.TemporaryDirectory()
servers = {}
print(json.dumps(llama.refusal(json.loads((Path(settings["model"]) / "config.json").read_text()))), flush=True)


def address(dtype):
    """That of a server of the model in these numbers."""
    if dtype not in servers:
        file = Path(folder.name) / f"{dtype}.gguf"
        llama.convert(Path(settings["model"]), file, dtype)
        how = {"sequences": settings["sequences"], "context": settings["context"], "threads": settings["threads"]}
        servers[dtype] = llama.server(argparse.Namespace(file=file, port=0, **how), exact=False)
    return servers[dtype].listening_address


def sample(url, request, done):
    call = urllib.request.Request(f"{url}/completion", json.dumps(request).encode())
    with urllib.request.urlopen(call) as reply:
        done.append(json.load(reply)["tokens_predicted"])


for line in sys.stdin:
    work = json.loads(line)
    url, done = address(work["dtype"]), []
    requests = [
        {
            "prompt": [random.randrange(10_000) for _ in range(settings["prompt"])],
            "n_predict": work["tokens"], "temperature": 1.0, "samplers": ["temperature"],
            "ignore_eos": True, "cache_prompt": False, "return_tokens": True,
        }
        for _ in range(work["sequences"])
    ]  # fmt: skip
    threads = [threading.Thread(target=sample, args=(url, request, done)) for request in requests]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    assert done == [work["tokens"]] * work["sequences"], done
    print(json.dumps(seconds), flush=True)
