"""Source text -> `syntax`, by tree-sitter-bash, checked word by word.

tree-sitter finds the structure: which span is a command, where a substitution ends. It is made
for editors and accepts more than bash does, so nothing of it is taken on trust: each span is
read again by a strict lexer of bash's own quoting rules, and wherever the two do not agree to
the byte, the command is `Unknown`.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from .syntax import (
    AndOr,
    Assignment,
    Case,
    Channel,
    Command,
    Condition,
    Derived,
    Doubt,
    For,
    Function,
    If,
    Not,
    Number,
    Output,
    Part,
    Pipeline,
    Redirect,
    Redirected,
    Sequence,
    Simple,
    Subshell,
    Text,
    Unknown,
    Variable,
    While,
    Word,
    words_of,
)

if TYPE_CHECKING:
    from tree_sitter import Language, Node

MAX_BYTES = 32 * 1024
"""Longer commands are not understood; reading them would take too long."""
MAX_DEPTH = 24
"""Commands nested deeper than this are not understood."""
MAX_STATEMENTS = 1_000
"""Longer lists of commands are not understood."""
MAX_WORDS = 1_000
"""Longer simple commands are not understood."""
_PARSE_SECONDS = 0.2

_NOTHING = Sequence(())


def parse(command: str) -> Command:
    """The structure of a command line. Never raises: what is not understood is `Unknown`."""
    try:
        source = command.encode()
    except UnicodeEncodeError:
        return Unknown(command, "it is not valid Unicode")
    if len(source) > MAX_BYTES:
        return Unknown(command, f"it is longer than {MAX_BYTES // 1024} KiB")
    if any(unicodedata.category(c) in ("Cc", "Cf") and c not in "\t\n" for c in command):
        return Unknown(command, "it holds control or invisible characters")
    root = _tree(source)
    if root is None:
        return Unknown(command, "it takes too long to parse")
    if root.has_error:
        return Unknown(command, "it is not valid bash")
    try:
        return _Reader(source).block(root.children, root.start_byte, root.end_byte)
    except _NotUnderstoodError as error:
        return Unknown(command, str(error))


@cache
def _language() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _tree(source: bytes) -> Node | None:
    """tree-sitter's root node; None when parsing takes too long (it can be quadratic)."""
    from tree_sitter import Parser

    stop = time.monotonic() + _PARSE_SECONDS

    def too_long(*_: object) -> bool:
        return time.monotonic() > stop

    try:
        tree = Parser(_language()).parse(
            lambda offset, _point: source[offset : offset + 4096],
            progress_callback=too_long,
        )
    except ValueError:  # how the binding reports that the callback stopped it
        return None
    return tree.root_node


class _NotUnderstoodError(Exception):
    """The span at hand is not understood; the text says why."""


_BLANK = re.compile(rb"(?:[ \t]|\\\n)*")
_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(rb"[0-9@*#?$!-]")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_SUBSCRIPTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[")
_REDIRECT = re.compile(rb"<<<|<<-|<<|<>|<&|>&|>>|>\||&>>|&>|<|>")
_PLAIN = re.compile(rb"[^\\'\"`$|&;()<> \t\n]+")
_BRACED_VARIABLE = re.compile(rb"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])\}")
_LENGTH = re.compile(rb"\$\{#(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*]?)\}")
_DERIVED = re.compile(
    rb"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])"
    rb"(?::-|:\+|-|\+|%%?|##?|//?|\^\^?|,,?)[A-Za-z0-9_./*:, -]*\}"
)
_ARITHMETIC = re.compile(rb"\$\(\([0-9 \t+*/%()<>=!&|-]*\)\)")
_RESERVED = words_of(
    "if then elif else fi case esac for select while until do done in function { } ! [[ ]] coproc"
)
_CONDITION_TOKEN = re.compile(rb"&&|\|\||[()<>]")
_ANSI_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ANSI_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)


