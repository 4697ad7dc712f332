"""A whole request through the CUDA operator set, kernels and all, leaves what the CPU's operators leave."""

from tests.ops.triton_device import DEVICE  # isort: skip  Triton decides at import where it runs

from dataclasses import replace
from functools import partial
from inspect import signature

import pytest

from flare import ops
from flare.ops.cuda import CUDA
from flare.ops.operators import Operators
from tests.rounds.harness import GREEDY, bench, random_weights

SAMPLED = replace(GREEDY, temperature=0.8, top_k=5, seed=4)


def on_the_cpu(operators: Operators) -> Operators:
    """The set with its tables where the tensors of this test are."""
    assert "device" in signature(operators.rotary_table).parameters
    return replace(operators, rotary_table=partial(operators.rotary_table, device="cpu"))


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")  # the interpreter's own
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on the poison, which kernels do not
@pytest.mark.skipif(DEVICE == "cuda", reason="compiled kernels take no CPU tensors; tests/gpu runs whole cores")
def test_a_request_is_served_alike_by_both_operator_sets():
    weights, answers = random_weights(), []
    for operators in (ops.load("cpu"), on_the_cpu(CUDA)):
        core = bench(weights, dtype="float32", operators=operators)
        first = core.start(0, [1, 2, 3], SAMPLED)
        drafted = core.round([0], 3, {0: [1, 2]}, batch=2)[0].tolist()
        answers.append((first, drafted, core.decode([0])[0].tolist()))
    assert answers[0] == answers[1]
