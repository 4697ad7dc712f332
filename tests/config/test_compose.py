"""Composition: who beats whom, text that arrives as typed, recipes from elsewhere, no trace in Hydra."""

from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

from flare.config.compose import compose
from flare.config.library import HOME, Library
from flare.config.overrides import quoted
from flare.errors import ConfigError


def test_a_recipe_beats_the_defaults_and_an_override_beats_the_recipe(configure):
    assert Library.beside(None).defaults("sampling")["top_k"] == 0
    assert configure().sampling.top_k == 20
    assert configure("sampling.top_k=5").sampling.top_k == 5


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_plus_changes_nothing(configure, plus):
    assert configure(f"{plus}serving.concurrency=2").serving.concurrency == 2


def test_recipe_is_chosen_with_or_without_plus(configure):
    words = ["recipe.target.type=fake_recipe:Target", "recipe.drafter.type=fake_recipe:Drafter"]
    assert compose(None, ["recipe=smollm2", *words]) == compose(None, ["+recipe=smollm2", *words]) == configure()


@pytest.mark.parametrize(
    "text",
    [
        "Hi, who's there? (a: b)",
        'She said "no", [then] {left}=gone',
        "two\nlines\tand a tab",
        "${serving.concurrency} \\${x} ${oc.env:HOME}",
        "日本語 🙂 é",
        "null",
        "true",
        "3",
        "",
        " padded ",
        "'quoted'",
        "-",
        "a,b,c",
        "ends with \\",
        "???",
    ],
)
def test_a_prompt_arrives_as_typed(configure, text):
    assert configure(f"prompt={text}").prompt == text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("\\${}'\"\n\t a,=:()[]#~é🙂")), max_size=14))
def test_any_text_survives_quoting_parsing_and_interpolation(text):
    value = OverridesParser.create().parse_override(f"prompt={quoted(text)}").value()
    assert OmegaConf.to_container(OmegaConf.create({"prompt": value}), resolve=True) == {"prompt": text}


def test_other_text_keys_take_null_lists_and_free_text(configure):
    config = configure("sampling.stop=a, b", "sampling.regex=[a-z]{2,3}|x=y", "serving.model_name=null", "prompts=3")
    assert (config.sampling.stop, config.sampling.regex) == (("a, b",), "[a-z]{2,3}|x=y")
    assert (config.serving.model_name, config.prompts) == (None, "3")
    assert configure('sampling.stop=["a","b"]').sampling.stop == ("a", "b")
    assert configure("sampling.regex=null").sampling.regex is None


def test_token_ids_may_be_mapping_keys_in_either_spelling(configure):
    assert configure("sampling.logit_bias={5: 1.5}").sampling.logit_bias == {5: 1.5}
    assert configure("sampling.logit_bias.5=-2").sampling.logit_bias == {5: -2.0}


def test_one_stop_id_needs_no_brackets(configure):
    assert configure("sampling.stop_token_ids=2").sampling.stop_token_ids == (2,)
    assert configure("sampling.stop_token_ids=[2,3]").sampling.stop_token_ids == (2, 3)


def test_sizes_may_carry_a_unit(configure):
    assert configure("preparation.headroom_bytes=2MiB").preparation.headroom_bytes == 2 * 1024**2
    assert configure("preparation.memory_bytes=4096").preparation.memory_bytes == 4096


def test_a_section_is_frozen(configure):
    with pytest.raises(ValidationError, match="frozen"):
        configure().serving.concurrency = 1


def test_a_recipe_outside_inherits_and_is_found_by_config_dir(configure, tmp_path: Path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\n# Mine.     flare +recipe=mine\ndefaults: [smollm2]\n"
        "recipe:\n  name: mine\n  target: {type: 'fake_recipe:Target'}\n"
        "  drafter: {type: 'fake_recipe:Drafter', max_depth: 5}\nserving: {mtp_draft_tokens: 4}\n"
    )
    config = compose("mine", ["serving.mtp_draft_tokens=2"], tmp_path)
    assert (config.recipe.name, config.recipe.default_draft_tokens, config.drafter_depth()) == ("mine", 4, 5)
    assert config.widths() == (1, 2, 3, 4, 5)
    card = Library.beside(tmp_path).card("mine")
    assert (card.default_drafts, card.maximum_drafts, card.target, card.summary) == (
        4,
        5,
        "fake_recipe:Target",
        "Mine.",
    )


def test_hydra_is_left_as_it_was(configure):
    configure()
    assert not GlobalHydra.instance().is_initialized()
    with hydra.initialize_config_dir(str(HOME), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        with pytest.raises(ConfigError):
            configure("serving.concurrency=-1")
        assert GlobalHydra.instance().is_initialized()
        assert type(GlobalHydra.instance().hydra) is type(before)
        assert hydra.compose("config").serving.concurrency == 4


def test_an_unknown_recipe_names_those_there_are():
    with pytest.raises(ConfigError, match=r"^Unknown recipe 'glm'\. Available: .*smollm2"):
        compose("glm", [])
    with pytest.raises(ConfigError, match=r"^Unknown recipe 'smolm2'\. Did you mean smollm2\? Available: "):
        compose("smolm2", [])


def test_no_recipe_says_how_to_name_one():
    with pytest.raises(ConfigError, match=r"^Name a recipe: flare \+recipe=NAME   \(.*smollm2.*\)$"):
        compose(None, [])
