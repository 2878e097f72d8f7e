"""An MCP server that does what it must not, for tests: `hostile.py [FAULT]`.

Without a FAULT its tools are the faults. With one its start is: `silent`, `dies`, `old`, `toolless`, `endless`, `twice`,
`huge`, or `mortal`, which dies at each call of `echo`.
"""

import json
import os
import signal
import sys

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
ARGUMENTS = {"text": {"type": "string"}, "times": {"type": "integer"}}
TEXT = {"type": "object", "properties": ARGUMENTS, "required": ["text"], "additionalProperties": False}
NAMES = ["echo", "hang", "stop", "die", "garbage", "big", "huge", "fail", "refuse", "ask", "seen", "environment", "grow", "../up"]
state = {"names": list(NAMES), "cancelled": [], "answers": [], "waits": None}


def send(message):
    print(json.dumps(message), flush=True)


def answer(id, result):
    send({"jsonrpc": "2.0", "id": id, "result": result})


def text(id, words, **more):
    answer(id, {"content": [{"type": "text", "text": words}], **more})


def listed(params):
    if FAULT == "endless":
        return {"tools": [], "nextCursor": "again"}
    at = int(params.get("cursor", 0))
    tools = []
    if state["names"][at:]:
        schema = TEXT if state["names"][at] in ("echo", "../up") else {"type": "object"}
        tools.append({"name": state["names"][at], "description": "One of many.", "inputSchema": schema})
    page = {"tools": [tools[0], tools[0]] if FAULT == "twice" else tools}
    if at + 1 < len(state["names"]):
        page["nextCursor"] = str(at + 1)
    return page


def call(id, name, arguments):
    match name:
        case "echo" | "../up":
            if FAULT == "mortal":
                os.kill(os.getpid(), signal.SIGKILL)
            text(id, arguments.get("text", "") * arguments.get("times", 1))
        case "hang":
            pass
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "garbage":
            print("no JSON\n[1, 2]\n{}\n\n{\"id\":", flush=True)
            sys.stdout.buffer.write(b"\xff\xfe\n")
            sys.stdout.flush()
            answer(999_999, {"content": [{"type": "text", "text": "for nobody"}]})
            answer("text", {})
            text(id, "after garbage")
        case "big":
            text(id, "x" * 1_000_000)
        case "huge":
            text(id, "x" * 10_000_000)
        case "fail":
            text(id, "it failed", isError=True)
        case "refuse":
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no such thing"}})
        case "ask":
            state["waits"], state["answers"] = id, []
            for number, method in enumerate(["ping", "sampling/createMessage", "roots/list"]):
                send({"jsonrpc": "2.0", "id": f"s{number}", "method": method, "params": {}})
        case "seen":
            text(id, json.dumps(state["cancelled"]))
        case "environment":
            text(id, json.dumps(sorted(os.environ)))
        case "grow":
            state["names"].append("grown")
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            text(id, "grown")


def main():
    if FAULT == "dies":
        sys.exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        match method:
            case _ if FAULT == "silent":
                pass
            case "initialize":
                version = "1999-01-01" if FAULT == "old" else params["protocolVersion"]
                tools = {} if FAULT == "toolless" else {"tools": {"listChanged": True}}
                name = {"name": "hostile", "version": "x" * (10_000_000 if FAULT == "huge" else 1)}
                answer(id, {"protocolVersion": version, "capabilities": tools, "serverInfo": name})
            case "ping":
                answer(id, {})
            case "tools/list":
                answer(id, listed(params))
            case "tools/call":
                call(id, params["name"], params["arguments"])
            case "notifications/cancelled":
                state["cancelled"].append(params["requestId"])
            case None:
                state["answers"].append("result" if "result" in message else message["error"]["code"])
                if len(state["answers"]) == 3:
                    text(state["waits"], json.dumps(state["answers"]))


main()
