"""A CUDA graph's rules, watched on a CPU: what a program may do between reading its frame and writing its record.

A capture records kernels and nothing else, so everything a program touches must already be on the device. On a CPU the
two sides look alike; the guard tells them apart by where a tensor came from: storage it was shown, or the result of an
operation on such. A factory that does not say its device is caught by a default device no program uses.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FORBIDDEN_TAGS = {
    torch.Tag.data_dependent_output: "reads a value on the host",
    torch.Tag.dynamic_output_shape: "has a shape that depends on values",
    torch.Tag.nondeterministic_seeded: "draws from torch's generator",
}
BY_INDEX = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")  # dynamic for masks alone
LITERAL = "aten::lift_fresh"
TAKES_LITERALS = ("aten::fill_",)  # which becomes an argument of its kernel


class CaptureError(AssertionError):
    """A program did what no graph can hold."""


class CaptureGuard(TorchDispatchMode):
    """Raises `CaptureError` where a capture on CUDA would fail, or replay a constant of the capture's host."""

    def __init__(self, device_tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._kept: list[torch.Tensor] = []  # so that no address is used twice
        self._known: set[int] = set()
        self.admit(list(device_tensors))

    def admit(self, value: Any) -> Any:
        """Count everything in a result as on the device."""
        for tensor in _tensors(value):
            self._kept.append(tensor)
            self._known.add(tensor.untyped_storage().data_ptr())
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        for tag, what in FORBIDDEN_TAGS.items():
            if tag in func.tags and name not in BY_INDEX:
                raise CaptureError(f"{name} {what}")
        if name in BY_INDEX and any(index.dtype == torch.bool for index in _tensors(args[1])):
            raise CaptureError(f"{name} takes a mask: it has a shape that depends on values")
        if name == LITERAL:
            return func(*args, **(kwargs or {}))
        for operand in _tensors((args, kwargs)):
            if name in TAKES_LITERALS and operand.ndim == 0:
                continue
            if operand.numel() and operand.untyped_storage().data_ptr() not in self._known:
                raise CaptureError(f"{name} takes {tuple(operand.shape)}, which was made on the host")
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if tensor.device.type == "meta":
                raise CaptureError(f"{name} does not say its device")
        return self.admit(result)


class Watch(AbstractContextManager):
    """A guard with a default device that no program may use."""

    def __init__(self, guard: CaptureGuard) -> None:
        self.guard = guard

    def __enter__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(torch.device("meta"))
        self._stack.enter_context(self.guard)

    def __exit__(self, *error: Any) -> None:
        self._stack.close()


def exempted(operators: Any, guards: list[CaptureGuard]) -> Any:
    """An operator set that the guards do not look into: its CUDA twins have tests of their own."""
    members = {field.name: getattr(operators, field.name) for field in fields(operators)}
    return replace(
        operators,
        **{
            name: exempted(member, guards) if is_dataclass(member) else _exempt(member, guards)
            for name, member in members.items()
        },
    )


def _exempt(operator: Callable, guards: list[CaptureGuard]) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), torch.device("cpu"):
            result = operator(*args, **kwargs)
        for guard in guards:
            guard.admit(result)
        return result

    return call


def _tensors(value: Any) -> list[torch.Tensor]:
    """Tensors anywhere in arguments or results, dataclasses and named tuples included."""
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            found += _tensors([getattr(leaf, field.name) for field in fields(leaf)])
    return found
