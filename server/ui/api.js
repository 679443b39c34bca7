// Requests to the server that the page came from. The key is kept in this module's memory: a reload forgets it.

const ROOT = new URL("../", import.meta.url); // a proxy may show the server under a prefix

const LOST = "The connection to the server was lost.";

let key = "";

/** Send this key from now on; an empty one: none. */
export function useKey(given) {
  key = given;
}

/** Whether there is a key to send. */
export const hasKey = () => key !== "";

/** What the server refused; `status` is HTTP's. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The JSON that GET `path` answers. Throws `Refused`. */
export async function get(path) {
  return (await ask(path, {})).json();
}

/** The events of a streamed POST, each parsed. Throws `Refused`, also for an error in the middle of the stream. */
export async function* events(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of payloads(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refused(event.error.message, event.error.code);
    yield event;
  }
  throw new Error(LOST);
}

async function ask(path, options) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const sent = fetch(new URL(path, ROOT), { ...options, headers, credentials: "omit", redirect: "error" });
  const answer = await sent.catch(lost("The server does not answer."));
  if (!answer.ok) throw new Refused(await reason(answer), answer.status);
  return answer;
}

// Each browser has words of its own for a connection that is not there.
const lost = (message) => (problem) => {
  throw problem.name === "AbortError" ? problem : new Error(message);
};

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server returned status ${answer.status}.`;
  }
}

// The text behind "data: " of each event. https://html.spec.whatwg.org/multipage/server-sent-events.html
async function* payloads(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(lost(LOST));
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
