"""Triton's interpreter as the tests use it: bits that mean something, in half the time.

It multiplies matrices by BLAS, whose sums change their order with the number of rows and the processor. Here terms
are added one after the other, so that a row's bits tell whether a kernel treats it alike, as they do on a GPU. It
also makes `triton.language` interpretable anew for every function call, which is done once here, and computes every
integer twice in search of overflows, which no test is large enough to have.
"""

from inspect import ismodule
from typing import Any

import numpy as np
from triton import language
from triton.runtime import interpreter

LANGUAGE = (language, language.core)


def set_up() -> None:
    """Change the interpreter for this process."""
    builder: Any = interpreter.interpreter_builder
    builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter._patch_lang = _Once(interpreter._patch_lang)


def _dot(_builder: object, a: Any, b: Any, total: Any, _input_precision: object, _max_imprecise: object) -> Any:
    """`tl.dot` of [..., M, K] by [..., K, N] onto [..., M, N], in the dtype of the sums."""
    sums = np.zeros_like(total.data)
    left, right = a.data.astype(sums.dtype), b.data.astype(sums.dtype)
    for term in range(left.shape[-1]):
        sums += left[..., term, None] * right[..., term, None, :]
    return interpreter.TensorHandle(sums + total.data, total.dtype.scalar)


class _Once:
    """Makes the modules that a function names interpretable, unless they are, and leaves them so."""

    def __init__(self, patch: Any) -> None:
        self._patch = patch
        self._patched: set[str] = set()

    def __call__(self, function: Any) -> Any:
        named = {value.__name__ for value in function.__globals__.values() if ismodule(value) and value in LANGUAGE}
        if not named <= self._patched:
            self._patch(function)
            self._patched |= named
        return interpreter._LangPatchScope()
