"""From a chat to what the engine is given: the prompt, the grammar that is needed, and the parser of the answer."""

from typing import Any, get_args

import pytest

from flare.config.serving import Serving
from flare.errors import RequestError
from flare.runtime.sampling import Sampling
from flare.server.parsing.answer_format import AnswerFormat, ChatAsk, ChatPrompt, Named
from flare.server.parsing.formats import FORMATS, chosen
from flare.server.parsing.model_format import ModelFormat
from flare.server.wire.errors import ApiError
from tests.runtime.constraints.words import SHARED, wish
from tests.server.parsing.answers import NOW, TOOLS, WEATHER, Said, hermes, json_line, said, spec
from tests.server.parsing.models import format_of, template, vocabulary

HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
STRICT = spec("now", {"type": "object", "properties": {}}, strict=True)
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    HELLO,
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}},
            {"id": "b", "type": "function", "function": {"name": "now", "arguments": ""}},
        ],
    },
    {"role": "tool", "content": "3 °C", "tool_call_id": "a"},
    {"role": "tool", "content": "12:00", "tool_call_id": "b"},
]


def asked(format: AnswerFormat, *messages: dict[str, Any], **more: Any) -> ChatPrompt:
    return format.prompt(ChatAsk(messages or (HELLO,), 10**6, **more))


def written(prompt: ChatPrompt) -> str:
    return vocabulary().tokenizer.decode(prompt.token_ids, skip_special_tokens=False)


def answered(prompt: ChatPrompt, text: str) -> Said:
    parser = prompt.parser()
    return said([part for letter in text for part in parser.push([letter], [0])] + parser.finish())


def test_the_configuration_names_the_formats_there_are():
    assert set(get_args(Serving.model_fields["tool_format"].annotation)) == {"auto", "none", *FORMATS}


@pytest.mark.parametrize("name", ["hermes", "parameters", "glm", "deepseek"])
def test_a_template_shows_its_format(name):
    assert chosen(template(name)) is FORMATS[name]


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("function<｜tool▁sep｜> ```json <｜tool▁call▁begin｜>", "deepseek_fenced"),
        ("<｜DSML｜function_calls>", "dsml"),
        ("<｜DSML｜tool_calls>", "dsml_v4"),
        ('{"name": NAME, "parameters": {}} ```json', "json"),
        ("", "json"),
    ],
)
def test_other_signs_of_a_format(shown, name):
    assert chosen(shown) is FORMATS[name]


def test_the_configuration_goes_before_the_template():
    made = format_of("hermes", tools="glm", thoughts="none")
    assert isinstance(made, ModelFormat)
    assert (made.calls, made.thinks) == (FORMATS["glm"], False)
    made = format_of("plain", tools="none", thoughts="think")
    assert isinstance(made, ModelFormat)
    assert (made.calls, made.thinks) == (None, True)


def test_a_chat_without_tools_is_the_template_and_its_text():
    prompt = asked(format_of())
    assert (written(prompt), prompt.sampling) == ("<user>Hello\n<assistant>", {})
    assert answered(prompt, json_line("now", {})) == Said(json_line("now", {}))


def test_tools_of_the_models_own_template_are_shown_there():
    prompt = asked(format_of("hermes"), tools=TOOLS)
    assert '"name": "get_weather", "parameters"' in written(prompt)
    assert prompt.sampling == {}
    assert answered(prompt, f"So: {hermes('now', {})}") == Said("So:", "", (("now", "{}"),))


def test_tool_choice_none_shows_no_tools_and_finds_no_calls():
    for name in ("hermes", "plain"):
        prompt = asked(format_of(name), tools=TOOLS, tool_choice="none")
        assert "get_weather" not in written(prompt)
        assert answered(prompt, hermes("now", {})) == Said(hermes("now", {}))


def test_a_template_without_tools_gets_them_in_the_system_message():
    prompt = asked(format_of(), *HISTORY, tools=TOOLS)
    assert written(prompt).startswith("<system>Be brief.\n\nYou can call functions.")
    assert '\n{"name": "get_weather", "parameters": {' in written(prompt)
    assert written(prompt).endswith(
        '<user>Hello\n<assistant>{"name": "get_weather", "arguments": {"city": "Zürich"}}\n'
        '{"name": "now", "arguments": {}}\n'
        "<user>Result of get_weather:\n3 °C\n\nResult of now:\n12:00\n<assistant>"
    )
    assert answered(prompt, json_line("now", {})).calls == (("now", "{}"),)
    assert written(asked(format_of(), tools=[NOW])).startswith("<system>You can call functions.")


def test_earlier_calls_reach_the_template_as_it_wants_them():
    assert '{"name": "get_weather", "arguments": {"city": "Zürich"}}' in written(asked(format_of("hermes"), *HISTORY))
    assert "<parameter=city>\nZürich\n</parameter>" in written(asked(format_of("parameters"), *HISTORY))
    assert '<｜tool▁sep｜>{"city": "Zürich"}<' in written(asked(format_of("deepseek"), *HISTORY))


