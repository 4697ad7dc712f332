// Starts the page: theme, key, chat and instruments.

import { begin } from "/page/chat.js";
import { byId } from "/page/dom.js";
import { watch } from "/page/live.js";
import { hasKey, useKey } from "/page/stream.js";
import { legend } from "/page/tokens.js";

const root = document.documentElement;
const stored = localStorage.getItem("flare-theme");
if (stored) root.dataset.theme = stored;

byId("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("flare-theme", root.dataset.theme);
});

function refused(problem) {
  if (problem.status === 401) byId("key-form").hidden = false; // nothing is asked until there is another one
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key-form").hidden = true;
  byId("prompt").focus();
});

function phase(name, text) {
  byId("phase").dataset.phase = name;
  byId("phase").textContent = text;
}

legend(byId("legend"));
begin(refused);
if (root.dataset.keyed === "yes" && !hasKey()) {
  byId("key-form").hidden = false;
  phase("away", "needs a key");
}
const mayAsk = () => !document.hidden && byId("key-form").hidden;
watch(mayAsk, (state, problem) => {
  if (state) {
    phase(state.phase, state.phase);
    byId("model").textContent = state.model ?? "";
    document.title = state.model ? `Flare · ${state.model}` : "Flare";
  } else {
    refused(problem);
    phase("away", problem.status === 401 ? "needs a key" : "not reachable");
  }
});
byId("prompt").focus();
