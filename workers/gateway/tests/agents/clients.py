"""Plays one conversation by an unmodified client: `python3 clients.py chat|messages|responses`."""

import json
import sys
import traceback

import anthropic
import openai

LOOK = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def same(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def user(text):
    return {"role": "user", "content": text}


def chat():
    client = openai.OpenAI(max_retries=0)
    tools = [{"type": "function", "function": {"name": "ls", "description": "lists", "parameters": LOOK}}]
    talk = [user("hi")]

    def ask(**more):
        return client.chat.completions.create(model="any", messages=talk, tools=tools, temperature=0.5, **more)

    answer = ask()
    same((answer.choices[0].message.content, answer.choices[0].finish_reason), ("one", "stop"))
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + 4)
    talk.extend([answer.choices[0].message, user("and?")])
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    same((text, chunks[-1].usage.completion_tokens), ("two", 4))
    talk.extend([{"role": "assistant", "content": text}, user("look")])
    answer = ask().choices[0]
    call = answer.message.tool_calls[0]
    same((answer.finish_reason, answer.message.content), ("tool_calls", "I look."))
    same((call.function.name, json.loads(call.function.arguments)), ("ls", {"path": "."}))
    talk.extend([answer.message, {"role": "tool", "tool_call_id": call.id, "content": "x.py"}])
    deltas = [chunk.choices[0].delta for chunk in ask(stream=True) if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    same(json.loads("".join(call.function.arguments or "" for call in calls)), {"path": "src"})
    same([model.id for model in client.models.list()], ["test"])
    talk[0] = user("something else")
    try:
        ask()
    except openai.ConflictError as error:
        assert "messages[0]" in str(error), error
    else:
        raise AssertionError("a fork is refused")


def messages():
    client = anthropic.Anthropic(max_retries=0)
    tools = [{"name": "ls", "description": "lists", "input_schema": LOOK}]
    talk = [user("hi")]
    common = {"model": "any", "max_tokens": 200, "system": "be brief", "tools": tools}
    answer = client.messages.create(messages=talk, **common)
    same((answer.content[0].text, answer.stop_reason), ("one", "end_turn"))
    talk.extend([{"role": "assistant", "content": answer.content}, user("and?")])
    with client.messages.stream(messages=talk, **common) as stream:
        same("".join(stream.text_stream), "two")
        answer = stream.get_final_message()
    same(answer.usage.output_tokens, 4)
    talk.extend([{"role": "assistant", "content": answer.content}, user("look")])
    answer = client.messages.create(messages=talk, **common)
    text, call = answer.content
    same((answer.stop_reason, text.text, call.name, call.input), ("tool_use", "I look.", "ls", {"path": "."}))
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "x.py"}
    talk.extend([{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}])
    with client.messages.stream(messages=talk, **common) as stream:
        answer = stream.get_final_message()
    same(answer.content[-1].input, {"path": "src"})
    try:
        client.messages.create(messages=[user("something else")], **common)
    except anthropic.ConflictError as error:
        assert "messages[" in str(error), error
    else:
        raise AssertionError("a fork is refused")


def responses():
    client = openai.OpenAI(max_retries=0)
    tools = [{"type": "function", "name": "ls", "description": "lists", "parameters": LOOK, "strict": False}]
    talk = [user("hi")]
    common = {"model": "any", "instructions": "be brief", "tools": tools}
    answer = client.responses.create(input=talk, **common)
    same((answer.output_text, answer.status), ("one", "completed"))
    talk.extend([*answer.output, user("and?")])
    with client.responses.stream(input=talk, **common) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        answer = stream.get_final_response()
    same(("".join(texts), answer.usage.output_tokens), ("two", 4))
    talk.extend([*answer.output, user("look")])
    answer = client.responses.create(input=talk, **common)
    call = answer.output[-1]
    same((call.type, call.name, json.loads(call.arguments)), ("function_call", "ls", {"path": "."}))
    talk.extend([*answer.output, {"type": "function_call_output", "call_id": call.call_id, "output": "x.py"}])
    events = list(client.responses.create(input=talk, stream=True, **common))
    same(json.loads(events[-1].response.output[-1].arguments), {"path": "src"})
    try:
        client.responses.create(input=[user("something else")], **common)
    except openai.ConflictError:
        pass
    else:
        raise AssertionError("a fork is refused")


try:
    {"chat": chat, "messages": messages, "responses": responses}[sys.argv[1]]()
    verdict = "passed"
except Exception:
    verdict = traceback.format_exc().replace("\n", " | ")
with open("verdict", "w") as file:
    file.write(verdict)
