"""The names of files and symbols in prose: docstrings, comments of Python and C, and Markdown pages.

`prose_of(path)` returns the text of a file that a person reads, and `missing_names(text)` the names in it that do not exist here.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.kit.source_tree import CHECKOUT, class_members, defines, modules

FOLDERS = ("tlserve", "tests", "docs", "specs", ".ci")
SOURCES = (".py", ".c", ".h", ".md", ".patch", ".toml", ".json", ".txt")

# Files of other projects, and names that look like a module of ours: a socket, a logger.
ELSEWHERE = {"ggml-common.h", "ggml-quants.c", "utils/chat_template_utils.py", "tlserve.sock", "tlserve.request"}

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

_FILE = re.compile(r"(?<![\w/.<*{-])(?P<path>(?:[\w.-]+/)*[\w-]+\.(?:py|c|h))\b(?!\w|\(|\.\w)")
_PATH = re.compile(r"`(?P<path>(?:tlserve|tests|docs|specs|\.ci)/[\w./-]*)`")
_DOTTED = re.compile(r"(?<![./-])\b(?P<name>(?:tlserve|tests|docs)(?:\.[A-Za-z_]\w*)+)(?!\w|/\d)")
_LINK = re.compile(r"\[`(?P<symbol>[\w.]+)`\]\((?P<target>[^)#\s]+\.(?:py|c|h))\)")
_MEMBER = re.compile(r"`(?P<owner>[A-Z]\w+)\.(?P<member>[a-z_]\w*)(?:\(\))?`")


def prose_of(path: Path) -> str:
    """Return what a person reads in a file: its docstrings and comments, or the whole page without its fenced blocks."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return "\n".join([*docstrings(text), *comments(text)])
    if path.suffix in (".c", ".h"):
        return "\n".join(_C_COMMENT.findall(text))
    return _FENCE.sub("", text)


def docstrings(source: str) -> Iterator[str]:
    """Yield every docstring, and every string that is a statement of its own below a constant."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def comments(source: str) -> Iterator[str]:
    """Yield the comments of a Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def missing_names(text: str) -> list[str]:
    """Return the files, dotted names and members of classes in `text` that do not exist."""
    files = [match["path"] for match in _FILE.finditer(text) if not has_file(match["path"])]
    paths = [match["path"] for match in _PATH.finditer(text) if not (CHECKOUT / match["path"]).exists()]
    dotted = [match["name"] for match in _DOTTED.finditer(text) if not has_symbol(match["name"])]
    members = [match[0] for match in _MEMBER.finditer(text) if not has_member(match["owner"], match["member"])]
    return sorted({*files, *paths, *dotted, *members} - ELSEWHERE)


def links_to_symbols(page: Path) -> dict[str, Path]:
    """Return the links of a page whose text is a symbol in backticks and whose target is a source file."""
    return {
        match[0]: (page.parent / match["target"]).resolve()
        for match in _LINK.finditer(page.read_text(encoding="utf-8"))
    }


def link_is_true(link: str, source: Path) -> bool:
    """Say whether the source of a link defines the symbol that the link names."""
    symbol = link[2 : link.index("`]")]
    if not source.is_file():
        return False
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".py":
        return defines(ast.parse(text), symbol)
    return re.search(rf"^\w[\w *]*\b{symbol}\(.*\{{$", text, re.MULTILINE) is not None


@functools.cache
def has_file(name: str) -> bool:
    """Say whether a file of the checkout has this name, or ends in this path."""
    tail = name.rpartition("../")[2]
    return any(path == tail or path.endswith(f"/{tail}") for path in all_files())


@functools.cache
def all_files() -> frozenset[str]:
    """Return the files of the checkout's own folders, relative to it."""
    found = (path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*") if path.suffix in SOURCES)
    return frozenset(str(path.relative_to(CHECKOUT)) for path in found)


@functools.cache
def has_symbol(dotted: str) -> bool:
    """Say whether a dotted name is a module of this checkout; for one of tlserve also whether it is a name in a module."""
    parts = dotted.split(".")
    if parts[0] != "tlserve":
        return (CHECKOUT.joinpath(*parts).with_suffix(".py")).exists() or CHECKOUT.joinpath(*parts).is_dir()
    trees = {module.name: module.tree for module in modules()}
    for end in range(len(parts), 0, -1):
        tree = trees.get(".".join(parts[:end]))
        if tree is not None:
            return end == len(parts) or defines(tree, ".".join(parts[end:]))
    return False


def has_member(owner: str, member: str) -> bool:
    """Say whether a class of tlserve or of the tests' kit has `member`; a class of another project has everything."""
    return owner not in all_members() or member in all_members()[owner]


@functools.cache
def all_members() -> dict[str, set[str]]:
    """Return the members of every class of tlserve, those of its bases included."""
    nodes = [node for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    own: dict[str, set[str]] = {}
    for node in nodes:
        own.setdefault(node.name, set()).update(class_members(node))
    bases = {
        node.name: {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases} for node in nodes
    }
    return {name: set().union(*(own.get(one, set()) for one in _with_bases(name, bases))) for name in own}


def _with_bases(name: str, bases: dict[str, set[str]]) -> set[str]:
    return {name}.union(*(_with_bases(base, bases) for base in bases.get(name, set()) - {name}))
