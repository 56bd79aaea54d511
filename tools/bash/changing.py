"""Programs that change files, with what exactly they change."""

from __future__ import annotations

from collections.abc import Sequence

from ...agent.effects import Effect
from .folders import is_folder
from .site import THROUGH_LINKS, Field, Site
from .syntax import words_of
from .usage import Meaning, Row, not_understood, parse_words

ROWS: tuple[Row, ...] = (
    Row("mkdir", "-p -v -m: --parents --verbose --mode:", "write*",
        yes=("mkdir -p src/new", "mkdir build"), no=("mkdir -p ../x", "mkdir --context=x a")),
    Row("rmdir", "-p -v --parents --verbose --ignore-fail-on-non-empty", "delete*",
        yes=("rmdir build",), no=("rmdir ../x", "rmdir --unknown x")),
    Row("rm unlink", "-f -i -I -r -R -d -v -P --force --recursive --dir --verbose --interactive? "
        "--one-file-system --preserve-root?", "delete*",
        yes=("rm build.log", "rm -rf build"), no=("rm -rf /", "rm -rf --no-preserve-root /", "rm *$x")),
    Row("shred", "-f -u -v -z -n: -s: -x --force --zero --iterations: --remove?", "delete*",
        yes=("shred -u build.log",), no=("shred --random-source=/etc/x a",)),
    Row("touch", "-a -c -f -h -m -d: -t: -r:look --no-create --date: --reference:look --time:",
        "write*", yes=("touch src/new.py",), no=("touch ~/.bashrc", "touch --unknown x")),
    Row("tee", "-a -i -p --append --ignore-interrupts --output-error?", "write*",
        yes=("tee out.log", "tee -a out.log"), no=("tee /etc/hosts", "tee --unknown x")),
    Row("truncate", "-c -o -s: -r:look --no-create --size: --reference:look", "write*",
        yes=("truncate -s 0 out.log",), no=("truncate -s 0 /etc/x",)),
    Row("chmod", "-R -c -f -v --recursive --changes --silent --verbose", "text write*",
        yes=("chmod +x bin/tool", "chmod 644 README.md"),
        no=("chmod +x /bin/x", "chmod --reference=/etc/x a")),
)  # fmt: skip

_COPY = {
    **dict.fromkeys(
        words_of(
            "-a -f -i -n -v -u -p -r -R -T -d -P -H -L -x -c --archive --force --interactive "
            "--no-clobber --verbose --recursive --no-target-directory --no-dereference "
            "--dereference --one-file-system"
        ),
        "",
    ),
    "-t": "text",
    "--target-directory": "text",
    "--preserve": "?",
    "--reflink": "?",
    "--update": "?",
}
_LINK = {
    **dict.fromkeys(
        words_of(
            "-s -f -n -v -r -T -L -P -i --symbolic --force --no-dereference --verbose --relative"
        ),
        "",
    ),
    "-t": "text",
    "--target-directory": "text",
}

COPY_YES = ("cp README.md docs/copy.md", "cp -r src docs", "mv README.md docs/x.md", "mv -t docs a")
COPY_NO = ("cp /etc/passwd x", "cp README.md /tmp/x", "mv README.md ..", "cp --suffix=x a b")


def copy(name: str, words: Sequence[Field], site: Site) -> Meaning:
    """`cp` and `mv`: sources are read (or removed), and written under the target."""
    parsed = parse_words(words, _COPY)
    targets = parsed.values("-t --target-directory")
    sources = parsed.operands if targets else parsed.operands[:-1]
    if not targets:
        targets = list(parsed.operands[-1:])
    effects: list[Effect] = []
    for source in sources:
        effects.extend(site.tree(source, THROUGH_LINKS))
        if name == "mv":
            effects.extend(site.delete(source))
    for target in targets:
        where = site.locate(target.text) if target.text is not None else None
        if where is None or not is_folder(where.path):
            effects.extend(site.write(target))
            continue
        for source in sources:
            base = source.text.rstrip("/").rpartition("/")[2] if source.text else None
            if base in (None, "", ".", ".."):
                effects.extend(site.write(target))
                base = "."
            landing = Field(f"{target.text}/{base}", target.source)
            effects.extend(site.write(landing))
            effects.extend(
                e for e in site.tree(landing, THROUGH_LINKS) if e.path is None or e.detail
            )
    return Meaning(tuple(effects), parsed.doubts, moved=tuple(targets))


LINK_YES = ("ln -s a.py src/b.py", "ln README.md docs/same.md")
LINK_NO = ("ln -s /etc/passwd x", "ln -s ../../etc src/x", "ln -s / x", "ln --backup=x a b")


def link(words: Sequence[Field], site: Site) -> Meaning:
    """`ln`: the new name is written; what it leads to may be read through it later."""
    parsed = parse_words(words, _LINK)
    targets = parsed.values("-t --target-directory")
    sources = parsed.operands if targets else (parsed.operands[:-1] or parsed.operands)
    if not targets:
        targets = list(parsed.operands[-1:]) if len(parsed.operands) > 1 else [Field(".", ".")]
    symbolic = parsed.has("-s --symbolic") and not parsed.has("-r --relative")
    effects: list[Effect] = []
    for target in targets:
        where = site.locate(target.text) if target.text is not None else None
        folder = where is not None and is_folder(where.path) and not parsed.has("-T")
        effects.extend(site.write(target))
        for source in sources:
            effects.extend(site.read(source))
            if folder and source.text is not None:
                base = source.text.rstrip("/").rpartition("/")[2]
                effects.extend(site.write(Field(f"{target.text}/{base}", target.source)))
            if symbolic and source.text is not None and not source.text.startswith("/"):
                # A symbolic link leads from the folder it lies in.
                parent = target.text if folder else (target.text or "").rpartition("/")[0]
                effects.extend(site.read(Field(f"{parent or '.'}/{source.text}", source.source)))
    return Meaning(tuple(effects), parsed.doubts, moved=tuple(targets))


DD_YES = ("dd if=README.md of=out bs=1k count=1",)
DD_NO = ("dd if=/dev/sda of=out", "dd if=README.md of=/dev/sda", "dd of=~/x", "dd conv=x --y")


def dd(words: Sequence[Field], site: Site) -> Meaning:
    """`dd`: `if=` is read, `of=` is written."""
    effects: list[Effect] = []
    for word in words:
        key, equals, value = (word.text or "").partition("=")
        if word.text is None or not equals:
            return not_understood(f"`{word.source}`", effects)
        if key == "if":
            effects.extend(site.read(Field(value, word.source)))
        elif key == "of":
            effects.extend(site.write(Field(value, word.source)))
        elif key not in {"bs", "ibs", "obs", "cbs", "count", "skip", "seek", "conv", "status"}:
            return not_understood(f"`{word.source}`", effects)
    return Meaning(tuple(effects))
