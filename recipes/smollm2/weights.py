"""Stored names to parts: a Llama-type checkpoint, GGUF or Hugging Face, read under the names the target declares.

Declared weights, [out, in] (V vocab, H hidden, F ffn, D head_dim, Hq query_heads, Hk kv_heads):
    embed [V, H], norm [H], head [V, H] unless tied, and per layer i under layers.{i}. —
    attention_norm [H], qkv [(Hq + 2 Hk) D, H] = query, key, value rows, output [H, Hq D],
    mlp_norm [H], gate_up [2 F, H] = gate, up rows, down [H, F].
Rotary rows are half-split everywhere: dimension j of a head turns with j + D/2. llama.cpp stores query and key with the
two interleaved (2j with 2j + 1); reading undoes that.

Source: transformers LlamaForCausalLM; llama.cpp convert_hf_to_gguf.py, LlamaModel.permute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from flare.checkpoint.gguf import QUANTISED_FORMATS
from flare.checkpoint.headers import Expected, check_headers
from flare.checkpoint.tensors import FLOAT_FORMATS, Checkpoint, Layout

# Derived from the configuration by whoever runs the model; old files store them all the same.
IGNORED_ENDINGS: Final = ("rotary_emb.inv_freq", "rope_freqs.weight")


class Geometry(Protocol):
    """The numbers that fix every shape."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def query_heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tied(self) -> bool: ...


@dataclass(frozen=True)
class StoredPart:
    """One stored tensor, of which a declared weight is made by stacking rows.

    Attributes:
        rotary_heads: heads whose rows llama.cpp interleaves; 0 for all but query and key.
    """

    name: str
    shape: tuple[int, ...]
    rotary_heads: int = 0


# Declared part → stored names, per layout: the whole model's, then those below a layer's prefix.
MODEL_NAMES: Final[dict[Layout, dict[str, str]]] = {
    "huggingface": {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"},
    "gguf": {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"},
}
LAYER_NAMES: Final[dict[Layout, dict[str, str]]] = {
    "huggingface": {
        "prefix": "model.layers.{}.",
        "attention_norm": "input_layernorm.weight",
        "query": "self_attn.q_proj.weight",
        "key": "self_attn.k_proj.weight",
        "value": "self_attn.v_proj.weight",
        "output": "self_attn.o_proj.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
    },
    "gguf": {
        "prefix": "blk.{}.",
        "attention_norm": "attn_norm.weight",
        "query": "attn_q.weight",
        "key": "attn_k.weight",
        "value": "attn_v.weight",
        "output": "attn_output.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
    },
}


def stored_parts(geometry: Geometry, layout: Layout) -> dict[str, tuple[StoredPart, ...]]:
    """Declared name → the stored tensors whose rows, in this order, make it up."""
    model, H, V = MODEL_NAMES[layout], geometry.hidden, geometry.vocab
    parts = {"embed": (StoredPart(model["embed"], (V, H)),)}
    for index in range(geometry.layers):
        parts |= layer_parts(geometry, layout, index)
    parts["norm"] = (StoredPart(model["norm"], (H,)),)
    if not geometry.tied:
        parts["head"] = (StoredPart(model["head"], (V, H)),)
    return parts


def layer_parts(geometry: Geometry, layout: Layout, index: int) -> dict[str, tuple[StoredPart, ...]]:
    """The part of `stored_parts` that is layer `index`."""
    names, H, F = LAYER_NAMES[layout], geometry.hidden, geometry.ffn
    query_rows, kv_rows = geometry.query_heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim

    def part(name: str, *shape: int, rotary_heads: int = 0) -> StoredPart:
        return StoredPart(names["prefix"].format(index) + names[name], shape, rotary_heads)

    parts = {
        "attention_norm": (part("attention_norm", H),),
        "qkv": (
            part("query", query_rows, H, rotary_heads=geometry.query_heads),
            part("key", kv_rows, H, rotary_heads=geometry.kv_heads),
            part("value", kv_rows, H),
        ),
        "output": (part("output", H, query_rows),),
        "mlp_norm": (part("mlp_norm", H),),
        "gate_up": (part("gate", F, H), part("up", F, H)),
        "down": (part("down", H, F),),
    }
    return {f"layers.{index}.{name}": stored for name, stored in parts.items()}


def stored_weights(checkpoint: Checkpoint, geometry: Geometry) -> Callable[[str], Tensor]:
    """From declared names to tensors, once all headers agree with the geometry; see `StoredWeights`.

    Raises:
        CheckpointError: they do not agree.
    """
    stored = StoredWeights(geometry, checkpoint)
    stored.check()
    return stored.read


class StoredWeights:
    """A checkpoint seen through a geometry.

    Attributes:
        parts: declared name → stored tensors, in the order of the model.
    """

    def __init__(self, geometry: Geometry, checkpoint: Checkpoint) -> None:
        self.geometry, self.checkpoint = geometry, checkpoint
        self.parts = stored_parts(geometry, checkpoint.layout)

    def check(self) -> None:
        """Compare all headers with the geometry; reads no tensor.

        Raises:
            CheckpointError: every missing, extra, mis-shaped or unreadable tensor, in one message.
        """
        layout = self.checkpoint.layout
        formats = FLOAT_FORMATS | QUANTISED_FORMATS if layout == "gguf" else FLOAT_FORMATS
        declared = {part.name: Expected(part.shape, formats) for parts in self.parts.values() for part in parts}
        # A tied model may store its head a second time; the embedding is the one that counts.
        head = MODEL_NAMES[layout]["head"] if self.geometry.tied else None
        stored = {
            name: header
            for name, header in self.checkpoint.headers.items()
            if name != head and not name.endswith(IGNORED_ENDINGS)
        }
        check_headers(declared, stored, self.checkpoint.origin, self.checkpoint.damaged)

    def read(self, name: str) -> Tensor:
        """The declared weight, in its stored dtype; float32 where it is quantised, memory of the caller's own.

        Raises:
            CheckpointError: a stored tensor is absent or of a type that cannot be expanded.
        """
        pieces = [self._piece(part) for part in self.parts[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _piece(self, part: StoredPart) -> Tensor:
        stored = self.checkpoint.read(part.name)
        if part.rotary_heads and self.checkpoint.layout == "gguf":
            return half_split(stored, part.rotary_heads)
        return stored


def half_split(interleaved: Tensor, heads: int) -> Tensor:
    """Rows [heads × D, in] with rotary partners side by side → partners D/2 apart."""
    rows, columns = interleaved.shape
    pairs = interleaved.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
