"""The import hook: what it touches, what it leaves alone, and every odd way to import a module."""

from __future__ import annotations

import sys
import zipfile

import pytest

from verl_musa._start import PLAN_ENV, PLAN_MARK, split_plan

from .conftest import ADD_TEN, ANSWER, CHECKOUT, Lab

ASK = "import fakeup.core; print(fakeup.core.answer())"


@pytest.fixture
def patched(lab: Lab) -> Lab:
    lab.patch("ten", ANSWER, ADD_TEN)
    return lab


def test_nothing_is_imported_until_a_target_is(patched: Lab) -> None:
    code = """
        import sys
        before = [name for name in sys.modules if name.startswith("verl_musa")]
        import fakeup
        print(*sorted(before), "fakeup.core" in sys.modules)
        print(*(name for name in ("json", "typing", "dataclasses", "yaml", "pydantic", "typer", "torch") if name in sys.modules))
        """
    # What other start hooks of this environment bring in does not count.
    unhooked = patched.run(code, {PLAN_ENV: ""}, hook=False).stdout.splitlines()
    assert unhooked[0] in {"False", "verl_musa verl_musa._start False"}
    assert patched.output(code) == ["verl_musa verl_musa._start False", unhooked[1]]


def test_the_worker_half_needs_no_launcher_library(patched: Lab) -> None:
    code = ASK + "; import sys; print({'yaml', 'pydantic', 'typer', 'rich', 'torch'} & sys.modules.keys())"
    assert patched.output(code) == ["11", "set()"]


def test_reload_patches_again_and_once(patched: Lab) -> None:
    code = ASK + "; import importlib; print(importlib.reload(fakeup.core).answer())"
    assert patched.output(code) == ["11", "11"]


def test_the_loader_is_the_real_one_afterwards(patched: Lab) -> None:
    code = """
        import fakeup.core, inspect
        print(type(fakeup.core.__loader__).__name__, type(fakeup.core.__spec__.loader).__name__)
        print("return 1" in inspect.getsource(fakeup.core))
        """
    assert patched.output(code) == ["SourceFileLoader SourceFileLoader", "True"]


def test_asking_for_the_spec_does_not_import(patched: Lab) -> None:
    code = """
        import importlib.util, sys
        spec = importlib.util.find_spec("fakeup.core")
        print(spec.origin.endswith("core.py"), "fakeup.core" in sys.modules, spec.loader.get_filename() == spec.origin)
        print(importlib.util.find_spec("fakeup.nothing"))
        """
    assert patched.output(code) == ["True False True", "None"]


def test_a_module_that_is_missing_stays_a_module_not_found_error(patched: Lab) -> None:
    (patched.site / "fakeup" / "core.py").unlink()
    result = patched.run("try:\n    import fakeup.core\nexcept ModuleNotFoundError:\n    print('missing')\n")
    assert result.stdout == "missing\n"


def test_a_module_imported_before_activation_is_patched_at_once_with_its_copies(patched: Lab) -> None:
    patched.module("fakeup.user", "from fakeup.core import answer\n")
    code = """
        import os, sys
        plan = os.environ.pop("PLAN")
        import fakeup.core, fakeup.user, verl_musa._start as start
        print(fakeup.user.answer())
        start.activate(plan)
        start.activate(plan)
        print(fakeup.core.answer(), fakeup.user.answer())
        print(sum(isinstance(finder, start.PatchFinder) for finder in sys.meta_path))
        """
    result = patched.run(code, {PLAN_ENV: "", "PLAN": patched.env()[PLAN_ENV]}, hook=False)
    assert result.stdout.splitlines() == ["1", "11 11", "1"], result.stderr


def test_a_module_imported_before_activation_that_drifted_is_refused(patched: Lab) -> None:
    patched.module("fakeup.core", "def answer():\n    return 2\n")
    result = patched.run("import fakeup.core\nimport verl_musa._start\nprint('went on')\n", hook=False)
    assert "does not fit" in result.stderr
    assert result.stdout == ""


def test_a_process_runs_one_plan(patched: Lab) -> None:
    result = patched.run("import verl_musa._start as s; s.activate(s.installed_finder().text + ' ')")
    assert "already runs another patch series" in result.stderr


@pytest.mark.parametrize(
    "text", ["{", "nonsense", f"{PLAN_MARK};a", f"{PLAN_MARK};a;[]", "verl-musa-patches-9;a;{}"]
)
def test_an_unusable_plan_ends_the_process(lab: Lab, text: str) -> None:
    with pytest.raises(ValueError, match=PLAN_MARK):
        split_plan(text)
    result = lab.run("print('went on')", {PLAN_ENV: text})
    assert result.returncode in {1, 2}  # 1: site.py turns any SystemExit of a .pth line into it
    assert f"{PLAN_ENV} cannot be used" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("plan", ["{", '{"series": "x"}'])