@pytest.mark.parametrize("arguments", ["[1]", "no", '{"a": ', "[" * 100_000])
def test_earlier_arguments_that_are_no_object_are_refused(arguments):
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": arguments}}
    with pytest.raises(ApiError, match="is not the text of a JSON object") as refused:
        asked(format_of(), HELLO, {"role": "assistant", "content": None, "tool_calls": [call]})
    assert (refused.value.status, refused.value.param) == (400, "messages[1].tool_calls[0].function.arguments")


@pytest.mark.parametrize(
    ("asking", "field"),
    [
        ({"tools": TOOLS, "tool_choice": Named("get_wether")}, "tool_choice"),
        ({"tools": (NOW, NOW)}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "constraint": {"regex": "a"}}, "tool_choice"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_field(asking, field):
    with pytest.raises(ApiError) as refused:
        asked(format_of(), **asking)
    assert (refused.value.status, refused.value.param) == (400, field)


def test_a_model_without_tools_refuses_them():
    for messages, asking, field in (
        ((HELLO,), {"tools": TOOLS}, "tools"),
        (HISTORY, {}, "messages[2].tool_calls"),
    ):
        with pytest.raises(ApiError) as refused:
            asked(format_of(tools="none"), *messages, **asking)
        assert refused.value.param == field


def allows(prompt: ChatPrompt, text: str) -> bool:
    """Whether the prompt's grammar lets the text through."""
    following = SHARED.matcher(wish(grammar=prompt.sampling["grammar"]))
    ids = vocabulary().encode(text)
    if following.legal(ids) < len(ids):
        return False
    following.consume(ids)
    return following.may_end


@pytest.mark.parametrize(
    ("asking", "text", "one", "two", "other"),
    [
        ({"tool_choice": "required"}, False, True, True, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, False, True, False, True),
        ({"tool_choice": Named("now")}, False, True, False, False),
        ({"tools": (WEATHER, STRICT)}, True, True, True, True),
        ({"parallel_tool_calls": False}, True, True, False, True),
    ],
)
def test_what_must_be_is_forced(asking, text, one, two, other):
    for name, call, other_call in (
        ("hermes", hermes("now", {}), hermes("get_weather", {"city": "A"})),
        ("plain", json_line("now", {}), json_line("get_weather", {"city": "A"})),
    ):
        prompt = asked(format_of(name), **{"tools": TOOLS, **asking})
        wanted = [allows(prompt, said) for said in ("Hello", call, f"{call}\n{call}", other_call)]
        assert wanted == [text, one, two, other]
        assert "constrain_after" not in prompt.sampling or name == "hermes"
        Sampling(**prompt.sampling)


def test_what_need_not_be_is_not_forced():
    assert asked(format_of("hermes"), tools=TOOLS).sampling == {}


def test_an_answer_of_a_given_shape_may_be_a_call_instead():
    prompt = asked(format_of(), tools=TOOLS, constraint={"json_schema": {"type": "object", "required": ["a"]}})
    assert [allows(prompt, text) for text in ("Hello", '{"a": 1}', json_line("now", {}))] == [False, True, True]
    wishes: dict[str, Any] = {"json_schema": {"type": "object"}} | prompt.sampling
    assert Sampling(**wishes).json_schema is None


def test_a_lark_grammar_beside_tools_is_refused():
    with pytest.raises(RequestError, match="cannot be combined"):
        asked(format_of(), tools=TOOLS, constraint={"grammar": 'start: "a"'})


@pytest.mark.parametrize("asking", [{"tools": TOOLS, "tool_choice": "required"}, {"constraint": {"regex": "a+"}}])
def test_a_grammar_begins_after_the_thoughts_that_the_prompt_opens(asking):
    opened = asked(format_of("parameters"), **asking)
    assert written(opened).endswith("<assistant>\n<think>\n".replace("<assistant>", "<|im_start|>assistant"))
    assert opened.sampling["constrain_after"] == "</think>"
    thinks = format_of("plain", thoughts="think")
    assert written(asked(thinks)).endswith("<assistant>")
    forced = asked(thinks, **asking)
    assert written(forced).endswith("<assistant><think>\n")
    assert forced.sampling["constrain_after"] == "</think>"
    assert answered(forced, "Hm.</think>a") == Said("a", "Hm.")
    closed = asked(format_of("deepseek"), **asking)
    assert written(closed).endswith("</think>")
    assert "constrain_after" not in closed.sampling


def test_thoughts_are_found_where_the_template_has_them():
    assert answered(asked(format_of("parameters")), "Hm.\n</think>\n\nYes") == Said("Yes", "Hm.")
    assert answered(asked(format_of("hermes")), "<think>\nHm.\n</think>\n\nYes") == Said("Yes", "Hm.")
    assert answered(asked(format_of("deepseek")), "Yes") == Said("Yes")
    assert answered(asked(format_of("plain")), "<think>Hm.</think>") == Said("<think>Hm.</think>")


def test_a_prompt_that_quotes_a_marker_opens_no_thoughts():
    prompt = asked(format_of("hermes"), {"role": "user", "content": "What is <think>"})
    assert answered(prompt, "A tag.") == Said("A tag.")


def test_a_result_without_text_is_refused():
    for name in ("plain", "hermes"):
        with pytest.raises(RequestError, match="'content', but it is NoneType"):
            asked(format_of(name), HELLO, {"role": "tool", "content": None, "tool_call_id": "a"})
