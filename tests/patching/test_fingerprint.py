from __future__ import annotations

import ast

import pytest

from verl_musa.patching.fingerprint import SourceModule, normalise
from verl_musa.patching.model import ABSENT

PLAIN = """
def f(a: int, *rest, key=1) -> str:
    if a > 1:
        return f"{a!r:>{key}} and" " more"
    return 'x'
"""
SAME = '''
import os

# a comment
def f(a: int,   # another
      *rest,
      key = 1,
) -> str:
    """Say what it does."""
    if (a > 1): return (f"{a!r:>{key}}" f" and more")
    return u"x"
'''
# Every construct whose tree Python has changed since 3.8, and the usual ones.
SAMPLE = '''
@decorator(1, x=2)
async def f(a, /, b: int = 3, *args: str, c=None, **kw) -> "é":
    """Docstring."""
    global g
    x: list[int] = [*args, ...][1:2, ::-1]
    with open(a) as h, lock:
        async for i in b: await i
    try:
        pass
    except* (ValueError, OSError) as e:
        raise e from None
    match a:
        case {"k": [1, *_], **rest} if rest: return -1.5e300j
        case Point(x=0) | None: yield b"\\x00"
        case _: del x
    return (lambda y, z=1: y if (n := z) else {**kw, "s": {1, 2}})(f"a{b!r:>{c}}{{d}}", 10**20, True, "\\U0001f600")
class C(Base, metaclass=M):
    def g(self): nonlocal_ = not self; return [i async for i in self if i]
'''


def fingerprint(source: str, qualname: str = "f") -> str:
    return SourceModule(source).fingerprint(qualname)


def test_formatting_comments_docstrings_and_prefixes_do_not_count() -> None:
    assert fingerprint(PLAIN) == fingerprint(SAME)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a > 1", "a >= 1"),
        ("key=1", "key=2"),
        ("key=1", "key=1.0"),
        ("key=1", "key=True"),
        ("!r", "!s"),
        ("a: int", "a: float"),
        ("'x'", "b'x'"),
        ("*rest", "*others"),
        ("and", "or"),
        ("def f", "async def f"),
    ],
)
def test_one_token_counts(old: str, new: str) -> None:
    assert old in PLAIN
    assert fingerprint(PLAIN.replace(old, new, 1)) != fingerprint(PLAIN)


def test_a_string_that_is_no_docstring_counts() -> None:
    assert fingerprint("def f():\n    x = 'a'\n") != fingerprint("def f():\n    x = 'b'\n")
    assert fingerprint("def f():\n    1\n    'a'\n") != fingerprint("def f():\n    1\n    'b'\n")


def test_the_value_is_the_same_on_every_python() -> None:
    # A literal on purpose: recorded fingerprints must survive a Python upgrade.
    assert fingerprint(SAMPLE) == "69c3af1ff49e1dc9894818a8ab0061ca7bafe3bcc26b2011ea4a104fbeb5ec67"
    assert fingerprint(SAMPLE, "C") == "7fd8f4f71f9eb79449cd897fec564af8ae4476fe9be6f3e853c9283f1e5f4e7a"


def test_a_field_that_a_newer_python_adds_empty_does_not_count() -> None:
    node = ast.parse("def f(): pass").body[0]
    assert isinstance(node, ast.FunctionDef)

    class FunctionDef(ast.FunctionDef):
        _fields = (*ast.FunctionDef._fields, "added_later")

    newer = FunctionDef(name="f", args=node.args, body=node.body, decorator_list=[])
    newer.added_later = []  # type: ignore[attr-defined]
    assert normalise(newer) == normalise(node)


@pytest.mark.parametrize(
    ("source", "qualname", "same_as"),
    [
        ("if X:\n    def f(): pass\n", "f", "def f(): pass"),
        ("try:\n    x = 1\nexcept ValueError:\n    def f(): pass\n", "f", "def f(): pass"),
        ("try:\n    pass\nfinally:\n    def f(): pass\n", "f", "def f(): pass"),
        ("match X:\n    case 1:\n        def f(): pass\n", "f", "def f(): pass"),
        ("from a import f, g\n", "f", "from a import f"),
        ("from a import x as f, y\n", "f", "from a import x as f"),
        ("import f.g, h\n", "f", "import f.g"),
        ("f = 1\n", "f", "f    =  1"),
        ("f: int = 1\n", "f", "f: int=1"),
        ("g = 2; (f, *h) = 1, 2\n", "f", "(f, *h) = (1, 2)"),
    ],
)
def test_what_binds_the_name_is_found_wherever_it_stands(source: str, qualname: str, same_as: str) -> None:
    found = fingerprint(source, qualname)
    assert found != ABSENT
    assert found == fingerprint(same_as, qualname)


@pytest.mark.parametrize("second", ["f = None", "del f", "f += 1", "def f(): return 2", "from a import f"])
def test_a_second_binding_counts(second: str) -> None:
    assert fingerprint(f"def f(): pass\n{second}\n") != fingerprint("def f(): pass\n")


@pytest.mark.parametrize(
    "source", ["", "def g():\n    f = 1\n", "class C:\n    f = 1\n", "f()\n", "x[f] = 1\n"]
)
def test_a_name_that_the_scope_does_not_bind_is_absent(source: str) -> None:
    assert fingerprint(source) == ABSENT
    assert SourceModule(source).line("f") is None


def test_methods_and_nested_classes() -> None:
    source = "class A:\n    x = 1\n    class B:\n        def f(self): return 1\n"
    assert fingerprint(source, "A.B.f") == fingerprint(
        "class A:\n  class B:\n    def f(self): return 1\n", "A.B.f"
    )
    assert fingerprint(source, "A.B.g") == ABSENT
    assert fingerprint(source, "A.x.f") == ABSENT
    assert SourceModule(source).line("A.B.f") == 4


def test_the_rest_of_the_module_does_not_count() -> None:
    assert fingerprint("def f(): return 1\n") == fingerprint(
        "X = 2\ndef f(): return 1\ndef g(): return f()\n"
    )
