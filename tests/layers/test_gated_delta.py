"""The gated delta layer, both forms: every round is a transaction, chunks and rounds leave what single tokens leave."""

import random
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu

from flare.layers.gated_delta import GatedDelta, GatedDeltaShape
from flare.layers.gated_delta_columns import GatedDeltaColumns
from flare.layers.rows import RoundShape
from flare.ops.short_conv import Boundary
from flare.plan.declarations import RoundBuffer, SlotState, array_bytes
from tests.layers.gated_delta_bench import NULL, SLOTS, Bench, Steps, bench, inputs, single_steps

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen38"
FORMS = [GatedDelta, GatedDeltaColumns]
EXACT = {"atol": 1e-10, "rtol": 1e-10}
PROMPT = 5


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def close(actual: list[Tensor], expected: list[Tensor], **tolerance: float) -> None:
    assert len(actual) == len(expected) > 0
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, **(tolerance or EXACT))


def unchanged(core: Bench, before: dict[int, list[Tensor]]) -> None:
    for slot, state in before.items():
        close(core.reachable(slot), state, atol=0, rtol=0)


def stream_input(tokens: Tensor) -> Tensor:
    """What layer 0 of the tiny target feeds its mixer, from token ids [T]: the hyperconnection read."""
    stored = {name: value.float() for name, value in load_file(GOLDEN / "tiny_target_weights_0.safetensors").items()}
    read = {
        part: stored[f"model.language_model.layers.0.attn_hyper_connection.{part}.weight"]
        for part in ("hc_norm", "input_mix_weight_down", "input_mix_weight_up")
    }
    embedded = load_file(GOLDEN / "tiny_target_weights_1.safetensors")["model.language_model.embed_tokens.weight"]
    streams = embedded[tokens].float().repeat(1, 4).unflatten(1, (4, -1))
    normed = (streams * (streams.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).flatten(1) * (1 + read["hc_norm"])
    low = silu(normed @ read["input_mix_weight_down"].T / 4)
    gate = (low @ read["input_mix_weight_up"].T).sigmoid()
    return (gate * normed).unflatten(1, (4, -1)).mean(1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cuts", [[45], [20, 5, *[1] * 20], [1, 43, 1]])
def test_layer_zero_of_the_tiny_target_equals_transformers(form, cuts):
    # float32 sums in another order; the oracle itself moves 5.8e-6 between one pass and increments.
    tolerance = {"atol": 1e-5, "rtol": 1e-5}
    shape = GatedDeltaShape(hidden=32, key_heads=2, value_heads=6, key_dim=8, value_dim=8, taps=4, norm_eps=1e-6)
    run = load_file(GOLDEN / "tiny_target_run.safetensors")
    prefix = "model.language_model.layers.0.linear_attn"
    stored = load_file(GOLDEN / "tiny_target_weights_0.safetensors")
    own = {name.replace(prefix, "layer"): value for name, value in stored.items() if name.startswith(prefix)}
    core, x = bench(form, "float32", shape=shape, stored=own), stream_input(run["input_ids"][0])
    outputs, length = [], 0
    for cut in cuts:
        outputs.append(core.prefill(2, length, x[length : length + cut], 48))
        length += cut
    torch.testing.assert_close(torch.cat(outputs), run["gdn0_out"][0], **tolerance)
    history, matrix = core.reachable(2)
    torch.testing.assert_close(history, run["gdn0_conv_state"][0, :, 1:].T, **tolerance)
    torch.testing.assert_close(matrix, run["gdn0_recurrent_state"][0].mT, **tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", range(1, 9))
def test_any_published_prefix_leaves_what_single_tokens_leave(form, width):
    x = inputs(PROMPT + 16, 1)
    steps, core = single_steps(x), bench(form)
    for drafts in range(width):
        for emitted in range(drafts + 2):
            core.prefill(3, 0, x[:PROMPT], 16)
            before = core.reachable(3)
            candidates = torch.cat((x[PROMPT : PROMPT + emitted], 9 * inputs(drafts + 1 - emitted, 2)))
            y = core.verify([3], [PROMPT], [candidates], width)[0]
            unchanged(core, {3: before})
            torch.testing.assert_close(y[:emitted], steps.outputs[PROMPT : PROMPT + emitted], **EXACT)
            core.commit([emitted])
            close(core.reachable(3), steps.states[PROMPT + emitted])
            if emitted == 0:
                unchanged(core, {3: before})
            follow = x[PROMPT + emitted : PROMPT + emitted + 8]
            after = core.verify([3], [PROMPT + emitted], [follow], 8)[0]
            torch.testing.assert_close(after, steps.outputs[PROMPT + emitted : PROMPT + emitted + 8], **EXACT)


@cache
def stream_steps(slot: int) -> Steps:
    return single_steps(inputs(60, 10 + slot))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_lanes_of_any_width_and_outcome_follow_their_own_single_steps(form, batch, seed):
    draw, core = random.Random(seed), bench(form)
    streams = [inputs(60, 10 + slot) for slot in range(SLOTS)]
    steps = [stream_steps(slot) for slot in range(SLOTS)]
    lengths = [0] * SLOTS
    for slot in range(SLOTS - 1):
        lengths[slot] = draw.randrange(1, 6)
        core.prefill(slot, 0, streams[slot][: lengths[slot]], 16)
    for width in [8, 1, *(draw.randrange(1, 9) for _ in range(10))]:
        live = draw.sample(range(SLOTS - 1), draw.randrange(1, batch + 1))
        slots = [*live, *[NULL] * (batch - len(live))]
        draw.shuffle(slots)
        counts = [0 if slot == NULL else draw.randrange(1, width + 1) for slot in slots]
        emitted = [draw.choice([0, 1, count, draw.randrange(count + 1)]) if count else 0 for count in counts]
        candidates = []
        for slot, count, kept in zip(slots, counts, emitted, strict=True):
            stream = streams[slot % SLOTS]
            start = lengths[slot] if slot != NULL else 0
            candidates.append(torch.cat((stream[start : start + kept], inputs(count - kept, width))))
        before = {slot: core.reachable(slot) for slot in range(SLOTS - 1)}
        outputs = core.verify(slots, [lengths[slot] if slot != NULL else 3 for slot in slots], candidates, width)
        unchanged(core, before)
        core.commit(emitted)
        unchanged(core, {slot: state for slot, state in before.items() if slot not in live})
        for slot, kept, output in zip(slots, emitted, outputs, strict=True):
            if slot != NULL:
                expected = steps[slot].outputs[lengths[slot] : lengths[slot] + kept]
                torch.testing.assert_close(output[:kept], expected, **EXACT)
                lengths[slot] += kept
                close(core.reachable(slot), steps[slot].states[lengths[slot]])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-6)])
