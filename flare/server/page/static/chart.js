// Charts of the last seconds: a line with gaps, and stacked bars.

import { drawn, short } from "/page/dom.js";

const WIDE = 480;
const HIGH = 84;
const FOOT = 2;
const ROOM = 34; // for the scale at the left

function frame(top, scale) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const share of [0, 0.5, 1]) {
    const y = height(share * top, top);
    svg.append(drawn("line", { class: "grid", x1: ROOM, x2: WIDE, y1: y, y2: y }));
  }
  scale.replaceChildren();
  for (const share of [1, 0.5, 0]) {
    const label = document.createElement("span");
    label.textContent = short(share * top);
    scale.append(label);
  }
  return svg;
}

const height = (value, top) => HIGH - FOOT - (value / top) * (HIGH - 10);

// The next of 1, 2, 5, 10, … above the largest value, so that the scale does not tremble.
function ceiling(values) {
  const most = Math.max(...values, 0);
  if (!most) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}

function place(host, svg, scale, said) {
  host.classList.add("scaled");
  host.setAttribute("role", "img");
  host.setAttribute("aria-label", said);
  host.replaceChildren(scale, svg);
}

// values: one per second, null where nothing was measured.
export function line(host, values, said) {
  const top = ceiling(values.filter((value) => value !== null));
  const scale = document.createElement("div");
  scale.className = "scale-left";
  const svg = frame(top, scale);
  const step = (WIDE - ROOM) / (values.length - 1);
  let run = [];
  const finish = () => {
    if (run.length === 1) svg.append(drawn("circle", { class: "dot", cx: run[0][0], cy: run[0][1], r: 2 }));
    if (run.length > 1) {
      const path = run.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");
      const [first, last] = [run[0][0], run[run.length - 1][0]];
      svg.append(drawn("path", { class: "under", d: `M${path} L${last},${HIGH - FOOT} L${first},${HIGH - FOOT} Z` }));
      svg.append(drawn("path", { class: "trace", d: `M${path}` }));
    }
    run = [];
  };
  values.forEach((value, index) => {
    if (value === null) finish();
    else run.push([ROOM + index * step, height(value, top)]);
  });
  finish();
  place(host, svg, scale, said);
}

// columns: per second a map from class name to count, in drawing order.
export function stacks(host, columns, said) {
  const top = ceiling(columns.map((column) => column.reduce((sum, [, count]) => sum + count, 0)));
  const scale = document.createElement("div");
  scale.className = "scale-left";
  const svg = frame(top, scale);
  const step = (WIDE - ROOM) / columns.length;
  columns.forEach((column, index) => {
    let below = 0;
    for (const [name, count] of column) {
      const [y, base] = [height(below + count, top), height(below, top)];
      svg.append(drawn("rect", { class: name, x: ROOM + index * step, y, width: step * 0.9, height: base - y }));
      below += count;
    }
  });
  place(host, svg, scale, said);
}
