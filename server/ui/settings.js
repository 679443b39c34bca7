// Parameters of requests: the dialog for them, and the fields of a request that they make.

import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const WHOLE = new Set(["top_k", "max_tokens", "seed"]);
const LABELS = { temperature: "Temperature", top_p: "Top p", top_k: "Top k", max_tokens: "Maximum tokens", seed: "Seed" };

/** The fields of a request that these settings stand for. Throws an `Error` that says what cannot be read. */
export function requestFields(settings) {
  const fields = {};
  for (const name of NUMBERS) {
    const text = (settings[name] ?? "").trim();
    if (text === "") continue;
    const value = Number(text);
    if (!Number.isFinite(value) || (WHOLE.has(name) && !Number.isSafeInteger(value)))
      throw new Error(`${LABELS[name]} must be a ${WHOLE.has(name) ? "whole " : ""}number, not “${text}”.`);
    fields[name] = value;
  }
  if (settings.reasoning_effort) fields.reasoning_effort = settings.reasoning_effort;
  const tools = parsed(settings.tools, "Tools");
  if (tools !== undefined) fields.tools = toolList(tools);
  const schema = parsed(settings.schema, "The JSON schema");
  if (schema !== undefined)
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  return fields;
}

/** Wires the dialog; `settings` is changed by it, and `changed` called then. */
export function wireSettings(settings, changed) {
  const dialog = byId("settings-dialog");
  const form = byId("settings-form");
  const error = byId("settings-error");
  byId("open-settings").addEventListener("click", () => {
    for (const field of form.elements) if (field.name) field.value = settings[field.name] ?? "";
    error.hidden = true;
    dialog.showModal();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(form));
    try {
      requestFields(given);
    } catch (problem) {
      error.textContent = problem.message;
      error.hidden = false;
      return;
    }
    Object.assign(settings, given);
    changed();
    dialog.close();
  });
}

function parsed(text, what) {
  if (!text?.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (problem) {
    throw new Error(`${what}: ${problem.message}.`);
  }
}

// OpenAI's form has the function in an object of its own; the bare function is taken as well.
function toolList(tools) {
  if (!Array.isArray(tools) || !tools.length) throw new Error("Tools must be a non-empty JSON list of tool definitions.");
  return tools.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
}
