"""config.json of a Qwen3.8-Flash-Next repository: its keys, and where a stored one contradicts the recipe's geometry.

Source: qwen38.md section 1.
"""

from collections.abc import Mapping
from typing import Any, Final

from recipes.qwen38.geometry import Geometry

# text_config key → geometry field, where the value is the same.
FIELDS: Final = {
    "vocab_size": "vocab",
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "query_heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "linear_num_key_heads": "linear_key_heads",
    "linear_num_value_heads": "linear_value_heads",
    "linear_key_head_dim": "linear_key_dim",
    "linear_value_head_dim": "linear_value_dim",
    "linear_conv_kernel_dim": "conv_kernel",
    "output_gate_type": "output_gate",
    "num_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn",
    "shared_expert_intermediate_size": "shared_ffn",
    "rms_norm_eps": "norm_eps",
    "hc_count": "streams",
    "hc_lowrank": "lowrank",
    "indexer_n_heads": "indexer_heads",
    "indexer_head_dim": "index_dim",
    "indexer_budget": "index_budget",
    "indexer_compress_ratio": "compress_ratio",
    "ple_layer_ids": "ple_layers",
    "ple_embed_dim": "ple_embed_dim",
    "ple_conv_kernel_size": "ple_conv_kernel",
    "ngram_size": "ngram_size",
    "heads_per_ngram": "heads_per_ngram",
    "ngram_vocab_size_base": "ngram_vocab_base",
    "make_ngram_vocab_size_divisible_by": "ngram_row_multiple",
    "split_ngram_parts": "ngram_shards",
    "seed": "seed",
    "eos_token_id": "eos_id",
}
# What the layers here do and a configuration might ask otherwise.
FIXED: Final = {
    "hidden_act": "silu",
    "norm_topk_prob": True,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "indexer_kv_heads": 1,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}
# Three spellings of one layer type.
FULL: Final = ("full_attention", "qwen_sparse_attention", "indexed_attention")


def config_of(geometry: Geometry) -> dict[str, Any]:
    """A whole config.json, but for its quantisation."""
    facts = {key: getattr(geometry, field) for key, field in FIELDS.items()}
    rope = {
        "rope_type": "default",
        "rope_theta": geometry.rope_theta,
        "partial_rotary_factor": geometry.rotary_dim / geometry.head_dim,
    }
    text = {"model_type": "qwen4_exp_text", **facts, "ple_layer_ids": list(geometry.ple_layers), **FIXED}
    text |= {"layer_types": layer_types(geometry), "rope_parameters": rope, "mamba_ssm_dtype": "float32"}
    text |= {"bos_token_id": geometry.eos_id, "pad_token_id": None, "max_position_embeddings": geometry.context}
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": False,
        "text_config": text,
    }


def layer_types(geometry: Geometry) -> list[str]:
    """The mixer of each layer, as config.json spells it."""
    return ["full_attention" if geometry.is_full(layer) else "linear_attention" for layer in range(geometry.layers)]


def contradictions(config: Mapping[str, Any], geometry: Geometry) -> list[str]:
    """Keys of a stored config.json that say another model; keys it leaves out are the class's own and pass."""
    text = config.get("text_config")
    if config.get("model_type") != "qwen4_exp" or not isinstance(text, Mapping):
        return [f"model_type={config.get('model_type')}, not qwen4_exp"]
    found = [
        f"{key}={text[key]} (recipe.target.geometry.{field}={getattr(geometry, field)})"
        for key, field in FIELDS.items()
        if text.get(key) is not None and plain(text[key]) != plain(getattr(geometry, field))
    ]
    found += [f"{key}={text[key]}, not {value}" for key, value in FIXED.items() if text.get(key, value) != value]
    kinds = ["full_attention" if kind in FULL else kind for kind in text.get("layer_types") or layer_types(geometry)]
    if kinds != layer_types(geometry):
        found.append(f"layer_types (recipe.target.geometry.full_attention_interval={geometry.full_attention_interval})")
    return found + rope_contradictions(text.get("rope_parameters") or {}, geometry)


def rope_contradictions(rope: Mapping[str, Any], geometry: Geometry) -> list[str]:
    """Rotary facts, which no tensor's shape shows."""
    theta = rope.get("rope_theta", geometry.rope_theta)
    turned = rope.get("partial_rotary_factor", geometry.rotary_dim / geometry.head_dim) * geometry.head_dim
    kind = rope.get("rope_type", "default")
    found = [] if kind == "default" else [f"rope_type={kind}, not default"]
    if theta != geometry.rope_theta:
        found.append(f"rope_theta={theta} (recipe.target.geometry.rope_theta={geometry.rope_theta})")
    if round(turned) != geometry.rotary_dim:
        found.append(f"{round(turned)} rotary dimensions (recipe.target.geometry.rotary_dim={geometry.rotary_dim})")
    return found


def plain(value: Any) -> Any:
    """JSON's lists and Python's tuples alike."""
    return list(value) if isinstance(value, tuple) else value
