"""PLE: every round leaves what single tokens leave, and histories reach no further than their request."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flare.errors import CheckpointError
from flare.layers.ple import PerLayerEmbedding
from flare.layers.rows import Rows
from flare.ops.ngram import NgramHash
from flare.ops.short_conv import Boundary
from tests.layers.binding import CPU, EXTENT, stored
from tests.layers.ple_bench import SHAPE, TABLE, Bench, bench, layer_of, plain_table, token_ids, weights_of

TOLERANCE = 1e-10
torch.set_num_threads(1)


def close(y: Tensor, wanted: Tensor) -> None:
    assert y.shape == wanted.shape
    assert (y - wanted).abs().max() < TOLERANCE  # false for NaN


def single_steps(consumed: list[int]) -> Bench:
    """A request fed token by token into slot 0."""
    steps = bench()
    for token in consumed:
        steps.round([0], [[token]], [1], width=1, lanes=1)
    return steps


def check_against_single_steps(core: Bench, slot: int) -> None:
    steps = single_steps(core.consumed[slot])
    (context, conv), (wanted_context, wanted_conv) = core.history(slot), steps.history(0)
    assert torch.equal(context, wanted_context)
    if len(conv):
        close(conv, wanted_conv)


def check_transaction(make: Callable[[], Bench], width: int, lanes: int, committed: int) -> None:
    """For every t: verify and commit(t) leave what t single steps leave, and a width-one round goes on from there."""
    for emitted in range(width + 1):
        core, slots = make(), [4, 0, 3, 1][: max(lanes - 1, 1)]
        for slot in slots:
            core.chunk(slot, token_ids(committed, seed=slot), 16)
        untouched = core.layer.conv[[2, 5]].clone(), core.layer.context[[2, 5]].clone()
        candidates = [token_ids(max(width - lane, 1), seed=10 + lane) for lane in range(len(slots))]
        counts = [min(emitted, len(ids)) for ids in candidates]
        before = {slot: list(core.consumed[slot]) for slot in slots}
        moved = core.round(slots, candidates, counts, width, lanes)
        for slot, ids, y in zip(slots, candidates, moved, strict=True):
            close(y, core.oracle(before[slot] + ids)[len(before[slot]) :])
            check_against_single_steps(core, slot)
        assert untouched[0].isnan().all() and core.layer.conv[[2, 5]].isnan().all()
        assert torch.equal(untouched[1], core.layer.context[[2, 5]])
        following = core.round(slots, [[1]] * len(slots), [1] * len(slots), 1, lanes)
        for slot, y in zip(slots, following, strict=True):
            close(y, core.oracle(core.consumed[slot])[-1:])


@pytest.mark.parametrize("committed", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_a_round_leaves_what_single_steps_leave(width, lanes, committed):
    check_transaction(bench, width, lanes, committed)


@pytest.mark.parametrize("width", [3, 4, 6, 7])
def test_rounds_of_the_other_widths_leave_what_single_steps_leave(width):
    check_transaction(bench, width, 2, 7)


def test_a_request_equals_its_oracle_over_rounds_of_every_width():
    core, generator = bench(), torch.Generator().manual_seed(3)
    core.chunk(1, token_ids(11, seed=1), 16)
    core.chunk(2, token_ids(2, seed=2), 16)
    for place, width in enumerate([8, 1, 8, 8, 1, 3, 2, 7, 1, 1, 5, 6, 4, 8, 1]):
        candidates = [token_ids(width, seed=100 + 2 * place + lane) for lane in range(2)]
        emitted = torch.randint(0, width + 1, (2,), generator=generator).tolist()
        before = [list(core.consumed[slot]) for slot in (1, 2)]
        moved = core.round([1, 2], candidates, emitted, width, lanes=4)
        for ids, committed, y in zip(candidates, before, moved, strict=True):
            close(y, core.oracle(committed + ids)[len(committed) :])
    for slot in (1, 2):
        check_against_single_steps(core, slot)


@pytest.mark.parametrize("emitted", [8, 0])
def test_a_width_one_round_follows_a_round_of_eight(emitted):
    core = bench()
    core.chunk(0, token_ids(4, seed=1), 4)
    core.round([0], [token_ids(8, seed=2)], [emitted], 8, lanes=1)
    (y,) = core.round([0], [[3]], [1], 1, lanes=1)
    close(y, core.oracle(core.consumed[0])[-1:])


def test_committing_nothing_leaves_every_bit():
    core = bench()
    core.chunk(0, token_ids(3, seed=1), 4)
    before = core.layer.conv[0].clone(), core.layer.context[0].clone()
    core.round([0], [token_ids(8, seed=2)], [0], 8, lanes=2)
    assert torch.equal(before[0].nan_to_num(7), core.layer.conv[0].nan_to_num(7))
    assert torch.equal(before[1], core.layer.context[0])


@pytest.mark.parametrize("stop", [0, 1, 3, 5, 6])
def test_a_commit_also_leaves_the_histories_at_a_boundary_it_reaches(stop):
    """Lane 0 emits five rows; lane 1 names a row for a boundary it does not reach."""
    core, ids, emitted = bench(), token_ids(17, seed=3), 5
    core.chunk(0, ids[:9], 16)
    core.chunk(1, token_ids(4, seed=4), 16)
    before = core.layer.context[[2, 3]].clone()
    core.round(
        [0, 1], [ids[9:], [1, 2]], [emitted, 1], 8, 4,
        Boundary(torch.tensor([stop, 2, 0, 0]), torch.tensor([2, 3, EXTENT.null_slot, EXTENT.null_slot])),
    )  # fmt: skip
    check_against_single_steps(core, 0)
    check_against_single_steps(core, 1)
    assert torch.equal(core.layer.context[3], before[1]) and core.layer.conv[3].isnan().all()
    if 1 <= stop <= emitted:
        core.consumed[2] = ids[: 9 + stop]
        check_against_single_steps(core, 2)
    else:
        assert torch.equal(core.layer.context[2], before[0]) and core.layer.conv[2].isnan().all()


@pytest.mark.parametrize("cuts", [[40], [20, 5, *[1] * 15], [1] * 40, [1, 39], [2, 38], [9, 9, 9, 13], [64 - 24]])
def test_a_prompt_may_be_cut_anywhere(cuts):
    core, ids = bench(), token_ids(40, seed=8)
    moved, start = [], 0
    for cut in cuts:
        moved.append(core.chunk(3, ids[start : start + cut], capacity=64 if cut > 16 else 16))
        start += cut
    close(torch.cat(moved), core.oracle(ids))
    check_against_single_steps(core, 3)


def test_a_slot_forgets_its_last_request():
    core = bench()
    core.chunk(0, token_ids(30, seed=1), 32)
    core.consumed[0] = []
    ids = token_ids(12, seed=2)
    close(torch.cat([core.chunk(0, ids[:1], 16), core.chunk(0, ids[1:], 16)]), core.oracle(ids))


def test_lanes_do_not_see_each_other():
    together, alone = bench(), bench()
    prompts = [token_ids(9, seed=slot) for slot in range(3)]
    for slot, prompt in enumerate(prompts):
        together.chunk(slot, prompt, 16)
    alone.chunk(1, prompts[1], 16)
    candidates = [token_ids(5, seed=20 + slot) for slot in range(3)]
    moved = together.round([2, 1, 0], candidates[::-1], [5, 3, 0], 5, lanes=4)
    (wanted,) = alone.round([1], [candidates[1]], [3], 5, lanes=1)
    close(moved[1], wanted)
    close(together.history(1)[1], alone.history(1)[1])


@pytest.mark.parametrize(("table_format", "columns"), [("dense", 16), ("fp8", 16), ("nvfp4", 8)])
def test_the_table_is_read_as_declared(table_format, columns):
    shape = replace(SHAPE, table_format=table_format)
    layer = layer_of(shape)
    weights = weights_of(layer)
    assert weights[f"{TABLE}.weight"].shape == (240, columns)
    layer.bind(stored(layer.declare(), weights), CPU)
    looked_up = CPU.ngram_lookup(layer.table, torch.arange(240).view(60, 4), torch.float64).view(240, 16)
    table = plain_table(shape)
    # a sixth of a block's peak for four bits (plus its scale), a sixteenth of the value for eight
    bound = {"dense": 0.0, "fp8": 1 / 15, "nvfp4": 1 / 4}[table_format]
    assert ((looked_up - table).abs() <= bound * table.abs().amax(-1, keepdim=True)).all()


def test_a_stored_hash_that_differs_is_refused():
    layer = layer_of()
    weights = weights_of(layer)
    weights["layers.1.ple.ple_embedding.layer_multipliers"][1] += 2
    with pytest.raises(CheckpointError, match="layer_multipliers holds"):
        layer.bind(stored(layer.declare(), weights), CPU)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2**-6)])
def test_narrower_models_stay_near_the_oracle(dtype, tolerance):
    # what the layer adds to a residual passes seven roundings of 2^-24 or 2^-8, and a gate between them
    core, ids = bench(layer_of(dtype=dtype)), token_ids(12, seed=4)
    core.weights = {
        name: weight.double() if weight.is_floating_point() else weight for name, weight in core.weights.items()
    }
    residual, rows = core.rows([0], [ids], width=12, lanes=1)
    moved = core.layer.prefill(residual.to(core.layer.conv.dtype), rows)
    assert moved.dtype == core.layer.conv.dtype
    wanted = core.oracle(ids)
    assert (moved.double() - wanted).norm() < tolerance * wanted.norm()


class NoHostReads(TorchDispatchMode):
    """Raises where a round would wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not func._schema.name.startswith(("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"))
        return func(*args, **(kwargs or {}))


