"""Suite `marathon`: three chains of more than twenty steps each, in one session.

    store     an authored chain: a key-value store grows a log, time limits, transactions, a command
    todo      an authored chain: a list of things to do, with words that revoke earlier words
    settings  a generated chain: a table of settings is kept up by small requests that refer back

A chain is one task and one cluster. What is reported of it: steps solved, how many before the first
that is red, and the same for each step by itself (`--isolated`), on the solution of those before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..material import Material
from .chains import Link, Parts, chain


def tasks(seed: int) -> Iterator[Material]:
    """The three chains; the seed is of the generated one."""
    yield chain("store", STORE_BASE, STORE, kind="authored")
    yield chain("todo", TODO_BASE, TODO, kind="authored")
    yield settings_chain(seed)


# --- store ---------------------------------------------------------------------------------------

_S = "kv/store.py"
_CHECK = {"tests/__init__.py": {"all": ""}, "tests/test_import.py": {"all": "import unittest\n\nimport PACKAGE\n\n\nclass TestImport(unittest.TestCase):\n    def test_it(self):\n        self.assertTrue(PACKAGE)\n"}}  # fmt: skip


def _checked(package: str, base: Parts) -> Parts:
    tests = {
        p: {k: t.replace("PACKAGE", package) for k, t in parts.items()}
        for p, parts in _CHECK.items()
    }
    return {**base, **tests}


STORE_BASE: Parts = _checked("kv", {
    "kv/__init__.py": {"all": '"""A small key-value store."""\n'},
    _S: {"head": '"""The store."""\n\nimport json\nimport time\nfrom pathlib import Path\n\n\n', "class": "class Store:\n    \"\"\"Keys with their values.\"\"\"\n\n",
         "init": "    def __init__(self, clock=time.time):\n        self._clock = clock\n        self._data = {}\n"},
})  # fmt: skip

_SET_1 = "\n    def set(self, key, value):\n        self._data[key] = value\n"
_SET_TTL = """
    def set(self, key, value, ttl=None):
        self._check(key)
        self._put(key, value, None if ttl is None else self._clock() + ttl)

    def _put(self, key, value, end):
        self._data[key] = (value, end)
"""
_LIVE = """
    def _live(self, key):
        found = self._data.get(key)
        return found is not None and (found[1] is None or found[1] > self._clock())

    def get(self, key, default=None):
        return self._data[key][0] if self._live(key) else default
