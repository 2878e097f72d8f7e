//! The reward `code` on the real sandbox: what an answer does is a score with its reason, what the
//! machine lacks is none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_schemas::OutcomeBody;
use millrace_schemas::reward::{RewardDone, RewardRule};
use millrace_workers::reward::Reward;
use millrace_workers::{Executor, Verdict};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{task, tools};

async fn verdict(arguments: &[&str], settings: Value, row: Value, answer: &str) -> Verdict {
    let task = task(RewardRule::Code, settings, row, ("Add.", answer));
    Reward::default().with(Arc::new(tools(arguments))).execute(task, CancellationToken::new()).await
}

async fn scored(settings: Value, row: Value, answer: &str) -> RewardDone {
    match verdict(&[], settings, row, answer).await {
        Verdict::Done(OutcomeBody::Reward(done), _) => done,
        other => panic!("{answer}: {other:?}"),
    }
}

fn block(code: &str) -> String {
    format!("Here it is.\n```python\n{code}\n```\nI hope that it helps.")
}

#[tokio::test]
async fn a_program_is_right_when_it_writes_what_it_should() {
    let sums = json!({ "tests": [
        { "stdin": "1 2\n", "stdout": "3" }, { "stdin": "2 3\n", "stdout": "5\n" }, { "stdin": "0 0\n", "stdout": "0" },
    ] });
    let score = |code: &'static str, partial: bool| {
        let mut settings = sums.clone();
        settings["partial"] = json!(partial);
        async move { scored(settings, json!({}), &block(code)).await }
    };
    let right = score("a, b = map(int, input().split())\nprint(a + b, '')", false).await;
    assert_eq!(right, RewardDone { score: 1.0, reason: String::new() });
    let product = "a, b = map(int, input().split())\nprint(a * b)";
    let wrong = score(product, false).await;
    assert_eq!((wrong.score, wrong.reason.as_str()), (0.0, "test 1: it wrote something else"));
    assert_eq!(score(product, true).await.score, 1.0 / 3.0);
    let raises = score("raise ValueError('no')", false).await;
    assert!(raises.score == 0.0 && raises.reason.contains("ValueError: no"), "{raises:?}");
    let none = scored(sums.clone(), json!({}), "It is `a + b`.").await;
    assert_eq!((none.score, none.reason.as_str()), (0.0, "the answer has no whole block of code"));
}

