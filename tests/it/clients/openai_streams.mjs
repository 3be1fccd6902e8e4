// Streams that a program of a user reads with the official JavaScript client of OpenAI. Arguments: base URL, key, folder of
// pictures.
import { createReadStream } from "node:fs";
import { join } from "node:path";

import OpenAI from "openai";

const [baseURL, apiKey, folder] = process.argv.slice(2);
let attempts = 0;
const counting = (url, init) => {
  attempts = Number(new Headers(init.headers).get("x-stainless-retry-count"));
  return fetch(url, init);
};
const client = new OpenAI({ baseURL, apiKey, timeout: 60_000, maxRetries: 5, fetch: counting });

/** The events of a stream, with the first bytes of their files. */
async function read(stream) {
  const events = [];
  for await (const { type, b64_json, size } of stream) {
    events.push([type, Buffer.from(b64_json, "base64").subarray(0, 4).toString("hex"), size]);
  }
  return events;
}

// The connection of the first attempt breaks before its answer; the client repeats the call by itself.
const boats = { prompt: "a boat", size: "1536x1024", n: 2, stream: true, partial_images: 1 };
const answer = await client.images.generate(boats).withResponse();
const repeated = attempts;
const generated = await read(answer.data);
const image = ["wide.png", "narrow.png"].map((name) => createReadStream(join(folder, name)));
const edit = await client.images.edit({ image, prompt: "a boat", stream: true, output_format: "webp" }).withResponse();
const edited = await read(edit.data);
let refusal = null;
try {
  await read(await client.images.generate({ prompt: "a boat [[policy]]", stream: true }));
} catch (thrown) {
  refusal = [thrown.constructor.name, thrown.code ?? null];
}
console.log(
  JSON.stringify({
    task: answer.response.headers.get("x-tintype-task-id"),
    attempts: String(repeated),
    generated,
    edit: edit.response.headers.get("x-tintype-task-id"),
    edited,
    refusal,
  }),
);
