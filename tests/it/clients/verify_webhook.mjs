// Verifies webhooks with the official library. Reads a JSON object of `secret` and `requests` from standard input, and
// prints what each of the requests says, or that it was refused.
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";

const given = JSON.parse(readFileSync(0, "utf8"));
const said = given.requests.map((request) => {
  try {
    return new Webhook(given.secret).verify(request.body, request.headers);
  } catch (refused) {
    return `refused: ${refused.message}`;
  }
});
process.stdout.write(JSON.stringify(said));
