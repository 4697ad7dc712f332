"""One report of all differences between a checkpoint and what a recipe declares."""

import pytest

from flare.checkpoint.headers import Expected, check_headers
from flare.checkpoint.tensors import Damage, StoredTensor
from flare.errors import CheckpointError

DECLARED = {"a": Expected((2, 3), {"float32"}), "b": Expected((4,), {"float32"}), "c": Expected((5,), {"float32"})}


def stored(**tensors: tuple[tuple[int, ...], str]) -> dict[str, StoredTensor]:
    return {name: StoredTensor(name, shape, format, 0) for name, (shape, format) in tensors.items()}


def test_equal_headers_pass():
    check_headers(DECLARED, stored(a=((2, 3), "float32"), b=((4,), "float32"), c=((5,), "float32")), "file")


def test_all_differences_are_in_one_message():
    tensors = stored(a=((3, 2), "float32"), b=((4,), "int8"), x=((1,), "float32"))
    with pytest.raises(CheckpointError) as caught:
        check_headers(DECLARED, tensors, "folder/m")
    assert str(caught.value) == (
        "folder/m is not the model that the recipe declares: 1 missing: c [5]; 1 not declared: x [1]; "
        "1 of another shape: a [3, 2], declared [2, 3]; 1 in a format that cannot be read: b (int8)."
    )


def test_a_long_list_is_cut_and_counted():
    declared = {f"layer{index}": Expected((1,), {"float32"}) for index in range(30)}
    with pytest.raises(CheckpointError, match=r"30 missing: layer0 \[1\], .*layer7 \[1\] and 22 more\."):
        check_headers(declared, {}, "m")


def test_tensors_of_a_damaged_file_are_told_once():
    damaged = Damage("Cannot read part-2: it is empty; download it again", frozenset({"b", "c"}))
    with pytest.raises(CheckpointError, match=r"1 damaged: Cannot read part-2.*; 1 missing: a \[2, 3\]\.$"):
        check_headers(DECLARED, {}, "m", [damaged])
    with pytest.raises(CheckpointError, match=r"declares: 1 damaged: [^;]*; download it again\.$"):
        check_headers(DECLARED, stored(a=((2, 3), "float32")), "m", [damaged])
