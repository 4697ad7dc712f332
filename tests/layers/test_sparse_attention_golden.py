"""The whole layer against the outside implementation's tiny model: outputs and selection, at several cuts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare import ops
from flare.layers.rows import PageTables, causal_rows
from flare.layers.sparse_attention import SparseAttention, SparseAttentionShape, sparse_rotary
from flare.layers.storage import Storage
from flare.ops.norm.cpu import zero_centred_norm
from flare.ops.sparse_attention.cpu import SPARSE
from flare.state.arena import Arena
from tests.goldens import golden
from tests.layers.sparse_bench import EXTENT

NAME = "layers.3.self_attn"
TOKENS = 45


def stored() -> dict[str, Tensor]:
    """Weights of layer 3 under the names a layer declares them by."""
    both = golden("qwen38/tiny_target_weights_0")[0] | golden("qwen38/tiny_target_weights_1")[0]
    prefix = "model.language_model."
    return {name.removeprefix(prefix): both[name].float() for name in both if name.startswith(f"{prefix}layers.3.")}


def block_input(residual: Tensor, weights: dict[str, Tensor], streams: int) -> Tensor:
    """Hyperconnection read of residual rows [T, S · H], written out: what the attention of layer 3 receives."""
    part = {
        name: weights[f"layers.3.attn_hyper_connection.{name}.weight"]
        for name in ("hc_norm", "input_mix_weight_down", "input_mix_weight_up")
    }
    normed = zero_centred_norm(residual, part["hc_norm"], 1e-6, streams)
    low = torch.nn.functional.silu(normed @ part["input_mix_weight_down"].T / streams)
    gate = (low @ part["input_mix_weight_up"].T).sigmoid()
    return (gate * normed).unflatten(1, (streams, -1)).mean(1)


@pytest.mark.parametrize("cuts", [[45], [20, 5, *[1] * 20], [1, 2, 8, 8, 8, 8, 8, 2]])
def test_the_layer_agrees_with_the_outside_model(cuts: list[int]) -> None:
    torch.set_num_threads(1)
    run, params = golden("qwen38/tiny_target_run")
    config = params["config"]
    weights = stored()
    shape = SparseAttentionShape(
        hidden=config["hidden_size"],
        query_heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        index_heads=config["indexer_n_heads"],
        index_dim=config["indexer_head_dim"],
        budget_tokens=config["indexer_budget"],
        norm_eps=config["rms_norm_eps"],
    )
    masks: list[Tensor] = []

    def noted(*given) -> Tensor:
        selection = SPARSE.select_positions(*given)
        masks.extend(torch.isin(torch.arange(TOKENS), row[row >= 0]) for row in selection[0])
        return selection

    layer = SparseAttention(NAME, shape, "float32")
    operators = replace(ops.load("cpu"), sparse=replace(SPARSE, select_positions=noted))
    declared = layer.declare()
    arena = Arena([declared], EXTENT, torch.device("cpu"))
    for weight in declared.weights:
        assert weights[weight.name].shape == weight.shape
    linears = {w.name: operators.pack_linear(weights[w.name], "dense") for w in declared.weights if w.linear}
    layer.bind(Storage(weights, linears, arena.tensors), operators)
    rope = config["rope_parameters"]
    dim = int(shape.head_dim * rope["partial_rotary_factor"])
    table = operators.rotary_table(EXTENT.context, dim, rope["rope_theta"], torch.float32)
    hidden = block_input(run["after_layer2"][0], weights, config["hc_count"])
    outputs, first = [], 0
    for count in cuts:
        pages = PageTables(torch.tensor([[5, 0, 9]], dtype=torch.int32), EXTENT.null_page, EXTENT.context)
        counts, lengths, tokens = torch.tensor([count]), torch.tensor([first]), torch.zeros(1, count, dtype=torch.int64)
        rows = causal_rows(tokens, counts, lengths, torch.tensor([2]), pages)
        rotary = sparse_rotary(operators, table, rows.positions)
        outputs.append(layer.prefill(hidden[first : first + count], rows, rotary))
        first += count
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    assert torch.equal(torch.stack(masks), run["selection_mask"][0].bool() & causal)
    # float32 on both sides in different orders of addition: values up to 1, sums over a few dozen terms
    torch.testing.assert_close(torch.cat(outputs), run["attn3_out"][0], rtol=1e-4, atol=5e-6)