def test_rounds_and_prefill_read_nothing_on_the_host():
    core = bench()
    core.consumed[0] = [1, 2, 3]
    residual, rows = core.rows([0], [[4, 5]], width=4, lanes=2)
    prompt, chunk = core.rows([0], [[4, 5]], width=16, lanes=1)
    with NoHostReads():
        core.layer.verify(residual, rows)
        core.layer.commit(rows, rows.counts)
        core.layer.prefill(prompt, chunk)


def test_state_is_two_ids_nine_inputs_and_one_round_of_candidates():
    declared = {state.name: state for state in layer_of().declare().state}
    tensors = stored(layer_of().declare(), weights_of(layer_of())).state
    assert set(declared) == {f"layers.1.ple.{part}" for part in ("context", "conv", "candidates")}
    assert tensors["layers.1.ple.context"].shape == (EXTENT.slots + 1, 2)
    assert tensors["layers.1.ple.conv"].shape == (EXTENT.slots + 1, 9, 32)
    assert tensors["layers.1.ple.candidates"].shape == (4, 8, 32)


def without_drafts(window: Tensor, hashing: NgramHash) -> Tensor:
    """A hash that reads committed ids and the row's own, but not the candidates between."""
    lags = hashing.multipliers.shape[0] - 1
    rows = [
        CPU.ngram_rows(torch.cat((window[:, :lags], window[:, place, None]), 1), hashing)
        for place in range(lags, window.shape[1])
    ]
    return torch.stack(rows, 1).flatten(0, 1)


