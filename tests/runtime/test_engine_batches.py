"""Many requests: prompts of every length, batches against single requests, queues, cancellation, interrupts."""

import random

import pytest

from flare.errors import CapacityError, RequestError
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import mixing, saying, scripted_engine
from tests.runtime.scripted_device import ContractError, scripted_manifest


def assert_free(engine: Engine) -> None:
    scheduler = engine.scheduler
    while engine.step():
        pass
    assert engine.idle and scheduler.waiting == 0
    assert (scheduler.pages.free, scheduler.slots.free) == (scheduler.pages.total, scheduler.slots.total)
    engine.check()


def reference(prompt: list[int], max_tokens: int) -> list[int]:
    truth, tokens = mixing(), list(prompt)
    for _ in range(max_tokens):
        tokens.append(truth(tokens))
    return tokens[len(prompt) :]


def prompt_of(length: int, first: int = 65) -> list[int]:
    return [first + i % 50 for i in range(length)]


@pytest.mark.parametrize("drafts", [0, 7])
def test_prompts_of_every_length_are_cut_into_chunks_that_fit(drafts):
    with scripted_engine(mixing(), mtp_draft_tokens=drafts) as engine:
        for length in range(1, 71):
            done = engine.generate(prompt_of(length), Sampling(max_tokens=4))
            assert isinstance(done, Completion)
            assert list(done.token_ids) == reference(prompt_of(length), 4)
            assert done.usage.prompt_tokens == length
        chunks = {entry[:3] for entry in engine._device.log if entry[0] in ("prefill", "resume")}
        assert chunks == {("prefill", 1, 4), ("prefill", 1, 8), ("prefill", 1, 16), ("resume", 1, 16)}
        assert_free(engine)


@pytest.mark.parametrize("settings", [{}, {"fixed_width": 4}, {"adaptive_verification": True}, {"mtp_draft_tokens": 0}])
def test_a_batch_gives_each_prompt_what_it_gets_alone(settings):
    prompts = [prompt_of(length, first) for length, first in [(3, 65), (40, 66), (17, 67), (5, 68), (90, 69), (1, 70)]]
    with scripted_engine(mixing(), history_drafts=True, **settings) as engine:
        batch = engine.generate(prompts, Sampling(max_tokens=60, logprobs=1))
        assert isinstance(batch, list)
        assert [list(done.token_ids) for done in batch] == [reference(prompt, 60) for prompt in prompts]
        assert_free(engine)


def test_a_fixed_width_catalog_of_three_graphs_serves_rounds_without_drafts():
    manifest = scripted_manifest(widths=[4])
    with scripted_engine(mixing(), manifest, fixed_width=4, context_drafts=False, history_drafts=True) as engine:
        done = engine.generate([prompt_of(5), prompt_of(9)], Sampling(max_tokens=30))
        assert isinstance(done, list) and set(done[0].speculation.widths) == {4}
        assert list(done[0].token_ids) == reference(prompt_of(5), 30)


def test_a_long_prompt_takes_turns_with_a_running_request():
    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        (running,) = engine.submit(prompt_of(3), Sampling(max_tokens=100))
        while running.generated_tokens < 5:
            engine.step()
        before = len(engine._device.log)
        engine.submit(prompt_of(150), Sampling(max_tokens=2))
        while engine.step():
            pass
    kinds = [entry[0] for entry in engine._device.log[before:]]
    chunks = [index for index, kind in enumerate(kinds) if kind in ("resume", "prefill")]
    assert len(chunks) == 10
    assert all(kinds[chunk + 1] == "decode" for chunk in chunks[:-1])
    assert len(chunks) + 1 >= chunks[-1] - chunks[0] - len(chunks)  # and not many rounds for each chunk


@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_mixed_requests_leave_everything_free(seed):
    """Random prompts, budgets, stops, opt-outs and cancellations over four slots and few pages."""
    draw = random.Random(seed)
    manifest = scripted_manifest(pages=9)
    settings = {"adaptive_verification": bool(seed % 2), "history_drafts": seed > 1, "mtp_draft_tokens": 7}
    with scripted_engine(mixing(), manifest, **settings) as engine:
        handles, expected, doomed = [], {}, set()
        for _ in range(200):
            prompt = prompt_of(draw.randint(1, 120), draw.randint(65, 90))
            budget = draw.randint(1, 60)
            wishes = Sampling(
                max_tokens=budget,
                logprobs=draw.choice([None, 0, 3]),
                stop=draw.choice([None, "zz", ["\xe9\xe9", "qq"]]),
                speculation=draw.random() > 0.2,
                max_draft_tokens=draw.choice([None, 0, 1, 3]),
            )
            (handle,) = engine.submit(prompt, wishes)
            handles.append(handle)
            expected[handle.id] = reference(prompt, budget)
            if draw.random() < 0.15:
                doomed.add(handle.id)
        while engine.step():
            if doomed and draw.random() < 0.2:
                victim = doomed.pop()
                engine.cancel(next(handle for handle in handles if handle.id == victim))
            engine.check()
        for handle in handles:
            done = handle.completion
            assert done is not None
            wanted = expected[handle.id]
            assert list(done.token_ids) == wanted[: len(done.token_ids)]
            assert len(done.token_ids) == len(wanted) or done.finish_reason in ("cancelled", "stop")
            assert done.logprobs is None or len(done.logprobs) == len(done.token_ids)
        assert_free(engine)


