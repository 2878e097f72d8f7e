"""llama.cpp's server for a run's versions, as a command for `--engine-reload-command`.

    millrace-worker --stages generate:8 --engine openai --engine-url http://127.0.0.1:8080 --engine-dialect llama_cpp \
        --engine-reload-command "python3 workers/python/examples/llama_cpp.py reload /data/llama --port 8080"

`reload` writes the version in $MILLRACE_WEIGHTS into that folder, as a GGUF file in f32 with the version's name, ends the
server that it started before, and starts one that serves it. It is for the Llama family (SmolLM2 too); other models want
llama.cpp's own converter. Needs `pip install xllamacpp gguf safetensors`: xllamacpp is llama.cpp with its server, built.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

# What llama.cpp calls the tensors.
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
OF_A_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def refusal(config):
    """Why a model of this configuration cannot be converted here; None where it can."""
    if config.get("architectures") != ["LlamaForCausalLM"]:
        return f"architectures={config.get('architectures')}; this converts LlamaForCausalLM only"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    if scaling != "default":
        return f"rope_type={scaling}; this converts models without a scaling of positions only"
    for bias in ("attention_bias", "mlp_bias"):
        if config.get(bias):
            return f"{bias}=true; this converts models without biases only"
    if config.get("eos_token_id") is None:
        return "eos_token_id is missing; llama.cpp would end turns at a token of its own choice"
    return None


def tensors(file):
    """The tensors of a safetensors file by name, in the numbers that it has; bf16, which NumPy lacks, as f32."""
    import numpy
    from safetensors import deserialize

    kinds = {"F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16}
    for name, tensor in deserialize(file.read_bytes()):
        if tensor["dtype"] not in kinds:
            sys.exit(f"{file}: {name} is {tensor['dtype']}; this reads {', '.join(kinds)}")
        numbers = numpy.frombuffer(tensor["data"], kinds[tensor["dtype"]])
        if tensor["dtype"] == "BF16":
            # The upper half of an f32.
            numbers = (numbers.astype(numpy.uint32) << 16).view(numpy.float32)
        yield name, numbers.reshape(tensor["shape"])


def convert(model, out, dtype="float32"):
    """Writes the model directory `model` as the GGUF file `out`, its matrices as `dtype`."""
    import gguf

    config = json.loads((model / "config.json").read_text())
    if why := refusal(config):
        sys.exit(f"{model}/config.json: {why}")
    heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
    groups = config.get("num_key_value_heads") or heads
    rope = config.get("rope_parameters") or config
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    types = {"float32": gguf.LlamaFileType.ALL_F32, "float16": gguf.LlamaFileType.MOSTLY_F16}
    writer.add_file_type(types[dtype])
    # It is asked in token ids and answers in them, so their texts matter to nobody.
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{token}>" for token in range(vocabulary)])
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
    writer.add_add_bos_token(False)
    ends = config["eos_token_id"]
    for end, add in zip(ends if isinstance(ends, list) else [ends], (writer.add_eos_token_id, writer.add_eot_token_id)):
        add(end)

    for part in sorted(model.glob("model*.safetensors")):
        for name, tensor in tensors(part):
            name = name.removesuffix(".weight")
            if name in WHOLE:
                name = WHOLE[name]
            else:
                _, _, layer, name = name.split(".", 3)
                turned = {"self_attn.q_proj": heads, "self_attn.k_proj": groups}.get(name)
                if turned:
                    # llama.cpp turns neighbouring numbers of a head, the hub's models those half a head apart.
                    halves = tensor.reshape(turned, 2, len(tensor) // turned // 2, -1)
                    tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
                name = f"blk.{layer}.{OF_A_LAYER[name]}"
            writer.add_tensor(f"{name}.weight", tensor.astype(dtype if tensor.ndim == 2 else "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def server(args, exact=True):
    """llama.cpp's server of a GGUF file; it serves as long as somebody holds it. Faster if it need not be `exact`."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.warmup = str(args.file), args.port, False
    # Warnings and errors.
    params.verbosity = 2
    params.n_parallel, params.n_ctx = args.sequences, args.sequences * args.context
    params.cpuparams.n_threads = args.threads
    if exact:
        # Half-precision keys and values, and flash attention on a CPU, show in the log-probabilities.
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def serve(args):
    """Serves a GGUF file until it is killed."""
    serving = server(args)
    print(serving.listening_address, flush=True)
    signal.pause()


def is_well(port):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
        return reply.status == 200
    return False


def end(pid_file):
    """Ends the server that was started before."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGKILL)
        while True:
            os.kill(pid, 0)
            time.sleep(0.02)


def reload(args):
    """Serves the version in $MILLRACE_WEIGHTS in place of the one before."""
    version = Path(os.environ["MILLRACE_WEIGHTS"])
    args.folder.mkdir(parents=True, exist_ok=True)
    new, pid_file = args.folder / f"{version.name}.gguf", args.folder / "pid"
    partial = args.folder / "partial"
    convert(version, partial)
    end(pid_file)
    for old in args.folder.glob("*.gguf"):
        old.unlink()
    partial.rename(new)
    settings = [f"--{name}={getattr(args, name)}" for name in ("port", "sequences", "context", "threads")]
    with open(args.folder / "log", "w") as log:
        command = [sys.executable, __file__, "serve", new, *settings]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    pid_file.write_text(str(process.pid))
    while not is_well(args.port):
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}; what it said is in {args.folder}/log")
        time.sleep(0.05)


def main():
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument("--port", type=int, default=8080)
    settings.add_argument("--sequences", type=int, default=8, help="sampled at once")
    settings.add_argument("--context", type=int, default=1024, help="tokens of each, its prompt included")
    settings.add_argument("--threads", type=int, default=os.cpu_count())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for command, name, what in [(reload, "folder", "of the server's file, log and pid"), (serve, "file", "GGUF")]:
        one = commands.add_parser(command.__name__, parents=[settings], help=command.__doc__)
        one.add_argument(name, type=Path, help=what)
        one.set_defaults(run=command)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
