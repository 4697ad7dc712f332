// The instruments: asks for the live numbers once a second and draws them.

import { line, stacks } from "/page/chart.js";
import { byId, element, number, percent, short } from "/page/dom.js";
import { getJson } from "/page/stream.js";

const SHOWN = 120; // seconds
const RECENT = 5; // seconds that the tiles look back
const EVERY_MS = 1000;
const seconds = new Map();
let next = 0;

export function watch(mayAsk, onState) {
  const tick = async () => {
    if (mayAsk()) {
      try {
        const state = await getJson(`/flare/live?since=${next}`);
        draw(state);
        onState(state);
      } catch (problem) {
        onState(null, problem);
      }
    }
    setTimeout(tick, EVERY_MS);
  };
  tick();
}

function draw(state) {
  if (state.now < next) seconds.clear(); // the server began anew
  for (const second of state.seconds) seconds.set(second.index, second);
  for (const index of seconds.keys()) if (index <= state.now - state.kept_seconds) seconds.delete(index);
  next = state.now; // the current second may still grow
  const last = Array.from({ length: SHOWN }, (_, index) => seconds.get(state.now - SHOWN + index) ?? null);
  tiles(state, last);
  charts(last);
  depths(state.totals.by_depth);
  if (state.policy) policy(state.policy);
  if (state.engine) memory(state.engine);
}

function tiles(state, last) {
  const recent = last.slice(-RECENT).filter(Boolean);
  const sum = (list, pick) => list.reduce((total, each) => total + pick(each), 0);
  const rounds = (second) => Object.values(second.widths).reduce((total, count) => total + count, 0);
  const shown = last.filter(Boolean);
  const ran = sum(shown, rounds);
  byId("tile-speed").textContent = short(sum(recent, (each) => each.tokens) / RECENT);
  byId("tile-round").textContent = ran ? number(sum(shown, (each) => each.emitted) / ran, 2) : "–";
  byId("tile-accept").textContent = percent(sum(shown, (each) => each.accepted), sum(shown, (each) => each.offered));
  byId("tile-load").textContent = state.engine ? `${state.engine.running} · ${state.engine.waiting}` : "–";
}

function charts(last) {
  const speeds = last.map((second) => second?.tokens ?? 0);
  line(byId("chart-speed"), speeds, `Tokens per second, at most ${Math.max(...speeds)}`);
  line(byId("chart-cost"), last.map((second) => second?.round_ms ?? null), "Milliseconds of a round over time");
  const colour = (width) => `width-${Math.min(Number(width), 9)}`;
  const columns = last.map((second) => Object.entries(second?.widths ?? {}).map(([width, count]) => [colour(width), count]));
  stacks(byId("chart-widths"), columns, "Rounds per second by verification width");
  const totals = new Map();
  for (const second of last)
    for (const [width, count] of Object.entries(second?.widths ?? {})) totals.set(width, (totals.get(width) ?? 0) + count);
  byId("widths-legend").replaceChildren(
    ...[...totals.entries()].sort((one, other) => one[0] - other[0]).map(([width, count]) => {
      const entry = element("span");
      entry.append(element("span", `swatch ${colour(width)}`), `width ${width} `, element("span", "count", number(count)));
      return entry;
    }),
  );
}

function bar(shares) {
  const track = element("div", "track");
  for (const [name, share] of shares) {
    const fill = element("div", `fill ${name}`);
    fill.style.width = `${100 * share}%`;
    track.append(fill);
  }
  return track;
}

function depths(pairs) {
  const rows = pairs.flatMap(([offered, accepted], depth) => [
    element("span", "", `${depth + 1}`),
    bar([["", offered ? accepted / offered : 0]]),
    element("span", "", `${percent(accepted, offered)} of ${number(offered)}`),
  ]);
  byId("depths").replaceChildren(...(rows.length ? rows : [element("p", "empty", "No draft was offered yet.")]));
}

function policy(state) {
  byId("policy-reason").textContent = state.reason ? `last: width ${state.width}, ${state.reason}` : "";
  byId("options").tBodies[0].replaceChildren(
    ...state.options.map((option) => {
      const row = element("tr", option.chosen ? "chosen" : "");
      const rate = (1e3 * option.tokens) / option.round_ms;
      for (const text of [option.width, number(option.tokens, 2), number(option.round_ms, 2), short(rate), option.rounds])
        row.append(element("td", "", `${text}`));
      return row;
    }),
  );
  byId("options").hidden = !state.options.length;
  const [spent, left] = [state.exploration_spent_ms, state.exploration_budget_ms];
  byId("exploration").textContent = state.options.length
    ? `Exploration has spent ${short(spent)} ms of saved time and may spend ${short(left)} ms more.`
    : "No widths were compared yet.";
}

function memory(engine) {
  const { pages, slots, snapshots } = engine;
  const share = (part, whole) => (whole ? part / whole : 0);
  byId("memory").replaceChildren(
    element("span", "", "pages"),
    bar([["used", share(pages.used, pages.total)], ["cached", share(pages.cached, pages.total)]]),
    element("span", "", `${number(pages.used)} used, ${number(pages.cached)} cached of ${number(pages.total)}`),
    element("span", "", "slots"),
    bar([["used", share(slots.total - slots.free, slots.total)]]),
    element("span", "", `${slots.total - slots.free} of ${slots.total}`),
    element("span", "", "snapshots"),
    bar([["cached", share(snapshots.total - snapshots.free, snapshots.total)]]),
    element("span", "", `${snapshots.total - snapshots.free} of ${snapshots.total}`),
  );
  byId("cache").textContent =
    `${number(engine.cached_prefixes)} cached prefixes gave ${number(engine.prefix_hit_tokens)} prompt tokens; ` +
    `${engine.preemptions} preemptions, ${engine.launches_in_flight} launches in flight.`;
}
