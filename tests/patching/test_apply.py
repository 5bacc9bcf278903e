"""Patches as a process of a run meets them: each test starts a fresh one."""

from __future__ import annotations

import pytest

from .conftest import ADD_TEN, ANSWER, DOUBLE, Lab

ASK = "import fakeup.core; print(fakeup.core.answer())"


def test_a_patch_is_applied_when_its_module_is_first_imported(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    assert lab.output(ASK) == ["11"]
    assert lab.output(ASK, {"VERL_MUSA_PATCHES": ""}) == ["1"]


@pytest.mark.parametrize(("order", "expected"), [(["ten", "double"], "22"), (["double", "ten"], "12")])
def test_the_order_in_series_yaml_is_what_is_applied(lab: Lab, order: list[str], expected: str) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    lab.patch("double", ANSWER, DOUBLE)
    lab.order = [f"fakeup-{name}" for name in order]
    lab.write_series()
    assert lab.output(ASK) == [expected]


def test_one_changed_token_refuses_and_says_everything(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    expected = lab.fingerprint(ANSWER)
    path = lab.module("fakeup.core", "X = 0\ndef answer():\n    return 2\n")
    result = lab.run(ASK)
    assert result.returncode != 0
    for said in (
        "fakeup-ten",
        ANSWER,
        f"{path}:2",
        expected,
        lab.fingerprint(ANSWER),
        "fakeup 1.0",
        str(lab.patches / "fakeup" / "ten.py"),
        "--allow-drift fakeup-ten",
        "docs/upgrading.md",
    ):
        assert said in result.stderr, said
    assert result.stdout == ""


def test_the_module_is_refused_before_it_runs(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    lab.module("fakeup.core", "print('ran')\ndef answer():\n    return 2\n")
    assert "ran" not in lab.run(ASK).stdout


def test_a_refusal_cannot_be_swallowed(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    lab.module("fakeup.other", "def answer():\n    return 3\n")
    lab.patch("other", "fakeup.other:answer", ADD_TEN)
    lab.module("fakeup.core", "def answer():\n    return 2\n")
    result = lab.run(
        """
        for name in ("fakeup.core", "fakeup.core", "fakeup.other"):
            try:
                __import__(name)
            except ImportError:
                print("looks optional")
            except Exception as error:
                print(type(error).__name__, str(error).splitlines()[0])
        """
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("PatchError") for line in lines)
    assert "refused before" in lines[2]
    assert result.stderr.count("does not fit") == 1


def test_allowed_drift_is_applied(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    lab.module("fakeup.core", "def answer():\n    return 2\n")
    assert lab.output(ASK, lab.env(allow_drift=("fakeup-ten",))) == ["12"]


def test_a_patch_that_is_off_is_not_applied(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    lab.patch("double", ANSWER, DOUBLE)
    assert lab.output(ASK, lab.env(off=("fakeup-ten",))) == ["2"]


def test_a_watched_target_that_drifts_refuses_too(lab: Lab) -> None:
    lab.module("fakeup.core", "def answer():\n    return helper()\ndef helper():\n    return 1\n")
    lab.patch("ten", ANSWER, ADD_TEN, watch="fakeup.core:helper")
    assert lab.output(ASK) == ["11"]
    lab.module("fakeup.core", "def answer():\n    return helper()\ndef helper():\n    return 7\n")
    assert "fakeup.core:helper differs" in lab.run(ASK).stderr


@pytest.mark.parametrize(
    ("version", "supported", "lines", "said"),
    [
        ("1.0.post1", '"1.0"', ["11"], ""),
        ("1.5", '"1.0"', ["11"], ""),
        ("2.0", '"1.0", "2.0"', ["1"], ""),
        ("2.1", '"1.0", "2.0"', [], "nobody has verified patch fakeup-ten for fakeup 2.1"),
    ],
    ids=["vendor's post-release, same code", "neighbour, same code", "not needed there", "unknown version"],
)
def test_versions(lab: Lab, version: str, supported: str, lines: list[str], said: str) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    lab.install(version)
    lab.write_series(supported=supported)
    result = lab.run(ASK)
    assert result.stdout.splitlines() == lines
    assert said in result.stderr


def test_a_source_tree_without_metadata_goes_by_its_code_alone(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    (lab.site / "fakeup-1.0.dist-info" / "METADATA").unlink()
    (lab.site / "fakeup-1.0.dist-info").rmdir()
    assert lab.output(ASK) == ["11"]
    lab.module("fakeup.core", "def answer():\n    return 2\n")
    assert "no metadata" in lab.run(ASK).stderr


def test_a_target_recorded_as_absent_is_left_alone_and_refused_when_it_appears(lab: Lab) -> None:
    lab.module("fakeup.core", "def other():\n    return 1\n")
    lab.patch("ten", ANSWER, ADD_TEN, recorded={"1.0": "absent"})
    ask = "import fakeup.core; print(hasattr(fakeup.core, 'answer'))"
    assert lab.output(ask) == ["False"]
    lab.module("fakeup.core", "def answer():\n    return 1\n")
    assert "differs" in lab.run(ask).stderr


def test_replace_and_attribute(lab: Lab) -> None:
    lab.module("fakeup.core", "LIMIT = 60\ndef answer():\n    return LIMIT\n")
    lab.patch(
        "limit", "fakeup.core:LIMIT", "@PATCH.attribute(TARGET)\ndef _(current):\n    return current * 10\n"
    )
    lab.patch("swap", ANSWER, "@PATCH.replace(TARGET)\ndef ours():\n    return 'ours'\n")
    assert lab.output("import fakeup.core as c; print(c.LIMIT, c.answer(), c.answer.__qualname__)") == [
        "600 ours answer"
    ]


def test_methods_keep_their_kind(lab: Lab) -> None:
    lab.module(
        "fakeup.core",
        """
        class Base:
            def inherited(self): return "base"
        class C(Base):
            def plain(self): return "plain"
            @staticmethod
            def static(): return "static"
            @classmethod
            def of(cls): return cls.__name__
        """,
    )
    wrapper = """
        @PATCH.wrap(TARGET{options})
        def _(original):
            def call(*arguments):
                return "patched " + original(*arguments)
            return call
        """
    for name in ("plain", "static", "of"):
        lab.patch(name, f"fakeup.core:C.{name}", wrapper.format(options=""))
    lab.patch("inherited", "fakeup.core:C.inherited", wrapper.format(options=", unbound=True"))
    assert lab.fingerprint("fakeup.core:C.inherited") == "absent"
    output = lab.output(
        """
        from fakeup.core import Base, C
        print(C().plain(), C.static(), C.of(), C().inherited(), Base().inherited(), sep=", ")
        """
    )
    assert output == [
        "patched plain, patched static, patched C, patched inherited, base".replace("inherited", "base")
    ]


def test_copies_taken_in_an_import_cycle_are_replaced(lab: Lab) -> None:
    lab.module("fakeup.user", "from fakeup.core import answer as mine\n")
    lab.module("fakeup.core", "def answer():\n    return 1\nimport fakeup.user\n")
    lab.patch("ten", ANSWER, ADD_TEN)
    assert lab.output("import fakeup.user; print(fakeup.user.mine())") == ["11"]


def test_a_probe_decides_with_the_module_in_hand(lab: Lab) -> None:
    lab.module("fakeup.core", "FIXED = True\ndef answer():\n    return 1\n")
    probe = "@PATCH.unless\ndef _(module):\n    return 'already fixed' if module.FIXED else None\n"
    lab.patch("ten", ANSWER, ADD_TEN + probe)
    assert lab.output(ASK) == ["1"]
    lab.module("fakeup.core", "FIXED = False\ndef answer():\n    return 1\n")
    assert lab.output(ASK) == ["11"]


@pytest.mark.parametrize(("simulated", "expected"), [(True, "1"), (False, "11")])
def test_a_patch_for_real_devices_only(lab: Lab, simulated: bool, expected: str) -> None:
    lab.patch("ten", ANSWER, ADD_TEN, options='devices=("musa",),')
    assert lab.output(ASK, lab.env(simulated=simulated)) == [expected]


def test_a_failing_patch_stops_the_import(lab: Lab) -> None:
    lab.patch("bad", ANSWER, "@PATCH.wrap(TARGET)\ndef _(original):\n    raise KeyError('no')\n")
    result = lab.run(ASK)
    assert "patch fakeup-bad cannot be applied" in result.stderr
    assert result.stdout == ""


def test_another_patch_file_than_the_launchers_is_refused(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    env = lab.env()
    lab.patch("ten", ANSWER, ADD_TEN + "# changed\n")
    assert "another patch file than the launcher" in lab.run(ASK, env).stderr


def test_replaced_functions_pickle_by_reference(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    code = "import pickle, fakeup.core as c; print(pickle.loads(pickle.dumps(c.answer)) is c.answer)"
    assert lab.output(code) == ["True"]


def test_an_attribute_is_added_and_fulfils_an_abstract_base(lab: Lab) -> None:
    source = """
        import abc
        class Base(abc.ABC):
            @abc.abstractmethod
            def answer(self): ...
        class C(Base):
            pass
        """
    lab.module("fakeup.core", source)
    code = "@PATCH.attribute(TARGET, unbound=True)\ndef _(current):\n    return lambda self: 11\n"
    lab.patch("add", "fakeup.core:C.answer", code)
    ask = "from fakeup.core import C; print(C().answer())"
    assert lab.output(ask) == ["11"]
    assert "abstract" in lab.run(ask, lab.env(off=("fakeup-add",))).stderr
    lab.module("fakeup.core", source + "    answer = None\n")
    assert "differs" in lab.run(ask).stderr


def test_an_imported_name_is_changed_in_that_module_alone(lab: Lab) -> None:
    lab.module("fakeup.user", "from fakeup.core import answer\n")
    lab.module("fakeup.third", "from fakeup.core import answer\n")
    lab.patch("user", "fakeup.user:answer", ADD_TEN)
    code = "import fakeup.third, fakeup.user; print(fakeup.user.answer(), fakeup.third.answer())"
    assert lab.output(code) == ["11 1"]
