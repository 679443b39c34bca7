// What outlives a reload of this tab, and nothing longer: the conversation and the settings. Never the key.

import { storable } from "./messages.js";

const NAME = "numaserve";

/** What was kept, or nothing of it where there is none or it cannot be read. */
export function kept() {
  try {
    const { messages, settings } = JSON.parse(sessionStorage.getItem(NAME));
    return { messages: Array.isArray(messages) ? messages : [], settings: settings ?? {} };
  } catch {
    return { messages: [], settings: {} };
  }
}

/** Keep these; of images their names alone. A conversation too large for the browser is not kept. */
export function keep(messages, settings) {
  try {
    sessionStorage.setItem(NAME, JSON.stringify({ messages: storable(messages), settings }));
  } catch {
    sessionStorage.removeItem(NAME);
  }
}
