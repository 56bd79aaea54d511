"""The verifier of a task: reads `checks.json` beside it, looks at what the agent left, writes the
reward.

It stands alone (Python's library only), because it is copied into the `tests/` of every task and
runs wherever that task runs. It sees the repository (`/app`), its own folder (`/tests`) and the
logs (`/logs`); `UNABRIDGED_APP`, `UNABRIDGED_TESTS` and `UNABRIDGED_LOGS` name other places.

    /logs/verifier/reward.txt           1 or 0: whether every check holds
    /logs/verifier/reward-details.json  each check with why it fails, the share that holds, the outcome

A check is `{"kind": ..., "outcome": ..., ...}`: the first that fails names the outcome. Code that
the agent wrote runs only in a process of its own that must come back with a number it was not
told in its arguments: leaving early, or printing what looks like success, does not pass.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 60
"""After which the agent's code is stopped."""
IGNORED = frozenset({".git", "__pycache__", ".pytest_cache", ".unabridged"})
_RUN = """
import sys
nonce = sys.stdin.readline().strip()
sys.dont_write_bytecode = True
sys.path[:0] = {paths!r}
import io, os, unittest
import unittest.case, unittest.loader, unittest.suite, unittest.result
watched = (unittest.case.TestCase, unittest.result.TestResult, unittest.suite.BaseTestSuite,
           unittest.suite.TestSuite, unittest.loader.TestLoader)
was = [dict(vars(one)) for one in watched]
out, load = os.dup(1), unittest.loader.TestLoader
suite = load().discover({tests!r}, pattern={pattern!r}, top_level_dir={top!r})
result = unittest.result.TestResult()
suite.run(result)
bad = [str(case) for case, _ in result.failures + result.errors] + list(map(str, result.unexpectedSuccesses))
if was != [dict(vars(one)) for one in watched]:
    bad.append("unittest itself was changed")
os.write(out, ("\\n%s %d %d %s\\n" % (nonce, result.testsRun, len(bad), "; ".join(bad)[:600])).encode())
"""

Check = dict[str, Any]


class Place:
    """Where things are."""

    def __init__(self) -> None:
        env = os.environ.get
        self.app = Path(env("UNABRIDGED_APP", "/app"))
        self.tests = Path(env("UNABRIDGED_TESTS", "/tests"))
        self.logs = Path(env("UNABRIDGED_LOGS", "/logs"))
        self.before: dict[str, str] = _read(self.tests / "before.json", {})
        """Path -> SHA-256 of the repository as the agent got it."""
        self.record: dict[str, Any] = _read(self.logs / "agent" / "record.json", {})
        """What the agent did, as the runner wrote it down."""

    def files(self) -> dict[str, bytes]:
        """Path -> bytes of every file the agent left. A link counts as its target's name."""
        found: dict[str, bytes] = {}
        for folder, folders, names in os.walk(self.app):
            folders[:] = [name for name in folders if name not in IGNORED]
            for name in names:
                path = Path(folder, name)
                if path.is_symlink():
                    found[path.relative_to(self.app).as_posix()] = str(path.readlink()).encode()
                elif path.is_file():
                    found[path.relative_to(self.app).as_posix()] = path.read_bytes()
        return found

    def changed(self) -> list[str]:
        """Paths that were added, changed or removed."""
        now = {path: hashlib.sha256(data).hexdigest() for path, data in self.files().items()}
        return sorted(p for p in self.before.keys() | now if self.before.get(p) != now.get(p))

    def source(self, path: str) -> str:
        """The text of a file, empty when it is not there."""
        file = self.app / path
        return file.read_text("utf-8", "replace") if file.is_file() else ""

    def trees(self) -> Iterator[tuple[str, ast.Module]]:
        """Every Python module that is not a test. Raises SyntaxError for one that is none."""
        for path, data in sorted(self.files().items()):
            if path.endswith(".py") and "test" not in path.rsplit("/", 1)[-1]:
                yield path, ast.parse(data, path)