class _Reader:
    """Reads one source; `depth` is how deep the statement at hand is nested."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.depth = 0
        self.statements = 0

    def text(self, start: int, end: int) -> str:
        return self.source[start:end].decode(errors="replace")

    # ---- statements ------------------------------------------------------------------------

    def block(self, children: Iterable[Node], start: int, end: int) -> Command:
        """Statements and separators that fill the span from `start` to `end`."""
        items: list[Command] = []
        position, separated = start, True
        for child in children:
            child_start = self._start(child)
            gap = self._gap(position, child_start)
            separated = separated or b"\n" in gap
            position = child.end_byte
            match child.type:
                case ";" | "\n" | ";;":
                    separated = True
                case "&":
                    if not items or separated:
                        raise _NotUnderstoodError("`&` after nothing")
                    items[-1] = Subshell(items[-1], background=True)
                    separated = True
                case "comment":
                    self._comment(child)
                case _:
                    if not separated:
                        raise _NotUnderstoodError("two commands without a separator")
                    items.append(self.statement(child))
                    separated = self.source[child.end_byte - 1 : child.end_byte] == b"\n"
                    if _is_heredoc(child):
                        separated = True
        self._gap(position, end)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _start(self, node: Node) -> int:
        """Where a node really starts: some tokens carry the blanks before them."""
        start = node.start_byte
        found = _GAP.match(self.source, start, node.end_byte)
        return found.end() if found else start

    def _gap(self, start: int, end: int) -> bytes:
        """The bytes between two nodes, which must be blank."""
        found = _GAP.match(self.source, start, max(start, end))
        if found is None or found.end() < end:
            raise _NotUnderstoodError("text that belongs to no command")
        return found.group()

    def _comment(self, node: Node) -> None:
        before = self.source[node.start_byte - 1 : node.start_byte] if node.start_byte else b"\n"
        if before not in (b" ", b"\t", b"\n", b";", b"&", b"|", b"(", b")") or b"\n" in (
            self.source[node.start_byte : node.end_byte].rstrip(b"\n")
        ):
            raise _NotUnderstoodError("a comment that bash may not take as one")

    def statement(self, node: Node) -> Command:
        """One statement; what is not understood in it stays inside it."""
        self.depth += 1
        self.statements += 1
        try:
            if self.depth > MAX_DEPTH:
                raise _NotUnderstoodError(f"it is nested more than {MAX_DEPTH} deep")
            if self.statements > MAX_STATEMENTS:
                raise _NotUnderstoodError(f"it has more than {MAX_STATEMENTS} commands")
            return self._statement(node)
        except _NotUnderstoodError as error:
            if self.depth > MAX_DEPTH or self.statements > MAX_STATEMENTS:
                raise
            return Unknown(
                self.text(node.start_byte, node.end_byte), str(error), self.commands_in(node)
            )
        finally:
            self.depth -= 1

    def _statement(self, node: Node) -> Command:
        match node.type:
            case (
                "command"
                | "declaration_command"
                | "unset_command"
                | "variable_assignment"
                | "variable_assignments"
            ):
                return self._simple(node, node.end_byte)
            case "test_command":
                return self._test(node)
            case "redirected_statement":
                return self._redirected(node)
            case "list":
                return self._list(node)
            case "pipeline":
                return Pipeline(tuple(self._joined(node, (b"|", b"|&"))))
            case "negated_command":
                mark, body = self._children(node, "!", None)
                if mark.end_byte == self._start(body):
                    raise _NotUnderstoodError("`!` without a space")
                return Not(self.statement(body))
            case "subshell":
                return Subshell(self._enclosed(node, "(", ")"))
            case "compound_statement":
                return self._enclosed(node, "{", "}")
            case "if_statement":
                return self._if(node)
            case "while_statement":
                return self._while(node)
            case "for_statement":
                return self._for(node)
            case "case_statement":
                return self._case(node)
            case "function_definition":
                return self._function(node)
            case other:
                raise _NotUnderstoodError(f"{other.replace('_', ' ')} is not modelled")

    def _children(self, node: Node, *types: str | None) -> list[Node]:
        """The children, which must be of these types (None: any), with blanks between."""
        children = node.children
        if len(children) != len(types) or any(
            wanted not in (None, child.type) for child, wanted in zip(children, types, strict=True)
        ):
            raise _NotUnderstoodError(f"an unusual {node.type.replace('_', ' ')}")
        for left, right in pairwise(children):
            self._gap(left.end_byte, self._start(right))
        return children

    def _enclosed(self, node: Node, opening: str, closing: str) -> Command:
        children = node.children
        if len(children) < 2 or children[0].type != opening or children[-1].type != closing:
            raise _NotUnderstoodError(f"an unusual {node.type.replace('_', ' ')}")
        if opening == "{" and self.source[children[0].end_byte : children[0].end_byte + 1] not in (
            b" ", b"\t", b"\n",
        ):  # fmt: skip
            raise _NotUnderstoodError("`{` without a space")
        return self.block(children[1:-1], children[0].end_byte, self._start(children[-1]))

    def _list(self, node: Node) -> Command:
        """`a && b || c`, which tree-sitter nests to the left."""
        chain: list[tuple[str, Node]] = []
        while node.type == "list":
            left, operator, right = self._children(node, None, None, None)
            if operator.type not in ("&&", "||"):
                raise _NotUnderstoodError("an unusual list")
            chain.append((operator.type, right))
            node = left
        if _is_heredoc(node):
            raise _NotUnderstoodError("a here-document before an operator")
        result = self.statement(node)
        for operator, right in reversed(chain):
            result = AndOr(operator, result, self.statement(right))
        return result

    def _joined(self, node: Node, operators: tuple[bytes, ...]) -> Iterator[Command]:
        position = node.start_byte
        expect_operator = False
        for child in node.children:
            start = self._start(child)
            self._gap(position, start)
            position = child.end_byte
            if child.type == "comment":
                self._comment(child)
            elif expect_operator:
                if self.source[start : child.end_byte] not in operators:
                    raise _NotUnderstoodError("an unusual pipeline")
                expect_operator = False
            else:
                if _is_heredoc(child) and child.end_byte < node.end_byte:
                    raise _NotUnderstoodError("a here-document before an operator")
                yield self.statement(child)
                expect_operator = True

    def _sections(self, node: Node, keywords: frozenset[str]) -> list[tuple[str, Command]]:
        """`keyword block keyword block ...` -> the block after each keyword."""
        sections: list[tuple[str, Command]] = []
        keyword: Node | None = None
        pending: list[Node] = []
        for child in node.children:
            if child.type in keywords or child.type.endswith("_clause") or child.type == "do_group":
                if keyword is not None:
                    block = self.block(pending, keyword.end_byte, self._start(child))
                    sections.append((keyword.type, block))
                elif pending:
                    raise _NotUnderstoodError(f"an unusual {node.type.replace('_', ' ')}")
                pending = []
                keyword = child if child.type in keywords else None
                if keyword is None:
                    self.depth += 1
                    try:
                        sections.extend(self._sections(child, keywords))
                    finally:
                        self.depth -= 1
            else:
                pending.append(child)
        if keyword is not None:
            sections.append((keyword.type, self.block(pending, keyword.end_byte, node.end_byte)))
        elif pending:
            raise _NotUnderstoodError(f"an unusual {node.type.replace('_', ' ')}")
        return sections

    def _if(self, node: Node) -> Command:
        keywords = frozenset({"if", "then", "elif", "else", "fi"})
        sections = self._sections(node, keywords)
        branches: list[tuple[Command, Command]] = []
        otherwise: Command = _NOTHING
        condition: Command | None = None
        for keyword, block in sections:
            match keyword:
                case "if" | "elif":
                    condition = block
                case "then" if condition is not None:
                    branches.append((condition, block))
                    condition = None
                case "else":
                    otherwise = block
                case "fi" if block == _NOTHING:
                    pass
                case _:
                    raise _NotUnderstoodError("an unusual if")
        return If(tuple(branches), otherwise)

    def _while(self, node: Node) -> Command:
        match self._sections(node, frozenset({"while", "until", "do", "done"})):
            case [(("while" | "until"), condition), ("do", body), ("done", end)] if end == _NOTHING:
                return While(condition, body)
            case _:
                raise _NotUnderstoodError("an unusual loop")

    def _for(self, node: Node) -> Command:
        children = node.children
        body = children[-1]
        if children[0].type != "for" or body.type != "do_group":
            raise _NotUnderstoodError("an unusual for")
        name = children[1]
        head_end = self._start(body)
        words: tuple[Word, ...] | None = None
        position = name.end_byte
        rest = [c for c in children[2:-1] if c.type not in (";", "\n")]
        if rest:
            if rest[0].type != "in":
                raise _NotUnderstoodError("an unusual for")
            self._gap(position, self._start(rest[0]))
            lexer = _Lexer(self, rest[0].end_byte, head_end, _substitutions(rest[1:]))
            words = tuple(lexer.words(stop=b";\n"))
            position = lexer.position
        elif any(c.type == "comment" for c in children):
            raise _NotUnderstoodError("a comment in a for")
        if not re.fullmatch(
            rb"(?:[ \t\n]|\\\n)*;?(?:[ \t\n]|\\\n)*", self.source[position:head_end]
        ):
            raise _NotUnderstoodError("an unusual for")
        match self._sections(body, frozenset({"do", "done"})):
            case [("do", block), ("done", end)] if end == _NOTHING:
                return For(self.text(name.start_byte, name.end_byte), words, block)
            case _:
                raise _NotUnderstoodError("an unusual loop")

    def _case(self, node: Node) -> Command:
        patterns: list[Word] = []
        bodies: list[Command] = []
        children = node.children
        if [c.type for c in children[::2][:1]] != ["case"] or children[-1].type != "esac":
            raise _NotUnderstoodError("an unusual case")
        subject = self._word(children[1].start_byte, children[1].end_byte, [children[1]])
        for child in children[2:-1]:
            if child.type in ("in", ";", "\n"):
                continue
            if child.type != "case_item":
                raise _NotUnderstoodError("an unusual case")
            items = child.children
            close = next((i for i, c in enumerate(items) if c.type == ")"), None)
            if close is None:
                raise _NotUnderstoodError("an unusual case")
            patterns.extend(
                self._word(c.start_byte, c.end_byte, [c])
                for c in items[:close]
                if c.type not in ("(", "|")
            )
            body = items[close + 1 :]
            if body and body[-1].type in (";&", ";;&"):
                raise _NotUnderstoodError("a branch that falls through")
            if body and body[-1].type == ";;":
                body.pop()
            end = self._start(body[-1].next_sibling) if body and body[-1].next_sibling else None
            bodies.append(
                self.block(body, items[close].end_byte, end or items[-1].end_byte)
                if body
                else _NOTHING
            )
        for left, right in pairwise(children):
            self._gap(left.end_byte, self._start(right))
        return Case(subject, tuple(patterns), tuple(bodies))

    def _function(self, node: Node) -> Command:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is None or body is None or node.children[-1].id != body.id:
            raise _NotUnderstoodError("a function with redirections")
        return Function(self.text(name.start_byte, name.end_byte), self.statement(body))

    def commands_in(self, node: Node) -> tuple[Command, ...]:
        """Commands inside a span that is not understood, so that their effects still show."""
        found: list[Command] = []
        waiting = list(node.children)
        while waiting:
            child = waiting.pop()
            if child.type in _SUBSTITUTIONS:
                try:
                    found.append(self.substituted(child))
                except _NotUnderstoodError as error:
                    found.append(Unknown(self.text(child.start_byte, child.end_byte), str(error)))
            elif child.type in _STATEMENTS:
                if self.depth < MAX_DEPTH:
                    found.append(self.statement(child))
            else:
                waiting.extend(child.children)
        return tuple(reversed(found))

    # ---- simple commands -------------------------------------------------------------------

    def _simple(self, node: Node, end: int) -> Simple:
        lexer = _Lexer(self, node.start_byte, end, _substitutions([node]))
        return self._assemble(lexer, node.start_byte, end, lexer.items())

    def _assemble(
        self, lexer: _Lexer, start: int, end: int, items: Iterable[Word | Redirect]
    ) -> Simple:
        words: list[Word] = []
        assignments: list[Assignment] = []
        redirects: list[Redirect] = []
        for item in items:
            if isinstance(item, Redirect):
                redirects.append(item)
            elif not words and (assignment := _assignment(item)):
                assignments.append(assignment)
            else:
                words.append(item)
            if len(words) + len(assignments) > MAX_WORDS:
                raise _NotUnderstoodError(f"it has more than {MAX_WORDS} words")
        lexer.finish()
        if words and words[0].source in _RESERVED:
            raise _NotUnderstoodError(f"`{words[0].source}` is not modelled here")
        return Simple(tuple(assignments), tuple(words), tuple(redirects), self.text(start, end))

    def _test(self, node: Node) -> Command:
        if node.children[0].type == "[":
            return self._simple(node, node.end_byte)
        lexer = _Lexer(self, node.start_byte, node.end_byte, _substitutions([node]))
        words = tuple(lexer.words(operators=True))
        lexer.finish()
        if len(words) < 2 or words[0].source != "[[" or words[-1].source != "]]":
            raise _NotUnderstoodError("an unusual condition")
        return Condition(words[1:-1], self.text(node.start_byte, node.end_byte))

    def _redirected(self, node: Node) -> Command:
        body = node.child_by_field_name("body")
        heredocs = [c for c in node.children if c.type == "heredoc_redirect"]
        if heredocs:
            return self._heredoc(node, heredocs)
        if body is None or body.type in (
            "command", "declaration_command", "unset_command",
            "variable_assignment", "variable_assignments",
        ):  # fmt: skip
            return self._simple(node, node.end_byte)
        if body.start_byte != node.start_byte:
            raise _NotUnderstoodError("redirections before a compound command")
        lexer = _Lexer(self, body.end_byte, node.end_byte, _substitutions(node.children))
        items = list(lexer.items())
        lexer.finish()
        redirects = tuple(item for item in items if isinstance(item, Redirect))
        if len(redirects) != len(items):
            raise _NotUnderstoodError("words after a compound command")
        return Redirected(self.statement(body), redirects)

    def _heredoc(self, node: Node, heredocs: list[Node]) -> Command:
        """`command <<END tail` and its body; the tail may go on with `|`, `&&` or `||`."""
        heredoc = heredocs[0]
        parts = heredoc.children
        kinds = [part.type for part in parts]
        if (
            len(heredocs) > 1
            or node.children[-1].id != heredoc.id
            or b"<<" in self.source[node.start_byte : heredoc.start_byte]
            or kinds[:2] not in (["<<", "heredoc_start"], ["<<-", "heredoc_start"])
            or kinds[-1] != "heredoc_end"
        ):
            raise _NotUnderstoodError("an unusual here-document")
        operator, opening = parts[0], parts[1]
        delimiter_source = self.text(opening.start_byte, opening.end_byte)
        delimiter = re.fullmatch(r"(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1", delimiter_source)
        if delimiter is None:
            raise _NotUnderstoodError("an unusual here-document delimiter")
        line_end = self.source.find(b"\n", opening.end_byte)
        follow = next(
            (p for p in parts[2:] if p.type in ("pipeline", "&&", "||")), None
        )  # what comes after the command on its line
        head_end = self._start(follow) if follow else line_end
        body_start, body_end, end = self._heredoc_body(
            line_end, operator.type == "<<-", delimiter.group(2)
        )
        closing = parts[-1]
        if closing.end_byte not in (end, end + 1) or line_end < 0:
            raise _NotUnderstoodError("a here-document that ends elsewhere for bash")
        body_nodes = [p for p in parts if p.type == "heredoc_body"]
        if delimiter.group(1):
            body = Word((Text(self.text(body_start, body_end), True),), "")
        else:
            if b"\\\n" in self.source[body_start:body_end]:
                raise _NotUnderstoodError("a here-document with joined lines")
            lexer = _Lexer(self, body_start, body_end, _substitutions(body_nodes))
            body = Word(tuple(lexer.double_quoted(here=True)), "")
            lexer.finish()
        head = [c for c in node.children if c.id != heredoc.id]
        lexer = _Lexer(self, node.start_byte, heredoc.start_byte, _substitutions(head))
        items = list(lexer.items())
        lexer.finish()
        tail_nodes = [
            p for p in parts[2:-1] if p.type not in ("heredoc_body", "pipeline", "&&", "||")
        ]
        lexer = _Lexer(self, opening.end_byte, head_end, _substitutions(tail_nodes))
        items += [*lexer.items(), Redirect("<<", body)]
        simple = self._assemble(lexer, node.start_byte, head_end, items)
        if node.child_by_field_name("body") is None or not simple.words:
            raise _NotUnderstoodError("a here-document without a command")
        body_node = node.child_by_field_name("body")
        if body_node is not None and body_node.type != "command":
            raise _NotUnderstoodError("a here-document for a compound command")
        if follow is None:
            return simple
        if follow.end_byte > line_end and follow.type == "pipeline":
            raise _NotUnderstoodError("an unusual here-document")
        if follow.type == "pipeline":
            self._gap(follow.end_byte, line_end)
            rest = follow.children
            if rest[0].type not in ("|", "|&"):
                raise _NotUnderstoodError("an unusual here-document")
            members: list[Command] = [simple]
            for i, child in enumerate(rest):
                if i:
                    self._gap(rest[i - 1].end_byte, self._start(child))
                if i % 2:
                    members.append(self.statement(child))
                elif child.type not in ("|", "|&"):
                    raise _NotUnderstoodError("an unusual here-document")
            return Pipeline(tuple(members))
        right = heredoc.child_by_field_name("right")
        if right is None:
            raise _NotUnderstoodError("an unusual here-document")
        self._gap(follow.end_byte, self._start(right))
        self._gap(right.end_byte, line_end)
        return AndOr(follow.type, simple, self.statement(right))

    def _heredoc_body(self, line_end: int, tabs: bool, delimiter: str) -> tuple[int, int, int]:
        """Where bash sees the body start and end, and where the delimiter's line ends."""
        start = position = line_end + 1
        wanted = delimiter.encode()
        while line_end >= 0 and position <= len(self.source):
            end = self.source.find(b"\n", position)
            end = len(self.source) if end < 0 else end
            line = self.source[position:end]
            if (line.lstrip(b"\t") if tabs else line) == wanted:
                return start, position, end
            position = end + 1
        raise _NotUnderstoodError("a here-document without its end")

    def _word(self, start: int, end: int, nodes: list[Node]) -> Word:
        lexer = _Lexer(self, start, end, _substitutions(nodes))
        words = list(lexer.words())
        lexer.finish()
        if len(words) != 1:
            raise _NotUnderstoodError("something other than one word")
        return words[0]

    def substituted(self, node: Node) -> Command:
        """The commands of `$(...)`, backticks, `<(...)` or `>(...)`."""
        children = node.children
        start = self._start(children[0])
        opening = self.source[start : children[0].end_byte]
        if opening == b"`" and b"\\" in self.source[node.start_byte : node.end_byte]:
            raise _NotUnderstoodError("escapes inside backticks")
        if self.depth >= MAX_DEPTH:
            raise _NotUnderstoodError(f"it is nested more than {MAX_DEPTH} deep")
        self.depth += 1
        try:
            inner = children[1:-1]
            if inner and all(c.type in ("file_redirect", "herestring_redirect") for c in inner):
                lexer = _Lexer(
                    self, children[0].end_byte, self._start(children[-1]), _substitutions(inner)
                )
                return self._assemble(
                    lexer, children[0].end_byte, children[-1].start_byte, lexer.items()
                )
            return self.block(inner, children[0].end_byte, self._start(children[-1]))
        finally:
            self.depth -= 1


