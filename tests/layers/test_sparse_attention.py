"""Sparse attention as a state transaction: verify and commit t rows is t single steps, whatever was rejected."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare.contract.manifest import PAGE_TOKENS
from flare.layers.sparse_attention import SparseAttention, SparseAttentionShape
from flare.plan.declarations import PagedState, RingState, array_bytes
from tests.layers.sparse_bench import EXTENT, NAME, SHAPE, SLOTS, Bench, bench, inputs_of
from tests.rounds.test_no_host_reads import NoHostReads, exempt

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
PROMPTS = (64, 65, 67, 68, 63)  # P mod 64 in 0, 1, 3, 4, 63; all but the first few rows are sparse
JUNK = inputs_of(999)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drafted(inputs: Tensor, consumed: int, right: int, rows: int) -> Tensor:
    """Row inputs of a round: pending token and `right` right drafts, then wrong ones."""
    return torch.cat((inputs[consumed : consumed + 1 + right], JUNK[: rows - 1 - right]))


def assert_same_state(mine: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(mine[name], tensor, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_verify_and_commit_is_single_steps_for_every_width_and_acceptance(prompt: int) -> None:
    """For every width, a right drafts and t emitted: outputs, five steps after them, and all that is reachable then."""
    inputs, wide, single = inputs_of(0), bench(), bench()
    expected, states = [single.consume(0, inputs[:prompt])[-1:]], {}
    for position in range(prompt, prompt + 14):
        expected.append(single.consume(0, inputs[position : position + 1]))
        states[position + 1] = single.reachable(0)
    truth = torch.cat(expected[1:])
    wide.consume(0, inputs[:prompt])
    start = wide.saved()
    for width in range(1, 9):
        for accepted, emitted in ((a, t) for a in range(width) for t in range(1, a + 2)):
            wide.restore(start)
            output = wide.verify({0: drafted(inputs, prompt, accepted, width)}, width)[0]
            torch.testing.assert_close(output[: accepted + 1], truth[: accepted + 1], **CLOSE)
            wide.commit({0: emitted})
            after = range(prompt + emitted, prompt + emitted + 5)
            rest = torch.cat([wide.consume(0, inputs[p : p + 1]) for p in after])
            torch.testing.assert_close(rest, truth[emitted : emitted + 5], **CLOSE)
            assert_same_state(wide.reachable(0), states[prompt + emitted + 5])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_commit_of_nothing_and_dead_lanes_change_nothing_reachable(prompt: int) -> None:
    inputs, layer = inputs_of(0), bench()
    layer.consume(0, inputs[:prompt])
    layer.consume(2, inputs_of(2)[:9])
    before = layer.reachable(0), layer.reachable(2)
    layer.verify({0: JUNK[:8]}, 8, lanes=4)
    layer.commit({0: 0})
    layer.verify({}, 4, lanes=2)
    for mine, expected in zip((layer.reachable(0), layer.reachable(2)), before, strict=True):
        assert all(torch.equal(mine[name], expected[name]) for name in expected)


# widths from round to round, with all accepted, none accepted, and a width of one after both
ROUNDS = [
    [(8, 7), (1, 0), (8, 0), (1, 0), (1, 0), (8, 3), (3, 0), (8, 0), (8, 0), (8, 5)],
    [(2, 1), (3, 1), (4, 2), (5, 0), (6, 4), (7, 1), (8, 6), (1, 0), (7, 6), (2, 0)],
    [(8, 0), (8, 0), (8, 0), (8, 0), (8, 1), (8, 2), (8, 0), (5, 4), (4, 0), (1, 0)],
]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_rounds_of_changing_width_equal_single_steps_in_every_lane(rounds: list[tuple[int, int]], lanes: int) -> None:
    """Lane i starts at its own prompt length and accepts (a + i) mod width drafts."""
    wide = bench()
    slots = list(range(lanes))[::-1]
    prompts = {slot: PROMPTS[(slot + len(rounds)) % 5] - 40 * (slot % 2) for slot in slots}
    outputs = {slot: [wide.consume(slot, inputs_of(slot)[: prompts[slot]])] for slot in slots}
    for width, accepted in rounds:
        taken = {slot: min((accepted + slot) % width, width - 1) for slot in slots}
        rows = {
            slot: drafted(inputs_of(slot), wide.consumed[slot], taken[slot], max(width - slot % 2, taken[slot] + 1))
            for slot in slots
        }
        output = wide.verify(rows, width, lanes=4 if lanes == 2 else lanes)
        wide.commit({slot: taken[slot] + 1 for slot in slots})
        for slot in slots:
            outputs[slot].append(output[slot][: taken[slot] + 1])
    for slot in slots:
        single = bench()
        expected = [single.consume(slot, inputs_of(slot)[p : p + 1]) for p in range(wide.consumed[slot])]
        torch.testing.assert_close(torch.cat(outputs[slot]), torch.cat(expected), **CLOSE)
        assert_same_state(wide.reachable(slot), single.reachable(slot))


@pytest.mark.parametrize("cuts", [[1, 2, 3, 5, 7, 11, 13, 17, 41], [63, 1, 36], [64, 36], [3, 60, 37], [97, 3]])
def test_prefill_is_the_same_at_every_cut(cuts: list[int]) -> None:
    inputs, cut = inputs_of(0), bench()
    whole, expected = bench(), None
    expected = whole.consume(0, inputs[:100])
    outputs, first = [], 0
    for count in cuts:
        outputs.append(cut.consume(0, inputs[first : first + count], width=count + 9))
        first += count
    torch.testing.assert_close(torch.cat(outputs), expected, **CLOSE)
    assert_same_state(cut.reachable(0), whole.reachable(0))


def test_the_selection_leaves_groups_out_and_a_wide_enough_budget_does_not() -> None:
    inputs = inputs_of(0)
    sparse, dense = bench(), bench(shape=replace(SHAPE, budget_tokens=128))
    seen, all_seen = sparse.consume(0, inputs[:100]), dense.consume(0, inputs[:100])
    torch.testing.assert_close(seen[:11], all_seen[:11], **CLOSE)  # two complete groups and an open tail of three
    assert ((seen[11:] - all_seen[11:]).abs().amax(1) > 1e-6).float().mean() > 0.9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_wide_round_are_those_of_single_steps_bit_by_bit(dtype: str) -> None:
    wide, single = bench(dtype=dtype), bench(dtype=dtype)
    inputs = inputs_of(0).to(wide.table.dtype)
    for each in (wide, single):
        each.consume(0, inputs[:61])
    for first in (61, 69, 77):
        steps = [single.consume(0, inputs[p : p + 1]) for p in range(first, first + 8)]
        assert torch.equal(wide.consume(0, inputs[first : first + 8]), torch.cat(steps))


def test_a_stale_ring_gives_nan_and_no_wrong_answer() -> None:
    layer, inputs = bench(), inputs_of(0)
    layer.consume(0, inputs[:67])
    layer.consume(1, inputs[:67])
    layer.state[f"{NAME}.index_tags"][0, 65 % 12] -= 12
    output = layer.verify({0: inputs[67:70], 1: inputs[67:70]}, 3)
    assert output[0].isnan().all()
    assert output[1].isfinite().all()


def test_a_new_request_in_a_used_slot_sees_nothing_of_the_old_one() -> None:
    reused, fresh = bench(), bench()
    reused.consume(0, inputs_of(1)[:90])
    reused.consumed[0] = 0
    inputs = inputs_of(0)
    for layer in (reused, fresh):
        layer.consume(0, inputs[:3])
    assert torch.equal(reused.consume(0, inputs[3:50]), fresh.consume(0, inputs[3:50]))


def test_reused_draft_selections_see_the_first_selection_and_the_drafted_tail() -> None:
    layer, inputs = bench(), inputs_of(0)
    layer.consume(0, inputs[:70])
    rows = layer.rows([0], [70], [1], 1)
    _, first = layer.layer.draft_first(inputs[70:71], rows, layer.rotary(rows))
    ring = layer.state[f"{NAME}.index_ring"].clone()
    for step in range(1, 8):
        rows = layer.rows([0], [70 + step], [1], 1)
        output = layer.layer.draft_again(inputs[70 + step : 71 + step], rows, layer.rotary(rows), first)
        positions = [p for p in first.selected[0].tolist() if p >= 0] + list(range(71, 71 + step))
        torch.testing.assert_close(output, attended_by_hand(layer, inputs[70 + step], 70 + step, positions), **CLOSE)
    assert torch.equal(layer.state[f"{NAME}.index_ring"].nan_to_num(7), ring.nan_to_num(7))
    assert 71 not in layer.state[f"{NAME}.index_tags"][0]


def test_absorbing_the_committed_rows_repairs_what_drafting_left() -> None:
    layer, plain, inputs = bench(), bench(), inputs_of(0)
    for each in (layer, plain):
        each.consume(0, inputs[:67])
    rows = layer.rows([0], [67], [1], 1)
    _, first = layer.layer.draft_first(JUNK[:1], rows, layer.rotary(rows))
    for step in range(1, 6):
        rows = layer.rows([0], [67 + step], [1], 1)
        layer.layer.draft_again(JUNK[step : step + 1], rows, layer.rotary(rows), first)
    assert torch.equal(layer.consume(0, inputs[67:72], width=8), plain.consume(0, inputs[67:72], width=8))
    assert_same_state(layer.reachable(0), plain.reachable(0))


def test_a_draft_selection_is_of_one_request_and_one_reach() -> None:
    layer, inputs = bench(), inputs_of(0)
    for slot in (0, 1):
        layer.consume(slot, inputs[:70])
    rows = layer.rows([0], [70], [1], 1)
    _, first = layer.layer.draft_first(inputs[70:71], rows, layer.rotary(rows))
    for slot, length in ((1, 71), (0, 70), (0, 78)):
        rows = layer.rows([slot], [length], [1], 1)
        output = layer.layer.draft_again(inputs[length : length + 1], rows, layer.rotary(rows), first)
        assert output.eq(0).all()


def test_the_layer_reads_nothing_on_the_host() -> None:
    layer, inputs = bench(), inputs_of(0)
    operators = layer.operators
    family = replace(operators.sparse, **{name: exempt(call) for name, call in vars(operators.sparse).items()})
    layer.layer.ops = replace(operators, sparse=family)
    layer.consume(0, inputs[:70])
    rows = layer.rows([0, SLOTS], [70, 0], [1, 0], 1)
    rotary, hidden = layer.rotary(rows), inputs[70:72]
    with NoHostReads({-2}, declared=set()):
        layer.layer.verify(hidden, rows, rotary)
        _, first = layer.layer.draft_first(hidden, rows, rotary)
        layer.layer.draft_again(hidden, rows, rotary, first)


def attended_by_hand(layer: Bench, hidden: Tensor, position: int, positions: list[int]) -> Tensor:
    """Gated attention of one row over given positions, written out."""
    weights = {name: layer.layer.__dict__[name].payload for name in ("q_proj", "o_proj")}
    fused = (weights["q_proj"] @ hidden).view(SHAPE.query_heads, 2, SHAPE.head_dim)
    cosines, signed_sines = layer.operators.rotary_rows(layer.table, torch.tensor([position]))
    query = layer.operators.sparse.norm_rotary(fused[None, :, 0], layer.layer.q_norm, cosines, signed_sines, 1e-6)[0]
    pages = layer.pages(0)
    keys = layer.state[f"{NAME}.keys"][pages].flatten(0, 1)[positions].repeat_interleave(2, 1)
    values = layer.state[f"{NAME}.values"][pages].flatten(0, 1)[positions].repeat_interleave(2, 1)
    shares = (torch.einsum("hd,nhd->hn", query, keys) / SHAPE.head_dim**0.5).softmax(-1)
    gated = torch.einsum("hn,nhd->hd", shares, values) * fused[:, 1].sigmoid()
    return (weights["o_proj"] @ gated.flatten())[None]


def test_the_real_geometry_holds_2112_bytes_per_token_and_a_ring_of_twelve() -> None:
    shape = SparseAttentionShape(2560, 24, 2, 256, 4, 128, 2048, 1e-6)
    declared = SparseAttention("mtp.layers.0.self_attn", shape, "bfloat16").declare()
    assert sum(array_bytes(s.shape, s.dtype) for s in declared.state if isinstance(s, PagedState)) == 2112
    assert [state.length for state in declared.state if isinstance(state, RingState)] == [12, 12]
    assert {weight.name.removeprefix("mtp.layers.0.self_attn."): weight.shape for weight in declared.weights} == {
        "q_proj.weight": (12288, 2560),
        "k_proj.weight": (512, 2560),
        "v_proj.weight": (512, 2560),
        "o_proj.weight": (2560, 6144),
        "q_norm.weight": (256,),
        "k_norm.weight": (256,),
        "indexer.index_qk_proj.weight": (640, 2560),
        "indexer.q_layernorm.weight": (128,),
        "indexer.k_layernorm.weight": (128,),
    }
    assert PAGE_TOKENS % 4 == 0 and EXTENT.null_slot == SLOTS
