"""Every mistake is one sentence with key, value, what is allowed and the nearest valid name."""

import pytest

from flare.config.compose import compose_points
from flare.config.library import Library
from flare.config.overrides import check
from flare.errors import ConfigError

MISTAKES = {
    "serving.mtp_draft_token=5": "Unknown override 'serving.mtp_draft_token'. Did you mean serving.mtp_draft_tokens?",
    "+serving.mtp_draft_token=5": "Unknown override 'serving.mtp_draft_token'. Did you mean serving.mtp_draft_tokens?",
    "temperature=1": "Unknown override 'temperature'. Did you mean sampling.temperature?",
    "recipe.drafter.max_dept=3": "Unknown override 'recipe.drafter.max_dept'. Did you mean recipe.drafter.max_depth?",
    "recipe.target.geometry.hiden=3": (
        "Unknown override 'recipe.target.geometry.hiden'. Did you mean recipe.target.geometry.hidden?"
    ),
    "~nonsense": "Unknown override 'nonsense'.",
    "hello": "'hello' is no key=value; a text to answer is given as prompt=\"hello\"",
    "serving=fast": "Unknown serving 'fast'. Available: default",
    "recipe=other": "Two recipes are named, smollm2 and other; keep one",
    "serving.fixed_width=1,2": (
        "serving.fixed_width=1,2 names several values; add -m to run each, or write serving.fixed_width=[1,2]"
    ),
    "sampling.top_p={bad": (
        "sampling.top_p={bad cannot be read; a text with special signs is quoted twice: sampling.top_p='\"…\"'"
    ),
    "sampling.temperature=-1": "sampling.temperature=-1, but it must be at least 0",
    "sampling.top_p=0": "sampling.top_p=0, but it must be greater than 0",
    "serving.concurrency=0": "serving.concurrency=0, but it must be at least 1",
    "serving.concurrency=two": "serving.concurrency=two, but it must be a whole number",
    "serving.concurrency=true": "serving.concurrency=true, but it must be a whole number",
    "serving.history_drafts=1": "serving.history_drafts=1, but it must be true or false",
    "output=xml": "output=xml, but it must be rich, text or json",
    "preparation.concurrency=0": "preparation.concurrency=0, but it must be auto or at least 1",
    "preparation.memory_bytes=12X": (
        "preparation.memory_bytes=12X, but it must be auto or bytes, as a whole number or like 512MiB"
    ),
    "sampling.logit_bias={5:200}": "sampling.logit_bias.5=200, but it must be at most 100",
    "sampling.stop=[1]": "sampling.stop.0=1, but it must be text",
    "serving={fixed_width:1,fixed_with:2}": "Unknown key 'serving.fixed_with'. Did you mean serving.fixed_width?",
    "recipe.target.geometry={width:1}": "Unknown key 'recipe.target.geometry.width'.",
    "~serving.concurrency": "serving.concurrency is missing",
    "recipe.target.type=nowhere.x:Y": "recipe.target.type=nowhere.x:Y cannot be imported: No module named 'nowhere'",
    "recipe.drafter.type=fake_recipe:Bare": (
        "recipe.drafter: fake_recipe:Bare has no Config: a part's class brings a pydantic model of that name"
    ),
    "recipe.drafter.max_depth=deep": "recipe.drafter.max_depth=deep, but it must be a whole number",
}


@pytest.mark.parametrize(("word", "sentence"), MISTAKES.items())
def test_a_mistake_is_one_sentence(configure, word, sentence):
    with pytest.raises(ConfigError) as raised:
        configure(word)
    assert str(raised.value) == sentence


def test_two_mistakes_are_two_lines(configure):
    with pytest.raises(ConfigError) as raised:
        configure("serving.mtp_draft_tokens=-1", "sampling.n=0")
    assert str(raised.value).splitlines() == [
        "serving.mtp_draft_tokens=-1, but it must be at least 0",
        "sampling.n=0, but it must be at least 1",
    ]


def test_a_part_is_imported_only_when_an_override_leads_into_it():
    words = ["recipe=smollm2", "recipe.drafter.type=nowhere:Drafter"]
    check([*words, "serving.concurrency=1"], Library.beside(None))
    with pytest.raises(ConfigError, match="cannot be imported"):
        check([*words, "recipe.drafter.max_depth=1"], Library.beside(None))


def sweep(*words: str) -> list[tuple[str, ...]]:
    return list(check(["recipe=smollm2", *words], Library.beside(None), sweep=True).points)


def test_a_sweep_is_the_product_of_its_values_in_order():
    points = sweep("serving.fixed_width=1,2", "sampling.seed=range(0,2)")
    assert [point[1:] for point in points] == [
        ("++serving.fixed_width=1", "++sampling.seed=0"),
        ("++serving.fixed_width=1", "++sampling.seed=1"),
        ("++serving.fixed_width=2", "++sampling.seed=0"),
        ("++serving.fixed_width=2", "++sampling.seed=1"),
    ]


def test_free_text_stays_one_value_in_a_sweep():
    assert sweep("prompt=a, b", "sampling.regex=a{1,2}") == [
        ("+recipe=smollm2", '++prompt="a, b"', '++sampling.regex="a{1,2}"')
    ]
    assert len(sweep("checkpoint.revision=main,dev")) == 2


def test_a_glob_sweeps_over_the_recipes_there_are():
    library = Library.beside(None)
    points = check(["recipe=glob(*)"], library, sweep=True).points
    assert points == tuple((f"+recipe={name}",) for name in library.options("recipe"))


def test_an_interval_has_no_points():
    with pytest.raises(ConfigError, match="has no list of values"):
        sweep("sampling.temperature=interval(0,1)")


def test_a_wrong_point_is_found_before_any_runs(configure):
    words = ["recipe.target.type=fake_recipe:Target", "recipe.drafter.type=fake_recipe:Drafter"]
    points = sweep(*words, "serving.mtp_draft_tokens=5,9,3")
    with pytest.raises(ConfigError, match=r"serving\.mtp_draft_tokens=9"):
        compose_points(points, Library.beside(None))
