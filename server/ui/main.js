// The page: its bar and its dialogs; the chat and the machine are modules of their own.

import { get, hasKey, useKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, make } from "./dom.js";
import { Machine } from "./machine.js";
import { wireSettings } from "./settings.js";
import { kept } from "./store.js";

const { messages, settings } = kept();
const model = byId("model");
const state = byId("state");
let imageLimits = new Map(); // of each model

const chat = new Chat({ messages, settings, model: () => model.value, needKey: refuseKey });
const hooks = { model: () => model.value, told: showState, listed: showModels, refused: onRefused };
const machine = new Machine(byId("machine"), hooks);

wireSettings(settings, () => chat.keep());
wireKey();
wireViews();
document.querySelectorAll("[data-close]").forEach((button) =>
  button.addEventListener("click", () => button.closest("dialog").close()));
start();

async function start() {
  notice("");
  try {
    showModels((await get("v1/models")).data);
    machine.start();
    byId("prompt").focus();
  } catch (problem) {
    onRefused(problem);
  }
}

function showModels(listed) {
  imageLimits = new Map(listed.map(({ id, image_limits: limits }) => [id, limits]));
  if (document.activeElement === model) return; // somebody chooses
  const chosen = model.value || settings.model;
  model.replaceChildren(...listed.map(({ id, state: life }) =>
    make("option", { value: id, selected: id === chosen }, life && life !== "ready" ? `${id} (${life})` : id)));
  offerImages();
}

function offerImages() {
  chat.offerImages(imageLimits.get(model.value) ?? null);
}

model.addEventListener("change", () => {
  settings.model = model.value;
  chat.keep();
  offerImages();
  machine.forget();
});

function showState(life) {
  state.textContent = life;
  state.dataset.good = life === "serving" || life === "ready";
}

function onRefused(problem) {
  if (problem.status === 401) refuseKey();
  else notice(problem.message);
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function refuseKey() {
  notice("This server requires an API key.");
  askKey(hasKey());
}

function askKey(isRefused) {
  machine.stop();
  byId("key-error").hidden = !isRefused;
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

function wireKey() {
  byId("open-key").addEventListener("click", () => askKey(false));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value.trim());
    byId("key").value = "";
    byId("key-dialog").close();
    start();
  });
}

function wireViews() {
  const views = { chat: byId("show-chat"), machine: byId("show-machine") };
  for (const [view, button] of Object.entries(views)) {
    button.addEventListener("click", () => {
      document.body.dataset.view = view;
      for (const [name, each] of Object.entries(views)) each.setAttribute("aria-pressed", name === view);
    });
  }
}
