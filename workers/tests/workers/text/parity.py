"""What transformers makes of text: tokens, and conversations by several chat templates. Written as JSON on standard
output; the models' files go below the folder given.

    python parity.py FOLDER [MODEL ...]

Besides the models given, a tokenizer is made here: byte-level BPE, learnt from this file's own words.
"""

import json
import sys
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEXTS = [
    "",
    " ",
    "plain words",
    "  two spaces before, and after  ",
    "tabs\tand\nlines\r\n\r\n\n\nmany",
    "naïve café, Übermaß, Ångström",
    "e\u0301 combining, \u00e9 composed",
    "漢字とかな、한국어",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 🤷🏽‍♂️ end",
    "עברית و العربية",
    "zero\u200bwidth\u200djoiner\ufeff",
    "numbers 1234567890 3.14159 1,000,000 007",
    "<|im_start|>user\nhi<|im_end|>",
    "almost special <|im_start| and <|endoftext|>x",
    "don't can't I'LL we've'd",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # comment",
    "a" * 300,
    "\u0000\u0001control\u007f",
    "¡¿«»… — – ‘quotes’ “double”",
    "mixed漢a1字b2\u3000full width space",
]

PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """
{#- The first message may be a frame. -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set frame = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set frame = 'Be brief.' %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token if bos_token is defined and bos_token else '' }}
[frame] {{ frame }}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('user and assistant take turns') }}
    {% endif %}
  {% if loop.last and not add_generation_prompt %}
[last]
  {% endif %}
[{{ message.role | upper }}] {{ message.content.strip() }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
[ASSISTANT]{{ ' ' -}}
{% endif %}
"""
METHODS = """
{%- if tools is not none or documents is not none or tools is not defined %}{{ '[with tools]' }}{% endif %}
{%- set ns = namespace(last=-1, seen=[]) -%}
{%- for message in messages[::-1] -%}
    {%- set index = (messages | length - 1) - loop.index0 -%}
    {%- if ns.last < 0 and message.role == 'user' and message.content is string and not message.content.startswith('<tool>') -%}
        {%- set ns.last = index -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' and '</think>' in message.content -%}
        {%- set thought = message.content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') -%}
        {%- if loop.index0 > ns.last -%}{{ '(' ~ thought ~ ')' }}{%- endif -%}
    {%- else -%}
        {%- set content = message.content -%}
    {%- endif -%}
    {%- if content == 'skip' -%}{%- continue -%}{%- endif -%}
    {% generation %}{{ message | tojson }}{% endgeneration %}
    {{- content.replace('a', 'A').rstrip() ~ '\n' }}
{%- endfor -%}
{{ [1, 'zwei', none, true, {'k': 1.5}] | tojson }}
{%- if strftime_now is defined and false %}{{ strftime_now('%Y') }}{% endif %}
{%- if add_generation_prompt %}<go>{% endif -%}
"""
# As Llama 2's: white space sets the end token off from what the policy says.
SPACED = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# As the templates of models that call tools: declarations as JSON, on one line or indented, calls as JSON or field by field.
TOOLS_TEMPLATE = """
{%- if tools %}
{{- '[tools]\n' }}
{%- for tool in tools %}
{{- tool | tojson }}{{ '\n' }}
{%- set function = tool.function if tool.function is defined else tool %}
{{- function | tojson(indent=4) }}{{ '\n' }}
{{- function.parameters | tojson(separators=(',', ':'), sort_keys=true) }}{{ '\n' }}
{{- function.parameters | tojson(ensure_ascii=true, indent=1) }}{{ '\n' }}
{%- for name, field in function.parameters.properties | items %}
{{- name ~ ': ' ~ field.type ~ (' (required)' if name in function.parameters.required else '') }}{{ '\n' }}
{%- endfor %}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{{- '[' ~ message.role ~ ']' ~ (message.content if message.content is string else '') }}
{%- for call in message.tool_calls %}
{{- call.function.name ~ ' ' ~ (call.function.arguments | tojson) }}
{%- for name, value in call.function.arguments.items() %}
{{- '<' ~ name ~ '>' ~ (value if value is string else value | tojson) ~ '</' ~ name ~ '>' }}
{%- endfor %}
{%- endfor %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}
"""
TEMPLATES = {"plain": PLAIN, "blocks": BLOCKS, "methods": METHODS, "spaced": SPACED}

