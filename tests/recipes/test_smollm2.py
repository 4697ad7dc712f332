"""The real model: logits of outside implementations, and the same tokens in any lane, batch and width."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import flare
from flare import ops
from flare.build import bind, load, plan_parts
from flare.checkpoint.source import opened
from flare.config.compose import compose
from flare.contract.frames import Arguments, Scalar, host_arguments
from flare.layers.rows import PageTables, causal_rows
from tests.checkpoint.copies import write_folder_copy

GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2" / "logits.safetensors"
# The bar; float32 rounding of 30 layers in another order of summation stays an order below it.
TOLERANCE = 1e-5
FP32 = ["preparation.dtype=float32", "preparation.context_length=512"]
PROMPTS = ["The capital of France is", "def add(a, b):", "Once upon a time, in a", "1, 2, 3, 4, 5, 6,"]


def logits_of(checkpoint, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Target logits [positions, V] of one prefill."""
    parts = plan_parts(compose("smollm2", [*FP32, "serving.concurrency=1"]))
    operators = ops.load("cpu")
    model = bind(parts, load(parts, checkpoint, operators, "dense"), operators)
    host = host_arguments(model.extent)
    host.tokens[: len(ids)], host.scalars[Scalar.TOKEN_COUNT] = ids, len(ids)
    host.page_tables[0] = range(model.extent.pages_per_request)
    arguments = Arguments(**{name: torch.from_numpy(array) for name, array in vars(host).items()})
    slot = torch.zeros(1, dtype=torch.int64)
    with torch.inference_mode():
        pages = PageTables(arguments.page_tables[:1], model.extent.null_page, model.extent.context)
        rows = causal_rows(arguments.tokens[None, : len(ids)], slot + len(ids), slot, slot, pages)
        return model.target.head(model.target.prefill(rows).output[positions])


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("prompt", ["sentence", "chat", "mixed"])
def test_logits_equal_transformers_own_gguf_loader(smollm2_gguf, prompt):
    with safe_open(GOLDEN, "pt") as golden:
        ids, positions, wanted = (golden.get_tensor(f"{prompt}.{name}") for name in ("ids", "positions", "logits"))
    assert relative_error(logits_of(opened(smollm2_gguf), ids, positions), wanted) <= TOLERANCE


def test_a_safetensors_copy_loads_to_the_same_logits(smollm2_gguf, tmp_path):
    source = opened(smollm2_gguf)
    write_folder_copy(smollm2_gguf, tmp_path)
    ids = torch.tensor([504, 3575, 282, 4649, 314])
    positions = torch.tensor([0, 4])
    assert torch.equal(logits_of(opened(tmp_path), ids, positions), logits_of(source, ids, positions))


@pytest.fixture(scope="module")
def engine(smollm2_gguf):
    overrides = [*FP32, "serving.concurrency=4", "serving.mtp_draft_tokens=0"]
    with flare.prepare("smollm2", overrides) as core, flare.Engine(core) as engine:
        yield engine


def test_a_batch_decodes_greedily_what_each_prompt_decodes_alone(engine):
    greedy = flare.Sampling(temperature=0, max_tokens=24)
    batch = [done.token_ids for done in engine.generate(PROMPTS, greedy)]
    assert batch == [engine.generate(prompt, greedy).token_ids for prompt in PROMPTS]


def test_a_seed_draws_the_same_tokens_alone_and_in_any_lane(engine):
    warm = flare.Sampling(temperature=1.0, top_k=50, top_p=0.95, seed=11, max_tokens=16)
    alone = engine.generate(PROMPTS[0], warm).token_ids
    for lane in range(4):
        prompts = [PROMPTS[1]] * 4
        prompts[lane] = PROMPTS[0]
        assert engine.generate(prompts, warm)[lane].token_ids == alone


def test_unseeded_requests_differ(engine):
    free = flare.Sampling(temperature=1.5, top_k=0, top_p=1.0, max_tokens=12)
    first, second = engine.generate([PROMPTS[2]] * 2, free)
    assert first.token_ids != second.token_ids


def test_logprobs_are_the_targets_own_whatever_the_temperature(engine):
    done = engine.generate(PROMPTS[0], flare.Sampling(temperature=0, max_tokens=4, logprobs=3))
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    for entry in done.logprobs:
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
    cold = engine.generate(PROMPTS[0], flare.Sampling(temperature=0.01, max_tokens=4, logprobs=0, seed=1))
    assert [entry.logprob for entry in cold.logprobs] == pytest.approx([entry.logprob for entry in done.logprobs])
