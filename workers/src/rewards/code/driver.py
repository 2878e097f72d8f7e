"""Judges code by a test from outside of the interpreter that runs it.

`driver.py test` reads a line that nobody can guess, the name of the function that is wanted or an empty line, and then a
test from its standard input. It starts `driver.py answer`, which runs answer.py in a process of its own, runs the test itself,
and writes the first line once the test ran to its end. Between the two travel data alone: the test's process never holds an object of the answer's, and the answer's process never sees the
test or the line.

What the test gets of a function's result:

- data by value (data.py): None, bool, numbers, text, bytes, lists, tuples, dicts, sets, ranges, fractions, decimals, dates,
  paths, and arrays of numpy. A list, dict or set of the arguments, also within another, that the function changes before it
  returns is changed for the test, too;
- anything else as a `Remote`, which asks the answer's process. A Remote never equals data, and does not compute with data
  or order itself against it: what an object says of a value of the test's proves nothing.
"""

import builtins
import importlib
import json
import operator
import os
import struct
import subprocess
import sys
import threading

# Bytes of one message.
MOST = 64 << 20


class Peer:
    """One end of the pipe. Either end may ask while the other waits for its answer."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.lock = reader, writer, threading.RLock()
        self.kept, self.numbers, self.errors = {}, {}, {}

    def keep(self, thing):
        """A number for an object of this side. The object is kept, so that its number stays its own."""
        number = self.numbers.setdefault(id(thing), len(self.kept))
        self.kept[number] = thing
        return number

    def send(self, message):
        text = json.dumps(message).encode()
        self.writer.write(struct.pack("<I", len(text)) + text)
        self.writer.flush()

    def receive(self):
        head = self.reader.read(4)
        if len(head) < 4:
            raise EOFError("the answer's process has ended")
        length = struct.unpack("<I", head)[0]
        if length > MOST:
            raise EOFError("the answer's process said too much")
        return json.loads(self.reader.read(length))

    def ask(self, *request):
        with self.lock:
            self.send(["ask", *request])
            while True:
                kind, *rest = self.receive()
                if kind == "ask":
                    self.answer(*rest)
                elif kind == "error":
                    raise self.error(*rest)
                else:
                    return rest

    def answer(self, *request):
        try:
            reply = ["done", *self.do(*request)]
        except BaseException as error:
            reply = ["error", *told(error, self.keep)]
        self.send(reply)

    def exception(self, names):
        """The class of an exception: Python's or its library's, or one of the other side's own, which is made here as well."""
        kind = Exception
        for name, number, module in reversed(names):
            if number is not None:
                kind = self.errors.setdefault(number, type(name, (kind,), {"__str__": said}))
            elif module.partition(".")[0] in sys.stdlib_module_names:
                known = getattr(importlib.import_module(module), name, None)
                kind = known if isinstance(known, type) and issubclass(known, BaseException) else kind
        return kind

    def error(self, names, arguments, text, attributes):
        kind, arguments = self.exception(names), tuple(self.get(arguments))
        try:
            error = kind(*arguments) if names[0][1] is None else kind.__new__(kind)
        except Exception:
            error = kind.__new__(kind)
        error.args = arguments
        vars(error)["_said"] = text
        for name, one in attributes.items():
            if not name.startswith("_"):
                setattr(error, name, self.get(one))
        return error


def said(error):
    return vars(error).get("_said") or ", ".join(map(str, error.args))


def plain(one):
    return data(one, refuse)


def refuse(one):
    raise Opaque(type(one).__name__)


def classes(kind, keep):
    """The classes of an exception from its own to the nearest of Python's: name, number if it is no library's, module."""
    names = []
    for kind in kind.__mro__:
        module = kind.__module__ if kind.__module__.partition(".")[0] in sys.stdlib_module_names else None
        known = module is not None and getattr(sys.modules.get(module), kind.__name__, None) is kind
        names.append([kind.__name__, None if known else keep(kind), module])
        if known:
            return names
    return names


def told(error, keep):
    """An exception: its classes, and its arguments, text and attributes where they are data."""
    text = str(error)
    try:
        arguments = plain(tuple(error.args))
    except (Opaque, RecursionError):
        arguments = plain((text,))
    attributes = {}
    for name, one in vars(error).items():
        try:
            attributes[name] = plain(one)
        except (Opaque, RecursionError):
            pass
    return [classes(type(error), keep), arguments, text, attributes]


# ---- the answer's process ----------------------------------------------------------------------------------------------


