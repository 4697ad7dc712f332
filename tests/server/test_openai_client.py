"""The official client over a real socket: shapes, streams and errors as it expects them."""

import httpx
import openai
import pytest

from tests.server.serving import answering, scripted

HELLO = "<user>Hi"
ANSWER = "Grüße, 世界! 🙂 ok"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def served():
    answers = {HELLO: ANSWER, "<system>Be": "system", "one": " two three", "Zwei": " drei", "stop": "abc END def"}
    with scripted(answering(answers)) as served:
        yield served


@pytest.fixture(scope="module")
def client(served):
    return served.client()


def test_models_are_listed_and_found(client):
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == ("smollm2", "model", "flare")
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError, match="smollm2"):
        client.models.retrieve("gpt")


def test_a_chat_is_answered(client):
    done = client.chat.completions.create(model="smollm2", messages=MESSAGES)
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert (done.object, done.model, done.system_fingerprint[:3]) == ("chat.completion", "smollm2", "fp_")
    assert done.usage.prompt_tokens == len(HELLO)
    assert done.usage.completion_tokens == len(ANSWER.encode()) + 1  # and the token that ends it
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.completion_tokens_details.reasoning_tokens == 0
    assert done.usage.prompt_tokens_details.cached_tokens == 0


def test_a_streamed_chat_joins_to_the_same_text_and_never_splits_a_character(client):
    stream = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == ANSWER and not any("\ufffd" in piece for piece in pieces) and len(pieces) > 4
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(ANSWER.encode()) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_content_may_come_in_parts_and_developers_speak_as_the_system(client):
    messages = [{"role": "developer", "content": [{"type": "text", "text": "B"}, {"type": "text", "text": "e"}]}]
    assert client.chat.completions.create(model="smollm2", messages=messages).choices[0].message.content == "system"


def test_a_text_is_completed_and_echoed(client):
    done = client.completions.create(model="smollm2", prompt="one")
    assert (done.object, done.choices[0].text) == ("text_completion", " two three")
    echoed = client.completions.create(model="smollm2", prompt="one", echo=True)
    assert echoed.choices[0].text == "one two three"
    chunks = client.completions.create(model="smollm2", prompt="one", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "one two three"


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_come_as_texts_and_ids_and_several_at_once(client, stream):
    for prompt in (["one", "Zwei"], [list(b"one"), list(b"Zwei")]):
        done = client.completions.create(model="smollm2", prompt=prompt, n=2, stream=stream)
        texts = {0: "", 1: "", 2: "", 3: ""}
        for chunk in done if stream else [done]:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == {0: " two three", 1: " two three", 2: " drei", 3: " drei"}
        if not stream:
            assert done.usage.prompt_tokens == 7 and done.usage.completion_tokens == 2 * (11 + 6)
    assert client.completions.create(model="smollm2", prompt=list(b"one")).choices[0].text == " two three"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_text_ids_and_usage_at_one_place(client, served, stream):
    body = {"prompt": "stop", "stop": ["END", "zzz"], "return_token_ids": True, "logprobs": 0, "stream": stream}
    if not stream:
        document = served.post("/v1/completions", body).json()
        choice, usage = document["choices"][0], document["usage"]
        ids, logprobs, text = choice["token_ids"], choice["logprobs"]["tokens"], choice["text"]
        assert choice["prompt_token_ids"] == list(b"stop")
    else:
        chunks = client.completions.create(
            model="smollm2", prompt="stop", stop=["END", "zzz"], logprobs=0, stream=True,
            stream_options={"include_usage": True}, extra_body={"return_token_ids": True},
        )  # fmt: skip
        chunks = [chunk.model_dump() for chunk in chunks]
        usage = chunks[-1]["usage"]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        ids = [token for choice in choices for token in choice["token_ids"]]
        logprobs = [token for choice in choices for token in choice["logprobs"]["tokens"]]
        text = "".join(choice["text"] for choice in choices)
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert text == "abc "
    assert bytes(ids) == b"abc END" and "".join(logprobs) == "abc END"
    assert usage["completion_tokens"] == len(ids)


def test_a_budget_ends_by_length(client):
    done = client.chat.completions.create(model="smollm2", messages=MESSAGES, max_completion_tokens=2)
    assert done.choices[0].finish_reason == "length" and done.usage.completion_tokens == 2
    assert done.choices[0].message.content == "Gr"


def test_chat_logprobs_have_tokens_bytes_and_alternatives(client):
    done = client.chat.completions.create(model="smollm2", messages=MESSAGES, logprobs=True, top_logprobs=2)
    entries = done.choices[0].logprobs.content
    assert len(entries) == done.usage.completion_tokens
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes) == ANSWER.encode()
    assert entries[2].token == "bytes:\\xc3" and entries[-1].token == "<|end|>"
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_completion_logprobs_are_parallel_lists(client):
    done = client.completions.create(model="smollm2", prompt="one", logprobs=2)
    found = done.choices[0].logprobs
    assert found.tokens[:4] == [" ", "t", "w", "o"] and found.text_offset[:4] == [0, 1, 2, 3]
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == done.usage.completion_tokens
    assert " " in found.top_logprobs[0]


def test_usage_can_come_with_every_chunk(served):
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    events = [line for line in served.post("/v1/chat/completions", body).text.split("\n\n") if line]
    assert events[-1] == "data: [DONE]"
    assert all('"usage":{"prompt_tokens":8,"completion_tokens":' in event for event in events[:-1])