class ReadsLeftovers(PerLayerEmbedding):
    def _known(self, ages: Tensor, lengths: Tensor) -> Tensor:
        return torch.ones(len(lengths), len(ages), dtype=torch.bool)


class CommitsOneLess(PerLayerEmbedding):
    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        super().commit(rows, (emitted - 1).clamp(min=0), boundary)


class CommitsWhatWasOffered(PerLayerEmbedding):
    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        super().commit(rows, rows.counts, boundary)


class WritesWhileVerifying(PerLayerEmbedding):
    def verify(self, residual: Tensor, rows: Rows) -> Tensor:
        moved = super().verify(residual, rows)
        super().commit(rows, rows.counts)
        return moved


def plain_weight(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight - 1, eps, groups)


def one_mean(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight, eps)


MUTANTS = {
    "hash without the draft prefix": lambda: bench(operators=replace(CPU, ngram_rows=without_drafts)),
    "norm weight without one": lambda: bench(operators=replace(CPU, zero_centred_norm=plain_weight)),
    "norms over all streams": lambda: bench(operators=replace(CPU, zero_centred_norm=one_mean)),
    "leftovers of the last request": lambda: bench(layer_of(kind=ReadsLeftovers)),
    "commit t - 1": lambda: bench(layer_of(kind=CommitsOneLess)),
    "commit of rejected rows": lambda: bench(layer_of(kind=CommitsWhatWasOffered)),
    "verify writes live state": lambda: bench(layer_of(kind=WritesWhileVerifying)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_break_the_transaction(mutant):
    with pytest.raises(AssertionError):
        check_transaction(MUTANTS[mutant], width=5, lanes=2, committed=5)
