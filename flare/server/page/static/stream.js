// Talks to the server: requests with the key, and answers that come as server-sent events.

let key = sessionStorage.getItem("flare-key") ?? "";

export function useKey(given) {
  key = given;
  sessionStorage.setItem("flare-key", given);
}

export const hasKey = () => key !== "";

function headers(more = {}) {
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refusal(response) {
  const text = await response.text();
  try {
    return new Refusal(response.status, JSON.parse(text).error.message);
  } catch {
    return new Refusal(response.status, `The server answered ${response.status}.`);
  }
}

export async function getJson(path, signal) {
  const response = await fetch(path, { headers: headers(), signal });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// Yields the parsed data of every event until the server says that it is done.
export async function* events(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refusal(0, "The connection ended before the answer did.");
    const pieces = (held + value).split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) {
      const data = piece.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const document = JSON.parse(data);
      if (document.error) throw new Refusal(document.error.code, document.error.message);
      yield document;
    }
  }
}
