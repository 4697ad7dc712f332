// Tokens of an answer: one span each, coloured by source, explained by a tip for pointer and keyboard.

import { byId, element, number, percent } from "/page/dom.js";

export const SOURCES = {
  target: "the target model's own token",
  learned: "a learned draft, accepted",
  history: "a draft copied from earlier answers, accepted",
  context: "a draft copied from this conversation, accepted",
  forced: "the only token the grammar allows",
  prefill: "sampled at the end of the prompt",
};

const facts = new WeakMap();
const tip = byId("tip");

// One round's tokens; returns how many were drawn. round: its number, 0 for the prefill.
export function addRound(host, provenance, logprobs, round, thinking) {
  provenance.forEach(({ text, source }, index) => {
    if (!text) return;
    const token = element("span", `token source-${source}`, text);
    if (!index) token.classList.add("starts");
    if (thinking) token.classList.add("thinking");
    facts.set(token, { text, source, round, place: index + 1, of: provenance.length, logprob: logprobs?.[index]?.logprob });
    host.append(token);
  });
}

export function explain(token) {
  const fact = facts.get(token);
  if (!fact) return hide();
  const shown = element("b", "", JSON.stringify(fact.text).slice(1, -1));
  const lines = [`${fact.source}: ${SOURCES[fact.source] ?? ""}`];
  if (fact.logprob !== undefined)
    lines.push(`logprob ${number(fact.logprob, 3)} (${percent(Math.exp(fact.logprob), 1)})`);
  lines.push(fact.round ? `round ${fact.round}, token ${fact.place} of ${fact.of}` : "prefill");
  tip.replaceChildren(shown);
  for (const text of lines) tip.append(element("div", "", text));
  tip.hidden = false;
  const [box, own] = [token.getClientRects()[0] ?? token.getBoundingClientRect(), tip.getBoundingClientRect()];
  const left = Math.max(8, Math.min(box.left, innerWidth - own.width - 8));
  const above = box.top - own.height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
}

export function hide() {
  tip.hidden = true;
}

// An answer's tokens can be walked with the arrow keys once it has the focus.
export function walkable(host) {
  host.tabIndex = 0;
  let chosen = null;
  const choose = (token) => {
    chosen?.classList.remove("chosen");
    chosen = token;
    if (!token) return hide();
    token.classList.add("chosen");
    token.scrollIntoView({ block: "nearest" });
    explain(token);
  };
  host.addEventListener("keydown", (event) => {
    const tokens = [...host.querySelectorAll(".token")];
    const at = tokens.indexOf(chosen);
    const moves = { ArrowRight: at + 1, ArrowLeft: at < 0 ? tokens.length - 1 : at - 1, Home: 0, End: tokens.length - 1 };
    if (event.key === "Escape") choose(null);
    if (!(event.key in moves) || !tokens.length) return;
    event.preventDefault();
    choose(tokens[Math.max(0, Math.min(moves[event.key], tokens.length - 1))]);
  });
  host.addEventListener("blur", () => choose(null));
  host.addEventListener("pointerover", (event) => event.target.classList.contains("token") && explain(event.target));
  host.addEventListener("pointerleave", () => (chosen ? explain(chosen) : hide()));
}

export function legend(host) {
  for (const [source, what] of Object.entries(SOURCES)) {
    const entry = element("span");
    entry.title = what;
    entry.append(element("span", `swatch fill-${source}`), source);
    host.append(entry);
  }
}
