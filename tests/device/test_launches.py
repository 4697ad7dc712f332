"""How many kernels a round launches outside its target: bookkeeping stays a handful, at every width."""

from tests.ops.triton_device import DEVICE  # isort: skip  Triton decides at import where it runs

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

from flare.ops.cuda import CUDA
from tests.device.test_cuda_operators import on_the_cpu
from tests.rounds.harness import GREEDY, bench, random_weights

MOST_LAUNCHES = 25
# What torch does without a kernel: allocation, and other views of the same memory.
FREE = {
    "alias", "as_strided", "detach", "empty", "empty_like", "expand", "new_empty", "select", "slice", "squeeze", "t",
    "transpose", "unsqueeze", "view",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts torch operations and Triton launches by name, except within a quiet function."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        self.is_quiet = False
        execute = GridExecutor.__call__

        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(executor.fn.__name__)
            with _disable_current_modes():
                return execute(executor, *args, **kwargs)

        patch.setattr(GridExecutor, "__call__", launch)

    def note(self, name: str) -> None:
        if not self.is_quiet:
            self.names.append(name)

    def quiet(self, function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.is_quiet = True
            try:
                return function(*args, **kwargs)
            finally:
                self.is_quiet = False

        return call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in FREE:
            self.note(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")  # the interpreter's own
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on the poison, which kernels do not
@pytest.mark.skipif(DEVICE == "cuda", reason="launches are counted in Triton's interpreter")
def test_a_round_launches_few_kernels_beside_its_target(monkeypatch):
    core = bench(random_weights(), dtype="float32", operators=on_the_cpu(CUDA))
    core.start(0, [1, 2, 3], GREEDY)
    core.boundaries = {0: core.extent.snapshot_row(0)}
    launches = Launches(monkeypatch)
    for verb in ("verify", "head", "commit"):
        monkeypatch.setattr(core.model.target, verb, launches.quiet(getattr(core.model.target, verb)))
    core.guard = launches
    for width in (6, 1):
        core.round([0], width, {0: [1, 2, 3]}, batch=4)
        assert 10 < len(launches.names) <= MOST_LAUNCHES, sorted(launches.names)
        launches.names.clear()
    core.decode([0], batch=2)
    assert 10 < len(launches.names) <= MOST_LAUNCHES, sorted(launches.names)