"""
_KEYS_LIVE = (
    "\n    def keys(self):\n        return sorted(key for key in self._data if self._live(key))\n"
)

STORE = (
    Link("set-get", "Give Store in kv/store.py `set(key, value)` and `get(key, default=None)`.",
         {(_S, "set"): _SET_1, (_S, "get"): "\n    def get(self, key, default=None):\n        return self._data.get(key, default)\n"},
         "from kv.store import Store\ns = Store()\ns.set('a', 1)\nself.assertEqual(s.get('a'), 1)\nself.assertIsNone(s.get('b'))\nself.assertEqual(s.get('b', 5), 5)"),
    Link("delete", "Add `delete(key)` to Store. It returns whether the key was there.",
         {(_S, "delete"): "\n    def delete(self, key):\n        return self._data.pop(key, None) is not None\n"},
         "from kv.store import Store\ns = Store()\ns.set('a', 1)\nself.assertIs(s.delete('a'), True)\nself.assertIs(s.delete('a'), False)\nself.assertIsNone(s.get('a'))"),
    Link("keys", "`Store.keys()`: a sorted list of all keys.",
         {(_S, "keys"): "\n    def keys(self):\n        return sorted(self._data)\n"},
         "from kv.store import Store\ns = Store()\ns.set('b', 1)\ns.set('a', 2)\nself.assertEqual(s.keys(), ['a', 'b'])"),
    Link("len", "len(store) and `key in store` should work.",
         {(_S, "len"): "\n    def __len__(self):\n        return len(self.keys())\n\n    def __contains__(self, key):\n        return key in self.keys()\n"},
         "from kv.store import Store\ns = Store()\ns.set('a', 1)\nself.assertEqual(len(s), 1)\nself.assertIn('a', s)\nself.assertNotIn('b', s)"),
    Link("incr", "`incr(key, by=1)` adds to a number and returns it; a key that is not there counts as 0.",
         {(_S, "incr"): "\n    def incr(self, key, by=1):\n        value = self.get(key, 0) + by\n        self.set(key, value)\n        return value\n"},
         "from kv.store import Store\ns = Store()\nself.assertEqual(s.incr('n'), 1)\nself.assertEqual(s.incr('n', 4), 5)\nself.assertEqual(s.get('n'), 5)"),
    Link("check-keys", "A key must be a non-empty str without spaces, else `set` and `incr` raise ValueError and nothing is stored.",
         {(_S, "set"): "\n    def set(self, key, value):\n        self._check(key)\n        self._data[key] = value\n",
          (_S, "check"): "\n    @staticmethod\n    def _check(key):\n        if not isinstance(key, str) or not key or ' ' in key:\n            raise ValueError(f\"{key!r} is no key\")\n"},
         "from kv.store import Store\ns = Store()\nfor bad in ('', 'a b', 3):\n    self.assertRaises(ValueError, s.set, bad, 1)\n    self.assertRaises(ValueError, s.incr, bad)\nself.assertEqual(len(s), 0)"),
    Link("ttl", "`set(key, value, ttl=None)`: after ttl seconds by the store's clock the key is gone, for get, keys, len and `in`. `Store(clock=...)` takes a function that returns seconds.",
         {(_S, "set"): _SET_TTL, (_S, "get"): _LIVE, (_S, "keys"): _KEYS_LIVE,
          (_S, "delete"): "\n    def delete(self, key):\n        there = self._live(key)\n        self._data.pop(key, None)\n        return there\n"},
         "from kv.store import Store\nnow = [0]\ns = Store(clock=lambda: now[0])\ns.set('a', 1, ttl=10)\ns.set('b', 2)\nnow[0] = 9\nself.assertEqual(s.get('a'), 1)\nnow[0] = 10\nself.assertEqual((s.get('a'), s.keys(), len(s), 'a' in s), (None, ['b'], 1, False))\nself.assertIs(s.delete('a'), False)"),
    Link("ttl-left", "Add `ttl(key)`: the seconds left, None for a key that stays or is not there; and `persist(key)`, which lets a key stay.",
         {(_S, "ttl"): "\n    def ttl(self, key):\n        end = self._data[key][1] if self._live(key) else None\n        return None if end is None else end - self._clock()\n\n    def persist(self, key):\n        if self._live(key):\n            self._put(key, self._data[key][0], None)\n"},
         "from kv.store import Store\nnow = [0]\ns = Store(clock=lambda: now[0])\ns.set('a', 1, ttl=10)\nnow[0] = 4\nself.assertEqual(s.ttl('a'), 6)\ns.persist('a')\nself.assertIsNone(s.ttl('a'))\nself.assertIsNone(s.ttl('zz'))\nnow[0] = 99\nself.assertEqual(s.get('a'), 1)"),
    Link("snapshot", "`dump()` returns a dict of all live keys and values; `load(data)` replaces everything by such a dict.",
         {(_S, "dump"): "\n    def dump(self):\n        return {key: self.get(key) for key in self.keys()}\n\n    def load(self, data):\n        self._data.clear()\n        for key, value in data.items():\n            self.set(key, value)\n"},
         "from kv.store import Store\nnow = [0]\ns = Store(clock=lambda: now[0])\ns.set('a', 1)\ns.set('t', 1, ttl=1)\nnow[0] = 2\nself.assertEqual(s.dump(), {'a': 1})\ns.load({'x': 2})\nself.assertEqual(s.keys(), ['x'])"),
    Link("log", "Store gets an optional second argument `path`. With it, each change is appended to that file as one line of JSON: [\"set\", key, value, end] or [\"delete\", key], where end is the time the key expires, or null. persist counts as a set.",
         {(_S, "init"): "    def __init__(self, clock=time.time, path=None):\n        self._clock = clock\n        self._data = {}\n        self._path = None if path is None else Path(path)\n",
          (_S, "set"): _SET_TTL.replace("        self._data[key] = (value, end)\n", "        self._data[key] = (value, end)\n        self._write([\"set\", key, value, end])\n\n    def _write(self, entry):\n        if self._path is not None:\n            with self._path.open(\"a\") as file:\n                file.write(json.dumps(entry) + \"\\n\")\n"),
          (_S, "delete"): "\n    def delete(self, key):\n        there = self._live(key)\n        if self._data.pop(key, None) is not None:\n            self._write([\"delete\", key])\n        return there\n"},
         "import json, tempfile, pathlib\nfrom kv.store import Store\nwith tempfile.TemporaryDirectory() as d:\n    p = pathlib.Path(d, 'log')\n    s = Store(lambda: 100, p)\n    s.set('a', 1)\n    s.set('b', [2], ttl=5)\n    s.delete('a')\n    s.delete('never')\n    s.persist('b')\n    self.assertEqual([json.loads(l) for l in p.read_text().splitlines()], [['set', 'a', 1, None], ['set', 'b', [2], 105], ['delete', 'a'], ['set', 'b', [2], None]])"),
    Link("replay", "`Store.open(path, clock=time.time)` makes a store from such a file, or an empty one where there is no file, and goes on writing to it. Reading writes nothing.",
         {(_S, "open"): "\n    @classmethod\n    def open(cls, path, clock=time.time):\n        store = cls(clock)\n        for entry in store._entries(Path(path)):\n            if entry[0] == \"set\":\n                store._put(*entry[1:])\n            else:\n                store._data.pop(entry[1], None)\n        store._path = Path(path)\n        return store\n\n    @staticmethod\n    def _entries(path):\n        if path.exists():\n            for line in path.read_text().splitlines():\n                yield json.loads(line)\n"},
         "import tempfile, pathlib\nfrom kv.store import Store\nwith tempfile.TemporaryDirectory() as d:\n    p = pathlib.Path(d, 'log')\n    s = Store.open(p, clock=lambda: 0)\n    s.set('a', 1)\n    s.set('b', 2, ttl=5)\n    s.delete('a')\n    text = p.read_text()\n    again = Store.open(p, clock=lambda: 4)\n    self.assertEqual((again.dump().get('data', again.dump()), again.ttl('b')), ({'b': 2}, 1))\n    self.assertEqual(p.read_text(), text)\n    again.set('c', 3)\n    self.assertEqual(Store.open(p, clock=lambda: 9).keys(), ['c'])"),
    Link("torn", "A process may be killed while it writes: `Store.open` must ignore a last line that is cut off, and cut it from the file. A broken line before the last one is a ValueError.",
         {(_S, "open"): "\n    @classmethod\n    def open(cls, path, clock=time.time):\n        store = cls(clock)\n        for entry in store._entries(Path(path)):\n            if entry[0] == \"set\":\n                store._put(*entry[1:])\n            else:\n                store._data.pop(entry[1], None)\n        store._path = Path(path)\n        return store\n\n    @staticmethod\n    def _entries(path):\n        if not path.exists():\n            return\n        whole, _, torn = path.read_text().rpartition(\"\\n\")\n        if torn:\n            path.write_text(whole + \"\\n\" if whole else \"\")\n        for line in whole.splitlines():\n            yield json.loads(line)\n"},
         "import tempfile, pathlib\nfrom kv.store import Store\nwith tempfile.TemporaryDirectory() as d:\n    p = pathlib.Path(d, 'log')\n    s = Store.open(p)\n    s.set('a', 1)\n    whole = p.read_text()\n    p.write_text(whole + '[\"set\", \"b')\n    self.assertEqual(Store.open(p).keys(), ['a'])\n    self.assertEqual(p.read_text(), whole)\n    p.write_text('[\"se\\n' + whole)\n    self.assertRaises(ValueError, Store.open, p)"),
    Link("compact", "`compact()` rewrites the file so that it holds one line for each live key, in order of the keys. Without a file it does nothing.",
         {(_S, "compact"): "\n    def compact(self):\n        if self._path is not None:\n            live = [[\"set\", key, *self._data[key]] for key in self.keys()]\n            self._path.write_text(\"\".join(json.dumps(entry) + \"\\n\" for entry in live))\n"},
         "import tempfile, pathlib\nfrom kv.store import Store\nwith tempfile.TemporaryDirectory() as d:\n    p = pathlib.Path(d, 'log')\n    s = Store.open(p)\n    for n in range(9):\n        s.set('b', n)\n    s.set('a', 1)\n    s.set('c', 1)\n    s.delete('c')\n    s.compact()\n    self.assertEqual(p.read_text(), '[\"set\", \"a\", 1, null]\\n[\"set\", \"b\", 8, null]\\n')\nStore().compact()"),
    Link("scan", "`scan(prefix)`: pairs of key and value of all live keys that begin so, in order.",
         {(_S, "scan"): "\n    def scan(self, prefix):\n        return [(key, self.get(key)) for key in self.keys() if key.startswith(prefix)]\n"},
         "from kv.store import Store\ns = Store()\nfor k in ('user:2', 'user:1', 'x'):\n    s.set(k, k[-1])\nself.assertEqual(s.scan('user:'), [('user:1', '1'), ('user:2', '2')])"),
    Link("find", "`find(value)`: the keys, in order, that have this value. 1 and True are different values.",
         {(_S, "find"): "\n    def find(self, value):\n        return [key for key, own in self.scan(\"\") if type(own) is type(value) and own == value]\n"},
         "from kv.store import Store\ns = Store()\ns.set('b', 1)\ns.set('a', 1)\ns.set('c', True)\nself.assertEqual(s.find(1), ['a', 'b'])\nself.assertEqual(s.find(True), ['c'])"),
    Link("watch", "`watch(prefix, callback)`: from then on callback(key, old, new) is called after each set and each delete of such a key; old or new is None where there was or is nothing.",
         {(_S, "init"): "    def __init__(self, clock=time.time, path=None):\n        self._clock = clock\n        self._data = {}\n        self._path = None if path is None else Path(path)\n        self._watchers = []\n",
          (_S, "set"): _SET_TTL.replace("        self._put(key, value, None if ttl is None else self._clock() + ttl)\n", "        old = self.get(key)\n        self._put(key, value, None if ttl is None else self._clock() + ttl)\n        self._tell(key, old, value)\n").replace("        self._data[key] = (value, end)\n", "        self._data[key] = (value, end)\n        self._write([\"set\", key, value, end])\n\n    def _write(self, entry):\n        if self._path is not None:\n            with self._path.open(\"a\") as file:\n                file.write(json.dumps(entry) + \"\\n\")\n"),
          (_S, "delete"): "\n    def delete(self, key):\n        there, old = self._live(key), self.get(key)\n        if self._data.pop(key, None) is not None:\n            self._write([\"delete\", key])\n        if there:\n            self._tell(key, old, None)\n        return there\n",
          (_S, "watch"): "\n    def watch(self, prefix, callback):\n        self._watchers.append((prefix, callback))\n\n    def _tell(self, key, old, new):\n        for prefix, callback in self._watchers:\n            if key.startswith(prefix):\n                callback(key, old, new)\n"},
         "from kv.store import Store\ns = Store()\nseen = []\ns.watch('u', lambda *a: seen.append(a))\ns.set('u1', 1)\ns.set('x', 1)\ns.incr('u1')\ns.delete('u1')\ns.delete('u1')\nself.assertEqual(seen, [('u1', None, 1), ('u1', 1, 2), ('u1', 2, None)])"),
    Link("move", "`move(key, new)`: give a key another name, with its value and its time limit. KeyError where it is not there, ValueError where the new name is none or is taken.",
         {(_S, "move"): "\n    def move(self, key, new):\n        if not self._live(key):\n            raise KeyError(key)\n        self._check(new)\n        if self._live(new):\n            raise ValueError(f\"{new} is taken\")\n        value, end = self._data[key]\n        self.delete(key)\n        self._put(new, value, end)\n        self._tell(new, None, value)\n"},
         "from kv.store import Store\nnow = [0]\ns = Store(clock=lambda: now[0])\ns.set('a', 1, ttl=9)\ns.set('b', 2)\nself.assertRaises(ValueError, s.move, 'a', 'b')\nself.assertRaises(ValueError, s.move, 'a', '')\nself.assertRaises(KeyError, s.move, 'zz', 'y')\ns.move('a', 'c')\nself.assertEqual((s.keys(), s.ttl('c'), s.get('c')), (['b', 'c'], 9, 1))"),
    Link("cli", "A module kv/cli.py with `run(store, line)` that returns text: `set KEY WORDS...` -> OK, `get KEY` -> the value or (nil), `del KEY` -> 1 or 0, `keys` -> one on each line. Anything else -> error: and the line.",
         {("kv/cli.py", "all"): '"""The store by lines of text."""\n\n\ndef run(store, line):\n    """Carry out a line; returns what to show."""\n    words = line.split()\n    match words:\n        case ["set", key, *rest] if rest:\n            store.set(key, " ".join(rest))\n            return "OK"\n        case ["get", key]:\n            return str(store.get(key, "(nil)"))\n        case ["del", key]:\n            return "1" if store.delete(key) else "0"\n        case ["keys"]:\n            return "\\n".join(store.keys())\n        case _:\n            return f"error: {line}"\n'},
         "from kv.cli import run\nfrom kv.store import Store\ns = Store()\nself.assertEqual([run(s, l) for l in ('set a big dog', 'get a', 'get b', 'set c x', 'keys', 'del a', 'del a', 'fly')], ['OK', 'big dog', '(nil)', 'OK', 'a\\nc', '1', '0', 'error: fly'])"),
    Link("delete-value", "From now on `delete(key)` returns the value that was there, or None, and no longer whether it was there. The command keeps answering 1 and 0.",
         {(_S, "delete"): "\n    def delete(self, key):\n        there, old = self._live(key), self.get(key)\n        if self._data.pop(key, None) is not None:\n            self._write([\"delete\", key])\n        if there:\n            self._tell(key, old, None)\n        return old\n",
          ("kv/cli.py", "all"): '"""The store by lines of text."""\n\n\ndef run(store, line):\n    """Carry out a line; returns what to show."""\n    words = line.split()\n    match words:\n        case ["set", key, *rest] if rest:\n            store.set(key, " ".join(rest))\n            return "OK"\n        case ["get", key]:\n            return str(store.get(key, "(nil)"))\n        case ["del", key]:\n            there = key in store\n            store.delete(key)\n            return "1" if there else "0"\n        case ["keys"]:\n            return "\\n".join(store.keys())\n        case _:\n            return f"error: {line}"\n'},
         "from kv.cli import run\nfrom kv.store import Store\ns = Store()\ns.set('a', 0)\nself.assertEqual(s.delete('a'), 0)\nself.assertIs(s.delete('a'), None)\ns.set('a', None)\nself.assertEqual((run(s, 'del a'), run(s, 'del a')), ('1', '0'))",
         revokes=("delete", "ttl")),
    Link("namespace", "`space(name)` gives a view with set, get, delete and keys, in which every key stands for `name:key` of the store; its keys() come without the name.",
         {(_S, "space"): "\n    def space(self, name):\n        from .space import Space\n\n        return Space(self, name)\n",
          ("kv/space.py", "all"): "\"\"\"Parts of a store.\"\"\"\n\n\nclass Space:\n    \"\"\"The keys of a store below a name.\"\"\"\n\n    def __init__(self, store, name):\n        self._store, self._name = store, f\"{name}:\"\n\n    def set(self, key, value, ttl=None):\n        self._store.set(self._name + key, value, ttl)\n\n    def get(self, key, default=None):\n        return self._store.get(self._name + key, default)\n\n    def delete(self, key):\n        return self._store.delete(self._name + key)\n\n    def keys(self):\n        return [key.removeprefix(self._name) for key, _ in self._store.scan(self._name)]\n"},
         "from kv.store import Store\ns = Store()\na, b = s.space('a'), s.space('b')\na.set('x', 1)\nb.set('x', 2)\nself.assertEqual((a.get('x'), b.get('x'), s.keys(), a.keys()), (1, 2, ['a:x', 'b:x'], ['x']))\nself.assertEqual(a.delete('x'), 1)\nself.assertEqual(a.keys(), [])"),
    Link("dump-2", "The snapshot gets a version: `dump()` returns {\"version\": 2, \"data\": {...}}. `load` takes that and the plain dict of before; another version is a ValueError and changes nothing.",
         {(_S, "dump"): "\n    def dump(self):\n        return {\"version\": 2, \"data\": {key: self.get(key) for key in self.keys()}}\n\n    def load(self, data):\n        if set(data) == {\"version\", \"data\"}:\n            if data[\"version\"] != 2:\n                raise ValueError(f\"version {data['version']} is not known\")\n            data = data[\"data\"]\n        for key in list(self._data):\n            self.delete(key)\n        for key, value in data.items():\n            self.set(key, value)\n"},
         "from kv.store import Store\ns = Store()\ns.set('a', 1)\nd = s.dump()\nself.assertEqual(d, {'version': 2, 'data': {'a': 1}})\nself.assertRaises(ValueError, s.load, {'version': 3, 'data': {}})\nself.assertEqual(s.keys(), ['a'])\ns.load({'x': 1})\nself.assertEqual(s.keys(), ['x'])\ns.load(d)\nself.assertEqual(s.keys(), ['a'])",
         revokes=("snapshot",)),
    Link("stats", "`stats()`: {\"keys\": n, \"limited\": n}: how many live keys there are, and how many of them have a time limit.",
         {(_S, "stats"): "\n    def stats(self):\n        live = self.keys()\n        return {\"keys\": len(live), \"limited\": sum(self.ttl(key) is not None for key in live)}\n"},
         "from kv.store import Store\nnow = [0]\ns = Store(clock=lambda: now[0])\ns.set('a', 1)\ns.set('b', 1, ttl=5)\ns.set('c', 1, ttl=1)\nnow[0] = 2\nself.assertEqual(s.stats(), {'keys': 2, 'limited': 1})"),
)  # fmt: skip


# --- todo ----------------------------------------------------------------------------------------

_T = "todo/core.py"
TODO_BASE: Parts = _checked("todo", {
    "todo/__init__.py": {"all": '"""Things to do."""\n'},
    _T: {"head": '"""A list of things to do."""\n\n\n', "class": "class Todo:\n    \"\"\"Items in the order in which they were added.\"\"\"\n\n",
         "init": "    def __init__(self):\n        self.items = []\n"},
})  # fmt: skip
_NEW = '{"id": self._number, "text": text, "done": False'

TODO = (
    Link("add", "Todo in todo/core.py gets `add(text)`: it appends a dict with id (1, 2, ...), text and done (False) to `items` and returns the id.",
         {(_T, "add"): "\n    def add(self, text):\n        number = len(self.items) + 1\n        self.items.append({\"id\": number, \"text\": text, \"done\": False})\n        return number\n"},
         "from todo.core import Todo\nt = Todo()\nself.assertEqual((t.add('a'), t.add('b')), (1, 2))\nself.assertEqual([(i['id'], i['text'], i['done']) for i in t.items], [(1, 'a', False), (2, 'b', False)])"),
    Link("find", "`find(id)` returns the item; KeyError with the id where there is none.",
         {(_T, "find"): "\n    def find(self, number):\n        for item in self.items:\n            if item[\"id\"] == number:\n                return item\n        raise KeyError(number)\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nself.assertEqual(t.find(1)['text'], 'a')\nself.assertRaises(KeyError, t.find, 2)"),
    Link("done", "`done(id)` marks an item as done.",
         {(_T, "done"): "\n    def done(self, number):\n        self.find(number)[\"done\"] = True\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b')\nt.done(2)\nself.assertEqual([i['done'] for i in t.items], [False, True])\nself.assertRaises(KeyError, t.done, 9)"),
    Link("remove", "`remove(id)`. Ids are never given twice, also not after a removal.",
         {(_T, "init"): "    def __init__(self):\n        self.items = []\n        self._number = 0\n",
          (_T, "add"): f"\n    def add(self, text):\n        self._number += 1\n        self.items.append({_NEW}}})\n        return self._number\n",
          (_T, "remove"): "\n    def remove(self, number):\n        self.items.remove(self.find(number))\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b')\nt.remove(2)\nself.assertEqual(t.add('c'), 3)\nself.assertEqual([i['id'] for i in t.items], [1, 3])\nself.assertRaises(KeyError, t.remove, 2)"),
    Link("open", "`open()`: the items that are not done.",
         {(_T, "open"): "\n    def open(self):\n        return [item for item in self.items if not item[\"done\"]]\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b')\nt.done(1)\nself.assertEqual([i['id'] for i in t.open()], [2])"),
    Link("strip", "add must strip the text, and refuse an empty one with ValueError. No id is used up then.",
         {(_T, "add"): f"\n    def add(self, text):\n        text = self._clean(text)\n        self._number += 1\n        self.items.append({_NEW}}})\n        return self._number\n",
          (_T, "clean"): "\n    @staticmethod\n    def _clean(text):\n        text = text.strip()\n        if not text:\n            raise ValueError(\"an item needs a text\")\n        return text\n"},
         "from todo.core import Todo\nt = Todo()\nself.assertRaises(ValueError, t.add, '  ')\nself.assertEqual(t.add(' a '), 1)\nself.assertEqual(t.items[0]['text'], 'a')"),
    Link("rename", "`rename(id, text)`, with the same care for the text as add.",
         {(_T, "rename"): "\n    def rename(self, number, text):\n        self.find(number)[\"text\"] = self._clean(text)\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.rename(1, ' b ')\nself.assertEqual(t.find(1)['text'], 'b')\nself.assertRaises(ValueError, t.rename, 1, '')\nself.assertEqual(t.find(1)['text'], 'b')"),
    Link("priority", "`add(text, priority=2)`: 1 is high, 3 is low, anything else a ValueError. It is kept in the item as priority.",
         {(_T, "add"): f"\n    def add(self, text, priority=2):\n        text = self._clean(text)\n        if priority not in (1, 2, 3):\n            raise ValueError(f\"{{priority}} is no priority\")\n        self._number += 1\n        self.items.append({_NEW}, \"priority\": priority}})\n        return self._number\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b', priority=1)\nself.assertEqual([i['priority'] for i in t.items], [2, 1])\nself.assertRaises(ValueError, t.add, 'c', 7)"),
    Link("order", "open() comes in order of priority, high first, and in order of id within one.",
         {(_T, "open"): "\n    def open(self):\n        left = [item for item in self.items if not item[\"done\"]]\n        return sorted(left, key=lambda item: (item[\"priority\"], item[\"id\"]))\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b')\nt.items[1]['priority'] = min(i['priority'] for i in t.items)\nt.add('c')\nself.assertEqual([i['id'] for i in t.open()], [1, 2, 3])\nself.assertEqual(t.open(), sorted(t.open(), key=lambda i: (i['priority'], i['id'])))"),
    Link("tags", "Words of the text that begin with # are tags: the item gets `tags`, a sorted list without #, and the text loses them. A text of tags only is empty.",
         {(_T, "add"): "\n    def add(self, text, priority=2):\n        text, tags = self._split(text)\n        if priority not in (1, 2, 3):\n            raise ValueError(f\"{priority} is no priority\")\n        self._number += 1\n        self.items.append(\n            {\"id\": self._number, \"text\": text, \"done\": False, \"priority\": priority, \"tags\": tags}\n        )\n        return self._number\n",
          (_T, "split"): "\n    def _split(self, text):\n        words = text.split()\n        tags = sorted({word[1:] for word in words if word.startswith(\"#\") and word[1:]})\n        return self._clean(\" \".join(word for word in words if not word.startswith(\"#\"))), tags\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('buy #shop milk #home')\nself.assertEqual((t.items[0]['text'], t.items[0]['tags']), ('buy milk', ['home', 'shop']))\nt.add('plain')\nself.assertEqual(t.items[1]['tags'], [])\nself.assertRaises(ValueError, t.add, '#only')"),
    Link("tagged", "`tagged(tag)`: open items with this tag, in the order of open().",
         {(_T, "tagged"): "\n    def tagged(self, tag):\n        return [item for item in self.open() if tag in item[\"tags\"]]\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a #x')\nt.add('b #y')\nt.add('c #x')\nt.done(1)\nself.assertEqual([i['id'] for i in t.tagged('x')], [3])"),
    Link("search", "`search(word)`: all items, done or not, whose text holds the word, upper or lower case.",
         {(_T, "search"): "\n    def search(self, word):\n        return [item for item in self.items if word.lower() in item[\"text\"].lower()]\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('Buy Milk')\nt.add('sell')\nt.done(1)\nself.assertEqual([i['id'] for i in t.search('milk')], [1])"),
    Link("due", "`due(id, day)` keeps a datetime.date in the item as due (None before that); `overdue(today)`: open items whose day is past, the oldest first.",
         {(_T, "add"): "\n    def add(self, text, priority=2):\n        text, tags = self._split(text)\n        if priority not in (1, 2, 3):\n            raise ValueError(f\"{priority} is no priority\")\n        self._number += 1\n        item = {\"id\": self._number, \"text\": text, \"done\": False, \"priority\": priority}\n        self.items.append({**item, \"tags\": tags, \"due\": None})\n        return self._number\n",
          (_T, "due"): "\n    def due(self, number, day):\n        self.find(number)[\"due\"] = day\n\n    def overdue(self, today):\n        late = [item for item in self.open() if item[\"due\"] and item[\"due\"] < today]\n        return sorted(late, key=lambda item: item[\"due\"])\n"},
         "from datetime import date\nfrom todo.core import Todo\nt = Todo()\nfor n in range(4):\n    t.add(str(n))\nself.assertIsNone(t.items[0]['due'])\nt.due(1, date(2026, 1, 5))\nt.due(2, date(2026, 1, 3))\nt.due(3, date(2026, 1, 9))\nself.assertEqual([i['id'] for i in t.overdue(date(2026, 1, 9))], [2, 1])\nt.done(2)\nself.assertEqual([i['id'] for i in t.overdue(date(2026, 1, 9))], [1])"),
    Link("letters", "Priorities become letters: \"A\" is high, \"B\" normal and the default, \"C\" low. Numbers are no longer taken.",
         {(_T, "add"): "\n    def add(self, text, priority=\"B\"):\n        text, tags = self._split(text)\n        if priority not in (\"A\", \"B\", \"C\"):\n            raise ValueError(f\"{priority} is no priority\")\n        self._number += 1\n        item = {\"id\": self._number, \"text\": text, \"done\": False, \"priority\": priority}\n        self.items.append({**item, \"tags\": tags, \"due\": None})\n        return self._number\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b', 'A')\nt.add('c', priority='C')\nself.assertEqual([i['priority'] for i in t.items], ['B', 'A', 'C'])\nself.assertEqual([i['id'] for i in t.open()], [2, 1, 3])\nself.assertRaises(ValueError, t.add, 'd', 1)",
         revokes=("priority",)),
    Link("progress", "`progress()`: the share of items that are done, from 0 to 1; 1.0 of an empty list.",
         {(_T, "progress"): "\n    def progress(self):\n        if not self.items:\n            return 1.0\n        return sum(item[\"done\"] for item in self.items) / len(self.items)\n"},
         "from todo.core import Todo\nt = Todo()\nself.assertEqual(t.progress(), 1.0)\nfor n in 'abcd':\n    t.add(n)\nt.done(1)\nself.assertEqual(t.progress(), 0.25)"),
    Link("archive", "`archive()` takes the done items out of items, into a list `archived`, and returns how many. find and search do not see them.",
         {(_T, "init"): "    def __init__(self):\n        self.items = []\n        self.archived = []\n        self._number = 0\n",
          (_T, "archive"): "\n    def archive(self):\n        gone = [item for item in self.items if item[\"done\"]]\n        self.archived += gone\n        self.items = [item for item in self.items if not item[\"done\"]]\n        return len(gone)\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a')\nt.add('b')\nt.done(1)\nself.assertEqual(t.archive(), 1)\nself.assertEqual(([i['id'] for i in t.items], [i['id'] for i in t.archived]), ([2], [1]))\nself.assertRaises(KeyError, t.find, 1)\nself.assertEqual(t.search('a'), [])"),
    Link("lines", "todo/text.py with `to_lines(todo)`: for each item `[ ] B text #tag` or `[x] ...`, the tags in order, one string for each.",
         {("todo/text.py", "all"): '"""Lists as text."""\n\n\ndef to_lines(todo):\n    """Each item as a line."""\n    return [_line(item) for item in todo.items]\n\n\ndef _line(item):\n    mark = "x" if item["done"] else " "\n    return " ".join([f"[{mark}] {item[\'priority\']} {item[\'text\']}", *(f"#{tag}" for tag in item["tags"])])\n'},
         "from todo.core import Todo\nfrom todo.text import to_lines\nt = Todo()\nt.add('buy #b milk #a', 'A')\nt.add('x')\nt.done(2)\nself.assertEqual(to_lines(t), ['[ ] A buy milk #a #b', '[x] B x'])"),
    Link("from-lines", "`from_lines(lines)` in todo/text.py makes a Todo of such lines. Empty lines are skipped; a line of another form is a ValueError with its number, from 1.",
         {("todo/text.py", "all"): '"""Lists as text."""\n\nimport re\n\nfrom .core import Todo\n\n\ndef to_lines(todo):\n    """Each item as a line."""\n    return [_line(item) for item in todo.items]\n\n\ndef _line(item):\n    mark = "x" if item["done"] else " "\n    return " ".join([f"[{mark}] {item[\'priority\']} {item[\'text\']}", *(f"#{tag}" for tag in item["tags"])])\n\n\ndef from_lines(lines):\n    """The list of these lines."""\n    todo = Todo()\n    for number, line in enumerate(lines, 1):\n        if not line.strip():\n            continue\n        found = re.fullmatch(r"\\[([ x])\\] ([ABC]) (.+)", line)\n        if found is None:\n            raise ValueError(f"line {number}: {line}")\n        made = todo.add(found[3], found[2])\n        if found[1] == "x":\n            todo.done(made)\n    return todo\n'},
         "from todo.text import from_lines, to_lines\nlines = ['[ ] A buy milk #a #b', '[x] B x']\nself.assertEqual(to_lines(from_lines([lines[0], '', lines[1]])), lines)\nwith self.assertRaisesRegex(ValueError, '2'):\n    from_lines([lines[0], 'nonsense'])"),
    Link("undo", "`undo()` takes back the last of add, done, remove or rename; it returns False when there is nothing to take back. Ids are still never given twice.",
         {(_T, "head"): '"""A list of things to do."""\n\nimport copy\n\n\n',
          (_T, "init"): "    def __init__(self):\n        self.items = []\n        self.archived = []\n        self._number = 0\n        self._past = []\n\n    def _keep(self):\n        self._past.append(copy.deepcopy(self.items))\n\n    def undo(self):\n        if not self._past:\n            return False\n        self.items = self._past.pop()\n        return True\n",
          (_T, "add"): "\n    def add(self, text, priority=\"B\"):\n        text, tags = self._split(text)\n        if priority not in (\"A\", \"B\", \"C\"):\n            raise ValueError(f\"{priority} is no priority\")\n        self._keep()\n        self._number += 1\n        item = {\"id\": self._number, \"text\": text, \"done\": False, \"priority\": priority}\n        self.items.append({**item, \"tags\": tags, \"due\": None})\n        return self._number\n",
          (_T, "done"): "\n    def done(self, number):\n        self.find(number)\n        self._keep()\n        self.find(number)[\"done\"] = True\n",
          (_T, "remove"): "\n    def remove(self, number):\n        self.find(number)\n        self._keep()\n        self.items.remove(self.find(number))\n",
          (_T, "rename"): "\n    def rename(self, number, text):\n        self.find(number)\n        text = self._clean(text)\n        self._keep()\n        self.find(number)[\"text\"] = text\n"},
         "from todo.core import Todo\nt = Todo()\nself.assertIs(t.undo(), False)\nt.add('a')\nt.done(1)\nt.rename(1, 'b')\nt.remove(1)\nself.assertIs(t.undo(), True)\nself.assertEqual(t.find(1)['text'], 'b')\nt.undo()\nself.assertEqual(t.find(1)['text'], 'a')\nt.undo()\nself.assertIs(t.find(1)['done'], False)\nt.undo()\nself.assertEqual(t.items, [])\nself.assertEqual(t.add('c'), 2)\nself.assertRaises(KeyError, t.done, 77)\nt.undo()\nself.assertEqual(t.items, [])"),
    Link("subtasks", "`add(text, priority=\"B\", parent=None)`: the id of another item, kept as parent; KeyError where there is none. `done` of an item also does all that hang on it, at any depth.",
         {(_T, "add"): "\n    def add(self, text, priority=\"B\", parent=None):\n        text, tags = self._split(text)\n        if priority not in (\"A\", \"B\", \"C\"):\n            raise ValueError(f\"{priority} is no priority\")\n        if parent is not None:\n            self.find(parent)\n        self._keep()\n        self._number += 1\n        item = {\"id\": self._number, \"text\": text, \"done\": False, \"priority\": priority}\n        self.items.append({**item, \"tags\": tags, \"due\": None, \"parent\": parent})\n        return self._number\n",
          (_T, "done"): "\n    def done(self, number):\n        self.find(number)\n        self._keep()\n        self._finish(number)\n\n    def _finish(self, number):\n        self.find(number)[\"done\"] = True\n        for item in self.items:\n            if item[\"parent\"] == number:\n                self._finish(item[\"id\"])\n"},
         "from todo.core import Todo\nt = Todo()\na = t.add('a')\nb = t.add('b', parent=a)\nc = t.add('c', parent=b)\nd = t.add('d')\nself.assertRaises(KeyError, t.add, 'x', 'B', 99)\nt.done(a)\nself.assertEqual([i['id'] for i in t.open()], [d])\nt.undo()\nself.assertEqual(len(t.open()), 4)"),
    Link("counts", "`counts()`: a dict from each tag of open items to how many have it, the most frequent first, then by name.",
         {(_T, "counts"): "\n    def counts(self):\n        found = {}\n        for item in self.open():\n            for tag in item[\"tags\"]:\n                found[tag] = found.get(tag, 0) + 1\n        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))\n"},
         "from todo.core import Todo\nt = Todo()\nt.add('a #y #x')\nt.add('b #z')\nt.add('c #z #x')\nt.add('d #q')\nt.done(4)\nself.assertEqual(list(t.counts().items()), [('x', 2), ('z', 2), ('y', 1)])"),
)  # fmt: skip


# --- settings ------------------------------------------------------------------------------------

_F = "conf/table.py"
_ENGINE = '''\
"""Looks settings up. What there is stands in table.py."""

from .table import SETTINGS


def find(name):
    """The entry of a setting, by its name or one it had before. Raises KeyError."""
    for own, entry in SETTINGS.items():
        if name == own or name in entry.get("was", ()):
            return own, entry
    raise KeyError(name)


def check(name, value):
    """The value as it may be set. Raises ValueError where it is out of bounds."""
    own, entry = find(name)
    if not entry.get("low", value) <= value <= entry.get("high", value):
        raise ValueError(f"{own}: {value}")
    return value


def default(name):
    """What holds when nobody sets it."""
    return find(name)[1]["default"]
'''
_NAMES = ("timeout", "retries", "workers", "batch", "window", "quota", "depth", "burst", "delay", "cache",
          "threads", "pages", "slots", "margin", "chunk", "limit")  # fmt: skip
_PLACES = ("upload", "mail", "search", "export", "login", "proxy", "report", "queue")


def settings_chain(seed: int, length: int = 24) -> Material:
    """A table of settings and small requests about it; each refers to what was done before."""
    rng = random.Random(f"settings {seed}")  # noqa: S311 - not a secret
    names = [f"{place}_{name}" for place in _PLACES for name in _NAMES]
    rng.shuffle(names)
    table: dict[str, dict[str, object]] = {}
    base: Parts = _checked("conf", {
        "conf/__init__.py": {"all": '"""Settings."""\n'},
        "conf/engine.py": {"all": _ENGINE},
        _F: {"head": '"""All settings."""\n\nSETTINGS = {}\n'},
    })  # fmt: skip
    links: list[Link] = []
    last = ""
    for number in range(length):
        before = list(links)
        words, last = _request(rng, table, names, last, number)
        body = (
            "from conf.engine import check, default, find\nfrom conf.table import SETTINGS\n"
            + _expected(table)
        )
        rendered = {(_F, name): _entry(name, entry) for name, entry in table.items()}
        known = {key for link in before for key in link.parts} - rendered.keys()
        gone = dict.fromkeys(sorted(known))
        before_parts = _state(before)
        changed = {
            key: text for key, text in {**rendered, **gone}.items() if before_parts.get(key) != text
        }
        revoked = (f"table-{number - 1}",) if number else ()
        links.append(Link(f"table-{number}", words, changed, body, revokes=revoked))
    return chain(f"settings-{seed}", base, links, kind="generated")


def _state(links: list[Link]) -> dict[tuple[str, str], str | None]:
    made: dict[tuple[str, str], str | None] = {}
    for link in links:
        made.update(link.parts)
    return made


def _entry(name: str, entry: dict[str, object]) -> str:
    return f"SETTINGS[{name!r}] = {entry!r}\n"


def _request(
    rng: random.Random,
    table: dict[str, dict[str, object]],
    names: list[str],
    last: str,
    number: int,
) -> tuple[str, str]:
    """Change the table; returns the words for it, and the setting they were about."""
    kinds = ["add"] if len(table) < 3 else ["add", "rename", "raise", "bound", "copy", "remove"]
    kind = rng.choice(kinds)
    if kind == "add":
        name, value = names.pop(), rng.randint(2, 60)
        table[name] = {"default": value}
        return f"Add a setting {name} with the default {value} to conf/table.py.", name
    about = last if last in table and rng.random() < 0.6 else rng.choice(sorted(table))
    shown = "the setting you changed last" if about == last else about
    entry = dict(table[about])
    default = entry["default"]
    assert isinstance(default, int)
    if kind == "rename":
        new = names.pop()
        renamed = {**entry, "was": (*_was(entry), about)}
        items = [(new, renamed) if name == about else (name, one) for name, one in table.items()]
        table.clear()
        table.update(items)
        return (
            f"Rename {shown} to {new}. Its old name must still be found: put it last into its `was`, a tuple.",
            new,
        )
    if kind == "raise":
        high = entry.get("high")
        value = default * 2
        entry["default"] = value
        if isinstance(high, int) and value > high:
            entry["high"] = value
        table[about] = entry
        return (
            f"Double the default of {shown}. Should it have a `high` below that, raise that to the new default.",
            about,
        )
    if kind == "bound":
        entry |= {"low": 1, "high": default * 3}
        table[about] = entry
        return f"Bound {shown}: `low` is 1 and `high` three times its default.", about
    if kind == "copy":
        new = names.pop()
        table[new] = {key: value for key, value in entry.items() if key != "was"}
        return f"Add {new}: the same as {shown}, but without former names.", new
    other = rng.choice(sorted(table))
    del table[other]
    return f"Remove {other}.", ""


def _was(entry: dict[str, object]) -> tuple[object, ...]:
    found = entry.get("was", ())
    assert isinstance(found, tuple)
    return found


def _expected(table: dict[str, dict[str, object]]) -> str:
    lines = [f"self.assertEqual(SETTINGS, {table!r})"]
    for name, entry in table.items():
        lines += [f"self.assertEqual(find({old!r})[0], {name!r})" for old in _was(entry)]
        if "high" in entry:
            lines.append(f"self.assertRaises(ValueError, check, {name!r}, {entry['high']} + 1)")
    return "\n".join(lines)
