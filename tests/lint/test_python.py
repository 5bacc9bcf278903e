from __future__ import annotations

import ast

import pytest

from verl_musa.lint import Kind, lint_text
from verl_musa.lint.python_fold import Fold


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("'a'", "a"),
        ("1", None),
        ("x", None),
        ("f'/mnt/{x}/y'", "/mnt/…/y"),
        ("f'/mnt/{\"z\"}/{x:>3}'", "/mnt/z/…"),
        ("'/mnt' + '/' + name", "/mnt/…"),
        ("name + '/x'", "…/x"),
        ("a / b", None),
        ("Path('/mnt') / 'x' / y", "/mnt/x/…"),
        ("Path('/mnt', 'x').resolve()", "/mnt/x"),
        ("root / '/mnt/x'", "/mnt/x"),
        ("os.path.join(a, 'b', '/mnt/x', c)", "/mnt/x/…"),
        ("os.path.join(a, b)", None),
        ("os.path.join(*parts)", None),
        ("os.path.expanduser('~/x')", "~/x"),
        ("'/mnt/%s/%(name)05d' % x", "/mnt/…/…"),
        ("'/mnt/{}/{name!r}'.format(1, name=2)", "/mnt/…/…"),
        ("Path('/mnt').joinpath('a', b)", "/mnt/a/…"),
        ("3 % 2", None),
        ("b'/mnt/x'", None),
    ],
)
def test_fold(code: str, text: str | None) -> None:
    assert Fold(ast.parse(code, mode="eval").body).text == text


def found(code: str, file: str = "a.py") -> list[tuple[str, int]]:
    report = lint_text(code, file, Kind.PYTHON)
    return [(finding.rule.id, finding.line) for finding in report.findings]


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("torch.save(x, '/anywhere/at/all.pt')", "debug.dump"),
        ("torch.save(x, f=f'~/x{i}.pt')", "debug.dump"),
        ("df.to_parquet('/tmp/rows.parquet')", "debug.dump"),
        ("save_file(tensors, '/tmp/x.safetensors')", "debug.dump"),
        ("json.dump(x, open('/home/alice/x.json', 'w'))", "debug.dump"),
        ("Path('/root/debug.txt').write_text('x')", "debug.dump"),
        ("open('/tmp/debug_3.log', mode='w')", "debug.dump"),
        ("import ray; ray.util.pdb.set_trace()", "debug.breakpoint"),
        ("import ipdb as pdb; pdb.set_trace()", "debug.breakpoint"),
        ("def f(a, /, b='/mnt/x', *, c=1): pass", "path.machine"),
        ("x: str = '/mnt/x'", "path.machine"),
        ("@hydra.main(config_path='/mnt/conf')\ndef f(): pass", "path.machine"),
        ("cfg.get('path', '/mnt/x')", "path.machine"),
        ("os.environ.get('X', '/mnt/x')", "path.machine"),
        ("subprocess.Popen('scp a root@10.0.0.1:/b', shell=True)", "net.address"),
        ("subprocess.run(['sudo', 'pkill', '-f', name])", "shell.kill-by-name"),
        ("LAUNCH = 'export HF_HOME=/nfs/hf && python x.py'", "path.machine"),
    ],
)
def test_faults(code: str, rule: str) -> None:
    assert found(code) == [(rule, 1)]


@pytest.mark.parametrize(
    "code",
    [
        "torch.save(x, path)",
        "pdb = Debugger(); pdb.set_trace(frame)",
        "path = f'/spec/groups/{x}/replicas'",
        "torch.save(x, folder + '/debug.pt')",
        "torch.save(x, 'model.pt')",
        "np.save(buffer, x)",
        "json.dumps('/mnt/x y')",
        "open('/tmp/x', 'w')",
        "open('debug.log')",
        "Literal['/generate']",
        "os.getenv('/mnt/x')",
        "'a sentence about /mnt/x'",
        "x['/mnt/y']",
        "{'op': 'replace', 'path': '/spec/replicas/x'}",
        "VERSION = '10.1.2.3'",
        "Version(x) >= Version('10.1.2.3')",
        "subprocess.run(['kill', str(pid)])",
        "parser.add_argument('--x', metavar='/mnt/x', help='10.0.0.1')",
    ],
)
def test_no_faults(code: str) -> None:
    assert found(code) == []


def test_a_path_in_parts_is_one_finding() -> None:
    assert found("x = os.path.join('/mnt/a', '/mnt/b' + name)") == [("path.machine", 1)]


def test_made_up_paths_and_addresses_in_unit_tests() -> None:
    assert found("open('/runs/tiny/x')", "tests/test_a.py") == []
    assert found("open('/runs/tiny/x')", "pkg/a.py") == [("path.machine", 1)]
    assert found("open('/mnt/x')", "tests/test_a.py") == [("path.machine", 1)]
    assert found("HOST = '10.0.0.1'", "tests/test_a.py") == []
    assert found("HOST = '10.0.0.1'", "tests/support.py") == [("net.address", 1)]
    assert found("os.system('ssh 10.0.0.1 ls')", "tests/test_a.py") == [("net.address", 1)]


def test_lines_inside_long_texts() -> None:
    code = "os.system('''cd x\ncp /mnt/a b\nssh 10.0.0.9 ls''')\n"
    assert found(code) == [("path.machine", 2), ("net.address", 3)]