@pytest.mark.parametrize(
    ("change", "kind", "param", "said"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model", "the one that is served is 'smollm2'"),
        (
            {"temperature": -1},
            openai.BadRequestError,
            "temperature",
            "temperature=-1 is not allowed: it must be at least 0",
        ),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature", "it must be a number"),
        ({"n": True}, openai.BadRequestError, "n", "n=true is not allowed: it must be a whole number"),
        ({"stop": [1]}, openai.BadRequestError, "stop[0]", "it must be a string"),
        ({"top_logprobs": 3}, openai.BadRequestError, "top_logprobs", "top_logprobs needs logprobs=true"),
        ({"top_logprobs": 21, "logprobs": True}, openai.BadRequestError, "top_logprobs", "at most 20"),
        (
            {"stream_options": {"include_usage": True}},
            openai.BadRequestError,
            "stream_options",
            "stream_options needs stream=true",
        ),
        ({"messages": []}, openai.BadRequestError, "messages", "it must be a list that is not empty"),
        (
            {"messages": [{"role": "robot", "content": ""}]},
            openai.BadRequestError,
            "messages[0].role",
            "must be 'system'",
        ),
        ({"messages": [{"role": "user"}]}, openai.BadRequestError, "messages[0].content", "needs content"),
        ({"max_tokens": 1000}, openai.BadRequestError, "max_tokens", "max_tokens may be at most 504, not 1000"),
        ({"logit_bias": {"7": 101}}, openai.BadRequestError, 'logit_bias["7"]', "at most 100"),
        ({"logit_bias": {"300": 1}}, openai.BadRequestError, "logit_bias", "ids go from 0 to 299"),
        (
            {"extra_body": {"min_tokens": 9}, "max_tokens": 8},
            openai.BadRequestError,
            "min_tokens",
            "at most 8, like max_tokens",
        ),
        ({"extra_body": {"best_of": 2}}, openai.BadRequestError, "best_of", "best_of is not supported."),
        ({"extra_body": {"min_pp": 0.1}}, openai.BadRequestError, "min_pp", "Did you mean min_p?"),
        (
            {"extra_body": {"regex": "a", "grammar": "b"}},
            openai.BadRequestError,
            "grammar",
            "regex and grammar exclude",
        ),
        ({"extra_body": {"regex": "("}}, openai.BadRequestError, "regex", "regex cannot be followed"),
        (
            {"extra_body": {"constrain_after": "x"}},
            openai.BadRequestError,
            "constrain_after",
            "needs what begins after",
        ),
        ({"tool_choice": "auto"}, openai.BadRequestError, "tool_choice", "tool_choice needs tools"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format.type", "'json_object'"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_field(client, change, kind, param, said):
    asked = {"model": "smollm2", "messages": MESSAGES, **change}
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param == param
    message = caught.value.body["message"]
    assert said in message and "\n" not in message


def test_too_long_a_prompt_has_openais_code(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="smollm2", prompt="x" * 600)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"


def test_tokens_of_texts_and_chats_and_back(served):
    found = served.post("/tokenize", {"prompt": "aé", "return_token_strs": True}).json()
    assert found == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [97, 195, 169],
        "token_strs": ["a", "bytes:\\xc3", "bytes:\\xa9"],
    }
    assert served.post("/tokenize", {"messages": MESSAGES}).json()["tokens"] == list(HELLO.encode())
    assert served.post("/detokenize", {"tokens": [97, 195, 169]}).json() == {"prompt": "aé"}
    assert served.post("/detokenize", {"tokens": [9999]}).json()["error"]["param"] == "tokens[0]"


def test_version_health_and_unknown_paths(served):
    assert served.get("/version").json().keys() == {"version"}
    assert (served.get("/health").status_code, served.get("/health").json()) == (200, {"status": "ready"})
    assert served.get("/nowhere").status_code == 404
    assert served.get("/v1/completions").status_code == 405 and served.get("/nowhere").json()["error"]["message"]


def test_a_key_is_needed_where_there_is_one():
    with scripted(answering({HELLO: "yes"}), api_key="s3cret") as served:
        with pytest.raises(openai.AuthenticationError):
            served.client(api_key="wrong").models.list()
        assert served.get("/v1/models").status_code == 401
        assert served.get("/v1/models").headers["www-authenticate"] == "Bearer"
        assert served.get("/health").status_code == 200
        done = served.client(api_key="s3cret").chat.completions.create(model="smollm2", messages=MESSAGES)
        assert done.choices[0].message.content == "yes"


def test_raw_bytes_that_are_no_request(served):
    def post(content, kind="application/json"):
        return httpx.post(served.url + "/v1/completions", content=content, headers={"content-type": kind}, timeout=10)

    for broken in (b"", b"{", b"[1]", b'"x"', b"\xff", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}'):
        answer = post(broken)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json", broken[:20]
    for deep in (b'{"prompt": ' + b"[" * 90 + b"]" * 90 + b"}", b"[" * 100_000):
        assert post(deep).json()["error"]["code"] == "too_deep"
    assert post(b"{}", "text/plain").status_code == 415
    huge = b'{"prompt": "' + b"x" * (9 << 20) + b'"}'
    assert post(huge).status_code == 413
