"""The built-in page: its files, its live numbers, and how it works in a browser."""

import json
import re
import shutil
from collections import Counter
from importlib.resources import files

import pytest

from flare.runtime.results import Event, Round
from flare.runtime.stats import EngineStats
from flare.server.observer import Delivery, Step
from flare.server.page.timeline import KEPT_SECONDS, Timeline
from tests.server.serving import mixing, scripted, until

STATIC = files("flare.server.page").joinpath("static")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUESTION = "to be or not to be, to be or not to be, to be"


@pytest.fixture(scope="module")
def served():
    same = ("serving.history_drafts=false", "serving.fixed_width=4")  # the same question gets the same rounds
    with scripted(mixing(), "sampling.max_tokens=60", *same, pause_s=0.002) as served:
        yield served


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; skipped where the machine has none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("needs a Chromium on the PATH: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, served):
    """The page, ready; afterwards nothing may have been logged as an error or asked of another host."""
    page, problems, requested = opened(browser, served.url)
    page.wait_for_selector('[data-phase="ready"]')
    yield page
    page.context.close()
    assert problems == []
    assert {url for url in requested if not url.startswith(served.url)} == set()


def opened(browser, url, **options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    problems: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(url)
    return page, problems, requested


def chat(page, text=QUESTION):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_selector("#send:not([disabled])")  # it is disabled by the time the key press returns


def test_an_answer_is_coloured_by_source(page, served):
    chat(page)
    assert page.locator(".turn.user").text_content() == QUESTION
    body = {"messages": [{"role": "user", "content": QUESTION}], "return_provenance": True}
    (choice,) = served.post("/v1/chat/completions", body).json()["choices"]
    assert page.locator(".tokens").text_content() == choice["message"]["content"]
    shown = page.eval_on_selector_all(".token", "all => all.map(each => each.classList[1])")
    told = [f"source-{each['source']}" for each in choice["provenance"] if each["text"]]
    assert Counter(shown) == Counter(told)
    assert {"source-context", "source-target", "source-prefill"} <= set(shown)
    colours = page.eval_on_selector_all(
        ".source-context, .source-target",
        "all => [...new Set(all.map(each => getComputedStyle(each).backgroundColor))]",
    )
    assert len(colours) == 2
    facts = page.locator(".facts").text_content()
    assert re.search(r"60 tokens in \d+ rounds .* drafts accepted", facts)


def test_the_legend_names_every_source(page):
    names = page.locator("#legend > span").all_text_contents()
    assert sorted(names) == ["context", "forced", "history", "learned", "prefill", "target"]


def test_a_token_explains_itself_to_pointer_and_keyboard(page):
    chat(page)
    page.locator(".source-context").first.hover()
    tip = page.locator("#tip")
    assert re.search(r"context: a draft copied .*logprob -?\d.*round \d+, token \d+ of \d+", tip.text_content())
    page.mouse.move(2, 2)
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    assert "prefill" in tip.text_content() and page.locator(".token.chosen").count() == 1
    page.keyboard.press("End")
    assert "round" in tip.text_content()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_conversation_goes_on_and_begins_anew(page):
    chat(page)
    with page.expect_request("**/v1/chat/completions") as asked:
        chat(page, "again")
    messages = json.loads(asked.value.post_data)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == page.locator(".tokens").first.text_content()
    page.click("#clear")
    assert page.locator(".turn").count() == 0 and page.locator("#hello").is_visible()


def test_a_new_chat_knows_nothing_of_an_answer_it_cut_off(page, served):
    served.device.pause_s = 0.05
    page.fill("#prompt", QUESTION)
    page.click("#send")
    page.wait_for_selector(".token")
    page.click("#clear")
    served.device.pause_s = 0.002
    page.wait_for_selector("#send:not([disabled])")
    with page.expect_request("**/v1/chat/completions") as asked:
        chat(page, "Hi")
    assert json.loads(asked.value.post_data)["messages"] == [{"role": "user", "content": "Hi"}]


def test_an_answer_can_be_stopped(page, served):
    served.device.pause_s = 0.05
    try:
        page.fill("#prompt", QUESTION)
        page.click("#send")
        page.wait_for_selector(".token")
        page.click("#stop")
        page.wait_for_selector("#send:not([disabled])")
        assert page.locator(".facts").text_content() == "Stopped."
        until(lambda: served.engine.open_choices == 0)
    finally:
        served.device.pause_s = 0.002


def test_a_refusal_is_shown_as_the_server_says_it(browser, served):
    page, problems, _ = opened(browser, served.url)
    page.fill("#max-tokens", "100000")
    chat(page)
    assert "context" in page.locator(".problem").text_content()
    page.fill("#max-tokens", "5")
    with page.expect_request("**/v1/chat/completions") as asked:
        chat(page, "Hi")
    assert json.loads(asked.value.post_data)["messages"] == [{"role": "user", "content": "Hi"}]
    page.context.close()
    assert [problem.partition(":")[0] for problem in problems] == ["Failed to load resource"]  # the browser's own


def test_the_instruments_show_what_happened(page):
    chat(page)
    page.wait_for_selector("#depths .fill")
    page.wait_for_selector("#chart-widths rect")
    page.wait_for_selector("#chart-speed path")
    assert re.search(r"\d+ % of \d+", page.locator("#depths").text_content())
    assert re.search(r"pages.*used.*slots.*of 4.*snapshots", page.locator("#memory").text_content())
    assert "width" in page.locator("#policy-reason").text_content()


def test_a_phone_shows_everything_without_scrolling_sideways(browser, served):
    page, problems, _ = opened(browser, served.url, viewport={"width": 360, "height": 740})
    page.wait_for_selector('[data-phase="ready"]')
    chat(page)
    page.wait_for_selector("#chart-widths rect")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for part in ("#prompt", "#send", "#memory"):
        assert page.locator(part).is_visible()
    page.context.close()
    assert problems == []


def test_light_and_dark_follow_the_system_until_a_person_chooses(browser, served):
    grounds = set()
    for scheme in ("light", "dark"):
        page, problems, _ = opened(browser, served.url, color_scheme=scheme)
        ground = "getComputedStyle(document.body).backgroundColor"
        first = page.evaluate(ground)
        page.click("#theme")
        page.reload()
        assert page.evaluate(ground) != first
        grounds.add(first)
        page.context.close()
        assert problems == []
    assert len(grounds) == 2


def test_the_key_is_asked_for_where_there_is_one(browser):
    with scripted(mixing(), api_key="secret") as served:
        page, problems, _ = opened(browser, served.url)
        page.wait_for_selector("#key")
        assert page.locator("#phase").text_content() == "needs a key" and problems == []
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        page.wait_for_selector('[data-phase="ready"]')
        chat(page)
        assert page.locator(".token").count() > 10
        page.context.close()
        assert problems == []
        assert served.get("/flare/live").status_code == 401
        assert served.get("/").status_code == 200


def test_the_page_is_sent_with_rules_that_keep_it_offline(served):
    answer = served.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8")
        outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text.replace("http://www.w3.org/", ""))
        assert outside == [], file.name
        if file.name != "index.html":
            assert served.get(f"/page/{file.name}").content == file.read_bytes()
        for named in re.findall(r"[\"'](/page/[\w.]+)[\"']", text):
            assert served.get(named).status_code == 200


def test_live_numbers_are_those_of_the_metrics(served):
    usage = served.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 30}).json()["usage"]
    first = served.get("/flare/live").json()
    second = served.get(f"/flare/live?since={first['now']}").json()
    totals = first["totals"]
    assert sum(offered for offered, _ in totals["by_depth"]) == totals["offered"]
    assert sum(accepted for _, accepted in totals["by_depth"]) == totals["accepted"] > 0
    assert sum(totals["widths"].values()) == totals["rounds"]
    assert sum(each["tokens"] for each in first["seconds"]) == totals["generated_tokens"] >= usage["completion_tokens"]
    assert all(each["index"] >= first["now"] for each in second["seconds"])
    assert first["engine"]["pages"]["used"] == 0 and first["depth"] == 7
    assert served.get("/flare/live?since=-1").status_code == 400


def test_a_timeline_keeps_the_last_minutes_only():
    now = [100.0]
    timeline = Timeline(lambda: now[0])
    stats = EngineStats(1, 2, 9, 9, 4, 4, 0, 0, 0, 0, 0, 0)
    row = Round(width=3, offered=2, accepted=1, emitted=2, sources=("history", "history"))
    step = Step([Delivery(7, Event("ab", (1, 2)), (row,), None)], stats, 0.5)
    timeline.stepped(step)
    timeline.stepped(step)
    now[0] += 1
    timeline.stepped(step)
    first, last = timeline.since(0)
    assert first == {
        "index": 0,
        "tokens": 4,
        "emitted": 4,
        "offered": 4,
        "accepted": 2,
        "round_ms": 500.0,
        "running": 2,
        "waiting": 1,
        "widths": {3: 2},
    }
    assert last["index"] == 1 and timeline.since(1) == [last]
    now[0] += KEPT_SECONDS
    timeline.stepped(step)
    assert [each["index"] for each in timeline.since(0)] == [1 + KEPT_SECONDS]