def test_the_compact_form_equals_columns_for_every_outcome(dtype, tolerance):
    x = inputs(PROMPT + 8, 3).to(getattr(torch, dtype))
    for drafts in range(8):
        for emitted in range(1, drafts + 2):
            results = []
            for form in FORMS:
                core = bench(form, dtype)
                core.prefill(1, 0, x[:PROMPT], 16)
                outputs = core.verify([1], [PROMPT], [x[PROMPT : PROMPT + drafts + 1]], 8)
                core.commit([emitted])
                results.append([*outputs, *core.reachable(1)])
            close(*results, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cuts", [[40], [17, 5, 1, 17], [1] * 40, [3, 37]])
def test_any_cut_of_a_prompt_leaves_what_single_tokens_leave(form, cuts):
    x = inputs(40, 4)
    steps, core, outputs, length = single_steps(x), bench(form), [], 0
    for cut in cuts:
        outputs.append(core.prefill(2, length, x[length : length + cut], 40 if cut > 16 else 16))
        length += cut
        close(core.reachable(2), steps.states[length])
    torch.testing.assert_close(torch.cat(outputs), steps.outputs, **EXACT)


@pytest.mark.parametrize("form", FORMS)
def test_float32_bits_do_not_depend_on_rounds_or_chunks(form):
    x = inputs(29, 5, torch.float32)
    steps, core = single_steps(x, form, "float32"), bench(form, "float32")
    outputs, length = [core.prefill(0, 0, x[:9], 16)], 9
    for width, emitted in ((8, 8), (1, 1), (5, 2), (8, 1), (3, 3), (8, 5)):
        outputs.append(core.verify([0], [length], [x[length : length + width]], 8)[0][:emitted])
        core.commit([emitted])
        length += emitted
    assert torch.equal(torch.cat(outputs), steps.outputs)
    for left, right in zip(core.reachable(0), steps.states[length], strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stop", [0, 1, 3, 5, 6])
def test_a_commit_also_leaves_the_state_at_a_boundary_it_reaches(form, stop):
    x, emitted = inputs(PROMPT + 8, 6), 5
    steps, core = single_steps(x), bench(form)
    core.prefill(0, 0, x[:PROMPT], 16)
    core.prefill(4, 0, inputs(3, 7), 16)
    before = core.reachable(4)
    core.verify([0, NULL], [PROMPT, 0], [x[PROMPT:], x[:0]], 8)
    core.commit([emitted, 0], Boundary(torch.tensor([stop, 1]), torch.tensor([4, NULL])))
    close(core.reachable(0), steps.states[PROMPT + emitted])
    if 1 <= stop <= emitted:
        close(core.reachable(4), steps.states[PROMPT + stop])
    else:
        unchanged(core, {4: before})


@pytest.mark.parametrize("form", FORMS)
def test_a_slot_that_served_another_request_starts_from_zero(form):
    x = inputs(12, 8)
    steps, core = single_steps(x), bench(form)
    core.prefill(1, 0, inputs(9, 9), 16)
    core.verify([1], [9], [inputs(8, 10)], 8)
    core.commit([5])
    torch.testing.assert_close(core.prefill(1, 0, x, 16), steps.outputs, **EXACT)
    close(core.reachable(1), steps.states[12])


def test_bfloat16_rounds_equal_single_tokens_within_its_rounding():
    x = inputs(PROMPT + 8, 11, torch.bfloat16)
    steps, core = single_steps(x, dtype="bfloat16"), bench(GatedDelta, "bfloat16")
    outputs = [core.prefill(0, 0, x[:PROMPT], 16), *core.verify([0], [PROMPT], [x[PROMPT:]], 8)]
    core.commit([8])
    torch.testing.assert_close(torch.cat(outputs), steps.outputs, atol=3e-2, rtol=2e-2)
    close(core.reachable(0), steps.states[-1], atol=3e-2, rtol=2e-2)


REAL = GatedDeltaShape(hidden=2560, key_heads=16, value_heads=48, key_dim=128, value_dim=128, taps=4, norm_eps=1e-6)


def test_the_compact_form_declares_one_matrix_per_slot_and_no_other():
    rounds, matrix_bytes = RoundShape(lanes=4, width=8), 3_145_728
    state = GatedDelta("layer", REAL, "bfloat16", rounds).declare().state
    slots = {part.name: part for part in state if isinstance(part, SlotState)}
    assert set(slots) == {"layer.matrix", "layer.conv"}
    assert array_bytes(slots["layer.matrix"].entry, slots["layer.matrix"].dtype) == matrix_bytes
    assert array_bytes(slots["layer.conv"].entry, slots["layer.conv"].dtype) == 61_440
    records = {part.name: array_bytes(part.shape, part.dtype) for part in state if isinstance(part, RoundBuffer)}
    assert len(records) + len(slots) == len(state)
    inputs_bytes = records.pop("layer.record_inputs")
    assert sum(records.values()) == 4 * 8 * 32_960
    assert inputs_bytes == 4 * 8 * 10_240 * 2
    assert sum(records.values()) < matrix_bytes


def test_columns_cost_one_more_matrix_for_each_verified_row():
    state = GatedDeltaColumns("layer", REAL, "bfloat16", RoundShape(lanes=4, width=7)).declare().state
    matrix = next(part for part in state if part.name == "layer.matrix")
    assert array_bytes(matrix.entry, matrix.dtype) == 8 * 3_145_728  # type: ignore[union-attr]


def test_weight_names_and_shapes_are_the_stored_ones():
    declared = GatedDelta("layers.1.linear_attn", REAL, "bfloat16", RoundShape(1, 1)).declare().weights
    assert {weight.name.removeprefix("layers.1.linear_attn."): weight.shape for weight in declared} == {
        "in_proj_qkv.weight": (10240, 2560),
        "in_proj_z.weight": (6144, 2560),
        "in_proj_a.weight": (48, 2560),
        "in_proj_b.weight": (48, 2560),
        "conv1d.weight": (10240, 1, 4),
        "A_log": (48,),
        "dt_bias": (48,),
        "norm.weight": (128,),
        "out_proj.weight": (2560, 6144),
    }
