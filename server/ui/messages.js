// The messages of a conversation as a request has them, and as the browser stores them.

const BESIDE = 2 ** 20; // bytes of a body for everything but messages
const MISSING = "[An image that is no longer sent.]"; // what the model reads in place of one

/** The bytes of a file in base64. */
export const encodedBytes = (size) => 4 * Math.ceil(size / 3);

/** The bytes in base64 that a body within `limits` leaves to the images of these messages. */
export function imageRoom(messages, limits) {
  return limits.max_body_bytes - BESIDE - new TextEncoder().encode(JSON.stringify(storable(messages))).length;
}

/** The messages without the data of images, for which a browser's storage is too small. */
export function storable(messages) {
  return messages.map((message) =>
    message.images ? { ...message, images: message.images.map(({ name }) => ({ name })) } : message);
}

/** The messages in OpenAI's form. The oldest images are left out beyond the `limits`; null: the model takes none. */
export function requestMessages(messages, limits) {
  const joined = asked(messages);
  const sent = sendable(joined, limits);
  return joined.map((message) => (message.images?.length ? withImages(message, sent) : plain(message)));
}

// A server refuses what is too much; a conversation must go on in spite of the images it began with.
function sendable(messages, limits) {
  const sent = new Set();
  if (!limits) return sent;
  let room = imageRoom(messages, limits);
  for (const image of messages.flatMap((message) => message.images ?? []).reverse()) {
    if (!image.data) continue; // lost by a reload
    room -= encodedBytes(image.size);
    if (room < 0 || sent.size === limits.max_images) break;
    sent.add(image);
  }
  return sent;
}

function withImages({ role, content, images }, sent) {
  const parts = images.map((image) =>
    sent.has(image) ? { type: "image_url", image_url: { url: image.data } } : { type: "text", text: MISSING });
  return { role, content: content ? [...parts, { type: "text", text: content }] : parts };
}

const plain = ({ images, isRefused, ...message }) => message;

// A question that got no answer is a part of the next one: many templates want roles to take turns. Images of a request
// that was refused are not: one of them may be the reason.
function asked(messages) {
  return messages.reduce((told, message) => {
    const last = told.at(-1);
    const joined = last?.role === "user" && message.role === "user";
    if (!joined) return [...told, message];
    const content = [last.content, message.content].filter(Boolean).join("\n\n");
    const images = [...((!last.isRefused && last.images) || []), ...(message.images ?? [])];
    return [...told.slice(0, -1), { ...message, content, images }];
  }, []);
}