_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution"})
_STATEMENTS = frozenset(
    {
        "command", "declaration_command", "unset_command", "test_command", "redirected_statement",
        "list", "pipeline", "negated_command", "subshell", "compound_statement", "if_statement",
        "while_statement", "for_statement", "case_statement", "function_definition",
    }
)  # fmt: skip


def _is_heredoc(node: Node) -> bool:
    """Whether the source of a statement ends in the lines of a here-document."""
    while True:
        if node.type == "redirected_statement":
            return any(c.type == "heredoc_redirect" for c in node.children)
        if node.type in ("list", "pipeline", "negated_command") and node.children:
            node = node.children[-1]
        else:
            return False


def _substitutions(nodes: Iterable[Node]) -> dict[int, Node]:
    """Where it starts -> the substitution, for those not inside another one."""
    found: dict[int, Node] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.type in _SUBSTITUTIONS:
            token = node.children[0]
            found[token.end_byte - len((token.text or b"").lstrip())] = node
        else:
            if node.type in ("expansion", "arithmetic_expansion"):
                token = node.children[0]
                found[token.end_byte - len((token.text or b"").lstrip())] = node
            waiting.extend(node.children)
    return found


def _assignment(word: Word) -> Assignment | None:
    if not word.parts or not isinstance(word.parts[0], Text) or word.parts[0].quoted:
        return None
    head = word.parts[0].value
    found = _ASSIGNMENT.match(head)
    if found is None:
        if _SUBSCRIPTED.match(head):
            raise _NotUnderstoodError("an array element may be assigned")
        return None
    rest = head[found.end() :]
    parts = ((Text(rest, False),) if rest else ()) + word.parts[1:]
    return Assignment(found.group(1), Word(parts, word.source[found.end() :]), bool(found.group(2)))


