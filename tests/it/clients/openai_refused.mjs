// Large edits that are refused, sent by the official JavaScript client of OpenAI. Arguments: base URL, poor key.
import OpenAI, { toFile } from "openai";

const [baseURL, poorKey] = process.argv.slice(2);
const file = await toFile(Buffer.alloc(19 << 20), "a.png", { type: "image/png" });

/** The class and the code of the error that a large edit with this key gets at its first attempt. */
async function refused(apiKey) {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  try {
    await client.images.edit({ image: [file, file], prompt: "a boat" });
  } catch (thrown) {
    return [thrown.constructor.name, thrown.code ?? null];
  }
  return null;
}

const errors = [];
for (let turn = 0; turn < 3; turn++) errors.push(await refused("tt_wrong"), await refused(poorKey));
console.log(JSON.stringify(errors));
