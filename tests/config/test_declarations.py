"""Schema, YAML and help declare the same keys, each described where it is declared."""

import re
import subprocess
import sys

import pytest

from flare.cli import ACTIONS
from flare.config.compose import compose
from flare.config.config import Config
from flare.config.help import help_text
from flare.config.library import HOME, Library
from flare.config.section import section_of

SECTIONS = {
    name: section
    for name, field in Config.model_fields.items()
    if (section := section_of(field)) is not None and name != "recipe"
}
LIBRARY = Library.beside(None)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_a_default_for_each_key_and_no_other(name):
    assert list(LIBRARY.defaults(name)) == list(SECTIONS[name].model_fields)


def test_the_schema_holds_no_second_default():
    for section in (Config, *SECTIONS.values()):
        assert [name for name, field in section.model_fields.items() if not field.is_required()] == []


def test_every_key_is_described_in_schema_and_yaml():
    for name, section in SECTIONS.items():
        assert all(field.description for field in section.model_fields.values())
        lines = (HOME / name / "default.yaml").read_text().splitlines()
        assert [line for line in lines if not re.match(r"^(#|\w+: .*  # \S)", line) and "  # " not in line] == []


def test_help_lists_every_key_and_every_recipe_with_its_drafts():
    text = help_text(LIBRARY, {name: action.summary for name, action in ACTIONS.items()})
    for name, section in SECTIONS.items():
        for key in section.model_fields:
            assert f"{name}.{key} " in text
    for name in LIBRARY.options("recipe"):
        card = LIBRARY.card(name)
        assert re.search(rf"^  {name} +{card.default_drafts} \({card.maximum_drafts}\)", text, re.MULTILINE)


def test_every_action_of_the_schema_is_in_the_table():
    assert set(ACTIONS) == set(Config.model_fields["action"].annotation.__args__)


@pytest.mark.parametrize("name", LIBRARY.options("recipe"))
def test_a_recipe_composes_to_what_its_card_says(name):
    config = compose(name, [])
    card = LIBRARY.card(name)
    assert (config.recipe.default_draft_tokens, config.drafter_depth()) == (card.default_drafts, card.maximum_drafts)


def test_the_configuration_room_needs_no_torch():
    code = "import sys, flare.config.compose, flare.config.help; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME.parent, check=False).returncode == 0
