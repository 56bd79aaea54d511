"""Change the user's settings file: what was asked for, and nothing else of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import BaseModel

from .config import ConfigError, Flags, UserFile, load_config, read_settings

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

ANY = "*"
"""In a known key: a name of the user's own, as that of a model in `money.prices`."""


def known_keys(
    model: type[BaseModel] = UserFile, above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Every setting that has one value; rules are tables of their own."""
    for name, field in model.model_fields.items():
        annotation = cast("Any", field.annotation)
        here = (*above, name)
        if _is_model(annotation):
            yield from known_keys(annotation, here)
            continue
        entry = next(filter(_is_model, get_args(annotation)), None)
        if entry is None:
            yield here
        elif name != "rule":
            yield (*here, ANY)
            yield from known_keys(entry, (*here, ANY))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def checked_key(key: str) -> tuple[str, ...]:
    """`money.prices."my.model".input` as its names.

    Raises ConfigError with the nearest key where there is no such setting.
    """
    import tomllib

    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        table = 0
    names: list[str] = []
    while isinstance(table, dict):
        ((name, table),) = cast("dict[str, Any]", table).items()
        names.append(name)
    if not names:
        raise ConfigError(
            f'{key!r} is no key: write it as model.name, or money.prices."my.model".input.'
        )
    if names[0] == "rule":
        raise ConfigError("rules are tables of their own: edit the file, see `config path`.")
    filled = [_filled(pattern, names) for pattern in known_keys()]
    if names not in filled:
        below = [one for one in filled if one[: len(names)] == names]
        near = [dotted(one) for one in below] or get_close_matches(
            dotted(names), map(dotted, filled), 1
        )
        hint = f"; did you mean {' or '.join(f'`{one}`' for one in near)}?" if near else "."
        raise ConfigError(f"no setting `{dotted(names)}`{hint}")
    return tuple(names)


def _filled(pattern: Sequence[str], names: Sequence[str]) -> list[str]:
    given = [*names, *pattern[len(names) :]]
    return [have if want == ANY else want for want, have in zip(pattern, given, strict=False)]


def dotted(names: Sequence[str]) -> str:
    """Names as a key of TOML."""
    import json

    plain = re.compile(r"[\w-]+", re.ASCII)
    return ".".join(name if plain.fullmatch(name) else json.dumps(name) for name in names)


def set_value(path: Path, key: str, text: str) -> Any:
    """Set one setting to a value of TOML, or to plain words; returns the value.

    Raises ConfigError, and leaves the file as it was, where that is no setting or no value for it.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    names = checked_key(key)
    candidates: list[Any] = [text]
    with suppress(TOMLKitError, ValueError):  # words without quotes
        candidates.insert(0, tomlkit.value(text).unwrap())
    trouble: ConfigError | None = None
    for value in candidates:
        try:
            _change(path, lambda table, value=value: _put(table, names, value))
        except ConfigError as error:
            trouble = trouble or error
        else:
            return value
    assert trouble is not None
    raise trouble


def unset(path: Path, key: str) -> bool:
    """Take one setting out of the file; whether it was there. Raises ConfigError."""
    names = checked_key(key)
    table: Any = _read(path)
    for name in names:
        if not isinstance(table, dict) or name not in table:
            return False
        table = cast("dict[str, Any]", table)[name]
    _change(path, lambda table: _take(table, names))
    return True


def _read(path: Path) -> TOMLDocument:
    import tomlkit

    read_settings(path, UserFile)  # whatever is wrong with it is said as it is everywhere
    return tomlkit.parse(path.read_bytes()) if path.exists() else tomlkit.document()


def _put(table: Any, names: Sequence[str], value: Any) -> None:
    import tomlkit

    for depth, name in enumerate(names[:-1], 2):
        if name not in table:
            table[name] = tomlkit.table(is_super_table=depth < len(names))
        table = table[name]
    table[names[-1]] = value


def _take(table: Any, names: Sequence[str]) -> None:
    for name in names[:-1]:
        table = table[name]
    del table[names[-1]]


def _change(path: Path, change: Callable[[TOMLDocument], None]) -> None:
    """Replace the file in one step, once what replaces it was read back."""
    table = _read(path)
    change(table)
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(table.as_string().encode("utf-8"))
        try:
            if path.exists():
                fresh.chmod(path.stat().st_mode & 0o777)
            load_config(Flags(), user=fresh, env={})
            os.replace(fresh, path.resolve())  # noqa: PTH105 - the atomic one, by its name
        except ConfigError as error:
            what = re.sub(r"^, line \d+", "", str(error).removeprefix(str(fresh)))
            raise ConfigError(f"not changed{what}") from None
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: nothing was changed.") from error
