// An agent with the official MCP client of TypeScript. Its program gets the URL, a key, the key of another account and the
// path of the program `tintype` as arguments.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

export const [url, key, otherKey, program] = process.argv.slice(2);

function transport(kind, key) {
  if (kind === "stdio") {
    const env = { ...process.env, TINTYPE_URL: url, TINTYPE_KEY: key };
    return new StdioClientTransport({ command: program, args: ["mcp"], env });
  }
  const headers = { Authorization: `Bearer ${key}` };
  return new StreamableHTTPClientTransport(new URL("/mcp", url), { requestInit: { headers } });
}

export async function connect(kind, mode, key) {
  const client = new Client({ name: "agent", version: "1" }, { versionNegotiation: { mode } });
  await client.connect(transport(kind, key));
  return client;
}

/** Each way to reach the server, in both lives of the protocol: with the handshake, and without it (2026-07-28). */
export const ways = ["http", "stdio"].flatMap((kind) => ["legacy", "auto"].map((mode) => [kind, mode]));
