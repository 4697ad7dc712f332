"""A core around the scripted device: a byte vocabulary and a configuration of plain namespaces."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from flare.contract.manifest import Manifest
from flare.runtime.engine import Engine
from tests.runtime.scripted_device import ScriptedDevice, Truth, scripted_manifest

EOS = 256


class ByteStream:
    """Incremental UTF-8 decoding; ids from 256 on are control tokens without text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int, /) -> str:
        return self._decoder.decode(bytes([token_id])) if token_id < EOS else ""

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class ByteVocabulary:
    """One token per byte."""

    eos_ids = (EOS,)
    size = 512

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(id for id in ids if id < EOS).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Any], add_generation_prompt: bool = True) -> list[int]:
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))

    def stream(self) -> ByteStream:
        return ByteStream()


@dataclass
class ScriptedCore:
    device: ScriptedDevice
    vocabulary: Any
    config: Any
    measured_costs: Mapping[tuple[int, int], float] = field(default_factory=dict)


SAMPLING = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "logit_bias": {}, "seed": None, "n": 1, "max_tokens": 16, "min_tokens": 0, "stop": (),
    "stop_token_ids": (), "ignore_eos": False, "logprobs": None, "grammar": None, "json_schema": None, "regex": None,
}  # fmt: skip


def scripted_engine(
    truth: Truth,
    manifest: Manifest | None = None,
    sampling: dict[str, Any] | None = None,
    clock: Callable[[], float] = perf_counter,
    **serving: Any,
) -> Engine:
    """An engine over a scripted device, which it can be asked for as `engine.core.device`."""
    settings = {
        "concurrency": 4, "mtp_draft_tokens": 7, "adaptive_verification": False, "fixed_width": None,
        "history_drafts": False, "prefix_cache": True, "context_drafts": True, "exploration_share": 0.0, **serving,
    }  # fmt: skip
    config = SimpleNamespace(
        serving=SimpleNamespace(**settings),
        preparation=SimpleNamespace(mtp_only=False),
        sampling=SimpleNamespace(**{**SAMPLING, **(sampling or {})}),
        model_name=lambda: "scripted",
    )
    device = ScriptedDevice(manifest or scripted_manifest(), truth)
    return Engine(ScriptedCore(device, ByteVocabulary(), config), clock)  # pyright: ignore[reportArgumentType]


def saying(text: str | bytes, prompt_tokens: int, then: int = EOS) -> Truth:
    """A truth that answers any prompt of that length with one text, then with `then` for ever."""
    script = text.encode() if isinstance(text, str) else text

    def truth(prefix: Sequence[int]) -> int:
        index = len(prefix) - prompt_tokens
        return script[index] if index < len(script) else then

    return truth


def mixing(period: int = 11, vocab: int = 200, slips: int = 13) -> Truth:
    """A truth that depends on the whole prefix, repeats itself often enough to be copied, and slips now and then."""

    def truth(prefix: Sequence[int]) -> int:
        kind = prefix[0] % 7
        mistake = hash((tuple(prefix[-5:]), len(prefix))) % slips == 0
        return 32 + (len(prefix) * 3 % period + kind * 13 + (17 if mistake else 0)) % vocab

    return truth
