"""Python, by its syntax tree: paths, addresses and debug leftovers."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from verl_musa.lint import rules, texts
from verl_musa.lint.model import Analysis, Comment, Finding, Rule, Source
from verl_musa.lint.paths import UNKNOWN_PART, judge
from verl_musa.lint.python_fold import Fold, dotted, last_name
from verl_musa.lint.python_place import Place, Places, is_command_call
from verl_musa.lint.words import word_set

_SAVERS: Final = {"save": 1, "savez": 0, "savez_compressed": 0, "savetxt": 0, "dump": 1, "save_file": 1}
_SAVING_MODULES: Final = re.compile(
    r"(?:torch|torch\.jit|np|numpy|pickle|cloudpickle|dill|joblib|json|yaml|safetensors(?:\.torch|\.numpy)?)\.\w+|save_file"
)
_NUMPY: Final = ("np.", "numpy.")
_SAVING_METHODS: Final = word_set("to_parquet to_csv to_json to_pickle tofile")
_WRITING_METHODS: Final = frozenset({"write_text", "write_bytes"})
_BREAKPOINTS: Final = re.compile(
    r"breakpoint|(?:i?pdb|pudb|rpdb|remote_pdb|ray\.util\.pdb|ray\.util)\.set_trace|debugpy\.(?:breakpoint|wait_for_client)"
)
_DEBUG_NAME: Final = re.compile(
    r"(?:^|[_./-])(?:debug|dbg|dump|dumped|tmp|temp|foo|bar|aaa|xxx)\d*(?=[_./-]|$)", re.IGNORECASE
)
_KILLED: Final = re.compile(
    r"(?:^|[;&|])\s*(?:sudo\s+)?(?:pkill|killall)\b(?!.*\s(?:-[PFgs]|--parent|--pidfile)\b)[^;&|]*"
)
_TEST: Final = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
_DEVICES: Final = ("/dev/", "/proc/", "/sys/")


def analyse(source: Source) -> Analysis:
    """Read one Python file.

    Raises:
        SyntaxError: it is none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about the code of others, which their linters report
        tree = ast.parse(source.text)
    return Analysis(findings=list(_Reader(source, tree).findings()), comments=list(_comments(source)))


def _comments(source: Source) -> Iterator[Comment]:
    if "verl-musa:" not in source.text:
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield Comment(token.start[0], token.string, token.line[: token.start[1]].strip() == "")


class _Reader:
    """One walk over one module."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self._source = source
        self._tree = tree
        self._places = Places(tree)
        self._done: set[ast.AST] = set()
        self._imported = {"breakpoint"} | {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        self._is_test = bool(_TEST.fullmatch(PurePath(source.file).name))

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong in the module; outer expressions come before the parts that they are made of."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)
            if isinstance(node, ast.expr) and node not in self._done:
                fold = Fold(node)
                self._done |= fold.used
                if fold.text is not None:
                    yield from self._text(node, fold.text)

    def _text(self, node: ast.expr, text: str) -> Iterator[Finding]:
        place = self._places.of(node, text)
        if place is Place.NOT_USED or len(text) < len("/x/"):
            return
        line, column, statement = node.lineno, node.col_offset + 1, self._places.statement(node)
        words = bool(re.search(r"\s", text.strip()))
        if place is Place.COMMAND or not words:
            yield from texts.path_findings(
                self._source,
                text,
                line,
                column,
                statement=statement,
                used_as_path=place is Place.PATH,
                only_known_roots=self._is_test,
            )
        if (place is Place.COMMAND or not (words or self._is_test)) and not self._places.is_version(node):
            yield from texts.address_findings(self._source, text, line, column, statement=statement)

    def _call(self, call: ast.Call) -> Iterator[Finding]:
        name = dotted(call.func)
        if _BREAKPOINTS.fullmatch(name) and name.partition(".")[0] in self._imported:
            yield self._finding(rules.DEBUG_BREAKPOINT, call, f"{name}()")
        if is_command_call(call) and call.args and (ended := _KILLED.search(_command_text(call.args[0]))):
            yield self._finding(rules.KILL_BY_NAME, call, ended[0].strip())
        target = _written(call)
        if target is None or target in self._done:
            return
        fold = Fold(target)
        if fold.text is not None and _left_behind(fold.text, dump=last_name(call.func) != "open"):
            self._done |= fold.used | {node for node in ast.walk(target) if isinstance(node, ast.Constant)}
            yield self._finding(
                rules.DEBUG_DUMP, target, f"{name or last_name(call.func)} writes {fold.text!r}"
            )

    def _finding(self, rule: Rule, node: ast.expr, message: str) -> Finding:
        return self._source.finding(
            rule, node.lineno, node.col_offset + 1, message, statement=self._places.statement(node)
        )


def _command_text(node: ast.expr) -> str:
    """The command line that a call is given, as one text or as a list of its words."""
    parts = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    return " ".join(Fold(part).text or UNKNOWN_PART for part in parts)


def _written(call: ast.Call) -> ast.expr | None:
    """The expression that names the file which a call writes; None where it writes none."""
    name, last = dotted(call.func), last_name(call.func)
    if last in _SAVERS and _SAVING_MODULES.fullmatch(name):
        place = 0 if name.startswith(_NUMPY) else _SAVERS[last]
        keywords = {word.arg: word.value for word in call.keywords}
        given = call.args[place] if len(call.args) > place else keywords.get("f", keywords.get("filename"))
        return _opened(given) if isinstance(given, ast.Call) and last_name(given.func) == "open" else given
    if last in _SAVING_METHODS and call.args:
        return call.args[0]
    if last in _WRITING_METHODS and isinstance(call.func, ast.Attribute):
        return call.func.value
    return _opened(call) if name in {"open", "io.open"} else None


def _opened(call: ast.Call) -> ast.expr | None:
    """The file that ``open`` is given, where it is opened to be written."""
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    mode = next(
        (node.value for node in modes if isinstance(node, ast.Constant) and isinstance(node.value, str)), "r"
    )
    return call.args[0] if call.args and re.search(r"[wax+]", mode) else None


def _left_behind(text: str, *, dump: bool) -> bool:
    """Whether a file of this name is what a debugging session writes.

    A file of a fixed place is, where tensors or tables are dumped into it; a file that is merely opened to be written
    is where it lies in a person's or a machine's folder, or is called ``debug``.
    """
    if text.startswith((UNKNOWN_PART, *_DEVICES)) or not text:
        return False
    called_debug = bool(_DEBUG_NAME.search(text.rpartition("/")[2]))
    if not text.startswith(("/", "~")):
        return called_debug and UNKNOWN_PART not in text.partition("/")[0]
    return called_debug or dump or judge(text, used_as_path=True) is not None
