"""Changes of inputs that keep most of their structure, so that they get behind the first check.

Every function takes a random generator of its own: equal seeds give equal inputs.
"""

from __future__ import annotations

import copy
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from random import Random
from typing import Any

INTEGERS = (0, 1, -1, 2, 3, 7, 8, 64, 255, 2**16, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, -1e300, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *(
        "",
        " ",
        "x",
        "y",
        "N",
        "N+1",
        "2*N",
        "N*N",
        "-1",
        "0",
        "(N",
        "min[N,7]",
        "a" * 300,
        "∞\u202e",
        "\ud800",
        "\0",
        "\n",
    ),
    *(
        "../w",
        "/etc/passwd",
        "<b>",
        "{{x}}",
        "%s",
        "';--",
        "1e9",
        "0x10",
        "１",
        "²",
        "nan",
        "1/0",
        "mirage",
        "__class__",
    ),
)


# ---- bytes and text --------------------------------------------------------------------------------------------------


def raw(rng: Random, data: bytes) -> bytes:
    """Bytes flipped, set, cut out, repeated or put in, at one to four places."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(found) + 1)
        width = rng.choice((1, 1, 2, 4, 16, 64))
        match rng.randrange(5):
            case 0 if place < len(found):
                found[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(found):
                found[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case 2:
                del found[place : place + width]
            case 3:
                found[place:place] = found[place : place + width]
            case _:
                found[place:place] = rng.randbytes(width)
    return bytes(found)


def text(rng: Random, given: str) -> str:
    """One to three words, numbers or signs of a text changed, left out, repeated, exchanged or put in."""
    parts = re.findall(r"\w+|\s+|[^\w\s]", given)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(parts) + 1)
        other = rng.choice(parts) if parts else ""
        match rng.randrange(5):
            case 0 if place < len(parts):
                parts[place] = _word(rng, parts[place])
            case 1:
                del parts[place : place + rng.choice((1, 1, 4))]
            case 2:
                parts[place:place] = parts[place : place + rng.choice((1, 4, 16))] * rng.choice((1, 1, 50))
            case 3 if place < len(parts):
                parts[place] = other
            case _:
                parts.insert(place, rng.choice((other, rng.choice(TEXTS), str(rng.choice(INTEGERS)))))
    return "".join(parts)


def _word(rng: Random, word: str) -> str:
    if word.isascii() and word.isdigit():
        return rng.choice((*map(str, INTEGERS), str(int(word[:40]) + 1), word * 20, "9" * rng.choice((20, 400, 5000))))
    return rng.choice((word.upper(), word[:-1], word * 2, rng.choice(TEXTS), str(rng.choice(NUMBERS))))


def text_bytes(rng: Random, data: bytes) -> bytes:
    """A text file: mostly its words, now and then its bytes."""
    if rng.random() < 0.1:
        return raw(rng, data)
    return text(rng, data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogatepass")


# ---- JSON ------------------------------------------------------------------------------------------------------------


def document(rng: Random, data: bytes) -> bytes:
    """A JSON document with one to three of its values changed; one that is none as a text."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return text_bytes(rng, data)
    for _ in range(rng.randint(1, 3)):
        found = _changed(rng, found)
    written = json.dumps(found)
    return (raw(rng, written.encode()) if rng.random() < 0.03 else written.encode())[: 1 << 20]


def _changed(rng: Random, root: Any) -> Any:
    """The document with one value, chosen among all, replaced, left out, repeated or exchanged for another."""
    places = list(_places(root))
    if not places:
        return _value(rng, root)
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1:
            other, name = rng.choice(places)
            holder[key] = copy.deepcopy(other[name])
        case 2 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case 3 if isinstance(holder, dict):
            holder[rng.choice((*TEXTS, str(rng.choice(places)[1])))] = holder.pop(key)
        case _:
            holder[key] = _value(rng, holder[key])
    return root


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of all values inside one."""
    inner: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        inner = iter(list(value.items()))
    elif isinstance(value, list):
        inner = iter(list(enumerate(value)))
    for key, item in inner:
        yield value, key
        yield from _places(item)


def _value(rng: Random, old: Any) -> Any:
    """A value for the place of another: mostly of its kind."""
    kind = type(old) if rng.random() < 0.7 else rng.choice((bool, int, float, str, list, dict, type(None)))
    match kind:
        case _ if kind is bool:
            return not old
        case _ if kind is int:
            return rng.choice((*INTEGERS, 10**30, old + 1 if isinstance(old, int) else 5))
        case _ if kind is float:
            return rng.choice(NUMBERS)
        case _ if kind is str:
            return text(rng, old) if isinstance(old, str) and rng.random() < 0.6 else rng.choice(TEXTS)
        case _ if kind is list:
            return rng.choice(([], [old], [[]], [None], [old, old]))
        case _ if kind is dict:
            return rng.choice(({}, {"": old}, {"x": {}}, {"id": old}))
    return None


# ---- archives --------------------------------------------------------------------------------------------------------


def archive(rng: Random, data: bytes) -> bytes:
    """A zip archive with one entry renamed, left out, repeated or changed; half of the time its bytes instead."""
    if rng.random() < 0.5:
        return raw(rng, data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as given:
            entries = [(e.filename, given.read(e)) for e in given.infolist()]
    except Exception:  # what it is no more, it is no more
        return raw(rng, data)
    place = rng.randrange(len(entries) + 1)
    name, content = entries[place] if place < len(entries) else ("m/code/x.py", b"def f(x): ...")
    match rng.randrange(5):
        case 0:
            del entries[place : place + 1]
        case 1:
            entries.append((text(rng, name), content))
        case 2:
            entries[place : place + 1] = [(text(rng, name), content)]
        case 3:
            entries[place : place + 1] = [(name, text_bytes(rng, content))]
        case _:
            entries[place : place + 1] = [(name, (raw(rng, content) * rng.choice((1, 1, 1000)))[: 1 << 20])]
    made = io.BytesIO()
    with (
        warnings.catch_warnings(),
        zipfile.ZipFile(made, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as written,
    ):
        warnings.simplefilter("ignore")  # the same name twice
        for entry, inner in entries:
            written.writestr(entry.encode("utf-8", "replace").decode().replace("\0", "") or "x", inner)
    return made.getvalue()
