"""Conversations with tools are rendered as transformers renders them; see `tests/golden/chat/make.py`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from flare.contract.chat import reads
from flare.contract.vocabulary import Vocabulary
from flare.errors import RequestError

FOLDER = Path(__file__).parents[1] / "golden/chat"
GOLDEN = json.loads((FOLDER / "rendered.json").read_text(encoding="utf-8"))
CALL = {"id": "a", "type": "function", "function": {"name": "now", "arguments": {}}}


def vocabulary(template: str) -> Vocabulary:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "<text>": 1}, unk_token="<text>"))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("<text>", special=False)])
    return Vocabulary(tokenizer, eos_ids=(), bos_id=0, chat_template=template)


@pytest.mark.parametrize(
    "case", GOLDEN["cases"], ids=lambda case: f"{case['template']}-{len(case['messages'])}-{bool(case['tools'])}"
)
def test_chats_with_tools_equal_transformers(case):
    template = (FOLDER / f"{case['template']}.jinja").read_text(encoding="utf-8")
    assert vocabulary(template).render(case["messages"], tools=case["tools"]) == case["text"]


def rendered(template: str, *messages: dict[str, Any], tools: Any = None) -> str:
    return vocabulary(template).render(messages, tools=tools)


def test_only_an_assistant_that_called_tools_may_say_nothing():
    silent = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert rendered("{{ messages[0].content is none }}", silent) == "True"
    for message in (silent | {"tool_calls": []}, silent | {"role": "user"}, silent | {"content": 7}):
        with pytest.raises(RequestError, match="'content', but it is"):
            rendered("", message)


def test_no_tools_are_none():
    user = {"role": "user", "content": "Hi"}
    assert [rendered("{{ tools is none }}", user, tools=tools) for tools in (None, [], [{}])] == [
        "True",
        "True",
        "False",
    ]


def test_tojson_takes_what_hugging_faces_takes():
    user = {"role": "user", "content": "Hi"}
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", user) == '{"a":2,"b":1}'


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + messages[0].tool_calls }}",
        "{% for key in messages[0].name %}{{ key }}{% endfor %}{{ messages[7]['content'] }}",
        "{{ 1 // (messages | length - 1) }}",
        "{{ messages[0] | tojson(indent=messages) }}",
    ],
)
def test_a_template_that_stumbles_over_messages_refuses_them(template):
    with pytest.raises(RequestError, match="refuses these messages"):
        rendered(template, {"role": "assistant", "content": "Hi", "tool_calls": [CALL]})


@pytest.mark.parametrize(
    ("template", "shows"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{% if tools %}x{% endif %}", True),
        ("{{ messages[0].tools }} tools", False),
        ("{% if %}", False),
    ],
)
def test_a_template_with_a_place_for_tools_is_known(template, shows):
    assert vocabulary(template).shows_tools is reads(template, "tools") is shows


def test_control_tokens_are_known_by_name():
    assert vocabulary("").control_ids == {"<s>": 0}