@pytest.mark.parametrize("drafts", [0, 7])
@pytest.mark.parametrize("steps", range(26))
def test_cancelling_at_any_moment_frees_everything(steps, drafts):
    with scripted_engine(mixing(), mtp_draft_tokens=drafts, history_drafts=True) as engine:
        (victim,) = engine.submit(prompt_of(60), Sampling(max_tokens=150, stop="never"))
        (other,) = engine.submit(prompt_of(20), Sampling(max_tokens=40))
        for _ in range(steps):
            engine.step()
        engine.cancel(victim)
        for _ in range(3):
            engine.step()
        assert victim.finished and victim.pages == ()
        done = victim.completion
        assert done is not None and done.finish_reason == "cancelled"
        assert list(done.token_ids) == reference(prompt_of(60), 150)[: len(done.token_ids)]
        assert engine.wait([other])[0].token_ids == tuple(reference(prompt_of(20), 40))
        assert_free(engine)
        last = victim.take_events()[-1]
        assert last.finish_reason == "cancelled" and last.completion is done


def test_a_cancelled_round_adds_nothing_to_the_history():
    with scripted_engine(saying("abcdefghijkl" * 9, 5), history_drafts=True, context_drafts=False) as engine:
        (victim,) = engine.submit(prompt_of(5), Sampling(max_tokens=90))
        while victim.generated_tokens < 3:
            engine.step()
        engine.cancel(victim)
        while engine.step():
            pass
        assert len(engine._copies._history) == victim.generated_tokens


def test_leaving_a_stream_cancels_its_request():
    with scripted_engine(mixing()) as engine:
        for event in engine.stream(prompt_of(5), Sampling(max_tokens=100)):
            if event.token_ids:
                break
        while engine.step():
            pass
        assert_free(engine)


@pytest.mark.parametrize("at", range(1, 12))
def test_an_interrupt_leaves_the_engine_usable_and_closable(at, monkeypatch):
    engine = scripted_engine(mixing())
    collect, calls = engine._device.collect, iter(range(1, 1000))

    def interrupted(frame: int):
        if next(calls) == at:
            raise KeyboardInterrupt
        return collect(frame)

    monkeypatch.setattr(engine._device, "collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([prompt_of(30), prompt_of(40)], Sampling(max_tokens=50))
    done = engine.generate(prompt_of(7), Sampling(max_tokens=9))
    assert isinstance(done, Completion) and list(done.token_ids) == reference(prompt_of(7), 9)
    engine.submit(prompt_of(30))
    engine.step()
    engine.close()
    assert_free(engine)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_program_that_fails_loses_its_own_requests_and_nothing_else(at, monkeypatch):
    engine = scripted_engine(mixing(), scripted_manifest(lanes=1))
    collect, calls = engine._device.collect, iter(range(1, 1000))

    def failing(frame: int):
        completion = collect(frame)
        if next(calls) == at:
            raise ValueError("broken")
        return completion

    monkeypatch.setattr(engine._device, "collect", failing)
    first, second = (engine.submit(prompt_of(length), Sampling(max_tokens=20))[0] for length in (30, 40))
    with pytest.raises(ValueError, match="broken"):
        engine.wait([first])
    with pytest.raises(RequestError, match="lost"):
        engine.wait([first])
    (done,) = engine.wait([second])
    assert list(done.token_ids) == reference(prompt_of(40), 20)
    assert_free(engine)


def test_a_stream_whose_engine_is_closed_still_ends_with_a_completion():
    engine = scripted_engine(mixing())
    events = engine.stream(prompt_of(5), Sampling(max_tokens=100))
    next(events)
    engine.close()
    assert [event.finish_reason for event in events][-1] == "cancelled"


def test_waiting_requests_are_served_in_order_and_may_be_cancelled():
    manifest = scripted_manifest(lanes=1)
    with scripted_engine(mixing(), manifest) as engine:
        handles = [engine.submit(prompt_of(4), Sampling(max_tokens=3))[0] for _ in range(4)]
        engine.cancel(handles[2])
        order = []
        while engine.step():
            order += [handle.id for handle in handles if handle.finished and handle.id not in order]
    assert order[:2] == [handles[2].id, handles[0].id] and order[-1] in (handles[1].id, handles[3].id)


def test_more_running_requests_than_lanes_take_turns():
    manifest = scripted_manifest(lanes=2, slots=5)
    with scripted_engine(mixing(), manifest) as engine:
        prompts = [prompt_of(4, first) for first in range(65, 70)]
        batch = engine.generate(prompts, Sampling(max_tokens=20))
        assert isinstance(batch, list)
        assert [list(done.token_ids) for done in batch] == [reference(prompt, 20) for prompt in prompts]


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers_and_the_key():
    with scripted_engine(mixing()) as engine:
        with pytest.raises(RequestError, match=r"256 tokens.*ends at 256.*preparation\.context_length"):
            engine.generate(prompt_of(256))
        done = engine.generate(prompt_of(255), Sampling(max_tokens=9))
        assert isinstance(done, Completion) and len(done.token_ids) == 1


def test_a_request_that_can_never_fit_is_refused_at_once():
    with scripted_engine(mixing(), scripted_manifest(pages=2)) as engine:
        with pytest.raises(CapacityError, match=r"100 tokens with max_tokens=29 needs 3 pages of this core's 2"):
            engine.generate([prompt_of(4), prompt_of(100)], Sampling(max_tokens=29))
        done = engine.generate(prompt_of(100), Sampling(max_tokens=28))
        assert isinstance(done, Completion) and len(done.token_ids) == 28
        assert_free(engine)


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [5, "x"], [-1], [512], [True], 7, None, b"Hi", ["ok", b"Hi"], ["ok", []]]
)
def test_what_is_no_prompt_is_refused_and_nothing_stays(prompt):
    with scripted_engine(mixing()) as engine:
        with pytest.raises(RequestError):
            engine.generate(prompt)
        while engine.step():
            pass
        assert_free(engine)