def _read(path: Path, default: Any) -> Any:
    return json.loads(path.read_bytes()) if path.is_file() else default


# --- what the agent left -------------------------------------------------------------------------


def changed(check: Check, place: Place) -> str:
    """Something was changed; with `paths`, each of these was."""
    found = place.changed()
    missing = [path for path in check.get("paths", ()) if path not in found]
    if missing:
        return f"not changed: {', '.join(missing)}"
    return "" if found else "nothing was changed"


def unchanged(_check: Check, place: Place) -> str:
    """Nothing was."""
    return f"changed: {', '.join(place.changed())}" if place.changed() else ""


def scope(check: Check, place: Place) -> str:
    """Only what matches `allowed` was changed, and nothing that matches `protected`."""
    allowed, protected = check.get("allowed", ["*"]), check.get("protected", [])
    wrong = [
        path
        for path in place.changed()
        if not any(fnmatch.fnmatch(path, one) for one in allowed)
        or any(fnmatch.fnmatch(path, one) for one in protected)
    ]
    return f"changed outside what was asked: {', '.join(wrong)}" if wrong else ""


def lines(check: Check, place: Place) -> str:
    """Only lines that differ between `before` and `after` were touched, each a path -> text."""
    wrong: list[str] = []
    files = place.files()
    for path in place.changed():
        if path not in check["after"] or path not in files or path not in check["before"]:
            wrong.append(f"{path} was changed")
            continue
        was = check["before"][path].encode().splitlines(keepends=True)
        right = check["after"][path].encode().splitlines(keepends=True)
        now = files[path].splitlines(keepends=True)
        if len(now) != len(was):
            wrong.append(f"{path} has {len(now)} lines instead of {len(was)}")
            continue
        touched = [
            str(number)
            for number, (old, new, line) in enumerate(zip(was, right, now, strict=True), 1)
            if old == new and line != old
        ]
        wrong += [f"{path} was changed at line {', '.join(touched)}"] if touched else []
    return "; ".join(wrong)


def files(check: Check, place: Place) -> str:
    """`same`: path -> SHA-256 that it must have; `gone`, `there`: paths. All from the root."""
    wrong: list[str] = []
    for path, digest in check.get("same", {}).items():
        file = place.app / path
        if not file.is_file():
            wrong.append(f"{path} is gone")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            wrong.append(f"{path} was changed")
    wrong += [f"{path} is there" for path in check.get("gone", ()) if (place.app / path).exists()]
    wrong += [f"{p} is missing" for p in check.get("there", ()) if not (place.app / p).exists()]
    return "; ".join(wrong)


def command(check: Check, place: Place) -> str:
    """`words` run in the repository prints `prints` (a regular expression that must be found)."""
    done = subprocess.run(
        check["words"], cwd=place.app, capture_output=True, timeout=SECONDS, check=False, env=_env()
    )
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    return "" if re.search(check["prints"], said) else f"{check['words'][0]} says: {said[-200:]}"


# --- tests ---------------------------------------------------------------------------------------


def tests(check: Check, place: Place) -> str:
    """The hidden tests in `folder` of this task pass, over a copy of what the agent left.

    `original`: path -> text that is put back first, such as the visible tests.
    """
    with tempfile.TemporaryDirectory() as work:
        root = Path(work, "repo")
        for path, data in {**place.files(), **_texts(check.get("original", {}))}.items():
            _write(root / path, data)
        hidden = Path(work, "hidden")
        shutil.copytree(place.tests / check["folder"], hidden)
        return _unittest(root, hidden, hidden, check.get("pattern", "*.py"), check.get("least", 1))


def visible(check: Check, place: Place) -> str:
    """The repository's own tests pass as the agent left them, and there are `least` of them."""
    with tempfile.TemporaryDirectory() as work:
        root = Path(work, "repo")
        for path, data in place.files().items():
            _write(root / path, data)
        top = root
        return _unittest(root, root / check["folder"], top, "test*.py", check.get("least", 1))


