"""Judges code by a test from outside of the interpreter that runs it.

`driver.py test` reads a line that nobody can guess, the name of the function that is wanted or an empty line, and then a
test from its standard input. It starts `driver.py answer`, which runs answer.py in a process of its own, runs the test itself,
and writes the first line once the test ran to its end. Between the two travel data alone: the test's process never holds an object of the answer's, and the answer's process never sees the
test or the line.

What the test gets of a function's result:

- data by value: None, bool, numbers, text, bytes, lists, tuples, dicts, sets, ranges, fractions, decimals, dates, and
  arrays of numpy. A list, dict or set that the function changes is changed for the test, too;
- anything else as a `Remote`, which asks the answer's process. A Remote never equals data, and does not compute with data
  or order itself against it: what an object says of a value of the test's proves nothing.
"""

import builtins
import collections
import datetime
import decimal
import fractions
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
# Made again by their text or by their parts, on the other side.
TEXTS = {"Decimal": decimal.Decimal, "Fraction": fractions.Fraction}
TIMES = {"date": datetime.date, "datetime": datetime.datetime, "time": datetime.time}
CHANGEABLE = (list, dict, set, bytearray, collections.deque)


class Opaque(Exception):
    """An object that is not data."""


def data(value, other):
    """A value as JSON can carry it; `other` says what becomes of what is not data."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return ["v", value]
    if isinstance(value, bool):
        return ["v", bool(value)]
    if isinstance(value, int):
        return ["i", hex(int.__index__(value))]
    if isinstance(value, float):
        return ["F", float.__float__(value)]
    if isinstance(value, str):
        return ["v", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["b" if isinstance(value, bytes) else "B", bytes(value).hex()]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return ["n", kind.__name__, list(kind._fields), [data(one, other) for one in tuple.__iter__(value)]]
    for letter, base in (("l", list), ("t", tuple), ("s", set), ("f", frozenset), ("q", collections.deque)):
        if isinstance(value, base):
            return [letter, [data(one, other) for one in base.__iter__(value)]]
    if isinstance(value, dict):
        return ["d", [[data(key, other), data(one, other)] for key, one in dict.items(value)]]
    if kind is complex:
        return ["c", value.real, value.imag]
    if kind is range:
        return ["r", hex(value.start), hex(value.stop), hex(value.step)]
    if kind.__name__ in TEXTS and kind is TEXTS[kind.__name__]:
        return ["x", kind.__name__, str(value)]
    if kind.__name__ in TIMES and kind is TIMES[kind.__name__]:
        return ["T", kind.__name__, value.isoformat()]
    if kind is datetime.timedelta:
        return ["D", value.days, value.seconds, value.microseconds]
    if kind.__module__ == "numpy":
        if hasattr(value, "tolist") and getattr(value, "dtype", None) is not None and value.dtype.kind in "biufcU":
            return ["a", value.dtype.str, data(value.tolist(), other)]
    return other(value)


def value(sent, other):
    """What `data` made, as a value again; `other` makes what is not data."""
    kind, *rest = sent
    one = rest[0] if rest else None
    if kind == "v":
        return one
    if kind == "i":
        return int(one, 16)
    if kind == "F":
        return float(one)
    if kind in "bB":
        return bytes.fromhex(one) if kind == "b" else bytearray.fromhex(one)
    if kind == "n":
        return collections.namedtuple(one, rest[1])(*(value(part, other) for part in rest[2]))
    shapes = {"l": list, "t": tuple, "s": set, "f": frozenset, "q": collections.deque}
    if kind in shapes:
        return shapes[kind]([value(part, other) for part in one])
    if kind == "d":
        return {value(key, other): value(part, other) for key, part in one}
    if kind == "c":
        return complex(one, rest[1])
    if kind == "r":
        return range(*(int(part, 16) for part in rest))
    if kind == "x":
        return TEXTS[one](rest[1])
    if kind == "T":
        return TIMES[one].fromisoformat(rest[1])
    if kind == "D":
        return datetime.timedelta(*rest)
    if kind == "a":
        return importlib.import_module("numpy").array(value(rest[1], other), dtype=one)
    return other(sent)


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
        """The class of an exception; one of the other side's own is made here as well."""
        kind = Exception
        for name, number in reversed(names):
            known = getattr(builtins, name, None) if number is None else None
            if isinstance(known, type) and issubclass(known, BaseException):
                kind = known
            elif number is not None:
                kind = self.errors.setdefault(number, type(name, (kind,), {}))
        return kind

    def error(self, names, arguments):
        kind = self.exception(names)
        error = kind.__new__(kind)
        error.args = tuple(self.get(arguments))
        return error


def plain(one):
    return data(one, refuse)


def refuse(one):
    raise Opaque(type(one).__name__)


def told(error, keep):
    """An exception: its classes from its own to the nearest of Python's, and its arguments where they are data."""
    names = []
    for kind in type(error).__mro__:
        known = getattr(builtins, kind.__name__, None) is kind
        names.append([kind.__name__, None if known else keep(kind)])
        if known:
            break
    try:
        arguments = plain(tuple(error.args))
    except (Opaque, RecursionError):
        arguments = plain((str(error),))
    return [names, arguments]


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

    def put(self, one):
        try:
            return data(one, self.own)
        except RecursionError:
            return self.own(one)

    def own(self, one):
        if isinstance(one, Callback):
            return ["k", one._at[1]]
        if type(one).__name__ == "module" and one is sys.modules.get(getattr(one, "__name__", None)):
            return ["m", one.__name__]
        if isinstance(one, type) and issubclass(one, BaseException):
            return ["E", told(one.__new__(one), self.keep)[0]]
        return ["w" if hasattr(type(one), "__await__") else "o", self.keep(one)]

    def get(self, sent):
        return value(sent, lambda other: self.kept[other[1]] if other[0] == "o" else Callback(self, other[1]))

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
        arguments = [self.get(argument) for argument in sent]
        result = one(*arguments, **{name: self.get(argument) for name, argument in named.items()})
        changed = [
            after if isinstance(argument, CHANGEABLE) and (after := self.put(argument)) != before else None
            for argument, before in zip(arguments, sent)
        ]
        same = [at for at, argument in enumerate(arguments) if isinstance(argument, CHANGEABLE) and argument is result]
        return [["=", same[0]] if same else self.put(result), changed]


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
        sent = [peer.put(argument) for argument in arguments]
        result, changed = peer.ask(number, "call", sent, {name: peer.put(one) for name, one in named.items()})
        for argument, after in zip(arguments, changed):
            if after is not None and isinstance(argument, CHANGEABLE):
                change(argument, peer.get(after))
        return arguments[result[1]] if result[0] == "=" else peer.get(result)

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


def change(argument, after):
    if isinstance(argument, (list, bytearray)):
        argument[:] = after
    else:
        argument.clear()
        (argument.extend if isinstance(argument, collections.deque) else argument.update)(after)


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