#[tokio::test]
async fn a_function_is_right_when_its_tests_run_to_their_end() {
    let settings = json!({ "tests_field": "checks" });
    let row = json!({ "checks": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"], "answer": "" });
    let score = async |code: &str| scored(settings.clone(), row.clone(), &block(code)).await;
    assert_eq!(score("def add(a, b):\n    return a + b").await.score, 1.0);
    for code in [
        "def add(a, b):\n    return a - b",
        "def add(a, b)",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "def add(a, b):\n    import os\n    os._exit(0)",
        // It reads the rest of the input and prints it.
        "import sys, os\nprint(sys.stdin.read())\nsys.stdout.flush()\nos._exit(0)",
        "import os\nos.write(1, os.read(0, 9999))\nos._exit(0)",
        "print('passed')\nraise SystemExit",
    ] {
        let done = score(code).await;
        assert!(done.score == 0.0 && done.reason.starts_with("test 1: "), "{code}: {done:?}");
    }
    let partial = json!({ "tests_field": "checks", "partial": true });
    let half = scored(partial, row.clone(), &block("def add(a, b):\n    return 3")).await;
    assert_eq!(half.score, 0.5);
}

#[tokio::test]
async fn a_test_is_judged_outside_of_the_answers_process() {
    let row =
        json!({ "checks": ["assert add(1, 2) == 3 and abs(add(1, 2) - 3) < 1e-6 and add(1, 2) in [3]"] });
    for hostile in [
        // It replaces the driver and prints the expected output.
        "import __main__, os\nfor name, one in vars(__main__).items():\n    if isinstance(one, str): os.write(1, one.encode())\nos._exit(0)",
        "import gc, sys\nfor one in gc.get_objects():\n    if isinstance(one, str) and one.startswith('passed '):\n        print(one); sys.__stdout__.flush()\ndef add(a, b): return 4",
        "import __main__\nwriter = __main__.os.fdopen(1, 'wb')\nfor _ in range(9): __main__.Peer.send(__main__.Peer(None, writer), ['done', ['i', '0x3']])\ndef add(a, b): return 4",
        "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit(0)",
        "import builtins\nbuiltins.AssertionError = type('Quiet', (BaseException,), {})\nbuiltins.abs = lambda x: 0\ndef add(a, b): return 4",
        "import sys\nsys.stdout = None\ndef add(a, b): raise SystemExit(0)",
        "import os, signal\nos.kill(os.getppid(), signal.SIGINT)\ndef add(a, b): return 4",
        "open('json.py', 'w').write('import os; os._exit(0)')\nopen('driver.py', 'w').write('')\ndef add(a, b): return 4",
        "class Any:\n    def __eq__(self, other): return True\n    def __lt__(self, other): return True\n    def __sub__(self, other): return 0.0\n    def __abs__(self): return self\n    def __hash__(self): return 3\ndef add(a, b): return Any()",
        "class add:\n    def __init__(self, a, b): pass\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0\n    def __hash__(self): return 3",
        "class Any(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 3\n    def __sub__(self, other): return 0\ndef add(a, b): return Any(4)",
    ] {
        let done = scored(json!({ "tests_field": "checks" }), row.clone(), &block(hostile)).await;
        assert!(done.score == 0.0 && done.reason.starts_with("test 1: "), "{hostile}: {done:?}");
    }
    // What a test writes for the next one to import is not there.
    let planted = "import os\nif os.path.exists('planted.py'): raise SystemExit('found')\nopen('planted.py', 'w')\ndef add(a, b): return a + b";
    let row = json!({ "checks": ["assert add(1, 2) == 3", "assert add(1, 2) == 3"] });
    assert_eq!(scored(json!({ "tests_field": "checks" }), row, &block(planted)).await.score, 1.0);
}

#[tokio::test]
async fn an_answer_cannot_shadow_the_builtins_of_its_test() {
    let test = "assert abs(add(1, 2) - 3) < 1e-6\nassert set([add(1, 2)]) == {3}\n\
        assert len([n for n in range(3) if add(n, 1) == n + 1]) == 3\n\
        assert all(add(n, n) == 2 * n for n in range(3)) and sorted([add(0, 2), add(0, 1)]) == [1, 2]\n\
        for n in range(9):\n    assert add(n, 1) == n + 1";
    let settings = json!({ "tests_field": "checks" });
    for shadow in [
        "abs = lambda x: 0",
        "def set(x): return {3}",
        "def range(*a): return []",
        "def sorted(x): return [1, 2]",
        "def all(x): return True",
        "def len(x): return 3",
        "import builtins\nbuiltins.abs = builtins.all = builtins.len = lambda x: 0",
        "abs = lambda x: 0\nset = lambda x: {3}\nrange = lambda *a: []\nall = lambda x: True\n\
         sorted = lambda x: [1, 2]\nlen = lambda x: 3",
    ] {
        let wrong = block(&format!("{shadow}\ndef add(a, b): return 4"));
        let done = scored(settings.clone(), json!({ "checks": [test] }), &wrong).await;
        assert!(done.score == 0.0 && done.reason.starts_with("test 1: "), "{shadow}: {done:?}");
    }
    // The answer still has its own, and the one that the row asks for.
    let own = block("def len(x): return 1\ndef add(a, b): return a + b * len('ab')");
    assert_eq!(scored(settings.clone(), json!({ "checks": [test] }), &own).await.score, 1.0);
    let sum = block("def sum(a, b): return a + b");
    let row = json!({ "checks": ["assert sum(1, 2) == 3 and abs(-1) == 1"], "entry_point": "sum" });
    assert_eq!(scored(settings, row, &sum).await.score, 1.0);
}

#[tokio::test]
async fn tests_use_what_answers_define() {
    for (answer, test) in [
        ("def sort(x): x.sort()", "x = [3, 1]\nsort(x)\nassert x == [1, 3]"),
        (
            "def same(x): return x",
            "x = [1]\nassert same(x) is x and same((1, {2: {3}}, None, True, 'a', b'b', 2 ** 500)) == (1, {2: {3}}, None, True, 'a', b'b', 2 ** 500)",
        ),
        (
            "def each(f, xs): return [f(x) for x in xs]",
            "assert each(lambda x: 2 * x, (x for x in [1, 2])) == [2, 4]",
        ),
        (
            "def count(n):\n    for i in range(n): yield i",
            "assert list(count(3)) == [0, 1, 2] and next(count(1)) == 0",
        ),
        (
            "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)",
            "s = Stack()\ns.push(1); s.push('a')\nassert len(s) == 2 and s.pop() == 'a' and s.items == [1] and isinstance(s, Stack)",
        ),
        (
            "class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n    def __eq__(self, o): return self.x == o.x",
            "assert V(1) + V(2) == V(3) and V(1) != V(2)",
        ),
        (
            "class Low(ValueError): pass\ndef f(x):\n    if x < 0: raise Low('below', x)\n    return x",
            "for kind in (Low, ValueError):\n    try:\n        f(-1); assert False\n    except kind as error: assert error.args == ('below', -1)",
        ),
        (
            "def total(n):\n    sum = 0\n    while n is not None: sum += n.v; n = n.next\n    return sum",
            "class Node:\n    def __init__(self, v, next): self.v, self.next = v, next\nassert total(Node(1, Node(2, None))) == 3",
        ),
        (
            "import math\nasync def area(r):\n    print('words')\n    return math.pi * r * r",
            "import asyncio\nassert abs(asyncio.run(area(1)) - math.pi) < 1e-9",
        ),
        // Arguments by name and within others, each still the same object.
        ("def f(x): x.append(1)", "x = []\nf(x=x)\nassert x == [1]"),
        (
            "def f(x): x[0].append(1); x[1]['k'].add(2); return x[0]",
            "y, z = [], {'k': set()}\nassert f((y, z)) is y == [1] and z == {'k': {2}}",
        ),
        (
            "def f(x): x.sort()",
            "a, b = [2], [1]\nx = [a, b]\nf(x)\nassert x[0] is b and (a, b) == ([2], [1])",
        ),
        (
            "from collections import *\ndef f(x): return Counter(x), OrderedDict.fromkeys(x), deque(x, 2)",
            "from collections import *\nc, o, d = f('aab')\nassert c.most_common(1) == [('a', 2)] and c['z'] == 0\n\
             assert o == OrderedDict(a=None, b=None) != OrderedDict(b=None, a=None) and d.maxlen == 2",
        ),
        (
            "class Low(ValueError):\n    def __init__(self, code):\n        super().__init__()\n        self.code = code\n    \
             def __str__(self): return f'low {self.code}'\ndef f(): raise Low(3)",
            "try:\n    f(); assert False\nexcept Low as error: assert error.code == 3 and str(error) == 'low 3'",
        ),
        (
            "import json\ndef f(): json.loads('{')",
            "import json\ntry:\n    f(); assert False\nexcept json.JSONDecodeError as error: assert error.pos == 1",
        ),
        (
            "from pathlib import Path\nfrom uuid import UUID\ndef f(x): return Path('a') / x, UUID(int=1)",
            "from pathlib import Path\nfrom uuid import UUID\nassert f('b') == (Path('a/b'), UUID(int=1))",
        ),
        ("def f(x): return x", "def check(candidate):\n    assert candidate(1) == 1\ncheck(f)"),
    ] {
        let done =
            scored(json!({ "tests_field": "checks" }), json!({ "checks": [test] }), &block(answer)).await;
        assert_eq!(done, RewardDone { score: 1.0, reason: String::new() }, "{answer}");
    }
}

#[tokio::test]
async fn what_an_answer_takes_too_much_of_is_its_fault() {
    let settings = json!({
        "tests": [{ "stdout": "1" }], "wall_ms": 1500, "memory_mib": 128, "output_kib": 64, "processes": 8, "disk_mib": 4,
    });
    for (code, reason) in [
        ("while True: pass", "longer than wall_ms"),
        ("while True: print('x' * 1000)", "more than output_kib"),
        ("x = 'x' * (1 << 30)", "MemoryError"),
        (
            "import os, time\nfor _ in range(4):\n    if os.fork() == 0: break\nx = bytearray(b'x') * (80 << 20)\ntime.sleep(99)",
            "memory",
        ),
        ("open('f', 'w').write('x' * (8 << 20))", "No space left"),
        ("import os\nwhile True: os.fork()", "test 1: "),
        ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1')", "urlopen error"),
    ] {
        let done = scored(settings.clone(), json!({}), &block(code)).await;
        assert!(done.score == 0.0 && done.reason.contains(reason), "{code}: {done:?}");
    }
}

#[tokio::test]
async fn an_answer_that_hangs_in_every_test_scores_zero() {
    let tests: Vec<Value> = (0..30).map(|n| json!({ "stdin": n.to_string(), "stdout": "" })).collect();
    let settings =
        json!({ "tests": tests, "partial": true, "wall_ms": 1000, "cpu_ms": 60000, "total_ms": 2500 });
    let began = Instant::now();
    let hangs = scored(settings.clone(), json!({}), &block("while True: pass")).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(hangs.score == 0.0 && hangs.reason.contains("longer than wall_ms"), "{hangs:?}");
    // What passed before the time was over counts, and a right answer's tests are all reached.
    let some = scored(settings.clone(), json!({}), &block("while int(input()): pass")).await;
    assert_eq!(some.score, 1.0 / 30.0, "{some:?}");
    let mut whole = settings;
    whole["partial"] = json!(false);
    whole["total_ms"] = json!(60_000);
    assert_eq!(scored(whole.clone(), json!({}), &block("pass")).await.score, 1.0);
    // Tests that were not reached are not passed.
    whole["total_ms"] = json!(1200);
    let slow = scored(whole, json!({}), &block("import time\ntime.sleep(0.5)")).await;
    assert!(slow.score == 0.0 && slow.reason.contains("total_ms"), "{slow:?}");
}

#[tokio::test]
async fn what_the_machine_or_the_data_lacks_is_no_score() {
    let (settings, answer) = (json!({ "tests": [{ "stdout": "1" }] }), block("print(1)"));
    // No sandbox, or no Python: another worker may have it.
    for arguments in [
        ["--sandbox", "/no/such/program"],
        ["--sandbox", "/bin/false"],
        ["--sandbox-python", "/usr/bin/no-such-python"],
        ["--sandbox-read", "/no/such/folder"],
    ] {
        let verdict = verdict(&arguments, settings.clone(), json!({}), &answer).await;
        assert!(matches!(verdict, Verdict::RetryAfter(..)), "{arguments:?}: {verdict:?}");
    }
    // No tests: no worker has them.
    let of_row = json!({ "tests_field": "checks" });
    for row in [json!({}), json!({ "checks": 3 }), json!({ "checks": [] })] {
        let verdict = verdict(&[], of_row.clone(), row.clone(), &answer).await;
        assert!(matches!(&verdict, Verdict::Poison(why) if why.contains("checks")), "{row}: {verdict:?}");
    }
    let unread = verdict(&[], json!({ "test": 1 }), json!({}), &answer).await;
    assert!(matches!(&unread, Verdict::Poison(why) if why.contains("settings")), "{unread:?}");
}
