// A stream that a program gives up with the official JavaScript client of OpenAI, whose own time-out ends when a stream
// begins, and the same call again once standard input ends. Arguments: base URL, key.
import { text } from "node:stream/consumers";

import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, timeout: 60_000, maxRetries: 0 });
const headers = { "Idempotency-Key": "order 66" };
const generate = () => client.images.generate({ prompt: "a boat", stream: true }, { headers }).withResponse();

const first = await generate();
setTimeout(() => first.data.controller.abort(), 1_000);
let givenUp = true;
for await (const event of first.data) givenUp = event;
// The test has seen that nobody waits.
await text(process.stdin);
const again = await generate();
const pictures = [];
for await (const { b64_json } of again.data) pictures.push(Buffer.from(b64_json, "base64").subarray(0, 4).toString("hex"));
const tasks = [first, again].map((answer) => answer.response.headers.get("x-tintype-task-id"));
console.log(JSON.stringify({ given_up: givenUp, pictures, tasks }));
