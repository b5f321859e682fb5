"""Answers that cheat and answers that are right, by kind. The cheats run in a sandbox only."""

ADD = ["assert add(1, 2) == 3", "assert add(-1, 5) == 4", "assert add(0, 0) == 0"]

CHEATS = {
    # leaving before the asserts
    "exit hook": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 7",
    "exit in a thread": "import os, threading\ndef add(a, b):\n    threading.Thread(target=os._exit, args=(0,)).start()\n"
    "    while True: pass",
    "exit in a destructor": "class D:\n    def __del__(self): raise SystemExit(0)\nd = D()\ndel d\ndef add(a, b): return 7",
    "raise in the call": "def add(a, b): raise SystemExit(0)",
    "replaced process": "import os, sys\ndef add(a, b): os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "generator exit": "def add(a, b): raise GeneratorExit",
    "an error of its own class": "class E(AssertionError): pass\ndef add(a, b): raise E",
    # what is returned
    "equal to all": "class A:\n    __eq__ = __lt__ = __gt__ = __contains__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
    "    __hash__ = lambda s: 0\ndef add(a, b): return A()",
    "equal by reflection": "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\n"
    "def add(a, b): return I(7)",
    "a class that equals": "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\n"
    "class add(metaclass=M):\n    def __init__(self, a, b): pass\n    def __eq__(self, o): return True",
    "equal in a list": "class A:\n    def __eq__(s, o): return True\ndef add(a, b): return [A()]",
    "a float subclass": "class F(float):\n    def __eq__(s, o): return True\n    __sub__ = __rsub__ = lambda s, o: 0\n"
    "def add(a, b): return F(7)",
    "mock": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    # patching
    "builtins": "import builtins\nfor n in ('abs', 'len', 'all', 'any', 'isinstance', 'sorted', 'set', 'int'):\n"
    "    setattr(builtins, n, lambda *a, **k: True)\ndef add(a, b): return 7",
    "assertion error": "import builtins\nclass Quiet(Exception):\n    def __new__(c, *a): raise SystemExit(0)\n"
    "builtins.AssertionError = Quiet\ndef add(a, b): return 7",
    "trace": "import sys\ndef t(f, e, a):\n    f.f_lineno = f.f_lineno\n    return t\nsys.settrace(t)\ndef add(a, b): return 7",
    "import hook": "import sys\nsys.modules['operator'] = sys.modules['math'] = None\ndef add(a, b): return 7",
    # reading what is expected
    "frames": "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n        for v in (*f.f_locals.values(), *f.f_globals.values()):\n"
    "            if isinstance(v, str) and 'assert' in v and '==' in v: return eval(v.split('==')[1])\n        f = f.f_back\n    return 7",
    "gc": "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if isinstance(o, (list, tuple)) and any(isinstance(s, str) and 'assert add' in s for s in o):\n"
    "            return [int(s.split('==')[1]) for s in o if f'({a}, {b})' in s][0]\n    return 7",
    "memory of a process": "def add(a, b):\n    import re\n    for name in ('/proc/self/maps', '/proc/1/cmdline', '/proc/self/mem', '/dev/fd/0'):\n"
    "        try:\n            m = re.search(rb'assert add.{3,9}== (\\d)', open(name, 'rb').read())\n            if m: return int(m[1])\n"
    "        except OSError: pass\n    return 7",
    "parent": "import os\ndef add(a, b):\n    try:\n        for n in os.listdir(f'/proc/{os.getppid()}/fd'): return len(n) + 2\n    except OSError: return 7",
    "descriptors": "import os\ndef add(a, b):\n    for fd in range(3, 64):\n        try:\n            os.lseek(fd, 0, 0)\n"
    "            if b'assert' in os.read(fd, 9999): return a + b\n        except OSError: pass\n    return 7",
    # the channel
    "every descriptor": "import os\ndef add(a, b):\n    for fd in range(64):\n        for m in (b'ok\\n', b'ready\\nok\\n', b'{\"passed\": true}\\n'):\n"
    "            try: os.write(fd, m)\n            except OSError: pass\n    return 7",
    "eaten questions": "import os\ndef add(a, b):\n    for fd in range(3, 64):\n        try:\n            os.set_blocking(fd, False)\n            os.read(fd, 9999)\n"
    "        except OSError: pass\n    return 7",
    "closed": "import os\nos.closerange(0, 64)\ndef add(a, b): return a + b",
    "its own peer": "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if type(o).__name__ == 'Peer':\n"
    "            for n in range(9):\n                o._send(b'R', b'5\\n! n')\n    return 7",
    "asking the tests": "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if type(o).__name__ == 'Peer':\n"
    "            for op in ('get', 'call', 'lookup', 'load', 'exec'):\n                try: return o.ask(op, 'x', '__class__')\n                except Exception: pass\n    return 7",
    "a long answer": "def add(a, b): return 'x' * 50_000_000",
    "many answers": "import gc\ndef add(a, b):\n    p = next(o for o in gc.get_objects() if type(o).__name__ == 'Peer')\n    while True: p._send(b'A', b'3\\n! n')",
    "a forked child answers": "import os\ndef add(a, b):\n    os.fork()\n    return 7",
    # running on
    "spinning": "def add(a, b):\n    while True: pass",
    "sleeping": "import time\ndef add(a, b): time.sleep(1e6)",
    "stopped": "import os, signal\ndef add(a, b): os.kill(os.getpid(), signal.SIGSTOP)",
    "killing everything": "import os\ndef add(a, b): os.kill(-1, 9)",
    "an endless iterator": "import itertools\ndef add(a, b): return itertools.count()",
    # memory, processes, files, network
    "memory bomb": "x = bytearray(10**10)\ndef add(a, b): return a + b",
    "memory in children": "import os\ndef add(a, b):\n    for _ in range(8):\n        if os.fork() == 0:\n            x = bytearray(b'x') * (200 << 20)\n            while True: pass\n    while True: pass",
    "disk": "def add(a, b):\n    n = 0\n    while True:\n        n += 1\n        with open(f'/tmp/{n}', 'wb') as f: f.write(b'x' * 10**7)",
    "fork bomb": "import os\ndef add(a, b):\n    while True:\n        try: os.fork()\n        except OSError: pass",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "no network": "import socket\ndef add(a, b):\n    socket.create_connection(('1.1.1.1', 53), 1)\n    return a + b",
    "no files": "def add(a, b):\n    open('/etc/passwd')\n    return a + b",
    "no place to write": "def add(a, b):\n    open('/harness/x', 'w')\n    return a + b",
    "crash": "import ctypes\ndef add(a, b): return ctypes.string_at(0)",
    "deep tuples": "def add(a, b):\n    import sys\n    sys.setrecursionlimit(10**6)\n    t = ()\n    for _ in range(9000): t = (t,)\n    return {t}",
    "an import that is absent": "import no_such_module\ndef add(a, b): return a + b",
    "another name": "def plus(a, b): return a + b",
    "a constant": "add = 3",
    "text that is no code": "I would add the two numbers.",
}  # fmt: skip

