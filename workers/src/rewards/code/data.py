"""Values as JSON can carry them, and back: the half of the driver that knows no processes. `code.rs` puts driver.py after
it, and both into one file, because the test's process imports nothing from the folder that the answer can write to."""

import collections
import datetime
import importlib
import sys

# Made again by their text or by their parts, on the other side: class and module.
TEXTS = {"Decimal": "decimal", "Fraction": "fractions", "UUID": "uuid", "PosixPath": "pathlib", "PurePosixPath": "pathlib"}
TIMES = {"date": datetime.date, "datetime": datetime.datetime, "time": datetime.time}
DICTS = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict}
# What a defaultdict makes of a key that it lacks.
MADE = {"int": int, "float": float, "str": str, "list": list, "dict": dict, "set": set}
CHANGEABLE = (list, dict, set, bytearray, collections.deque)


class Opaque(Exception):
    """An object that is not data."""


class Known:
    """The changeable objects of a call's arguments, by their place among them. Both ends number them alike, as they come in
    the message, so that either can say which of them it means."""

    def __init__(self, things=()):
        self.things, self.numbers = [], {}
        for thing in things:
            self.add(thing)

    def add(self, thing):
        self.numbers[id(thing)] = len(self.things)
        self.things.append(thing)
        return thing

    def number(self, thing):
        return self.numbers.get(id(thing)) if isinstance(thing, CHANGEABLE) else None


def data(value, other, known=None, adds=False):
    """A value as JSON can carry it; `other` says what becomes of what is not data. One of `known` is its number, and with
    `adds` what is new and changeable becomes one."""
    if known is not None and isinstance(value, CHANGEABLE):
        number = known.number(value)
        if number is not None:
            return ["=", number]
        if adds:
            known.add(value)
    return parts(value, other, lambda one: data(one, other, known, adds))


def parts(value, other, of):
    """The same of a value whose parts are `of` them."""
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
        return ["n", kind.__name__, list(kind._fields), [of(one) for one in tuple.__iter__(value)]]
    for letter, base in (("l", list), ("t", tuple), ("s", set), ("f", frozenset)):
        if isinstance(value, base):
            return [letter, [of(one) for one in base.__iter__(value)]]
    if isinstance(value, collections.deque):
        return ["q", [of(one) for one in collections.deque.__iter__(value)], value.maxlen]
    if isinstance(value, dict):
        return ["d", [[of(key), of(one)] for key, one in dict.items(value)], *sort(value)]
    return single(value, kind, other, of)


def sort(value):
    """Of a dict of the standard library, which."""
    name = next((name for name, kind in DICTS.items() if isinstance(value, kind)), None)
    if isinstance(value, collections.defaultdict):
        name = next((name for name, kind in MADE.items() if value.default_factory is kind), None)
    return [name] if name else []


def single(value, kind, other, of):
    if kind is complex:
        return ["c", value.real, value.imag]
    if kind is range:
        return ["r", hex(value.start), hex(value.stop), hex(value.step)]
    if kind.__name__ in TEXTS and kind is getattr(sys.modules.get(TEXTS[kind.__name__]), kind.__name__, None):
        return ["x", kind.__name__, str(value)]
    if kind.__name__ in TIMES and kind is TIMES[kind.__name__]:
        return ["T", kind.__name__, value.isoformat()]
    if kind is datetime.timedelta:
        return ["D", value.days, value.seconds, value.microseconds]
    if kind.__module__ == "numpy":
        if hasattr(value, "tolist") and getattr(value, "dtype", None) is not None and value.dtype.kind in "biufcU":
            return ["a", value.dtype.str, of(value.tolist())]
    return other(value)


def value(sent, other, known=None, adds=False):
    """What `data` made, as a value again; `other` makes what is not data."""
    kind, *rest = sent
    one = rest[0] if rest else None
    of = lambda part: value(part, other, known, adds)
    if kind == "=" and known is not None:
        return known.things[one]
    if kind == "v":
        return one
    if kind == "i":
        return int(one, 16)
    if kind == "F":
        return float(one)
    if kind == "b":
        return bytes.fromhex(one)
    if kind == "n":
        return collections.namedtuple(one, rest[1])(*(of(part) for part in rest[2]))
    if kind in ("t", "f"):
        return (tuple if kind == "t" else frozenset)([of(part) for part in one])
    if kind in EMPTY:
        # Before its parts, which may contain it.
        whole = EMPTY[kind](*rest[1:])
        fill(known.add(whole) if adds else whole, sent, of)
        return whole
    if kind == "c":
        return complex(one, rest[1])
    if kind == "r":
        return range(*(int(part, 16) for part in rest))
    if kind == "x":
        return getattr(importlib.import_module(TEXTS[one]), one)(rest[1])
    if kind == "T":
        return TIMES[one].fromisoformat(rest[1])
    if kind == "D":
        return datetime.timedelta(*rest)
    if kind == "a":
        return importlib.import_module("numpy").array(of(rest[1]), dtype=one)
    return other(sent)


def empty_dict(name=None):
    return collections.defaultdict(MADE[name]) if name in MADE else DICTS.get(name, dict)()


EMPTY = {
    "l": list,
    "s": set,
    "B": bytearray,
    "q": lambda length=None: collections.deque(maxlen=length),
    "d": empty_dict,
}


def fill(whole, sent, of):
    """Puts the parts that were sent into a changeable object, in place of its own."""
    kind, inner = sent[:2]
    if kind == "B":
        whole[:] = bytes.fromhex(inner)
    elif kind == "d":
        inner = [(of(key), of(one)) for key, one in inner]
        whole.clear()
        for key, one in inner:
            whole[key] = one
    else:
        inner = [of(part) for part in inner]
        whole.clear()
        (whole.update if kind == "s" else whole.extend)(inner)


