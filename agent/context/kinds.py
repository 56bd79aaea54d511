"""What kind of file something is: what is never sent, and what makes room first.

Told by name where the name is enough, so that such files need not be opened; by content else.
"""

from __future__ import annotations

import codecs
import re
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from .secrets import is_secret


class Kind(IntEnum):
    """In the order in which files make room when not everything fits."""

    DATA = 0
    GENERATED_LOOKING = 1
    DOCS = 2
    TESTS = 3
    SOURCE = 4


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BINARY = _words(
    """
    7z a aac aif apk ar avi avif bin blend bmp bz2 class cur dat db deb dll dmg doc docx dylib ear
    eot exe fbx flac flv gif glb gz heic icns ico iso jar jfif jpeg jpg lib lzma m4a m4v mkv mo mov
    mp3 mp4 mpeg mpg msi npy npz o obj odp ods odt ogg ogv onnx opus otf parquet pdf pkl png ppt
    pptx psd pt pth pyc pyd pyo rar rpm safetensors so sqlite sqlite3 swf tar tgz tif tiff ttc ttf
    wasm wav webm webp whl wmv woff woff2 xls xlsx xz zip zst
    """
)
_LOCK_FILES = _words(
    """
    package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb deno.lock
    poetry.lock pipfile.lock uv.lock pdm.lock conda-lock.yml cargo.lock go.sum gemfile.lock
    composer.lock mix.lock pubspec.lock packages.lock.json podfile.lock cartfile.resolved
    package.resolved flake.lock gradle.lockfile buildscript-gradle.lockfile .terraform.lock.hcl
    module.bazel.lock
    """
)
_VENDORED_FOLDERS = _words(
    """
    vendor vendored _vendor third_party third-party thirdparty node_modules bower_components
    jspm_packages site-packages .venv venv .yarn pods carthage
    """
)
_GENERATED = re.compile(
    r"\.(min\.(js|css|mjs|cjs)|map)$|_pb2(_grpc)?\.pyi?$|\.pb\.(go|cc|h|gw\.go)$|\.g\.dart$"
    r"|\.freezed\.dart$|\.designer\.cs$|\.generated\.\w+$|^zz_generated\.",
    re.IGNORECASE,
)
_GENERATED_FOLDERS = _words(
    "dist build out generated gen __generated__ __snapshots__ snapshots coverage htmlcov"
)
_DATA = _words(
    """
    csv tsv json jsonl ndjson geojson topojson xml svg po pot xlf xliff sql ipynb log arff
    ttl rdf nt fasta gml graphml srt vtt ics vcf golden snap expected out lst dump hex
    """
)
_DATA_FOLDERS = _words(
    """
    fixtures fixture testdata test_data test-data data datasets locale locales i18n l10n cassettes
    samples corpus golden goldens assets resources
    """
)
_DOCS = _words("md mdx rst adoc asciidoc txt tex texi org pod 1 2 3 4 5 6 7 8")
_DOCS_FOLDERS = _words("doc docs documentation manual man changelog changes news")
_TEST_FOLDERS = _words(
    """
    test tests testing __tests__ spec specs e2e unittests test-suite testsuite benchmark benchmarks
    examples example
    """
)
_TEST_NAME = re.compile(
    r"^(test_.*|conftest)\.py$|_test\.\w+$|[._-](test|spec)s?\.\w+$|Tests?\.(java|kt|cs|swift)$"
)
# Configuration is small and says how to build, and a root's README what this is: they count as
# source, whatever their syntax.
_CONFIGURATION = re.compile(
    r"(^|/)(package|tsconfig.*|composer|deno|pom|build|\..*rc|[^/]*\.config)\.(json|xml)$"
    r"|(^|/)requirements[^/]*$|^(readme|agents|contributing)(\.\w+)?$",
    re.IGNORECASE,
)
_CODE = _words(
    """
    adb ads asm awk bash bat c cc cfg clj cljs cmake coffee cpp cr cs css cu cue cuh cxx d dart edn
    el elm erl ex exs f f90 fs fsx gd gleam go gradle graphql groovy h hcl hh hpp hrl hs html hxx
    ini java jl js jsx kt kts less lisp lua m mjs cjs mk ml mli mm mod nim nix pas php pl pm ps1
    proto pxd py pyi pyx r rb rkt rs s sass scala scm scss sh sol sv swift tcl tf toml ts tsx v vb
    vhd vhdl vue xsl yaml yml zig zsh
    """
)

_MARKER = re.compile(
    rb"@generated\b|[Cc]ode generated .*DO NOT EDIT|GENERATED FILE"
    rb"|\b[Aa]uto(?:matically)?[ -]?[Gg]enerated (?:file|by|from)\b"
)
_LFS = b"version https://git-lfs.github.com/spec/"
_HEAD = 1024
_MINIFIED_LINE = 1000
"""Mean bytes a line from which code is taken as minified."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def never_sent(name: str) -> str | None:
    """Why a file of this name is left out whatever anyone asks."""
    if is_secret(name):
        return "may hold secrets"
    return "binary" if _suffix(name.lower()) in _BINARY else None


def left_out(name: str) -> str | None:
    """Why a file of this name is left out unless it is asked for."""
    folder, _, base = name.lower().rpartition("/")
    if base in _LOCK_FILES:
        return "lock file"
    if _folder(folder).vendored:
        return "vendored"
    return "generated" if _GENERATED.search(base) else None


def unreadable(data: bytes) -> str | None:
    """Why content is left out whatever anyone asks."""
    if data.startswith(_LFS):
        return "Git LFS pointer"
    if b"\0" in data and not data.startswith(_UTF16):
        return "binary"
    return None


def left_out_content(name: str, data: bytes) -> str | None:
    """Why content is left out unless it is asked for."""
    if _MARKER.search(data, 0, _HEAD) and _suffix(name.lower()) not in _DOCS:
        return "generated"
    if len(data) > 5 * _MINIFIED_LINE and _suffix(name.lower()) in {"js", "css", "mjs", "cjs"}:
        lines = data.count(b"\n") + 1
        return "minified" if len(data) > _MINIFIED_LINE * lines else None
    return None


def kind(name: str) -> Kind:
    """Where a file stands in the order of making room."""
    path, _, base = name.rpartition("/")
    folder = _folder(path.lower())
    suffix = _suffix(base.lower())
    if suffix not in _CODE and _CONFIGURATION.search(name):
        return Kind.SOURCE
    if suffix in _DATA or (suffix not in _CODE and folder.data):
        return Kind.DATA
    if folder.generated:
        return Kind.GENERATED_LOOKING
    if suffix in _DOCS or (suffix not in _CODE and folder.docs):
        return Kind.DOCS
    if folder.tests or _TEST_NAME.search(base):
        return Kind.TESTS
    return Kind.SOURCE


class _Folder(NamedTuple):
    """What the parts of a folder's name say."""

    vendored: bool
    data: bool
    generated: bool
    docs: bool
    tests: bool


@lru_cache(maxsize=65_536)
def _folder(folder: str) -> _Folder:
    parts = folder.split("/")
    kinds = (_VENDORED_FOLDERS, _DATA_FOLDERS, _GENERATED_FOLDERS, _DOCS_FOLDERS, _TEST_FOLDERS)
    return _Folder(*(not one.isdisjoint(parts) for one in kinds))


def _suffix(name: str) -> str:
    """After the last dot of the last part; empty for `.name`."""
    base = name.rpartition("/")[2]
    return base.rpartition(".")[2] if "." in base[1:] else ""
