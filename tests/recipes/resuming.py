"""What a core must answer however a request gets its state: cold, from a cached prefix, at a branch, after parking."""

from collections.abc import Sequence
from dataclasses import replace

from flare.build import Core
from flare.contract.manifest import Manifest
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling

LENGTHS = (64, 65, 67, 68, 127)  # mod 64: 0, 1, 3, 4, 63
GREEDY = Sampling(temperature=0, max_tokens=16, ignore_eos=True)


def prompt_of(length: int, vocab: int, salt: int = 0) -> list[int]:
    """Tokens that do not repeat themselves."""
    return [(7 + 13 * place + place * place * 5 + salt * 31) % (vocab - 10) + 5 for place in range(length)]


def answer(engine: Engine, prompt: Sequence[int], sampling: Sampling = GREEDY) -> Completion:
    """One completion, with everything settled after it and checked."""
    done = engine.generate(list(prompt), sampling)
    assert isinstance(done, Completion)
    while engine.step():
        engine.check()
    return done


def crowded(core: Core, pages: int) -> Core:
    """The same core with fewer pages to give away; the null page is a page nobody uses any more."""
    extent = replace(core.device.manifest.extent, pages=pages)
    device = Fewer(core.device, Manifest(core.device.manifest.graphs, extent))
    return replace(core, device=device)


class Fewer:
    """A device that says it has fewer pages."""

    def __init__(self, device, manifest: Manifest) -> None:
        self._device, self.manifest = device, manifest

    def __getattr__(self, name: str):
        return getattr(self._device, name)
