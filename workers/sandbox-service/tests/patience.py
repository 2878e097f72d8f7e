"""What must fail, what is waited for, and what is counted."""

import time

PATIENCE = 60


def fails(kind, words, call):
    try:
        result = call()
    except kind as error:
        assert type(error) is kind, f"{type(error)} is no {kind}: {error}"
        assert words in str(error), f"{words!r} is not in {error}"
        return error
    raise AssertionError(f"it must fail with {kind.__name__} {words!r}, and is {result!r}")


def until(what, words):
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, words


def sleeping(sandbox):
    """How many processes of `sleep` an E2B sandbox has."""
    return int(sandbox.commands.run("grep -las ^sleep /proc/[0-9]*/cmdline | wc -l").stdout)
