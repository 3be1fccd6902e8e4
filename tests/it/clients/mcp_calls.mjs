// Calls of an agent, in each way.
import { connect, key, otherKey as poorKey, ways } from "./mcp_agent.mjs";

/** The kinds of an answer's content, with the first bytes of its images. */
function content(result) {
  return result.content.map((part) =>
    part.type === "image" ? `${part.mimeType} ${Buffer.from(part.data, "base64").subarray(0, 3).toString("hex")}` : part.type,
  );
}

const seen = [];
for (const [kind, mode] of ways) {
  const client = await connect(kind, mode, key);
  const call = (name, args) => client.callTool({ name, arguments: args });
  const said = async (name, args) => {
    const result = await call(name, args);
    return [result.isError ?? false, result.content[0].text];
  };
  const boat = { name: "generate_image", arguments: { prompt: "a boat", n: 2, aspect_ratio: "16:9", oddity: 1 } };
  const made = await client.callTool(boat, { onprogress: () => {} });
  const task = JSON.parse(made.content[0].text);
  const again = await call("get_task", { task_id: task.task_id, images: "png" });
  const poor = await connect(kind, mode, poorKey);
  seen.push({
    version: client.getNegotiatedProtocolVersion(),
    tools: (await client.listTools()).tools.map((tool) => tool.name),
    made: content(made),
    task: [task.status, task.images.length, task.ignored_fields ?? null],
    again: content(again),
    listed: (await call("list_tasks", { limit: 1 })).structuredContent.items[0].task_id === task.task_id,
    credits: (await call("get_credits", {})).structuredContent.credits,
    refused: await said("generate_image", { prompt: "a boat", n: 9 }),
    wait: await said("generate_image", { prompt: "a boat", wait_seconds: "long" }),
    unknown: await said("get_task", { task_id: "imgmodel-AAAAAAAAAAAAAAAAAAAAA" }),
    foreign: (await poor.callTool({ name: "get_task", arguments: { task_id: task.task_id } })).content[0].text,
    poor: (await poor.callTool({ name: "generate_image", arguments: { prompt: "a boat" } })).content[0].text,
    tool: await call("paint", {}).then(() => null, (error) => error.code),
  });
  await poor.close();
  await client.close();
}
const refused = async (kind) => connect(kind, "legacy", "tt_wrong").then(() => "connected", (error) => error.message);
console.log(JSON.stringify({ seen, wrong: [await refused("http"), await refused("stdio")] }));
