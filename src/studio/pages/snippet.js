// For Node 18 or later.
const api = __BASE__ + "/api/v1/images";
const key = __KEY__;

async function call(path, body) {
  const response = await fetch(api + path, {
    method: body ? "POST" : "GET",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({ error: { message: `The server answered ${response.status}.` } }));
  if (answer.error) throw new Error(answer.error.message);
  return { task: answer.data, wait: Number(response.headers.get("X-Poll-After")) };
}

async function main() {
  const { writeFile } = await import("node:fs/promises");
  let { task, wait } = await call("/generate", __REQUEST__);
  // Poll while the task is processing, when the header X-Poll-After says so.
  while (task.status === "processing") {
    await new Promise((wake) => setTimeout(wake, wait * 1000));
    ({ task, wait } = await call(`/task/${task.task_id}`));
  }
  if (task.error) throw new Error(task.error);
  for (const { url } of task.images) {
    const name = new URL(url).pathname.split("/").pop();
    await writeFile(name, Buffer.from(await (await fetch(url)).arrayBuffer()));
    console.log("saved", name);
  }
}

main().catch((error) => {
  console.error(error.cause?.message || error.message);
  process.exitCode = 1;
});
