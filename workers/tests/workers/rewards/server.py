"""A chat server that judges: the number of words of the answer, or what it is told to do wrong."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

state = {"how": "well", "asked": 0, "now": 0, "most": 0, "last": None, "key": None}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, state)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/test/set":
            state.update(body)
            return self.answer(200, {})
        with lock:
            state["asked"] += 1
            state["now"] += 1
            state["most"] = max(state["most"], state["now"])
            state["last"], state["key"] = body, self.headers["Authorization"]
        try:
            status, said, *headers = self.judge(body)
        finally:
            # Before the answer: whoever has it may ask again at once.
            with lock:
                state["now"] -= 1
        self.answer(status, said, headers)

    def judge(self, body):
        """The status, the body and the headers of the answer."""
        how = state["how"]
        if self.path != "/v1/chat/completions" or how == "missing":
            return 404, {"error": "no such path"}
        if how == "broken":
            return 500, {"error": "out of memory"}
        if how == "busy":
            return 429, {"error": "later"}, ("Retry-After", "7")
        if how == "long":
            return 400, {"error": "context too long"}
        if how == "hangs":
            time.sleep(30)
        if how == "slow":
            time.sleep(0.2)
        if how == "no_json":
            return 200, b"<html>"
        if how == "empty":
            return 200, {"choices": []}
        asked = body["messages"][-1]["content"]
        answer = asked.split("<answer>")[1].split("</answer>")[0]
        said = {
            "mute": "I would rather not say.",
            "words": "Score: seven",
            "far": "Score: 11",
            "cut": "It is good since",
            "short": "Score: 1",
        }.get(how, f"It has words.\nScore: {min(len(answer.split()), 10)}")
        finish = "length" if how == "short" else "stop"
        return 200, {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": finish}]}


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
server.serve_forever()