BODY = "def add(a, b):\n    return a + b\n"
PROMPT = 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """ The sum of xs.\n    >>> total([1, 2])\n    3\n    """\n'
TOTAL = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n"

RIGHT_ANSWERS = {
    "fence": f"Here it is:\n```python\n{BODY}```\nIt adds.",
    "tildes": f"~~~py\n{BODY}~~~",
    "no language": f"```\n{BODY}```",
    "capital and spaces": f"``` Python3 \n{BODY}```",
    "longer fence": f"````python\n{BODY}````",
    "windows lines": f"```python\n{BODY}```".replace("\n", "\r\n"),
    "in a list item": "1. So:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n",
    "usage after it": f"```python\n{BODY}```\nUse it:\n```python\nprint(add(1, 2))\n```\nIt prints:\n```\n3\n```",
    "shell after it": f"```python\n{BODY}```\nRun:\n```bash\npython add.py\n```",
    "thinking": f"<think>```python\ndef add(a, b): return 0\n```</think>{BODY}",
    "bare": BODY,
    "bare, words before and after": f"Sure! This is the function.\n\n{BODY}\nI hope that it helps: it adds.",
    "cut off after it": f"```python\n{BODY}\n",
    "fence in a docstring": f'```python\ndef add(a, b):\n    """\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n```',
    "lambda": "```python\nadd = lambda a, b: a + b\n```",
    "partial": "import functools, operator\nadd = functools.partial(operator.add)",
    "imported": "```python\nfrom operator import add\n```",
    "main guard": f"{BODY}\nif __name__ == '__main__':\n    print(add(int(input()), int(input())))\n",
    "solution class": "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```",
    "noise": f"import sys\nprint('x' * 10**6)\nsys.stderr.write('y' * 10**6)\n{BODY}",
    "output closed": f"import os, sys\nsys.stdout.close()\nos.close(1)\nos.close(2)\n{BODY}",
    "a thread left": f"import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n{BODY}",
    "a child left": f"import os, time\nif os.fork() == 0:\n    time.sleep(99)\n{BODY}",
    "a pool": "from concurrent.futures import ThreadPoolExecutor\ndef add(a, b):\n    with ThreadPoolExecutor(4) as p:\n        return sum(p.map(int, (a, b)))",
    "recursion": "def add(a, b):\n    def down(n): return 0 if n == 0 else 1 + down(n - 1)\n    return a + b + down(900) - 900",
    "future import": f"from __future__ import annotations\n{BODY}",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n    b: int\ndef add(a, b):\n    p = P(a, b)\n    return p.a + p.b",
    "scratch file": "def add(a, b):\n    open('n', 'w').write(str(a + b))\n    return int(open('n').read())",
    "harness names shadowed": f"import sys\nlen = list = None\nsys.setrecursionlimit(5000)\n{BODY}",
    "unicode": f"# größer ≥ 加\n{BODY}",
}  # fmt: skip
"""Right answers to ADD."""

