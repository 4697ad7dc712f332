"""Every tensor of a Qwen3.8-Flash-Next repository: stored name, shape and number format, from the geometry alone.

Legend: H hidden, D all streams (S · H), R low rank, E experts, I expert_ffn. Linear weights are [out, in].

Source: qwen38.md section 11.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from flare.checkpoint.headers import Expected
from flare.checkpoint.tensors import FLOAT_FORMATS, StoredTensor
from flare.plan.declarations import array_bytes
from recipes.qwen38.geometry import Formats, Geometry

PREFIX: Final = "model.language_model."
MTP_LAYER: Final = "mtp.layers.0"
GROUP: Final = 16  # values under one NVFP4 block scale
BLOCK: Final = 128  # rows and columns under one FP8 block scale

Form = Literal["nvfp4", "nvfp4_input_scale", "separate", "fused", "float8_block", "dense", "fp8"]
"""How one quantisable module is stored.

Experts: nvfp4 (W4A16) and nvfp4_input_scale (W4A4), separate (one bfloat16 matrix per expert and projection), fused
(gate_up_proj and down_proj of all experts), float8_block. N-gram table: dense (bfloat16), fp8, nvfp4.
"""

FORMAT: Final[dict[Form, str]] = {
    "nvfp4_input_scale": "nvfp4",
    "separate": "dense",
    "fused": "dense",
    "float8_block": "dense",
}
"""What a form is once it is read, where that is not its own name; FP8 blocks expand on reading."""

Tensors = dict[str, StoredTensor]


def repository_forms(geometry: Geometry, formats: Formats) -> dict[str, Form]:
    """Module → form where this repository's conventions hold: activation scales on the target's experts only."""
    experts: Form = "nvfp4_input_scale" if formats.experts == "nvfp4" else "separate"
    mtp_experts: Form = "nvfp4" if formats.mtp_experts == "nvfp4" else "separate"
    table: Form = formats.ple
    forms: dict[str, Form] = {mtp_experts_module(): mtp_experts}
    forms.update((module, experts) for module in target_experts(geometry))
    forms.update((module, table) for module in tables(geometry))
    return forms


def target_experts(geometry: Geometry) -> list[str]:
    """Modules of the target's routed experts."""
    return [f"{PREFIX}layers.{layer}.mlp.experts" for layer in range(geometry.layers)]


def mtp_experts_module() -> str:
    """The module of the MTP layer's routed experts."""
    return f"{MTP_LAYER}.mlp.experts"


def tables(geometry: Geometry) -> list[str]:
    """Modules of the n-gram tables, in order of their layers."""
    return [f"{PREFIX}layers.{number - 1}.ple.ple_embedding.ngram_embedding" for number in geometry.ple_layers]


def target_tensors(geometry: Geometry, forms: Mapping[str, Form]) -> Tensors:
    """Stored tensors of the target, the vision tower left out."""
    matrix = (geometry.vocab, geometry.hidden)
    tensors = dense(f"{PREFIX}embed_tokens.weight", *matrix) | dense("lm_head.weight", *matrix)
    tensors |= mixing(geometry, f"{PREFIX}hyper_connection_mixer", injects=False)
    for layer in range(geometry.layers):
        name = f"{PREFIX}layers.{layer}"
        mixer = selective_attention if geometry.is_full(layer) else delta_rule
        tensors |= mixer(geometry, name) | feed_forward(geometry, name, forms) | connections(geometry, name)
    for ordinal, number in enumerate(geometry.ple_layers):
        tensors |= ngram_embedding(geometry, f"{PREFIX}layers.{number - 1}.ple", ordinal, forms)
    return tensors


def mtp_tensors(geometry: Geometry, forms: Mapping[str, Form]) -> Tensors:
    """Stored tensors of the MTP drafter; embedding and head are the target's."""
    H = geometry.hidden
    tensors = dense("mtp.pre_fc_norm_embedding.weight", H) | dense("mtp.pre_fc_norm_hidden.weight", geometry.residual)
    tensors |= dense("mtp.fc_embedding.weight", H, H) | dense("mtp.fc_hidden.weight", H, H)
    tensors |= selective_attention(geometry, MTP_LAYER) | feed_forward(geometry, MTP_LAYER, forms)
    return tensors | connections(geometry, MTP_LAYER) | mixing(geometry, "mtp.hyper_connection_mixer", injects=False)


