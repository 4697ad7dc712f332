// The conversation: sends it, shows the answer round by round, and says how its drafts fared.

import { byId, element, number, percent } from "/page/dom.js";
import { events } from "/page/stream.js";
import { addRound, walkable } from "/page/tokens.js";

const log = byId("log");
const field = byId("prompt");
const hello = byId("hello");
const NEAR_PIXELS = 160;
let conversation = [];
let abort = null;

export function begin(onRefused) {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send(onRefused);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(onRefused);
  });
  byId("stop").addEventListener("click", () => abort?.abort());
  byId("clear").addEventListener("click", () => {
    abort?.abort();
    conversation = [];
    log.replaceChildren(hello);
    field.focus();
  });
}

function asked(text) {
  conversation.push({ role: "user", content: text });
  const body = {
    messages: conversation,
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    return_provenance: true,
    speculation_metrics: "summary",
  };
  const [temperature, most] = [byId("temperature").value, byId("max-tokens").value];
  if (temperature !== "") body.temperature = Number(temperature);
  if (most !== "") body.max_tokens = Number(most);
  if (!byId("speculation").checked) body.speculation = false;
  return body;
}

async function send(onRefused) {
  const text = field.value.trim();
  if (!text || abort) return;
  const body = asked(text);
  hello.remove();
  log.append(element("div", "turn user", text));
  const turn = element("div", "turn answer");
  const tokens = element("div", "tokens");
  tokens.setAttribute("aria-label", "Answer; arrow keys go through its tokens");
  const facts = element("div", "facts", "…");
  turn.append(tokens, facts);
  log.append(turn);
  field.value = "";
  abort = new AbortController();
  busy(true);
  follow(true);
  try {
    await receive(body, tokens, facts);
  } catch (problem) {
    if (problem.name === "AbortError") facts.textContent = "Stopped.";
    else {
      facts.textContent = problem.message;
      facts.classList.add("problem");
      onRefused(problem);
    }
  } finally {
    abort = null;
    busy(false);
    walkable(tokens);
    follow(false);
  }
}

async function receive(body, host, facts) {
  const began = performance.now();
  let [content, round, count, first, reason, usage, drafts] = ["", -1, 0, null, null, null, null];
  // A question without any answer does not become part of the conversation.
  const talk = body.messages;
  const keep = () => (content ? talk.push({ role: "assistant", content }) : talk.pop());
  try {
    for await (const chunk of events("/v1/chat/completions", body, abort.signal)) {
      usage = chunk.usage ?? usage;
      drafts = chunk.metrics?.speculative_decoding ?? drafts;
      const choice = chunk.choices[0];
      if (!choice) continue;
      content += choice.delta.content ?? "";
      reason = choice.finish_reason ?? reason;
      if (!choice.provenance) continue;
      first ??= performance.now();
      round += 1;
      count += choice.provenance.length;
      addRound(host, choice.provenance, choice.logprobs?.content, round, "reasoning_content" in choice.delta);
      facts.textContent = `${count} tokens, ${round} rounds`;
      follow(false);
    }
  } finally {
    keep();
  }
  const seconds = (performance.now() - first) / 1e3;
  const told = [`${number(usage?.completion_tokens ?? count)} tokens in ${number(round)} rounds`];
  if (round > 0) told.push(`${number((count - 1) / round, 2)} per round`);
  if (drafts) told.push(`${percent(drafts.num_accepted_draft_tokens, drafts.num_draft_tokens)} of ${number(drafts.num_draft_tokens)} drafts accepted`);
  if (count > 1) told.push(`${number((count - 1) / seconds, 1)} tokens/s`);
  told.push(`first after ${number((first ?? began) - began)} ms`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) told.push(`${number(cached)} of ${number(usage.prompt_tokens)} prompt tokens from the cache`);
  if (reason === "length") told.push("cut at max tokens");
  facts.textContent = told.join(" · ");
  byId("status").textContent = `Answer complete: ${told[0]}.`;
}

function busy(running) {
  byId("send").disabled = running;
  byId("stop").hidden = !running;
}

// Keep the end in sight, unless the reader has scrolled up; on a phone the page scrolls instead of the log.
function follow(always) {
  if (log.scrollHeight <= log.clientHeight + 1) {
    if (always) log.lastElementChild?.scrollIntoView({ block: "end" });
    return;
  }
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PIXELS) log.scrollTop = log.scrollHeight;
}
