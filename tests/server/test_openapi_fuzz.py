"""Requests made up from the server's own OpenAPI document, good and bad: no 5xx, no hang, nothing undocumented."""

import contextlib
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from flare.build import build
from flare.config.compose import compose
from flare.server.service import Service
from tests.recipes.tiny_core import tiny_overrides
from tests.server.serving import running, until

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")

BUDGET_S = 10.0  # for requests with a body
LEAST = 25  # requests of each kind, where there are as many different ones, however slow the machine
SHALLOW_S = 0.3  # for each kind of request without a body
EXAMPLES = 200  # per operation and kind, as far as the budget goes
LONGEST_S = 10.0
KEY = {"Authorization": "Bearer secret"}


class Enough(Exception):  # noqa: N818  no mistake: what was made up and not asked takes as long as a request
    """The time is up."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of a tiny core, which can do all that the document offers."""
    overrides = [*tiny_overrides(tmp_path_factory.mktemp("tiny")), "serving.port=0", "serving.request_timeout_s=5"]
    config = compose("smollm2", overrides)
    with running(Service(config, lambda: build(config), "secret")) as served:
        yield served


def checks() -> list:
    """What every answer must pass; that good-looking requests are taken cannot be asked: ids must exist, texts fit."""
    named = schemathesis.checks
    return [
        named.not_a_server_error,
        named.status_code_conformance,
        named.content_type_conformance,
        named.response_schema_conformance,
        named.negative_data_rejection,
    ]


def test_made_up_requests_are_answered_as_documented(served):
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 8
    kinds = list(schemathesis.GenerationMode)
    deep = [operation for operation in operations if operation.body]
    asked = 0
    for operation in operations:
        share_s = BUDGET_S / (len(deep) * len(kinds)) if operation in deep else SHALLOW_S
        for kind in kinds:
            asked += fuzz(operation, kind, share_s)
    assert asked > 200
    assert served.get("/health").status_code == 200
    until(lambda: served.engine.open_choices == 0)


def possible(body: dict) -> dict:
    """A body with what no schema says made true, so that more requests than refusals are seen."""
    made = {name: value for name, value in body.items() if name != "model"}
    if made.get("messages"):
        made["messages"] = [{**each, "content": each.get("content") or "x"} for each in made["messages"]]
        made.pop("prompt", None)
    elif "tokens" not in made:
        made.pop("messages", None)
        prompt = made.get("prompt")
        made["prompt"] = prompt if isinstance(prompt, str) and prompt else "to be or not to be"
    for name, most in (("max_tokens", 40), ("max_completion_tokens", 40), ("min_tokens", 40), ("n", 3), ("top_k", 100)):
        if made.get(name):
            made[name] = made[name] % most + (name != "min_tokens")
    if made.get("tokens"):
        made["tokens"] = [token % 256 for token in made["tokens"]]
    if made.get("max_tokens") and made.get("max_completion_tokens"):
        made["max_completion_tokens"] = made["max_tokens"]
    return made


def fuzz(operation, kind, seconds) -> int:
    """Requests of one operation until its share of the budget is used; returns how many were answered."""
    deadline, asked = time.monotonic() + seconds, 0

    @seed(7)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=kind, headers=KEY))
    def ask(case):
        nonlocal asked
        if asked >= LEAST and time.monotonic() > deadline:
            raise Enough
        if kind is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = possible(case.body)
        case.call_and_validate(checks=checks(), timeout=LONGEST_S)
        asked += 1

    with contextlib.suppress(Enough, Unsatisfiable):  # the latter where nothing about the operation can be wrong
        ask()
    return asked
