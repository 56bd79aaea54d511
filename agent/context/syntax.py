"""What source files declare, by tree-sitter: names, signatures, lines and first lines of docs.

One table says, for each language, which nodes declare something, which hold further declarations,
and which are only wrappers. The walk descends into those and never into function bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node

_LONGEST_SIGNATURE = 200
_LONGEST_DOC = 100
_DEEPEST = 40
LARGEST_PARSED = 4 << 20
"""Bytes above which a file is not parsed."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Something that a file declares."""

    name: str
    line: int
    """From 1."""
    end: int
    """Its last line."""
    depth: int
    """How many declarations it stands in."""
    signature: str
    """On one line, without the body."""
    doc: str
    """First line of its documentation; empty if it has none."""


@dataclass(frozen=True, slots=True)
class _Grammar:
    module: str
    declares: frozenset[str]
    """Nodes that declare something."""
    holds: frozenset[str]
    """Those of them whose bodies hold further declarations."""
    wraps: frozenset[str]
    """Nodes that only stand around declarations."""
    function: str = "language"


def _grammar(
    module: str, declares: str, holds: str, wraps: str, function: str = "language"
) -> _Grammar:
    every, inner, around = (
        frozenset(text.split()) for text in (f"{declares} {holds}", holds, wraps)
    )
    return _Grammar(module, every, inner, around, function)


_JS = (
    "function_declaration generator_function_declaration method_definition field_definition "
    "lexical_declaration variable_declaration export_clause"
)
_TS = (
    f"{_JS} function_signature method_signature abstract_method_signature property_signature "
    "public_field_definition type_alias_declaration enum_declaration"
)
_TS_HOLDS = "class_declaration abstract_class_declaration interface_declaration internal_module"
_TS_WRAPS = "export_statement ambient_declaration expression_statement statement_block module"
_C = "function_definition declaration type_definition preproc_def preproc_function_def enum_specifier"
_C_WRAPS = (
    "preproc_if preproc_ifdef preproc_else preproc_elif linkage_specification declaration_list "
    "template_declaration"
)

_PYTHON = _grammar(
    "tree_sitter_python",
    "function_definition assignment type_alias_statement",
    "class_definition",
    "decorated_definition if_statement else_clause elif_clause try_statement except_clause "
    "with_statement block expression_statement",
)
_JAVASCRIPT = _grammar(
    "tree_sitter_javascript", _JS, "class_declaration", "export_statement statement_block"
)
_TYPESCRIPT = _grammar("tree_sitter_typescript", _TS, _TS_HOLDS, _TS_WRAPS, "language_typescript")
_TSX = _grammar("tree_sitter_typescript", _TS, _TS_HOLDS, _TS_WRAPS, "language_tsx")
_GO = _grammar(
    "tree_sitter_go",
    "function_declaration method_declaration type_spec type_alias const_spec var_spec",
    "",
    "type_declaration const_declaration var_declaration var_spec_list",
)
_RUST = _grammar(
    "tree_sitter_rust",
    "function_item function_signature_item struct_item enum_item union_item const_item static_item "
    "type_item macro_definition associated_type",
    "trait_item impl_item mod_item",
    "foreign_mod_item declaration_list",
)
_JAVA = _grammar(
    "tree_sitter_java",
    "method_declaration constructor_declaration compact_constructor_declaration field_declaration "
    "constant_declaration enum_constant annotation_type_element_declaration",
    "class_declaration interface_declaration enum_declaration record_declaration "
    "annotation_type_declaration",
    "enum_body_declarations",
)
_CC = _grammar("tree_sitter_c", _C, "struct_specifier union_specifier", _C_WRAPS)
_CPP = _grammar(
    "tree_sitter_cpp",
    f"{_C} field_declaration alias_declaration concept_definition",
    "class_specifier struct_specifier union_specifier namespace_definition",
    _C_WRAPS,
)