class _Lexer:
    """Bash's quoting rules over one span of the source that holds words and redirections."""

    def __init__(self, reader: _Reader, start: int, end: int, nodes: dict[int, Node]) -> None:
        self.reader = reader
        self.source = reader.source
        self.position = start
        self.end = end
        self.nodes = nodes

    def finish(self) -> None:
        """The whole span must have been read."""
        found = _BLANK.match(self.source, self.position, self.end)
        if found is None or found.end() != self.end:
            raise _NotUnderstoodError("bash would split this into words in another way")

    def _blanks(self) -> bool:
        found = _BLANK.match(self.source, self.position, self.end)
        moved = found is not None and found.end() > self.position
        self.position = found.end() if found else self.position
        return moved

    def peek(self, length: int = 1) -> bytes:
        return self.source[self.position : min(self.position + length, self.end)]

    def items(self) -> Iterator[Word | Redirect]:
        """Words and redirections up to the end of the span."""
        while True:
            self._blanks()
            if self.position >= self.end:
                return
            if self.peek(2) in (b"<(", b">("):
                yield self.word()
            elif found := _REDIRECT.match(self.source, self.position, self.end):
                yield self._redirect(found)
            else:
                word = self.word()
                if self.peek() in (b"<", b">") and self.peek(2) not in (b"<(", b">("):
                    if "\\\n" in word.source:
                        raise _NotUnderstoodError("a joined line before a redirection")
                    if word.source.isascii() and word.source.isdigit():
                        continue  # a file descriptor
                    if word.source.startswith("{"):
                        raise _NotUnderstoodError("a redirection to a variable")
                yield word

    def _redirect(self, found: re.Match[bytes]) -> Redirect:
        operator = found.group().decode()
        if operator in ("<<", "<<-"):
            raise _NotUnderstoodError("an unusual here-document")
        self.position = found.end()
        self._blanks()
        if self.position >= self.end:
            raise _NotUnderstoodError("a redirection without a target")
        return Redirect(operator, self.word())

    def words(self, *, stop: bytes = b"", operators: bool = False) -> Iterator[Word]:
        """Words up to the end of the span or a byte of `stop`; `[[` has operators as words."""
        while True:
            self._blanks()
            if operators:
                while self.peek() == b"\n":
                    self.position += 1
                    self._blanks()
            if self.position >= self.end or (stop and self.peek() in (stop[:1], stop[1:2])):
                return
            if operators and (
                found := _CONDITION_TOKEN.match(self.source, self.position, self.end)
            ):
                self.position = found.end()
                token = found.group().decode()
                yield Word((Text(token, False),), token)
            else:
                yield self.word()

    def word(self) -> Word:
        """One word; what follows it must be a blank or an operator."""
        start = self.position
        parts: list[Part] = []
        if self.peek() == b"#":
            raise _NotUnderstoodError("a comment inside a command")
        while self.position < self.end:
            char = self.peek()
            if char in b" \t\n|&;)":
                break
            if char in b"<>" and self.peek(2)[1:] != b"(":
                break
            if char == b"(" or (self.peek(2) in (b"<(", b">(") and parts):
                raise _NotUnderstoodError("a parenthesis inside a word")
            parts.extend(self._part(quoted=False))
        if self.position == start:
            raise _NotUnderstoodError("an operator where a word should be")
        return Word(_merge(parts), self.reader.text(start, self.position))

    def _part(self, *, quoted: bool) -> Iterator[Part]:
        start = self.position
        char = self.peek()
        if not quoted and (found := _PLAIN.match(self.source, start, self.end)):
            self.position = found.end()
            yield Text(found.group().decode(errors="replace"), False)
        elif char == b"\\" and not quoted:
            following = self.source[start + 1 : start + 2] if start + 1 < self.end else b""
            if not following:
                raise _NotUnderstoodError("a backslash at the end")
            self.position += 2
            if following == b"\n":
                return
            if following[0] >= 0x80:  # the whole character is quoted
                self.position = start + 1 + _utf8_length(following[0])
            yield Text(self.reader.text(start + 1, self.position), True)
        elif char == b"'" and not quoted:
            end = self.source.find(b"'", start + 1, self.end)
            if end < 0:
                raise _NotUnderstoodError("an open quote")
            self.position = end + 1
            yield Text(self.reader.text(start + 1, end), True)
        elif char == b'"' and not quoted:
            self.position += 1
            yield Text("", True)
            yield from self.double_quoted()
            if self.peek() != b'"':
                raise _NotUnderstoodError("an open quote")
            self.position += 1
        elif char == b"$":
            yield from self._dollar(quoted)
        elif char == b"`" or self.peek(2) in (b"<(", b">("):
            yield self._command(quoted)
        else:
            raise _NotUnderstoodError("a character that is not modelled")

    def double_quoted(self, *, here: bool = False) -> Iterator[Part]:
        """The inside of double quotes, or of a here-document that expands."""
        literal = bytearray()
        while self.position < self.end:
            char = self.peek()
            if char == b'"' and not here:
                break
            if char == b"\\":
                following = self.source[self.position + 1 : self.position + 2]
                if self.position + 1 >= self.end:
                    raise _NotUnderstoodError("a backslash at the end")
                if following == b"\n":
                    pass
                elif following in (b"$", b"`", b"\\") or (following == b'"' and not here):
                    literal += following
                else:
                    literal += char + following
                self.position += 2
            elif char in (b"$", b"`"):
                if literal:
                    yield Text(literal.decode(errors="replace"), True)
                    literal.clear()
                yield from self._dollar(True) if char == b"$" else (self._command(True),)
            else:
                literal += char
                self.position += 1
        if literal:
            yield Text(literal.decode(errors="replace"), True)

    def _dollar(self, quoted: bool) -> Iterator[Part]:
        start = self.position
        if re.compile(rb"\$\w*\\\n").match(self.source, start, self.end):
            raise _NotUnderstoodError("a variable cut by a joined line")
        after = self.source[start + 1 : start + 2] if start + 1 < self.end else b""
        if after == b"'" and not quoted:
            yield self._ansi()
        elif after == b'"' and not quoted:
            raise _NotUnderstoodError("a translated string")
        elif after == b"{":
            yield self._braced(quoted)
        elif after == b"[" or self.source.startswith(b"$((", start):
            yield self._arithmetic(quoted)
        elif after == b"(":
            yield self._command(quoted)
        elif found := _NAME.match(self.source, start + 1, self.end):
            self.position = found.end()
            yield Variable(found.group().decode(), quoted)
        elif found := _SPECIAL.match(self.source, start + 1, self.end):
            self.position = found.end()
            name = found.group().decode()
            yield Number(quoted) if name in "#?$!" else Variable(name, quoted)
        else:
            self.position += 1
            yield Text("$", quoted)

    def _ansi(self) -> Part:
        start = self.position + 2
        end = start
        while end < self.end and self.source[end : end + 1] != b"'":
            end += 2 if self.source[end : end + 1] == b"\\" else 1
        if end >= self.end:
            raise _NotUnderstoodError("an open quote")
        self.position = end + 1

        def decode(found: re.Match[str]) -> str:
            hexadecimal, short, long, octal, letter = found.groups()
            if letter is not None:
                if letter not in _ANSI_ESCAPES:
                    raise _NotUnderstoodError("an unusual escape")
                return _ANSI_ESCAPES[letter]
            code = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
            if code == 0 or (code > 0x7F and not (short or long)) or not code < 0xD800:
                raise _NotUnderstoodError("an unusual escape")
            return chr(code)

        return Text(_ANSI_ESCAPE.sub(decode, self.reader.text(start, end)), True)

    def _braced(self, quoted: bool) -> Part:
        start = self.position
        if found := _BRACED_VARIABLE.match(self.source, start, self.end):
            self.position = found.end()
            return Variable(found.group(1).decode(), quoted)
        if found := _LENGTH.match(self.source, start, self.end):
            self.position = found.end()
            return Number(quoted)
        if found := _DERIVED.match(self.source, start, self.end):
            self.position = found.end()
            return Derived(found.group(1).decode(), quoted)
        return self._doubt("a parameter expansion that may run code", quoted)

    def _arithmetic(self, quoted: bool) -> Part:
        if found := _ARITHMETIC.match(self.source, self.position, self.end):
            node = self.nodes.get(self.position)
            if node is not None and node.end_byte == found.end():
                self.position = found.end()
                return Number(quoted)
        return self._doubt("arithmetic, which runs code hidden in values", quoted)

    def _doubt(self, reason: str, quoted: bool) -> Part:
        node = self.nodes.get(self.position)
        if node is None or node.end_byte > self.end:
            raise _NotUnderstoodError(reason)
        self.position = node.end_byte
        if node.type in _SUBSTITUTIONS:
            return Doubt(reason, (self.reader.substituted(node),), quoted)
        return Doubt(reason, self.reader.commands_in(node), quoted)

    def _command(self, quoted: bool) -> Part:
        node = self.nodes.get(self.position)
        if node is None or node.type not in _SUBSTITUTIONS or node.end_byte > self.end:
            raise _NotUnderstoodError("a substitution whose end is unclear")
        source = self.source[self.position : node.end_byte]
        if source[:1] == b"`" and quoted and b'"' in source:
            raise _NotUnderstoodError("quotes inside quoted backticks")
        self.position = node.end_byte
        try:
            body = self.reader.substituted(node)
        except _NotUnderstoodError as error:
            if self.reader.depth >= MAX_DEPTH:
                raise
            body = Unknown(source.decode(errors="replace"), str(error))
        return Channel(body) if source[:1] in (b"<", b">") else Output(body, quoted)


def _utf8_length(first: int) -> int:
    return 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _merge(parts: list[Part]) -> tuple[Part, ...]:
    """Join neighbouring text of the same quoting."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Text) and isinstance(last, Text) and part.quoted == last.quoted:
            merged[-1] = Text(last.value + part.value, part.quoted)
        else:
            merged.append(part)
    return tuple(merged)