def test_prompts_are_text_ids_or_messages_alone_or_in_a_list():
    with scripted_engine(mixing(), sampling={"max_tokens": 5}) as engine:
        chat = [{"role": "user", "content": "Hi"}]
        ids = list(b"<user>Hi")
        alone = [engine.generate(prompt) for prompt in ("<user>Hi", ids, chat)]
        batch = engine.generate(["<user>Hi", ids, chat])
        assert isinstance(batch, list)
        assert len({done.token_ids for done in [*batch, *alone]}) == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_n_completions_lie_beside_each_other():
    with scripted_engine(mixing(), sampling={"max_tokens": 3}) as engine:
        assert len(engine.generate("abc", Sampling(n=3))) == 3  # pyright: ignore[reportArgumentType]
        assert len(engine.generate(["abc", "abd"], Sampling(n=2))) == 4  # pyright: ignore[reportArgumentType]
        seeds = [handle.policy.seed for handle in engine.submit("abc", Sampling(n=3, seed=5))]
        assert seeds == [5, 6, 7]
        with pytest.raises(RequestError, match=r"sampling\.n=2"):
            next(iter(engine.stream("abc", Sampling(n=2))))


def test_a_law_without_mass_fails_its_request_only(monkeypatch):
    from flare.contract.frames import Field, Flag

    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        collect = engine._device.collect
        (victim,) = engine.submit(prompt_of(4), Sampling(max_tokens=50))
        (other,) = engine.submit(prompt_of(6), Sampling(max_tokens=20))

        def faulty(frame: int):
            completion = collect(frame)
            if victim.generated_tokens == 6:
                completion.records[victim.slot, Field.FLAGS] = Flag.FAULT
            return completion

        monkeypatch.setattr(engine._device, "collect", faulty)
        assert engine.wait([other])[0].token_ids == tuple(reference(prompt_of(6), 20))
        with pytest.raises(RequestError, match="without mass"):
            engine.wait([victim])
        assert_free(engine)


@pytest.mark.parametrize("name", ["REQUEST_ID", "GENERATION", "CONSUMED", "GENERATED", "EMITTED"])
def test_a_record_that_disagrees_with_the_host_is_a_bug(name, monkeypatch):
    from flare.contract.frames import Field

    with scripted_engine(mixing()) as engine:
        collect = engine._device.collect

        def corrupted(frame: int):
            completion = collect(frame)
            completion.records[:, Field[name]] += 1
            return completion

        monkeypatch.setattr(engine._device, "collect", corrupted)
        with pytest.raises(RuntimeError, match="the host expects"):
            engine.generate(prompt_of(4))


def test_the_scripted_device_notices_a_wrong_page_table():
    """The tests above prove little unless the device objects."""
    engine = scripted_engine(mixing())
    (request,) = engine.submit(prompt_of(70), Sampling(max_tokens=50))
    while request.generated_tokens < 2:
        engine.step()
    request.table[:2] = request.table[1::-1].copy()
    request.epoch += 1
    with pytest.raises(ContractError):
        engine.wait([request])
