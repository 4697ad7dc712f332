"""The soak and the comparison with the in-process engine, short, over a tiny core in a process of its own."""

import asyncio
import json

import pytest

from flare.bench.serving import __main__ as command
from flare.bench.serving.child import audit, drive
from flare.bench.serving.client import Address, Answer, post
from flare.bench.serving.overhead import Wishes as Comparison
from flare.bench.serving.overhead import overhead
from flare.bench.serving.soak import Wishes, slope_mb_per_minute, soak
from flare.bench.serving.traffic import Request, Traffic, fault_of
from tests.recipes.tiny_core import tiny_overrides
from tests.runtime.scripted_core import mixing, scripted_engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Overrides of a core that is quick and small; some requests must wait for a slot and for pages."""
    return [*tiny_overrides(tmp_path_factory.mktemp("tiny")), "serving.concurrency=4"]


def test_nothing_leaks_and_every_answer_adds_up(tiny):
    found = asyncio.run(soak(Wishes("smollm2", tiny, clients=24, seconds=6.0)))
    assert found["failures"] == []
    assert found["outcomes"]["complete"] > 50 and found["outcomes"]["left"] > 20
    assert found["after"]["prefix_hit_tokens"] > 0
    assert found["sigterm"]["exit_status"] == 0 and found["sigterm"]["late"]["503"] > 0


def test_the_comparison_runs_the_same_work_both_ways(tiny):
    found = asyncio.run(overhead(Comparison("smollm2", tiny, pairs=2, tokens=8)))
    assert found["same_texts"] == "16 of 16"
    for runs in found["runs"].values():
        assert [run["tokens"] for run in runs] == [16 * 8] * 2
        assert all(run["cpu_ms_per_token"] > 0 for run in runs)
    assert found["ratio_tokens_per_s"]["low"] > 0


def test_the_command_line_prints_one_document(monkeypatch, capsys, tmp_path):
    async def stub(wishes):
        return {"failures": ["a leak"], "clients": wishes.clients, "overrides": wishes.overrides}

    monkeypatch.setattr(command.soak, "soak", stub)
    out = tmp_path / "result.json"
    assert command.main(["soak", "--clients", "3", "--out", str(out), "serving.concurrency=2"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text())
    assert (document["clients"], document["overrides"]) == (3, ["serving.concurrency=2"])


def test_an_audit_finds_a_page_that_nobody_gave_back():
    engine = scripted_engine(mixing())
    (request,) = engine.submit([1, 2, 3])
    before = audit(engine)
    engine.wait([request])
    assert audit(engine) | {"cached_prefixes": 0} == before | {"idle": True, "waiting": 0, "cached_prefixes": 0}
    engine.scheduler.memory.pages.take(1)
    with pytest.raises(AssertionError, match="leaked"):
        audit(engine)


def test_driving_an_engine_completes_every_prompt_in_its_place():
    engine = scripted_engine(mixing(), sampling={"seed": 1})
    prompts = [[1, 2], [3, 4, 5], [6], [7, 8]]
    found = drive(engine, prompts, {"max_tokens": 6}, clients=2)
    alone = [list(scripted_engine(mixing()).generate(prompt).token_ids)[:6] for prompt in prompts]
    assert found["ids"] == alone


def streamed(ids, reason="length", tokens=None, end=b"[DONE]"):
    """A streamed answer to four prompt tokens."""
    usage = {"prompt_tokens": 4, "completion_tokens": len(ids) if tokens is None else tokens}
    documents = [
        {"choices": [{"index": 0, "token_ids": ids, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    ]
    events = [json.dumps(document).encode() for document in documents] + [end]
    return Answer(200, {"content-type": "text/event-stream"}, events, ended=end == b"[DONE]")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (streamed([1, 2]), None),
        (streamed([1], "stop"), None),
        (streamed([1, 2], tokens=3), "usage"),
        (streamed([1]), "finish_reason length after 1 of 2"),
        (streamed([1, 2, 3], "stop"), "after 3 of 2"),
        (streamed([1, 2], reason=None), "finish_reason None"),
        (streamed([1, 2], end=b"{}"), "no end"),
        (Answer(500, {}, [b"{}"], True), "status 500"),
    ],
)
def test_an_answer_that_does_not_add_up_is_a_fault(answer, fault):
    found = fault_of(Request({"prompt": [1] * 4, "max_tokens": 2}, None), answer)
    assert found is None if fault is None else fault in found


def test_the_same_seed_asks_the_same():
    one, other = (Traffic(3, 100, 0.3) for _ in range(2))
    asked = [one.next() for _ in range(200)]
    assert asked == [other.next() for _ in range(200)]
    assert 30 < sum(request.leave_after is not None for request in asked) < 90
    assert all(0 <= token < 100 for request in asked for token in request.body["prompt"])


def test_a_slope_is_in_megabytes_per_minute():
    assert slope_mb_per_minute([(at, 7_000_000 + at * 50_000) for at in range(60)]) == pytest.approx(3.0)
    assert slope_mb_per_minute([(0.0, 1)]) is None


def test_a_client_reads_chunks_wherever_they_are_cut():
    pieces = (b"data: {}\n", b"\ndata: [DO", b"NE]\n\n")
    body = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def talk():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + body)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            return await post(Address(host, port), "/", {})

    answer = asyncio.run(talk())
    assert (answer.status, answer.events, answer.ended) == (200, [b"{}", b"[DONE]"], True)