def test_a_damaged_plan_refuses_at_the_first_target(lab: Lab, plan: str) -> None:
    result = lab.run(
        "import fakeup\nimport fakeup.core\nprint('went on')", {PLAN_ENV: f"{PLAN_MARK};fakeup.core;{plan}"}
    )
    assert result.returncode != 0
    assert "PatchError" in result.stderr
    assert result.stdout == ""


def test_namespace_packages_on_the_way_and_as_a_target(lab: Lab) -> None:
    (lab.site / "spread").mkdir()
    (lab.site / "spread" / "core.py").write_text("def answer():\n    return 1\n")
    lab.patch("ten", "spread.core:answer", ADD_TEN)
    assert lab.output("import spread.core; print(spread.core.answer())") == ["11"]
    lab.patch("whole", "spread:answer", ADD_TEN, recorded={"1.0": "absent"})
    assert "spread from NoneType" in lab.run("import spread").stderr


def test_frozen_and_built_in_modules_cannot_be_targets(lab: Lab) -> None:
    lab.patch("frozen", "zipimport:zipimporter", ADD_TEN, recorded={"1.0": "absent"})
    lab.patch("builtin", "_opcode:answer", ADD_TEN, recorded={"1.0": "absent"})
    code = "import sys; sys.modules.pop('zipimport', None)\nimport zipimport"
    assert "has no Python source" in lab.run(code, lab.env(off=("fakeup-builtin",))).stderr


def test_a_module_in_a_zip_file(patched: Lab) -> None:
    archive = patched.root / "up.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        for path in sorted((patched.site / "fakeup").glob("*.py")):
            stream.write(path, f"fakeup/{path.name}")
            path.unlink()
    (patched.site / "fakeup").rmdir()
    code = f"import sys; sys.path.insert(0, {str(archive)!r})\n{ASK}"
    assert patched.output(code) == ["11"]


def test_threads_that_import_at_once_all_see_the_patch(patched: Lab) -> None:
    patched.module("fakeup.core", "import time; time.sleep(0.2)\ndef answer():\n    return 1\n")
    code = """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        gate = threading.Barrier(8)
        def ask(_):
            gate.wait()
            from fakeup.core import answer
            return answer()
        with ThreadPoolExecutor(8) as pool:
            print(set(pool.map(ask, range(8))))
        """
    assert patched.output(code) == ["{11}"]


def test_targets_that_import_each_other_from_two_threads_do_not_deadlock(lab: Lab) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        source = f"import time; time.sleep(0.2)\ndef answer():\n    return 1\nimport fakeup.{other}\n"
        lab.module(f"fakeup.{name}", source)
        lab.patch(name, f"fakeup.{name}:answer", ADD_TEN)
    code = """
        import importlib, threading
        pair = [threading.Thread(target=importlib.import_module, args=(f"fakeup.{n}",)) for n in ("one", "two")]
        [t.start() for t in pair]; [t.join(20) for t in pair]
        import fakeup.one, fakeup.two
        print(fakeup.one.answer(), fakeup.two.answer(), any(t.is_alive() for t in pair))
        """
    assert lab.output(code) == ["11 11 False"]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_of_multiprocessing_are_patched(patched: Lab, method: str) -> None:
    # The children start through the real start-up path: a .pth file is what `sitecustomize` stands in for here.
    (patched.site / "sitecustomize.py").write_text("import verl_musa._start\n")
    (patched.site / "work.py").write_text(
        "def ask():\n    import fakeup.core\n    return fakeup.core.answer()\n"
    )
    (patched.site / "main.py").write_text(
        "import multiprocessing as m, work\n"
        "if __name__ == '__main__':\n"
        f"    with m.get_context({method!r}).Pool(1) as pool:\n"
        "        print(pool.apply(work.ask))\n"
    )
    code = "import runpy, os; runpy.run_path(os.path.join(os.environ['MAIN']), run_name='__main__')"
    result = patched.run(code, {**patched.env(), "MAIN": str(patched.site / "main.py")})
    assert result.stdout == "11\n", result.stderr


def test_the_start_line_is_one_import_line_that_checks_the_variable_first() -> None:
    text = (CHECKOUT / "verl_musa" / "_start.pth").read_text()
    assert text.count("\n") == 1
    assert text.startswith("import ")
    loaded = set(sys.modules)
    exec(text.replace("VERL_MUSA_PATCHES", "VERL_MUSA_NEVER_SET"), {})  # noqa: S102
    assert set(sys.modules) == loaded