RIGHT_FUNCTIONS = {
    "in place": ("def f(x): x.sort()", ["x = [3, 1, 2]; y = x; f(x); assert y == [1, 2, 3]"]),
    "in place, nested": ("def f(x):\n    x['a'].append({1})\n    x['b'] = x['a']", ["x = {'a': []}; a = x['a']; f(x); assert a == [{1}] and x['b'] is a"]),
    "in place, set and bytes": ("def f(s, b):\n    s.discard(1)\n    b += b'!'", ["s, b = {1, 2}, bytearray(b'x'); f(s, b); assert s == {2} and b == b'x!'"]),
    "the argument itself": ("def f(x):\n    x.append(1)\n    return x", ["x = []; assert f(x) is x and x == [1]"]),
    "circular": ("def f():\n    x = [1]\n    x.append(x)\n    return x", ["x = f(); assert x[1] is x"]),
    "generator": ("def f(n):\n    yield from range(n)", ["assert list(f(3)) == [0, 1, 2]", "g = f(2); assert next(g) == 0 and next(g) == 1 and next(g, 9) == 9"]),
    "endless generator": ("def f():\n    n = 0\n    while True:\n        yield n\n        n += 1", ["from itertools import islice", "assert list(islice(f(), 4)) == [0, 1, 2, 3]"]),
    "map and zip": ("def f(x): return zip(map(str, x), x)", ["assert list(f([1, 2])) == [('1', 1), ('2', 2)]"]),
    "returned function": ("def f(n): return lambda x: x + n", ["assert f(3)(4) == 7"]),
    "given function": ("def f(g, xs): return sorted(xs, key=g)", ["assert f(lambda x: -x, [1, 3, 2]) == [3, 2, 1]", "assert f(str.lower, ['B', 'a']) == ['a', 'B']"]),
    "decorator": ("def f(g):\n    def wrapped(*a, **k): return 2 * g(*a, **k)\n    return wrapped", ["@f\ndef h(x, y=1): return x + y", "assert h(2) == 6 and h(1, y=2) == 6"]),
    "given generator": ("def f(xs): return sum(xs)", ["assert f(x * x for x in range(4)) == 14"]),
    "keywords": ("def f(a, *b, c=1, **d): return a, b, c, d", ["assert f(1, 2, c=3, e=4) == (1, (2,), 3, {'e': 4})"]),
    "exception": ("def f(x):\n    if x < 0: raise ValueError('negative')\n    return x", ["try:\n    f(-1)\nexcept ValueError as e:\n    assert str(e) == 'negative'\nelse:\n    assert False"]),
    "exception of its own": ("class Empty(LookupError):\n    def __init__(self, n): self.n = n\ndef f(): raise Empty(3)", ["try:\n    f()\n    assert False\nexcept Empty as e:\n    assert e.n == 3 and isinstance(e, LookupError)"]),
    "unittest": ("def f(x): return 1 / x", ["import unittest", "class T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(2), 0.5)\n        with self.assertRaises(ZeroDivisionError): f(0)"]),
    "unittest.main": ("def f(x): return x", ["import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(2), 2)\nif __name__ == '__main__':\n    unittest.main()"]),
    "test functions": ("def f(x): return x", ["def test_it():\n    assert f(1) == 1"]),
    "class": ("class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return self.items[i]",
              ["s = Stack(); s.push('a'); s.push(2)", "assert len(s) == 2 and s[0] == 'a' and s.items == ['a', 2]", "assert s.pop() == 2 and isinstance(s, Stack) and s", "s.pop(); assert not s", "try:\n    s.pop()\n    assert False\nexcept IndexError: pass"]),
    "derived class": ("class Bag(dict):\n    def put(self, k): self[k] = self.get(k, 0) + 1", ["b = Bag(); b.put('x'); b.put('x'); assert b['x'] == 2 and list(b) == ['x']"]),
    "operators": ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n    def __lt__(self, o): return self.x < o.x\n    def __repr__(self): return f'V({self.x})'", ["assert (V(1) + V(2)).x == 3 and V(1) < V(2) and str(V(3)) == 'V(3)'"]),
    "context manager": ("class C:\n    def __enter__(self):\n        self.open = True\n        return self\n    def __exit__(self, *a): self.open = False", ["with C() as c: assert c.open", "assert not c.open"]),
    "linked list": ("class Node:\n    def __init__(self, v, n=None): self.v, self.n = v, n\ndef rev(h):\n    p = None\n    while h: h.n, p, h = p, h, h.n\n    return p",
                    ["h = rev(Node(1, Node(2))); out = []\nwhile h:\n    out.append(h.v); h = h.n\nassert out == [2, 1]"]),
    "the tests' class": ("def depth(t): return 0 if t is None else 1 + max(depth(t.left), depth(t.right))\ndef mark(t): t.seen = [t.v]", ["class T:\n    def __init__(self, v, left=None, right=None): self.v, self.left, self.right = v, left, right",
                         "assert depth(T(1, T(2, None, T(3)))) == 3", "t = T(5); mark(t); assert t.seen == [5]"]),
    "enum": ("import enum\nclass Colour(enum.Enum):\n    RED = 1\ndef f(): return Colour.RED", ["assert f() is Colour.RED and f().name == 'RED'"]),
    "coroutine": ("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1", ["import asyncio", "assert asyncio.run(f(1)) == 2"]),
    "numbers": ("def f(): return [2**70, -2**70, 0.1 + 0.2, float('inf'), 1e-320, 1 + 2j, True, None, 10**5000]", ["import math", "assert f()[:8] == [2**70, -2**70, 0.30000000000000004, math.inf, 1e-320, 1 + 2j, True, None] and f()[8] == 10**5000", "assert type(f()[6]) is bool"]),
    "nan": ("def f(): return float('nan')", ["import math; assert math.isnan(f())"]),
    "texts": ("def f(s): return s + '\\x00\\ud800é\\n', s.encode()", ["assert f('ü') == ('ü\\x00\\ud800é\\n', b'\\xc3\\xbc')"]),
    "collections": ("from collections import *\ndef f(x): return Counter(x), OrderedDict(a=1), defaultdict(int, b=2), deque([1]), {1}, frozenset({2}), {(1, 2): [3]}, range(3)",
                    ["from collections import Counter, deque", "assert f('aab') == (Counter(a=2, b=1), {'a': 1}, {'b': 2}, deque([1]), {1}, frozenset({2}), {(1, 2): [3]}, range(3))"]),
    "named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int\ndef f(): return P(1, 2)", ["assert f() == (1, 2)"]),
    "dates and fractions": ("from datetime import *\nfrom decimal import Decimal\nfrom fractions import Fraction\ndef f(): return date(2024, 2, 29), timedelta(1), Decimal('1.10'), Fraction(1, 3), datetime(2024, 1, 2, 3)",
                            ["import datetime, decimal, fractions", "assert f() == (datetime.date(2024, 2, 29), datetime.timedelta(1), decimal.Decimal('1.10'), fractions.Fraction(1, 3), datetime.datetime(2024, 1, 2, 3))"]),
    "views": ("def f(d): return d.keys(), d.values()", ["k, v = f({'a': 1}); assert k == {'a'} and list(v) == [1]"]),
    "large": ("def f(n): return list(range(n))", ["assert f(100_000) == list(range(100_000))"]),
    "deep list": ("def f(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x", ["x, n = f(50_000), 0\nwhile x: x, n = x[0], n + 1\nassert n == 50_000"]),
    "builtin's name": ("def sum(a, b): return a - b", ["assert sum(5, 3) == 2"]),
    "module not imported": ("def f(x): return x ** 0.5", ["assert math.isclose(f(2), 1.41421356237)"]),
    "random": ("import random\ndef f(x): return sorted(random.sample(x, len(x)))", ["import random", "for _ in range(50):\n    x = [random.random() for _ in range(5)]\n    assert f(x) == sorted(x)"]),
    "many calls": ("def f(x): return x + 1", ["for x in range(2_000): assert f(x) == x + 1"]),
}  # fmt: skip
"""Code and its tests, without a name of what is tested."""

