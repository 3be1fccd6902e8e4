// Calls that an agent cancels while their tasks wait, as when its user stops it.
import { connect, key, ways } from "./mcp_agent.mjs";

const seen = [];
for (const [kind, mode] of ways) {
  const client = await connect(kind, mode, key);
  const stop = new AbortController();
  const boat = { name: "generate_image", arguments: { prompt: `a boat by ${kind}, ${mode}` } };
  // The first report comes when the task is there.
  const call = client.callTool(boat, { signal: stop.signal, onprogress: () => stop.abort("stopped") });
  const cancelled = await call.then(() => false, () => true);
  const list = await client.callTool({ name: "list_tasks", arguments: { limit: 1 } });
  const [newest] = list.structuredContent.items;
  seen.push({ cancelled, task: newest.task_id, status: newest.status });
  await client.close();
}
console.log(JSON.stringify(seen));