def connections(geometry: Geometry, layer: str) -> Tensors:
    """The two reads and writes of a layer on the residual streams."""
    attention = mixing(geometry, f"{layer}.attn_hyper_connection", injects=True)
    return attention | mixing(geometry, f"{layer}.mlp_hyper_connection", injects=True)


def mixing(geometry: Geometry, name: str, injects: bool) -> Tensors:
    """One hyperconnection; the two final mixers inject nothing."""
    D, R = geometry.residual, geometry.lowrank
    tensors = dense(f"{name}.hc_norm.weight", D)
    tensors |= dense(f"{name}.input_mix_weight_down.weight", R, D) | dense(f"{name}.input_mix_weight_up.weight", D, R)
    return tensors | dense(f"{name}.block_inject_weight.weight", geometry.streams, D) if injects else tensors


def delta_rule(geometry: Geometry, layer: str) -> Tensors:
    """A gated-delta-rule mixer."""
    name, H = f"{layer}.linear_attn", geometry.hidden
    heads, values = geometry.linear_value_heads, geometry.linear_value_heads * geometry.linear_value_dim
    channels = 2 * geometry.linear_key_heads * geometry.linear_key_dim + values
    tensors = dense(f"{name}.in_proj_qkv.weight", channels, H) | dense(f"{name}.in_proj_z.weight", values, H)
    tensors |= dense(f"{name}.in_proj_a.weight", heads, H) | dense(f"{name}.in_proj_b.weight", heads, H)
    tensors |= dense(f"{name}.conv1d.weight", channels, 1, geometry.conv_kernel) | dense(f"{name}.A_log", heads)
    tensors |= dense(f"{name}.dt_bias", heads) | dense(f"{name}.norm.weight", geometry.linear_value_dim)
    return tensors | dense(f"{name}.out_proj.weight", H, values)


def selective_attention(geometry: Geometry, layer: str) -> Tensors:
    """A QSA mixer with its token selector; q_proj holds query and gate of each head side by side."""
    name, H, head = f"{layer}.self_attn", geometry.hidden, geometry.head_dim
    queries, keys = geometry.query_heads * head, geometry.kv_heads * head
    tensors = dense(f"{name}.q_proj.weight", 2 * queries, H) | dense(f"{name}.k_proj.weight", keys, H)
    tensors |= dense(f"{name}.v_proj.weight", keys, H) | dense(f"{name}.o_proj.weight", H, queries)
    tensors |= dense(f"{name}.q_norm.weight", head) | dense(f"{name}.k_norm.weight", head)
    index = geometry.index_dim
    tensors |= dense(f"{name}.indexer.index_qk_proj.weight", (geometry.indexer_heads + 1) * index, H)
    return (
        tensors
        | dense(f"{name}.indexer.q_layernorm.weight", index)
        | dense(f"{name}.indexer.k_layernorm.weight", index)
    )


def feed_forward(geometry: Geometry, layer: str, forms: Mapping[str, Form]) -> Tensors:
    """Router, shared expert and routed experts of one layer."""
    name, H, shared = f"{layer}.mlp", geometry.hidden, geometry.shared_ffn
    tensors = dense(f"{name}.gate.weight", geometry.experts, H) | dense(f"{name}.shared_expert_gate.weight", 1, H)
    for projection, out, columns in projections(H, shared):
        tensors |= dense(f"{name}.shared_expert.{projection}.weight", out, columns)
    return tensors | routed_experts(geometry, f"{name}.experts", forms[f"{name}.experts"])


