// The images of the next message: chosen, dropped or pasted; they are shown, and can be removed, before they are sent.

import { byId, make } from "./dom.js";
import { encodedBytes } from "./messages.js";

const FORMATS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MIB = 2 ** 20;

const sizeText = (bytes) => (bytes < MIB ? `${+(bytes / 1024).toFixed(2)} KiB` : `${+(bytes / MIB).toFixed(2)} MiB`);
const filesOf = (transfer) => (transfer?.types.includes("Files") ? transfer.files : []);

/** The element that shows an image: a `blob:` URL, which needs no permission of the policy for what a model writes. */
export function picture({ name, file }) {
  const url = URL.createObjectURL(file);
  const release = () => URL.revokeObjectURL(url); // the element keeps what it has loaded
  return make("img", { src: url, alt: name, load: release, error: release });
}

/** The images that will be sent. */
export class Tray {
  /** `room` gives the bytes in base64 that the conversation leaves to new images. */
  constructor(room) {
    this.room = room;
    this.limits = null; // of the model; null: it takes no images
    this.largest = ""; // size of a file, as text
    this.images = [];
    this.list = byId("thumbnails");
    this.button = byId("add-images");
    this.input = byId("image-files");
    this.input.accept = FORMATS.join(",");
    this.button.addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      this.add([...this.input.files]);
      this.input.value = ""; // the same file may be chosen again
      byId("prompt").focus();
    });
    this.wirePaste(byId("prompt"));
    this.wireDrop(byId("chat"));
  }

  /** Offer to add images within these limits of the model; null: offer nothing. */
  offer(limits) {
    if (JSON.stringify(limits) === JSON.stringify(this.limits)) return; // the models are listed every few seconds
    this.limits = limits;
    this.button.hidden = !limits;
    this.largest = limits && sizeText(limits.max_file_bytes);
    if (limits) this.button.title = `Up to ${limits.max_images} images of at most ${this.largest} each`;
    this.show();
  }

  /** The images that a message takes along. */
  take() {
    if (!this.limits) return [];
    const taken = this.images;
    this.images = [];
    this.show("");
    return taken;
  }

  /** Whether there is something to send. */
  hasImages() {
    return this.limits !== null && this.images.length > 0;
  }

  clear() {
    this.images = [];
    this.show("");
  }

  async add(files) {
    const problems = [];
    for (const file of files) {
      if (!this.limits) break; // another model was chosen meanwhile
      const problem = this.problemWith(file);
      const data = problem ? "" : await dataUrl(file);
      if (data) this.images.push({ name: file.name, size: file.size, file, data });
      else problems.push(problem || `“${file.name}” cannot be read. Choose another file.`);
    }
    this.show(problems.join(" "));
  }

  problemWith({ name, size, type }) {
    const { max_images: most, max_file_bytes: largest } = this.limits;
    const taken = this.images.reduce((sum, image) => sum + encodedBytes(image.size), 0);
    if (!FORMATS.includes(type)) return `“${name}” has an unknown format. Choose a PNG, JPEG, WebP or GIF file.`;
    if (size > largest) return `“${name}” has ${sizeText(size)}; the limit is ${this.largest}. Choose a smaller image.`;
    if (this.images.length >= most) return `“${name}” exceeds the limit of ${most} images. Remove another image first.`;
    if (taken + encodedBytes(size) > this.room())
      return `“${name}” exceeds the limit of one request. Remove another image first, or choose a smaller one.`;
    return "";
  }

  remove(image) {
    const at = this.images.indexOf(image);
    this.images.splice(at, 1);
    this.show("");
    (this.list.children[Math.min(at, this.images.length - 1)]?.querySelector("button") ?? this.button).focus();
  }

  /** Show the images with their limits, and a `problem`; without one, what is shown of a problem stays. */
  show(problem) {
    byId("attached").hidden = !this.hasImages();
    if (problem !== undefined) byId("image-problem").textContent = problem;
    byId("image-problem").hidden = !this.limits || !byId("image-problem").textContent;
    if (!this.limits) return;
    const shown = new Map([...this.list.children].map((item) => [item.image, item]));
    this.list.replaceChildren(...this.images.map((image) => shown.get(image) ?? this.thumbnail(image)));
    const count = `${this.images.length} of ${this.limits.max_images} images`;
    const sum = sizeText(this.images.reduce((total, { size }) => total + size, 0));
    byId("image-figures").textContent = `${count} · ${sum} · at most ${this.largest} each`;
  }

  thumbnail(image) {
    const remove = { type: "button", "aria-label": `Remove ${image.name}`, click: () => this.remove(image) };
    return Object.assign(make("li", {}, picture(image), make("button", remove, "×")), { image });
  }

  // Tables and documents are on the clipboard as text and as a picture of it: their text is pasted.
  wirePaste(field) {
    field.addEventListener("paste", (event) => {
      const files = filesOf(event.clipboardData);
      if (!this.limits || !files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.add([...files]);
    });
  }

  wireDrop(place) {
    const mark = (on) => place.classList.toggle("dropping", on);
    place.addEventListener("dragover", (event) => {
      if (!this.limits || !event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      mark(true);
    });
    place.addEventListener("dragleave", (event) => mark(place.contains(event.relatedTarget)));
    place.addEventListener("drop", (event) => {
      mark(false);
      const files = filesOf(event.dataTransfer);
      if (!this.limits || !files.length) return;
      event.preventDefault();
      this.add([...files]);
      byId("prompt").focus();
    });
  }
}

// Read at once: a file on the disk may change or go while the conversation needs it. An unreadable file: "".
function dataUrl(file) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.addEventListener("loadend", () => resolve(reader.result ?? ""));
    reader.readAsDataURL(file);
  });
}
