"""The whole tiny model and its drafter against transformers' own modules, composed outside this project."""

import pytest
import torch

from flare.layers.rows import causal_rows
from flare.layers.sparse_attention import sparse_rotary
from flare.rounds.proposals import ProposalDraws
from tests.recipes.qwen38.tiny import golden, tiny_bench
from tests.rounds.harness import GREEDY, Bench

# The oracle ran in float32; fed in pieces it differs from itself by 6e-6 (its own `incremental_max_abs`), on values of
# order one to ten.
TOLERANCE = 1e-5


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def prompt_rows(core, tokens: torch.Tensor, *, first: int = 0):
    """Rows of slot 0 at positions `first` …, all active."""
    core.name_lanes([0])
    slots = torch.zeros(1, dtype=torch.int64)
    arguments = core.frame.arguments
    pages = core.model.pages(arguments, core.model.requests.lanes(arguments, 1))
    counts = torch.tensor([tokens.shape[1]])
    return causal_rows(tokens, counts, torch.tensor([first]), slots, pages)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_target_computes_the_golden_residuals_and_logits(dtype):
    run = golden("tiny_target_run")
    core = tiny_bench(dtype, drafting=False)
    with torch.inference_mode():
        hidden = core.model.target.prefill(prompt_rows(core, run["input_ids"]))
        logits = core.model.target.head(hidden.output)
    assert relative_error(hidden.feedback, run["multi_residual"][0]) <= TOLERANCE
    assert relative_error(hidden.output, run["hidden_mixer"][0]) <= TOLERANCE
    assert relative_error(logits, run["logits"][0]) <= TOLERANCE


def test_recurrent_state_after_the_prompt_is_the_golden_one():
    run = golden("tiny_target_run")
    core = tiny_bench("float32", drafting=False)
    with torch.inference_mode():
        core.model.target.prefill(prompt_rows(core, run["input_ids"]))
    matrix = core.state["layers.0.linear_attn.matrix"][0].transpose(1, 2)
    assert relative_error(matrix, run["gdn0_recurrent_state"][0]) <= TOLERANCE
    conv = core.state["layers.1.ple.conv"][0].T
    assert relative_error(conv, run["ple_conv_state"][0]) <= TOLERANCE
    assert torch.equal(core.state["layers.1.ple.context"][0], run["ngram_context"][0])


def test_the_drafter_computes_the_golden_rows():
    """Teacher-forced: the logits of every pair."""
    run = golden("tiny_mtp_run")
    core = tiny_bench("float32")
    drafter = core.model.drafter
    with torch.inference_mode():
        rows = prompt_rows(core, run["next_ids"])
        fused = drafter._fused(rows, run["target_multi"][0])
        assert relative_error(fused, run["feedback"][0].flatten(1)) <= TOLERANCE
        rotary = sparse_rotary(core.model.ops, core.model.target.rotary, rows.positions)
        residual = drafter.layer.prefill(fused, rows, rotary)
        logits = core.model.target.head(drafter.mixer.mix(residual))
    assert relative_error(residual, run["mtp_multi"][0]) <= TOLERANCE
    assert relative_error(logits, run["mtp_logits"][0]) <= TOLERANCE


def test_recursive_drafts_after_the_prompt_are_the_golden_ones():
    """Through the real rounds: prefill absorbs the prompt, propose drafts greedily after its last pair."""
    run, mtp = golden("tiny_target_run"), golden("tiny_mtp_run")
    tokens = run["input_ids"][0].tolist()
    core = tiny_bench("float32")
    # 45 tokens make 44 pairs; the golden drafts continue from the last pair, whose next token is the 45th.
    core.admit(0, tokens[:44], GREEDY)
    core.chunk(0, tokens[:44], 64, sample=True)
    core.model.requests.pending[0] = tokens[44]
    core.name_lanes([0])
    drafted, logits = propose(core, depth=3)
    assert drafted == mtp["draft_tokens"].tolist()
    assert relative_error(logits, mtp["draft_logits"]) <= TOLERANCE


class RecordingDraws(ProposalDraws):
    """Keeps the logits each draft was drawn from."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.logits: list[torch.Tensor] = []

    def sample(self, logits: torch.Tensor, step: int) -> torch.Tensor:
        self.logits.append(logits[0].clone())
        return super().sample(logits, step)


def propose(core: Bench, depth: int) -> tuple[list[int], torch.Tensor]:
    """Drafts of slot 0 in lane 0, and their logits [D, V]."""
    with torch.inference_mode():
        arguments, requests = core.frame.arguments, core.model.requests
        lanes = requests.lanes(arguments, 1)
        tail = requests.tail(lanes, core.model.pages(arguments, lanes))
        draws = RecordingDraws(core.model, lanes, arguments)
        tokens = core.model.drafter.propose(tail, depth, draws).tokens[0].tolist()
    return tokens, torch.stack(draws.logits)
