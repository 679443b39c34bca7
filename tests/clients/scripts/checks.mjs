// What the scripts in JavaScript share; see checks.py. Needs no package.

export const { urls, model } = JSON.parse(process.argv[2]);
export const question = "Name the capital of France.";
export const answer = "Paris";
export const prompt = "The capital of France is";

// Runs `body`; what it throws is the check's failure.
export async function check(name, body) {
  let failure = null;
  try {
    await body();
  } catch (error) {
    console.error(error);
    failure = String(error);
  }
  console.log(JSON.stringify({ check: name, failure }));
}

export function assert(condition, message) {
  if (!condition) throw new Error(message);
}

// The text of a stream of the AI SDK; throws the error that is in it.
export async function collect(result) {
  let text = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  return text;
}

// `request` must throw an error with the `status`, and say `word`.
export async function expect(status, request, word) {
  try {
    await request();
  } catch (error) {
    const told = error.status ?? error.statusCode;
    assert(told === status && String(error).includes(word), `status ${told}, ${error}`);
    return;
  }
  throw new Error("nothing was thrown");
}