def routed_experts(geometry: Geometry, name: str, form: Form) -> Tensors:
    """All experts of one layer, in the form they are stored in."""
    E, H, I = geometry.experts, geometry.hidden, geometry.expert_ffn  # noqa: E741 — the legend's letter
    if form == "fused":
        return dense(f"{name}.gate_up_proj", E, 2 * I, H) | dense(f"{name}.down_proj", E, H, I)
    tensors: Tensors = {}
    for expert in range(E):
        for projection, out, columns in projections(H, I):
            tensors |= matrix(f"{name}.{expert}.{projection}", out, columns, form)
    return tensors


def projections(hidden: int, ffn: int) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of a gated MLP's matrices."""
    yield from (("gate_proj", ffn, hidden), ("up_proj", ffn, hidden), ("down_proj", hidden, ffn))


def matrix(name: str, out: int, columns: int, form: Form) -> Tensors:
    """One expert's matrix with its scales."""
    if form == "separate":
        return dense(f"{name}.weight", out, columns)
    if form == "float8_block":
        blocks = (-(-out // BLOCK), -(-columns // BLOCK))
        return tensor(f"{name}.weight", (out, columns), "float8_e4m3fn") | dense(f"{name}.weight_scale_inv", *blocks)
    tensors = tensor(f"{name}.weight", (out, columns // 2), "uint8")
    tensors |= tensor(f"{name}.weight_scale", (out, columns // GROUP), "float8_e4m3fn")
    tensors |= tensor(f"{name}.weight_scale_2", (), "float32")
    return tensors | tensor(f"{name}.input_scale", (), "float32") if form == "nvfp4_input_scale" else tensors


def ngram_embedding(geometry: Geometry, name: str, ordinal: int, forms: Mapping[str, Form]) -> Tensors:
    """The n-gram embedding of one layer: projections, convolution, hash constants, table."""
    D, H, heads = geometry.residual, geometry.hidden, geometry.ngram_heads
    tensors = dense(f"{name}.key_proj.weight", D, geometry.ple_embed_dim)
    tensors |= dense(f"{name}.value_proj.weight", H, geometry.ple_embed_dim)
    for norm in ("norm_key", "norm_query", "norm_conv"):
        tensors |= dense(f"{name}.{norm}.weight", D)
    tensors |= dense(f"{name}.conv1d.weight", D, 1, geometry.ple_conv_kernel)
    tensors |= tensor(f"{name}.ple_embedding.layer_multipliers", (geometry.ngram_size,), "int64")
    for constant in ("ngram_heads_vocab_sizes", "ngram_heads_offsets"):
        tensors |= tensor(f"{name}.ple_embedding.{constant}", (heads,), "int64")
    module = f"{name}.ple_embedding.ngram_embedding"
    return tensors | table(module, geometry.shard_rows(ordinal), geometry.ngram_dim, forms[module])


def table(name: str, rows: tuple[int, ...], columns: int, form: Form) -> Tensors:
    """The shards of an n-gram table with its scales."""
    tensors: Tensors = {}
    for index, count in enumerate(rows):
        shard = f"{name}.shard_{index}"
        if form == "nvfp4":
            tensors |= tensor(f"{shard}.weight", (count, columns // 2), "uint8")
            tensors |= tensor(f"{shard}.weight_scale", (count, columns // GROUP), "float8_e4m3fn")
        else:
            tensors |= tensor(f"{shard}.weight", (count, columns), "float8_e4m3fn" if form == "fp8" else "bfloat16")
    if form == "nvfp4":
        return tensors | tensor(f"{name}.weight_scale_2", (1,), "float32")
    return tensors | dense(f"{name}.weight_scale", 1) if form == "fp8" else tensors


def dense(name: str, *shape: int) -> Tensors:
    """A bfloat16 tensor."""
    return tensor(name, shape, "bfloat16")


def tensor(name: str, shape: tuple[int, ...], format: str) -> Tensors:
    """One entry."""
    return {name: StoredTensor(name, shape, format, array_bytes(shape, format))}


def expected(tensors: Tensors) -> dict[str, Expected]:
    """What headers must say: the exact packed formats, and any float format where the layout writes bfloat16."""
    return {
        name: Expected(stored.shape, FLOAT_FORMATS if stored.format == "bfloat16" else {stored.format})
        for name, stored in tensors.items()
    }