class Callback:
    """An object of the test's: it can be called, gone through, and asked for its public names where the test made it."""

    def __init__(self, peer, number):
        object.__setattr__(self, "_at", (peer, number))

    def _ask(self, *request):
        peer, number = self._at
        return peer.get(peer.ask(number, *request)[0])

    def __call__(self, *arguments):
        return self._ask("call", [self._at[0].put(one) for one in arguments])

    def __getattr__(self, name):
        return self._ask("getattr", name)

    def __setattr__(self, name, one):
        self._ask("setattr", name, self._at[0].put(one))

    def __iter__(self):
        return self._ask("iter")

    def __next__(self):
        return self._ask("next")

    def __len__(self):
        return self._ask("len")

    def __getitem__(self, key):
        return self._ask("getitem", self._at[0].put(key))


# What the test asks of an object; each is given the object and values.
ASKED = {
    "setattr": setattr,
    "delattr": delattr,
    "len": len,
    "iter": iter,
    "next": next,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "str": str,
    "repr": repr,
    "bool": bool,
    "hash": hash,
    "int": int,
    "float": float,
    "index": operator.index,
    "abs": abs,
    "neg": operator.neg,
    "pos": operator.pos,
    "invert": operator.invert,
    "round": round,
    "reversed": reversed,
    "format": format,
    "dir": dir,
    "enter": lambda one: one.__enter__(),
    "exit": lambda one: bool(one.__exit__(None, None, None)),
    "isinstance": lambda one, kind: isinstance(one, kind),
    "issubclass": lambda one, kind: isinstance(one, type) and issubclass(one, kind),
    "await": lambda one: __import__("asyncio").run(one),
}
BOTH = ["eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
ASKED |= {name: getattr(operator, f"__{name}__") for name in BOTH}


class Answer(Peer):
    """Runs answer.py and does what the test asks of its names."""

    names = {"__name__": "answer", "__builtins__": __builtins__}

    def put(self, one, known=None):
        try:
            return data(one, self.own, known)
        except RecursionError:
            return self.own(one)

    def own(self, one):
        if isinstance(one, Callback):
            return ["k", one._at[1]]
        if type(one).__name__ == "module" and one is sys.modules.get(getattr(one, "__name__", None)):
            return ["m", one.__name__]
        if isinstance(one, type) and issubclass(one, BaseException):
            return ["E", classes(one, self.keep)]
        return ["w" if hasattr(type(one), "__await__") else "o", self.keep(one)]

    def get(self, sent):
        return value(sent, self.other)

    def other(self, sent):
        return self.kept[sent[1]] if sent[0] == "o" else Callback(self, sent[1])

    def do(self, number, what, *rest):
        if what == "load":
            with open("answer.py", encoding="utf-8") as answer:
                exec(compile(answer.read(), "answer.py", "exec"), self.names)
            return [["v", None]]
        if what == "name":
            return [self.put(self.names[rest[0]]) if rest[0] in self.names else None]
        one = self.kept[number]
        if what == "call":
            return self.call(one, *rest)
        if what == "getattr":
            return [self.put(getattr(one, rest[0]))]
        if what in ("setattr", "delattr"):
            return [self.put(ASKED[what](one, rest[0], *map(self.get, rest[1:])))]
        return [self.put(ASKED[what](one, *map(self.get, rest)))]

    def call(self, one, sent, named):
        """The result, and what the arguments' changeable objects hold now where they held something else before."""
        known = Known()
        arguments = [value(argument, self.other, known, True) for argument in sent]
        named = {name: value(argument, self.other, known, True) for name, argument in named.items()}
        of = lambda part: data(part, self.own, known)
        held = lambda: [parts(thing, self.own, of) for thing in known.things]
        before = held()
        result = one(*arguments, **named)
        changed = [None if after == old else after for after, old in zip(held(), before)]
        return [self.put(result, known), changed]


def answer():
    # Its words go to the standard error: the output belongs to the test.
    peer = Answer(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    while True:
        try:
            _, *request = peer.receive()
        except EOFError:
            return
        peer.answer(*request)


# ---- the test's process ------------------------------------------------------------------------------------------------


def asks(name):
    return lambda self, *rest: self._ask(name, *rest)


def both(name):
    def ask(self, other):
        return self._ask(name, other) if isinstance(other, Remote) else NotImplemented

    return ask


class Remote:
    """An object of the answer's."""

    __slots__ = ("_at",)

    def __init__(self, peer, number):
        object.__setattr__(self, "_at", (peer, number))

    def _ask(self, what, *rest):
        peer, number = self._at
        return peer.get(peer.ask(number, what, *map(peer.put, rest))[0])

    def __call__(self, *arguments, **named):
        peer, number = self._at
        known = Known()
        sent = [data(argument, peer.own, known, True) for argument in arguments]
        names = {name: data(argument, peer.own, known, True) for name, argument in named.items()}
        result, changed = peer.ask(number, "call", sent, names)
        of = lambda part: value(part, peer.other, known)
        for thing, after in zip(known.things, changed):
            if after is not None:
                fill(thing, after, of)
        return of(result)

    def __getattr__(self, name):
        peer, number = self._at
        return peer.get(peer.ask(number, "getattr", name)[0])

    def __setattr__(self, name, one):
        peer, number = self._at
        peer.ask(number, "setattr", name, peer.put(one))

    def __delattr__(self, name):
        peer, number = self._at
        peer.ask(number, "delattr", name)

    def __contains__(self, one):
        return any(item == one for item in self)

    def __exit__(self, *_):
        return self._ask("exit")

    def __instancecheck__(self, one):
        return isinstance(one, Remote) and one._ask("isinstance", self)

    def __subclasscheck__(self, one):
        return isinstance(one, Remote) and one._ask("issubclass", self)


for special in "len iter next getitem setitem delitem str repr bool hash int float index abs neg pos invert round reversed format dir enter".split():
    setattr(Remote, f"__{special}__", asks(special))
for special in BOTH:
    setattr(Remote, f"__{special}__", both(special))


class Test(Peer):
    """The test's end: what the answer's process says is data, and no more."""

    def __init__(self, *pipes):
        super().__init__(*pipes)
        self.remotes = {}

    def put(self, one):
        return data(one, self.own)

    def own(self, one):
        if isinstance(one, Remote):
            return ["o", one._at[1]]
        return ["k", self.keep(one)]

    def get(self, sent):
        return value(sent, self.other)

    def other(self, sent):
        kind, what = sent[0], sent[1]
        if kind == "o":
            return self.remotes.setdefault(what, Remote(self, what))
        if kind == "k":
            return self.kept[what]
        if kind == "E":
            return self.exception(what)
        if kind == "m" and what.partition(".")[0] in sys.stdlib_module_names | {"numpy"}:
            return importlib.import_module(what)
        if kind == "w":
            return self.later(what)
        raise TypeError(f"the answer's process sent {kind!r}")

    async def later(self, number):
        return self.get(self.ask(number, "await")[0])

    def do(self, number, what, *rest):
        """What the answer asks of an object that the test gave it."""
        one = self.kept[number]
        if what == "call" and callable(one):
            return [self.put(one(*map(self.get, rest[0])))]
        if what in ("iter", "next", "len"):
            return [self.put(ASKED[what](one))]
        ours = type(one).__module__ in ("test", "_io", "io")
        if ours and what == "getitem":
            return [self.put(one[self.get(rest[0])])]
        if ours and what in ("getattr", "setattr") and not rest[0].startswith("_"):
            return [self.put(getattr(one, rest[0]))] if what == "getattr" else [self.put(setattr(one, rest[0], self.get(rest[1])))]
        raise AttributeError(f"a test's {type(one).__name__} has no {what} {rest[:1]}")


class Names(dict):
    """The names that a test sees: its own, then Python's, then the answer's. An answer that defines `abs` or `sorted` would
    decide what the test's own use of them finds; it may define only the one that is wanted."""

    peer, wanted = None, ""

    def __missing__(self, name):
        if name != self.wanted and hasattr(builtins, name):
            return getattr(builtins, name)
        sent = self.peer.ask(0, "name", name)[0]
        if sent is None:
            raise KeyError(name)
        return self.peer.get(sent)


def test():
    mark, wanted, code = sys.stdin.buffer.read().decode().split("\n", 2)
    command = [sys.executable, "-s", "-B", "driver.py", "answer"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.chdir("/")
    peer = Test(process.stdout, process.stdin)
    peer.ask(0, "load")
    names = Names({"__name__": "test", "__builtins__": builtins})
    names.peer, names.wanted = peer, wanted
    exec(compile(code, "test", "exec"), names)
    sys.stdout.flush()
    os.write(1, b"\n" + mark.encode() + b"\n")


{"test": test, "answer": answer}[sys.argv[1]]()
