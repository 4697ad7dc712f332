"""The tiny model of the golden files: its geometry, and its weights as transformers stored them."""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from flare.layers.rows import RoundShape
from flare.ops.operators import Operators
from recipes.qwen38.drafter import Drafter
from recipes.qwen38.geometry import Formats, Geometry
from recipes.qwen38.target import Target
from tests.rounds.harness import Bench, bench_extent, bench_of

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen38"
GEOMETRY = Geometry(
    hidden=32,
    layers=4,
    full_attention_interval=4,
    query_heads=6,
    kv_heads=2,
    head_dim=16,
    rotary_dim=8,
    rope_theta=1e7,
    linear_key_heads=2,
    linear_value_heads=6,
    linear_key_dim=8,
    linear_value_dim=8,
    conv_kernel=4,
    output_gate="sigmoid",
    experts=8,
    experts_per_token=2,
    expert_ffn=16,
    shared_ffn=16,
    streams=4,
    lowrank=8,
    indexer_heads=4,
    index_dim=16,
    index_budget=16,
    compress_ratio=4,
    ple_layers=(2,),
    ple_embed_dim=64,
    ple_conv_kernel=4,
    ngram_size=3,
    heads_per_ngram=2,
    ngram_vocab_base=50,
    ngram_row_multiple=8,
    ngram_shards=4,
    seed=1234,
    eos_id=95,
    norm_eps=1e-6,
    vocab=96,
    context=256,
)
FORMATS = Formats(experts="dense", mtp_experts="dense", ple="dense")


def golden(name: str) -> dict[str, Tensor]:
    """All tensors of one golden file."""
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  safe_open is no mapping


def declared_weights() -> dict[str, Tensor]:
    """The golden weights under the names that target and drafter declare: experts stacked, table shards joined."""
    stored = golden("tiny_target_weights_0") | golden("tiny_target_weights_1") | golden("tiny_mtp_weights")
    stored = {name.removeprefix("model.language_model."): tensor for name, tensor in stored.items()}
    weights = {name: tensor for name, tensor in stored.items() if ".experts." not in name and ".shard_" not in name}
    for mlp in [f"layers.{layer}.mlp" for layer in range(GEOMETRY.layers)] + ["mtp.layers.0.mlp"]:
        for part in ("gate_proj", "up_proj", "down_proj"):
            each = [stored[f"{mlp}.experts.{expert}.{part}.weight"] for expert in range(GEOMETRY.experts)]
            weights[f"{mlp}.experts.{part}.weight"] = torch.stack(each)
    table = "layers.1.ple.ple_embedding.ngram_embedding"
    shards = [stored[f"{table}.shard_{shard}.weight"] for shard in range(GEOMETRY.ngram_shards)]
    weights[f"{table}.weight"] = torch.cat(shards)
    return weights


WEIGHTS = declared_weights()


def tiny_bench(
    dtype: str = "float64",
    *,
    drafting: bool = True,
    width: int = 8,
    share_selection: bool = False,
    operators: Operators | None = None,
) -> Bench:
    """A fresh tiny model, poisoned where nothing committed may come from."""
    extent = bench_extent(GEOMETRY.vocab, GEOMETRY.context, width)
    rounds = RoundShape(extent.lanes, extent.width, extent.chunk)
    target = Target(Target.Config(geometry=GEOMETRY, formats=FORMATS), dtype, rounds)
    settings = Drafter.Config(max_depth=7, share_selection=share_selection)
    drafter = Drafter(settings, target) if drafting else None
    return bench_of((target, drafter), WEIGHTS, extent, dtype, operators)


def committed(core: Bench, slot: int) -> dict[str, Tensor]:
    """All state a request's future depends on, cut to its logical lengths: N entries of the target, N − 1 pairs."""
    consumed = int(core.model.requests.consumed[slot])
    pages, found = list(core.pages(slot)), {}
    for name, tensor in core.state.items():
        length = max(consumed - 1, 0) if name.startswith("mtp.") else consumed
        if name.startswith("requests."):
            if name != "requests.events":
                found[name] = tensor[slot].clone()
        elif name.endswith((".keys", ".values")):
            found[name] = tensor[pages].flatten(0, 1)[:length].clone()
        elif name.endswith(".index_keys"):
            found[name] = tensor[pages].flatten(0, 1)[: length // 4 * 4].clone()
        elif name.endswith((".index_ring", ".index_tags")):
            places = [position % tensor.shape[1] for position in range(length // 4 * 4, length)]
            found[name] = tensor[slot, places].clone()
        elif name.endswith((".matrix", ".conv", ".context")):
            found[name] = visible(name, tensor[slot], consumed)
    return found


def visible(name: str, state: Tensor, consumed: int) -> Tensor:
    """Histories are oldest first; what lies before position 0 is never read."""
    return state.clone() if name.endswith(".matrix") else state[max(len(state) - consumed, 0) :].clone()
