from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verl_musa.data.digests import SIZE, Seen, digest


def test_parts_are_kept_apart_and_half_surrogates_count() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["\ud83d"]) != digest(["\ude00"])
    assert len(digest([])) == SIZE


@given(st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=8))
def test_what_is_new_is_what_a_set_says(batches: list[list[int]]) -> None:
    seen, known = Seen(), set[int]()
    for batch in batches:
        expected = []
        for number in batch:
            expected.append(number not in known)
            known.add(number)
        # Digests with zero bytes at the end are whole ones too.
        keys = [bytes([number]) + bytes(SIZE - 1) for number in batch]
        assert seen.add(keys) == expected
    assert len(seen) == len(known)
