"""Drives environments by ROCK's own client, as its users would. The address, two keys and what to try are arguments."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import rock

ADDRESS, KEY, OTHER, WHAT = sys.argv[1:5]


def use(key):
    """An unmodified client sends the key of its address: httpx makes it a header."""
    os.environ["ROCK_BASE_URL"] = ADDRESS.replace("http://", f"http://gem:{key}@" if key else "http://")


def fails(ask, *words):
    try:
        told = ask()
    except Exception as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return
    raise AssertionError(f"it must fail with {words!r}, and gave {told!r:.200}")


def raw(what, body):
    return httpx.post(f"{os.environ['ROCK_BASE_URL']}/apis/v1/envs/gem/{what}", json=body, timeout=100)


def episodes():
    env = rock.make("scripted/short")
    fails(lambda: env.step("on"), "409", "reset the environment first")
    first, info = env.reset(seed=7)
    assert info == {"split": "train", "seed": 7}, info
    told = env.step("go")
    assert told[1:] == (0.25, False, False, {"left": 1}), told
    last = env.step("go")
    assert last[2:] == (False, True, {"left": 0}), last
    fails(lambda: env.step("go"), "truncated", "reset")
    # The same seed gives the same episode, in this environment and in another.
    assert env.reset(seed=7)[0] == first and env.step("go") == told
    other = rock.make("other")
    assert other.reset(seed=7)[0] == first and other.step("go") == told
    assert env.reset(seed=8)[0] != first
    assert other.reset()[0] != other.reset()[0]
    assert other.step("stop") == ("won", 1.0, True, False, {"why": "stopped"})
    fails(lambda: other.step("go"), "terminated", "reset")
    other.reset(seed=7)
    assert other.step("info")[4] == {"odd": None, "tuple": [1, None], "kind": "<class 'object'>"}
    for one in (env, other):
        identifier = one._sandbox_id
        one.close()
        one.close()
        one._sandbox_id = identifier
        for ask in (lambda: one.step("on"), lambda: one.reset(seed=1), one._call_admin_api):
            fails(lambda: ask("close", {"sandbox_id": identifier}) if ask == one._call_admin_api else ask(), "410", "closed")


def faults():
    calm = rock.make("scripted/long")
    calm.reset(seed=1)
    env = rock.make("scripted/long")
    for action, words in {
        "raise": "no such move",
        "nan": "reward=nan is not finite",
        "reward-text": "is no number",
        "reward-none": "is no number",
        "reward-list": "TypeError",
        "observation-list": "is a list and no text",
        "no-tuple": "no (text, reward, done)",
        "long": "observation has bytes=1000000",
        "long-info": "info has bytes=",
        "surrogate": "UnicodeEncodeError",
        "exit": "SystemExit: gone",
        "hang": "it hung here",
    }.items():
        begun, _ = env.reset(seed=3)
        fails(lambda: env.step(action), "502", words)
        fails(lambda: env.step("on"), "409", "the episode failed: reset")
    assert env.reset(seed=3)[0] == begun and env.step("flood")[1] == 0.25 and env.step("on")[1] == 0.25
    for action, words in {"die": "has ended", "garbage": "no answer", "deaf": "no answer within"}.items():
        env = rock.make("scripted/long")
        env.reset(seed=1)
        done = threading.Event()
        asked = threading.Thread(target=lambda: (fails(lambda: env.step(action), words), done.set()))
        asked.start()
        # Others go on meanwhile.
        steps = [calm.step("on")[1] for _ in range(20)]
        assert steps == [0.25] * 20 and not (action == "deaf" and done.is_set())
        if action == "deaf":
            fails(lambda: env.step("on"), "409", "another request")
        asked.join(100)
        assert done.is_set(), action
        fails(lambda: env.step("on"), "410", "its program")
    for kind, words in {"dies": "out of luck", "hangs": "no answer within", "none": "neither short nor long"}.items():
        fails(lambda: rock.make(f"scripted/{kind}"), words)
    # A client that went away in the middle of a step leaves an environment that answers the next one.
    env = rock.make("scripted/long")
    env.reset(seed=1)
    body = {"sandbox_id": env._sandbox_id, "action": "hang"}
    try:
        httpx.post(f"{os.environ['ROCK_BASE_URL']}/apis/v1/envs/gem/step", json=body, timeout=0.5)
        raise AssertionError("it hangs")
    except httpx.TimeoutException:
        pass
    until = time.monotonic() + 100
    while True:
        try:
            env.reset(seed=3)
            break
        except Exception as error:
            assert "another request" in str(error) and time.monotonic() < until, error
    assert env.step("mine")[0].startswith("mine ")
    assert calm.step("on")[1] == 0.25


def wrong():
    env = rock.make("scripted/short")
    env.reset(seed=1)
    for env_id, words in {
        "../scripted": "env_id",
        "scripted/../other": "without `..`",
        "/etc/passwd": "env_id",
        "a b": "letters",
        "x" * 300: "1 to 256",
        "scripted/nothing": "neither short nor long",
        "nobody": "neither short nor long",
        "other/short": "neither short nor long",
    }.items():
        fails(lambda: rock.make(env_id), "400", words)
    identifier = env._sandbox_id
    for key, status, words in [(OTHER, 404, "is not there"), ("", 401, "no known key"), ("x" * 20, 401, "no known key")]:
        use(key)
        for what in ("reset", "step", "close"):
            told = raw(what, {"sandbox_id": identifier, "action": "stop"})
            assert told.status_code == status and words in told.text, (key, told, told.text)
    use("")
    fails(lambda: rock.make("other"), "401", "ROCK_BASE_URL")
    use(KEY)
    for what, body, words in [
        ("step", {"sandbox_id": "never", "action": "on"}, "is not there"),
        ("step", {"sandbox_id": "../" + identifier, "action": "on"}, "is not there"),
        ("step", {"sandbox_id": identifier}, "action"),
        ("step", {"sandbox_id": identifier, "action": 5}, "action"),
        ("step", {"sandbox_id": 5, "action": "on"}, "sandbox_id"),
        ("step", {"sandbox_id": identifier, "action": "x" * 2_000_000}, "limit"),
        ("reset", {"sandbox_id": identifier, "seed": -1}, "seed"),
        ("reset", {"sandbox_id": identifier, "seed": "7"}, "seed"),
        ("make", {}, "env_id"),
        ("make", [], "body"),
        ("list", {}, "make, reset, step and close"),
    ]:
        told = raw(what, body)
        assert 400 <= told.status_code < 500 and words in told.text, (what, told, told.text)
    # A sandbox of this key that is no environment.
    made = httpx.post(f"{os.environ['ROCK_BASE_URL']}/apis/envs/sandbox/v1/start", json={"image": "base"}).json()
    told = raw("step", {"sandbox_id": made["result"]["sandbox_id"], "action": "on"})
    assert told.status_code == 404 and "no environment's" in told.text, told.text
    assert env.step("still")[0].startswith("still ")


def abandon():
    """Makes many, and leaves."""
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda _: rock.make("other"), range(200)))
    assert len({env._sandbox_id for env in made}) == 200


def full():
    """Two environments may be."""
    made = [rock.make("other") for _ in range(2)]
    fails(lambda: rock.make("other"), "503", "2 environments")
    made[0].close()
    rock.make("other").reset(seed=1)
    made[1].close()
    fails(lambda: rock.make("scripted/none"), "400")
    made = rock.make("other")
    fails(lambda: rock.make("other"), "503")


use(KEY)
{f.__name__: f for f in (episodes, faults, wrong, abandon, full)}[WHAT]()
print("done")
