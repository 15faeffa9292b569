"""The words of a kernel's text, and a reader's place among them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
OPEN, CLOSE = "⟨", "⟩"  #: the brackets of static arguments, as long as they are read
_BRACKETS = (re.compile(r"(?<=\w)<(?!<)"), re.compile(r"(?<![\s>-])>+"))
_TOKEN = re.compile(
    r"\s*(?://[^\n]*\s*)*("
    r"[A-Za-z_]\w*|0[xX][\da-fA-F.]+(?:[pP][+-]?\d+)?[fuUlL]*|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[fuUlL]*|\[\[maybe_unused\]\]|#[^\n]*"
    r"|::|->|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|\S|\Z)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
UNROLL = re.compile(r"#pragma unroll(?: \d+)?")
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"))
#: how strongly binary operators bind
PRECEDENCE = {op: k for k, ops in enumerate((*_LEVELS, ("*", "/", "%")), 1) for op in ops}
PREFIXES = frozenset("-!~&*")
ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "|=", "^="))
LITERALS = frozenset(("true", "false", "nullptr", "INFINITY", "NAN"))
CASTS = frozenset(("static_cast", "reinterpret_cast"))
VECTOR_LOOP = "MIRAGE_VECTOR_LOOP"
STRIPS = tuple(f"MIRAGE_STRIP{x}" for x in ("", "_ROWS", "_HALF", "_ROWS_HALF"))
EACH = frozenset((*STRIPS, "MIRAGE_EACH"))
STORAGE = frozenset(("constexpr", "static", "thread_local", "extern", "__shared__"))
_OWN = "for if else return break using typedef const auto __restrict__"
_FOREIGN = """while do switch case default continue goto asm volatile new delete struct class union enum
template typename try catch throw namespace operator this static_assert const_cast dynamic_cast inline alignas
and or not"""
#: what stands where neither a name nor a type may; words of C++ that the language has not
KEYWORDS = CASTS | EACH | STORAGE | LITERALS | {VECTOR_LOOP, *_OWN.split(), *_FOREIGN.split()}
BEHIND = frozenset((OPEN, "::", "{", "("))  #: what makes more of a name
WORDS = frozenset(("unsigned", "signed", "long", "short", "char", "int"))  #: of which one type may have several
_INTEGERS = (f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64))
#: types that are called like functions
TYPES = WORDS | {
    "float",
    "double",
    "bool",
    "half",
    "bfloat",
    "e4m3",
    "e5m2",
    "__half",
    "__nv_bfloat16",
    "size_t",
    "offset_t",
    *_INTEGERS,
}


def marked(source: str) -> str:
    """The text with the brackets of static arguments told from comparisons; every character stays where it is."""
    opening, closing = _BRACKETS
    return closing.sub(lambda m: CLOSE * len(m[0]), opening.sub(OPEN, source))


def _shown(token: str) -> str:
    """A token as it stands in the source."""
    return token.replace(OPEN, "<").replace(CLOSE, ">")


class Tokens:
    """Reads tokens from left to right: `at` is the next one; the last one is empty."""

    __slots__ = ("at", "known", "span", "text", "tokens")

    def __init__(self, text: str, start: int = 0, end: int | None = None) -> None:
        self.text, self.span, self.at = text, (start, len(text) if end is None else end), 0
        self.tokens: list[str] = _TOKEN.findall(text, *self.span)
        self.known = {t for t in set(self.tokens) - KEYWORDS if _NAME.match(t)}  #: names of all kinds

    def refused(self, expected: str) -> ValueError:
        """The error that there is something else at the next token."""
        match = next(islice(_TOKEN.finditer(self.text, *self.span), self.at, None))
        line = self.text.count("\n", 0, match.start(1)) + 1
        return ValueError(f"line {line}: expected {expected}, found {_shown(match[1]) or 'the end'}")

    def take(self, token: str) -> None:
        """The next token is this one."""
        if self.tokens[self.at] != token:
            raise self.refused(_shown(token) or "the end")
        self.at += 1

    def takes(self, token: str) -> bool:
        """True if the next token was this one; it is left where it was not."""
        if self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def names(self, at: int) -> bool:
        """True if there is a name at a place."""
        return self.tokens[at] in self.known

    def name(self) -> str:
        """A name."""
        token = self.tokens[self.at]
        if token not in self.known:
            raise self.refused("a name")
        self.at += 1
        return token

    def whole(self, read: Callable[[], Item]) -> Item:
        """The item that `read` makes of all tokens."""
        item = read()
        self.take("")
        return item

    def several(self, read: Callable[[], Item], close: str) -> tuple[Item, ...]:
        """Items between commas, and what closes them."""
        items: list[Item] = []
        while not self.takes(close):
            if items and not self.takes(","):
                raise self.refused(f", or {_shown(close)}")
            items.append(read())
        return tuple(items)