_BY_SUFFIX = {
    **dict.fromkeys(("py", "pyi", "pyw"), _PYTHON),
    **dict.fromkeys(("js", "jsx", "mjs", "cjs"), _JAVASCRIPT),
    **dict.fromkeys(("ts", "mts", "cts"), _TYPESCRIPT),
    "tsx": _TSX,
    "go": _GO,
    "rs": _RUST,
    "java": _JAVA,
    "c": _CC,
    **dict.fromkeys(("h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "cu", "cuh", "inl"), _CPP),
}


def declarations(name: str, data: bytes) -> list[Declaration] | None:
    """What a file declares, in order; None when its language is not known or it is too large.

    `data` is UTF-8; what cannot be parsed is passed over.
    """
    grammar = _BY_SUFFIX.get(name.rpartition(".")[2].lower())
    if grammar is None or len(data) > LARGEST_PARSED:
        return None
    from tree_sitter import Parser

    tree = Parser(_language(grammar)).parse(data)
    return list(_declared(tree.root_node, grammar, data, 0))


@lru_cache
def _language(grammar: _Grammar) -> Language:
    from tree_sitter import Language

    capsule: object = getattr(import_module(grammar.module), grammar.function)()
    return Language(capsule)


def _declared(node: Node, grammar: _Grammar, data: bytes, depth: int) -> Iterator[Declaration]:
    if depth > _DEEPEST:
        return
    for child in node.named_children:
        kind = child.type
        if kind in grammar.declares:
            name = _name(child)
            body = child.child_by_field_name("body")
            if name:
                signature = _signature(child, body, data)
                doc = _doc(child, body)
                line, end = child.start_point.row + 1, child.end_point.row + 1
                yield Declaration(name, line, end, depth, signature, doc)
            if body is not None and kind in grammar.holds:
                yield from _declared(body, grammar, data, depth + (1 if name else 0))
        elif kind in grammar.wraps:
            yield from _declared(child, grammar, data, depth)


def _name(node: Node) -> str:
    """The declared name: the `name` field, or what lies at the end of a chain of declarators."""
    if node.type == "impl_item":
        named = node.child_by_field_name("type")
        return _text(named)
    if node.type == "export_clause":
        return "export"
    found = node.child_by_field_name("name") or node.child_by_field_name("property")
    while found is None:
        inner = node.child_by_field_name("declarator") or node.child_by_field_name("left")
        if inner is None:
            named = node.named_children
            inner = named[0] if named and node.type in _UNNAMED_FIELDS else None
        if inner is None:
            break
        node = inner
        found = node.child_by_field_name("name")
    return _text(found or (node if node.type in _NAMES else None))


_UNNAMED_FIELDS = frozenset(
    {
        "lexical_declaration",
        "variable_declaration",
        "reference_declarator",
        "parenthesized_declarator",
    }
)
_NAMES = frozenset(
    {"identifier", "field_identifier", "type_identifier", "qualified_identifier", "destructor_name",
     "operator_name", "attribute"}
)  # fmt: skip


def _signature(node: Node, body: Node | None, data: bytes) -> str:
    """The declaration up to its body, with what wraps it (decorators, `export`, `template`)."""
    start = node.start_byte
    parent = node.parent
    if parent is not None and _is_prefix(parent):
        start = parent.start_byte
    end = body.start_byte if body is not None else node.end_byte
    value = node.child_by_field_name("value")
    if body is None and value is not None:
        end = min(end, value.start_byte + 60)
    text = data[start : min(end, start + 4 * _LONGEST_SIGNATURE)].decode("utf-8", "replace")
    text = " ".join(text.split()).rstrip(" {:;=")
    return text if len(text) <= _LONGEST_SIGNATURE else text[: _LONGEST_SIGNATURE - 1] + "…"


_PREFIXES = frozenset(
    {"decorated_definition", "export_statement", "template_declaration", "ambient_declaration"}
)


def _is_prefix(node: Node) -> bool:
    """Whether a node wraps exactly one declaration and belongs to it."""
    return node.type in _PREFIXES or (
        node.type == "type_declaration" and node.named_child_count == 1
    )


def _doc(node: Node, body: Node | None) -> str:
    """First line of a docstring, or of the comment that stands right above."""
    if body is not None and body.type == "block" and body.named_children:
        first = body.named_children[0]
        if first.type == "expression_statement" and first.named_children:
            first = first.named_children[0]
        if first.type == "string":
            return _first_line(_text(first).lstrip("rRbBuU"))
    parent = node.parent
    if parent is not None and _is_prefix(parent):
        node = parent
    comment, first = node.prev_sibling, None
    row = node.start_point.row
    while comment is not None and comment.type == "attribute_item":
        row = comment.start_point.row
        comment = comment.prev_sibling
    while (
        comment is not None
        and "comment" in comment.type
        and comment.end_point.row >= row - 1
        and not _text(comment).startswith("//!")  # that documents what is around
    ):
        first, row = comment, comment.start_point.row
        comment = comment.prev_sibling
    return _first_line(_text(first))


def _first_line(text: str) -> str:
    for line in text.split("\n"):
        plain = line.strip().strip("/*#!\"' \t<")
        if plain:
            return plain if len(plain) <= _LONGEST_DOC else plain[: _LONGEST_DOC - 1] + "…"
    return ""


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""