SYSTEM = {"role": "system", "content": "  You count. "}
USER = {"role": "user", "content": "What is 7 + 5?\n"}
ASSISTANT = {"role": "assistant", "content": "<think>\nsum ½\n</think>\n\nIt is <b>12</b> & no \"more\"."}
AGAIN = {"role": "user", "content": "<tool>And naïvely 漢字? "}
SKIP = {"role": "assistant", "content": "skip"}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ASSISTANT],
    [SYSTEM, USER, ASSISTANT, AGAIN],
    [USER, SKIP, AGAIN, ASSISTANT, USER],
    [USER, USER],
]

# Field names in the order of their author, not of the alphabet, at each depth.
TOOLS = [
    {"type": "function", "function": {
        "name": "edit",
        "description": "Changes <b>a</b> file & says \"done\", naïvely 漢字 👩‍👧.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where."},
                "line": {"type": "integer", "minimum": 1, "default": 1},
                "about": {"type": "array", "items": {"type": "object", "properties": {}}, "default": []},
                "Weight": {"type": "number", "enum": [1.0, 0.5, 1e-7, 1e-4, 1e15, 1e16, -2.5e300, 12345678901234567890]},
            },
            "required": ["path", "line"],
            "additionalProperties": False,
        },
    }},
    {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}, "required": []}, "strict": True}},
]
CALLS = [
    USER,
    {"role": "assistant", "content": "First I look.", "tool_calls": [
        {"type": "function", "id": "c1", "function": {"name": "edit", "arguments": {
            "path": "z/a.py", "line": 7, "about": [{"why": None, "at": [1, 2]}, {}], "Weight": 1e-7, "Zeit": True}}},
        {"type": "function", "id": "c0", "function": {"name": "a", "arguments": {}}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
]


def made(folder: Path) -> PreTrainedTokenizerFast:
    raw = tokenizers.Tokenizer(models.BPE())
    split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    raw.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(split), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([Path(__file__).read_text(), *TEXTS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>")


def rendered(tokenizer, template, conversation, is_open):
    try:
        return tokenizer.apply_chat_template(conversation, chat_template=template, tokenize=False, add_generation_prompt=is_open)
    except Exception as error:  # A template refuses by raising.
        return {"refused": str(error)}


def ids_of(tokenizer, conversation):
    ids = tokenizer.apply_chat_template(conversation, tokenize=True, add_generation_prompt=True)
    return list(ids["input_ids"] if hasattr(ids, "keys") else ids)


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizers_of = {"made": made(folder)} | {Path(model).name: AutoTokenizer.from_pretrained(model) for model in sys.argv[2:]}
    cases = []
    for name, tokenizer in tokenizers_of.items():
        own = {"own": tokenizer.chat_template} if tokenizer.chat_template else {}
        for which, template in (TEMPLATES | own).items():
            tokenizer.chat_template = template
            at = folder / f"{name}-{which}"
            tokenizer.save_pretrained(at)
            texts = [
                {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)} for text in TEXTS
            ]
            for case in texts:
                case["decoded"] = tokenizer.decode(case["ids"], skip_special_tokens=False)
                case["spoken"] = tokenizer.decode(case["ids"], skip_special_tokens=True)
            conversations = [
                {"messages": messages, "open": is_open, "text": rendered(tokenizer, template, messages, is_open)}
                for messages in CONVERSATIONS
                for is_open in (False, True)
            ]
            if which == "plain":
                tokenizer.chat_template = TOOLS_TEMPLATE
                tokenizer.save_pretrained(folder / f"{name}-tools")
                with_tools = [
                    {"messages": messages, "tools": tools, "text": tokenizer.apply_chat_template(
                        messages, tools=tools or None, tokenize=False, add_generation_prompt=True)}
                    for messages in (CALLS, CALLS[:1])
                    for tools in (TOOLS, TOOLS[::-1], [])
                ]
                tokenizer.chat_template = template
            first = ids_of(tokenizer, [USER]) if isinstance(rendered(tokenizer, template, [USER], True), str) else None
            cases.append({"folder": at.name, "texts": texts, "conversations": conversations, "first": first,
                          "tools_folder": f"{name}-tools", "with_tools": with_tools,
                          "end": tokenizer.eos_token_id, "vocabulary": len(tokenizer)})
    json.dump(cases, sys.stdout)


main()