PROGRAMS = {
    "input": ("print(int(input()) + int(input()))", "1\n2\n", "3\n", "ok"),
    "read": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1\n2\n", "3", "ok"),
    "descriptor": ("import os\nprint(sum(map(int, os.read(0, 100).split())))", "1 2", "3\n", "ok"),
    "open": ("print(sum(map(int, open(0).read().split())))", "1 2", "3\n", "ok"),
    "buffer": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", "ü\n", "ü\n", "ok"),
    "no newline at the end": ("print('a\\nb', end='')", "", "a\nb\n\n", "ok"),
    "windows lines": ("print('a\\r\\nb\\r')", "", "a\nb\n", "ok"),
    "main guard": ("def main():\n    print(3)\nif __name__ == '__main__':\n    main()", "", "3", "ok"),
    "exit": ("print(3)\nexit()", "", "3", "ok"),
    "sys.exit": ("import sys\nprint(3)\nsys.exit(0)", "", "3", "ok"),
    "exit at once, flushed": ("import os\nprint(3, flush=True)\nos._exit(0)", "", "3", "ok"),
    "a child left": ("import os, time\nprint(3, flush=True)\nif os.fork() == 0:\n    time.sleep(99)\n", "", "3", "ok"),
    "at exit": ("import atexit\natexit.register(print, 3)", "", "3", "ok"),
    "nothing wanted": ("pass", "1", "", "ok"),
    "noise on standard error": ("import sys\nsys.stderr.write('x' * 10**7)\nprint(3)", "", "3", "ok"),
    "large input": ("print(len(input()))", "x" * 300_000, "300000", "ok"),
    "an error after it": ("print(3)\nraise ValueError", "", "3", "wrong"),
    "a status after it": ("import sys\nprint(3)\nsys.exit(1)", "", "3", "wrong"),
    "an error where nothing is wanted": ("raise ValueError", "", "", "wrong"),
    "leading blank": ("print(' 3')", "", "3", "wrong"),
    "another line": ("print(3)\nprint(4)", "", "3", "wrong"),
    "a line too few": ("print(3)", "", "3\n4\n", "wrong"),
    "lines joined": ("print('3 4')", "", "3\n4\n", "wrong"),
    "no text": ("import sys\nsys.stdout.buffer.write(b'3\\n\\xff')", "", "3", "wrong"),
    "endless": ("while True: print(3)", "", "3", "wrong"),
    "spinning after it": ("print(3, flush=True)\nwhile True: pass", "", "3", "wrong"),
    "output closed, spinning": ("import os\nprint(3, flush=True)\nos.close(1)\nwhile True: pass", "", "3", "wrong"),
    "looking for the answer": ("import os, sys\nfor fd in range(3, 64):\n    try: print(os.read(fd, 99))\n    except OSError: pass\nprint(sys.orig_argv)", "", "3", "wrong"),
    "killed": ("import os\nprint(3, flush=True)\nos.kill(os.getpid(), 9)", "", "3", "wrong"),
}  # fmt: skip
"""Code, input, wanted output, verdict."""
