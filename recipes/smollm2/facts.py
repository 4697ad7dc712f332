"""A checkpoint's own configuration as a geometry, so that any Llama-type model is a config away.

Everything the decoder here does not do is refused by name: other architectures, scaled or partial rotary embeddings,
biases, mixtures of experts, sliding windows, quantised Hugging Face folders.
"""

from collections.abc import Mapping
from typing import Any

from flare.checkpoint.tensors import Checkpoint
from flare.errors import CheckpointError


def geometry_of(checkpoint: Checkpoint) -> dict[str, int | float | bool]:
    """hidden, layers, query_heads, kv_heads, head_dim, ffn, vocab, rope_base, norm_eps, tied, context.

    Raises:
        CheckpointError: not a Llama-type model, one with a variation not implemented here, or a fact is absent.
    """
    facts = Facts(checkpoint)
    return gguf_geometry(facts) if checkpoint.layout == "gguf" else folder_geometry(facts)


class Facts:
    """The configuration with refusals that name the file, the key and the value."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.values: Mapping[str, Any] = checkpoint.config

    def need(self, key: str) -> Any:
        """A fact that must be stated."""
        if self.values.get(key) is None:
            raise CheckpointError(f"{self.checkpoint.origin} does not state {key}, which a Llama-type model needs.")
        return self.values[key]

    def count(self, key: str) -> int:
        """A size or number of parts that must be stated."""
        value = self.need(key)
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.checkpoint.origin} has {key}={value}, which must be 1 or more.")
        return value

    def get(self, key: str, default: Any) -> Any:
        """A fact, or what its absence (or null) means."""
        value = self.values.get(key)
        return default if value is None else value

    def require(self, key: str, value: Any, allowed: tuple[Any, ...], what: str) -> None:
        """Refuse a value outside `allowed`."""
        if value not in allowed:
            names = " or ".join(str(one) for one in allowed)
            raise CheckpointError(f"{self.checkpoint.origin} has {key}={value}; this recipe {what} (needs {names}).")


def gguf_geometry(facts: Facts) -> dict[str, int | float | bool]:
    """From the key-value pairs of a GGUF header."""
    facts.require(
        "general.architecture", facts.need("general.architecture"), ("llama",), "reads Llama-type models only"
    )
    facts.require("llama.expert_count", facts.get("llama.expert_count", 0), (0,), "has no mixture of experts")
    scaling = facts.get("llama.rope.scaling.type", "none")
    facts.require("llama.rope.scaling.type", scaling, ("none",), "does not scale rotary embeddings")
    heads, hidden = facts.count("llama.attention.head_count"), facts.count("llama.embedding_length")
    head_dim = facts.get("llama.attention.key_length", hidden // heads)
    rotary = facts.get("llama.rope.dimension_count", head_dim)
    facts.require("llama.rope.dimension_count", rotary, (head_dim,), "turns whole heads")
    refuse_scaled_frequencies(facts)
    embedding = facts.checkpoint.headers.get("token_embd.weight")
    return {
        "hidden": hidden,
        "layers": facts.count("llama.block_count"),
        "query_heads": heads,
        "kv_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "ffn": facts.count("llama.feed_forward_length"),
        "vocab": embedding.shape[0] if embedding else facts.count("llama.vocab_size"),
        "rope_base": facts.get("llama.rope.freq_base", 10_000.0),
        "norm_eps": nearest_decimal(facts.need("llama.attention.layer_norm_rms_epsilon")),
        "tied": "output.weight" not in facts.checkpoint.headers,
        "context": facts.count("llama.context_length"),
    }


def folder_geometry(facts: Facts) -> dict[str, int | float | bool]:
    """From a config.json, of transformers 4 or 5."""
    facts.require("model_type", facts.need("model_type"), ("llama",), "reads Llama-type models only")
    facts.require("hidden_act", facts.get("hidden_act", "silu"), ("silu",), "has SiLU gates only")
    for key, what in (("attention_bias", "has no biases"), ("mlp_bias", "has no biases")):
        facts.require(key, facts.get(key, False), (False,), what)
    facts.require("rope_interleaved", facts.get("rope_interleaved", False), (False,), "turns half-split heads")
    if facts.get("quantization_config", None) is not None:
        raise CheckpointError(f"{facts.checkpoint.origin} is quantised; use its unquantised folder or a GGUF file.")
    rope = facts.get("rope_parameters", None) or facts.get("rope_scaling", None) or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{facts.checkpoint.origin} has rope_scaling={rope!r}, which must be an object or null.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    facts.require("rope_scaling", kind, ("default",), "does not scale rotary embeddings")
    partial = rope.get("partial_rotary_factor", facts.get("partial_rotary_factor", 1.0))
    facts.require("partial_rotary_factor", partial, (1.0,), "turns whole heads")
    heads, hidden = facts.count("num_attention_heads"), facts.count("hidden_size")
    return {
        "hidden": hidden,
        "layers": facts.count("num_hidden_layers"),
        "query_heads": heads,
        "kv_heads": facts.get("num_key_value_heads", heads),
        "head_dim": facts.get("head_dim", hidden // heads),
        "ffn": facts.count("intermediate_size"),
        "vocab": facts.count("vocab_size"),
        "rope_base": float(rope.get("rope_theta", facts.get("rope_theta", 10_000.0))),
        "norm_eps": facts.need("rms_norm_eps"),
        "tied": facts.get("tie_word_embeddings", False),
        "context": facts.count("max_position_embeddings"),
    }


def refuse_scaled_frequencies(facts: Facts) -> None:
    """llama.cpp writes Llama 3's scaling as one divisor per frequency; all ones mean none."""
    name = "rope_freqs.weight"
    if name in facts.checkpoint.headers and not bool((facts.checkpoint.read(name) == 1).all()):
        facts.require(name, "scaled", ("ones",), "does not scale rotary embeddings")


def nearest_decimal(single: float) -> float:
    """A number that was rounded to float32 when stored, as it was written: 1e-5, not 9.999999747378752e-06."""
    return float(f"{single:.7g}")