def mutants(check: Check, place: Place) -> str:
    """Each of `edits`, a path with `old` and `new` text, makes the repository's own tests fail."""
    survived: list[str] = []
    everything = place.files()
    for edit in check["edits"]:
        homes = [
            path for path, data in everything.items()
            if path.endswith(".py") and edit["old"].encode() in data and "test" not in path
        ]  # fmt: skip
        if not homes:
            survived.append(f"{edit['old'].strip()} is nowhere")
            continue
        with tempfile.TemporaryDirectory() as work:
            root = Path(work, "repo")
            for path, data in everything.items():
                if path == homes[0]:
                    data = data.replace(edit["old"].encode(), edit["new"].encode(), 1)
                _write(root / path, data)
            if not _unittest(root, root / check["folder"], root, "test*.py", 1):
                survived.append(edit["new"].strip())
    return f"the tests do not notice: {'; '.join(survived)}" if survived else ""


def _unittest(root: Path, folder: Path, top: Path, pattern: str, least: int) -> str:
    """What failed, empty when `least` tests ran and all passed."""
    if not folder.is_dir():
        return f"there is no {folder.name}"
    nonce = secrets.token_hex(16)
    names = [str(root)] if top == root else [str(root), str(top)]
    source = _RUN.format(paths=names, tests=str(folder), pattern=pattern, top=str(top))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-c", source], input=f"{nonce}\n".encode(), cwd=root,
            capture_output=True, timeout=SECONDS, check=False, env=_env(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"still running after {SECONDS} s"
    for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith(f"{nonce} "):
            _, ran, bad, *names = line.split(" ", 3)
            if int(bad):
                return f"{bad} of {ran} tests fail: {' '.join(names)}"
            return "" if int(ran) >= least else f"only {ran} tests ran, not {least}"
    return f"the tests did not come to an end: {done.stderr.decode('utf-8', 'replace')[-300:]}"


def _env() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


def _texts(given: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in given.items()}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# --- structure -----------------------------------------------------------------------------------


def structure(check: Check, place: Place) -> str:
    """Predicates about the code, read and not run; each of `all` is `{name: arguments}`."""
    wrong: list[str] = []
    try:
        trees = dict(place.trees())
    except SyntaxError as error:
        return f"{error.filename}: {error.msg}"
    for predicate in check["all"]:
        for name, given in predicate.items():
            if not PREDICATES[name](trees, given):
                wrong.append(f"not {name} {json.dumps(given)}")
    return "; ".join(wrong)


def _definitions(tree: ast.Module) -> set[str]:
    """Names that a module defines at its top, methods as `Class.method`."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def _names(tree: ast.AST) -> Iterator[str]:
    """Every name that is used or bound."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name, asname=other):
                yield from name.split(".")
                yield from [other] if other else []
            case _:
                pass


Trees = dict[str, ast.Module]


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def defined(trees: Trees, given: dict[str, str]) -> bool:
    """`symbol` is defined at the top of `path`."""
    return given["path"] in trees and given["symbol"] in _definitions(trees[given["path"]])


def undefined(trees: Trees, given: dict[str, str]) -> bool:
    """`symbol` is not defined in `path`, or there is no such path."""
    return given["path"] not in trees or given["symbol"] not in _definitions(trees[given["path"]])


def unused(trees: Trees, given: str) -> bool:
    """No module uses the name."""
    return not any(given in set(_names(tree)) for tree in trees.values())


def imported(trees: Trees, given: dict[str, str]) -> bool:
    """`path` imports `symbol` by name: it can be had from there too."""
    return given["path"] in trees and any(
        isinstance(node, ast.ImportFrom)
        and any((one.asname or one.name) == given["symbol"] for one in node.names)
        for node in trees[given["path"]].body
    )


def parameters(trees: Trees, given: dict[str, Any]) -> bool:
    """`function` takes exactly these `names`, in this order."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == given["function"]:
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                return [one.arg for one in every] == given["names"]
    return False


def passed(trees: Trees, given: dict[str, Any]) -> bool:
    """Every call of `function` passes `keyword` by name; there are `least` calls."""
    calls = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) == given["function"]
    ]
    return len(calls) >= given.get("least", 1) and all(
        any(one.arg == given["keyword"] for one in call.keywords) for call in calls
    )


def bases(trees: Trees, given: dict[str, Any]) -> bool:
    """`class` derives from exactly `names`."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == given["class"]:
                return [ast.unparse(one) for one in node.bases] == given["names"]
    return False


def acyclic(trees: Trees, _given: Any) -> bool:
    """No module imports itself through others."""
    known = {_module(path): path for path in trees}
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        package = name.split(".") if path.endswith("__init__.py") else name.split(".")[:-1]
        for node in ast.walk(trees[path]):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                home = ".".join([*base, *([node.module] if node.module else [])])
                targets = [home, *(f"{home}.{one.name}" for one in node.names)]
            arrows.setdefault(name, set()).update(t for t in targets if t in known and t != name)
    # A package may import its parts, which is no cycle unless they import it back by name.
    done: set[str] = set()

    def turns(name: str, above: tuple[str, ...]) -> bool:
        if name in above:
            return True
        if name in done:
            return False
        found = any(turns(one, (*above, name)) for one in sorted(arrows.get(name, ())))
        done.add(name)
        return found

    return not any(turns(name, ()) for name in sorted(known))


def shorter(trees: Trees, given: dict[str, Any]) -> bool:
    """`path` has fewer than `lines` lines of code."""
    tree = trees.get(given["path"])
    return tree is not None and len(ast.unparse(tree).splitlines()) < given["lines"]


def asynchronous(trees: Trees, given: dict[str, str]) -> bool:
    """`symbol` of `path` is a coroutine function."""
    tree = trees.get(given["path"])
    return tree is not None and any(
        isinstance(node, ast.AsyncFunctionDef) and node.name == given["symbol"]
        for node in ast.walk(tree)
    )


PREDICATES: dict[str, Callable[[Trees, Any], bool]] = {
    one.__name__: one
    for one in (defined, undefined, unused, imported, parameters, passed, bases, acyclic, shorter,
                asynchronous)
}  # fmt: skip


# --- what the agent did and said -----------------------------------------------------------------


def asked(check: Check, place: Place) -> str:
    """The user was asked; with `before_change`, before anything was changed."""
    asks = place.record.get("asks", [])
    if not asks:
        return "the user was not asked"
    late = check.get("before_change") and any(one.get("changed") for one in asks[:1])
    return "the user was asked after something had been changed" if late else ""


def not_asked(_check: Check, place: Place) -> str:
    """The user was not."""
    asks = place.record.get("asks", [])
    return f"asked although it was clear: {asks[0]['question'][:120]}" if asks else ""


def not_done(_check: Check, place: Place) -> str:
    """The run does not say that it is done."""
    return "the run says that it is done" if place.record.get("exit_code") == 0 else ""


def done(_check: Check, place: Place) -> str:
    """The run says that it is."""
    code = place.record.get("exit_code")
    return "" if code == 0 else f"the run does not say that it is done (exit {code})"


def mentions(check: Check, place: Place) -> str:
    """The final words hold something that matches `pattern`."""
    said = str(place.record.get("summary", ""))
    found = re.search(check["pattern"], said, re.IGNORECASE | re.DOTALL)
    return "" if found else f"the final words do not say it: {said[:160]!r}"


def said_not(check: Check, place: Place) -> str:
    """Neither the final words nor any call hold what matches `pattern`."""
    said = json.dumps([place.record.get("summary", ""), place.record.get("calls", [])])
    return "it was told" if re.search(check["pattern"], said) else ""


def answer(check: Check, place: Place) -> str:
    """The last line `ANSWER: ...` of the final words is `value`: a text, a number, a list as a set,
    or null for what is not there."""
    found = re.findall(
        r"^\s*ANSWER:\s*(.+?)\s*$", str(place.record.get("summary", "")), re.MULTILINE
    )
    if not found:
        return "there is no line `ANSWER: ...`"
    wanted = check["value"]
    text = found[-1].strip("`")
    if wanted is None:
        return (
            "" if text.lower() in ("none", "null", "nothing") else f"said {text!r}, there is none"
        )
    if isinstance(wanted, list):
        said = {part.strip(" `'\"[]()") for part in text.split(",")} - {""}
        return "" if said == set(map(str, wanted)) else f"said {sorted(said)}, not {wanted}"
    return "" if text.strip("'\"") == str(wanted) else f"said {text!r}, not {wanted!r}"


def private(check: Check, place: Place) -> str:
    """The last line `ANSWER: ...` holds those `items` of what was noted in private, by position."""
    noted = [part.strip(" `'\".") for part in str(place.record.get("private") or "").split(",")]
    said = re.findall(
        r"^\s*ANSWER:\s*(.+?)\s*$", str(place.record.get("summary", "")), re.MULTILINE
    )
    if max(check["items"]) >= len(noted) or not all(noted):
        return "the thoughts of the first turn have no such line `PRIVATE: ...`"
    if not said:
        return "there is no line `ANSWER: ...`"
    wanted = [noted[item] for item in check["items"]]
    told = [part.strip(" `'\".") for part in said[-1].split(",")]
    return "" if told == wanted else f"said {', '.join(told)}; decided was {', '.join(wanted)}"


def avoided(check: Check, place: Place) -> str:
    """No tool call of the agent has an argument that matches `pattern`."""
    hits = [
        call["name"]
        for call in place.record.get("calls", [])
        if re.search(check["pattern"], json.dumps(call["arguments"], ensure_ascii=False))
    ]
    return f"{len(hits)} calls did it: {', '.join(sorted(set(hits)))}" if hits else ""


def absent(check: Check, place: Place) -> str:
    """No file holds `text`, but for those it stood in from the start (`except`)."""
    needle = check["text"].encode()
    homes = set(check.get("except", ()))
    found = [path for path, data in place.files().items() if needle in data and path not in homes]
    return f"{check['text']} stands in {', '.join(found)}" if found else ""


CHECKS: dict[str, Callable[[Check, Place], str]] = {
    one.__name__: one
    for one in (changed, unchanged, scope, lines, files, command, tests, visible, mutants,
                structure, asked, not_asked, not_done, done, mentions, said_not, answer, private, avoided, absent)
}  # fmt: skip


def judge(place: Place, checks: list[Check]) -> dict[str, Any]:
    """Every check with why it fails; the outcome is named by the first that does."""
    results: list[dict[str, Any]] = []
    for check in checks:
        try:
            why = CHECKS[check["kind"]](check, place)
        except (OSError, ValueError, RecursionError, subprocess.SubprocessError) as error:
            # Whatever the agent left that cannot be read is its doing. Errors of ours are not
            # caught: without a reward the trial counts as a fault of the suite.
            why = f"{type(error).__name__}: {error}"
        results.append({"kind": check["kind"], "group": check.get("group", check["kind"]),
                        "passed": not why, "why": why,
                        "outcome": check.get("outcome", "failed")})  # fmt: skip
    failed = [one for one in results if not one["passed"]]
    held = len(results) - len(failed)
    return {
        "reward": 0 if failed else 1,
        "score": held / len(results) if results else 1.0,
        "outcome": failed[0]["outcome"] if failed else "solved",
        "checks": results,
    }


def main() -> int:
    """Judge and write the reward, as the last thing that happens."""
    place = Place()
    document = judge(place, json.loads((place.tests / "checks.json").read_bytes()))
    folder = place.logs / "verifier"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reward-details.json").write_text(json.dumps(document, indent=2))
    (folder / "reward.txt").write_text(f"{document['reward']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
