// The quick start above the reference: programs with this server's address and the caller's key, a form that runs one
// task, and the reference itself. The key is in memory only.
const api = `${location.origin}/api/v1/images`;
const element = (id) => document.getElementById(id);
const key = element("key");
const prompt = element("prompt");
const result = element("result");
const tabs = [...document.querySelectorAll("[role=tab]")];

// Each program submits a task, polls it when the server says so, and saves its images. `templates` are those of the studio.
// Without a key on this page they take it from the environment.
const literal = JSON.stringify;
const programs = {
  curl: [shell, (key) => key ?? "$TINTYPE_KEY"],
  python: [literal, (key) => (key ? literal(key) : 'os.environ.get("TINTYPE_KEY", "")')],
  javascript: [literal, (key) => (key ? literal(key) : "process.env.TINTYPE_KEY")],
};

function program(language, key, prompt) {
  const [address, secret] = programs[language];
  const places = { __BASE__: address(location.origin), __KEY__: secret(key), __REQUEST__: literal({ prompt }) };
  return templates[language].replace(/__(BASE|KEY|REQUEST)__/g, (place) => places[place]);
}

// One argument of a POSIX shell.
function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// A key has no other characters. Anything else stays out of the programs.
function usableKey() {
  const text = key.value.trim();
  return /^[A-Za-z0-9_]+$/.test(text) ? text : null;
}

function selected() {
  return tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
}

function showProgram() {
  const language = selected().id.replace("tab-", "");
  element("program").firstElementChild.textContent = program(language, usableKey(), prompt.value);
}

function select(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
  }
  element("program").setAttribute("aria-labelledby", tab.id);
  showProgram();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    select(next);
    next.focus();
  });
}

element("copy").addEventListener("click", async () => {
  const program = element("program");
  // Browsers offer the clipboard to HTTPS and localhost only.
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(program.textContent);
    element("copy").textContent = "Copied";
    setTimeout(() => (element("copy").textContent = "Copy"), 1500);
  } else {
    getSelection().selectAllChildren(program);
  }
});

async function call(path, body) {
  const response = await fetch(api + path, {
    method: body ? "POST" : "GET",
    headers: { Authorization: `Bearer ${key.value.trim()}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  const answer = await response.json();
  if (answer.error) throw new Error(`${answer.error.code}: ${answer.error.message}`);
  return { task: answer.data, wait: Number(response.headers.get("X-Poll-After")) || 5 };
}

function say(text) {
  result.replaceChildren(Object.assign(document.createElement("p"), { textContent: text }));
}

function showImages(task) {
  result.replaceChildren();
  for (const image of task.images) {
    const link = Object.assign(document.createElement("a"), { href: image.url, target: "_blank", rel: "noopener" });
    const picture = Object.assign(document.createElement("img"), { src: image.url, alt: prompt.value });
    // The page's policy shows pictures of this server only. Those on another host keep their link.
    picture.addEventListener("error", () => link.replaceChildren(image.url));
    link.append(picture);
    result.append(link);
  }
}

element("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  button.disabled = true;
  try {
    let { task, wait } = await call("/generate", { prompt: prompt.value });
    while (task.status === "processing") {
      say(`Task ${task.task_id} is processing.`);
      await new Promise((wake) => setTimeout(wake, wait * 1000));
      ({ task, wait } = await call(`/task/${task.task_id}`));
    }
    if (task.status === "completed") showImages(task);
    else say(`The task failed and was refunded: ${task.error}`);
  } catch (error) {
    say(error.message);
  } finally {
    button.disabled = false;
  }
});

const unused = ["c", "clojure", "csharp", "dart", "fsharp", "java", "kotlin", "objc", "ocaml", "powershell", "r", "swift"];
const settings = {
  url: "/openapi.json",
  servers: [{ url: location.origin, description: "This server" }],
  defaultHttpClient: { targetKey: "shell", clientKey: "curl" },
  hiddenClients: Object.fromEntries(unused.map((language) => [language, true])),
  defaultOpenAllTags: true,
  // Nothing leaves this server, and no key is stored.
  withDefaultFonts: false,
  telemetry: false,
  persistAuth: false,
  agent: { disabled: true },
  mcp: { disabled: true },
  hideClientButton: true,
  showDeveloperTools: "never",
  documentDownloadType: "none",
};

function withKey() {
  const token = key.value.trim();
  return { ...settings, authentication: { preferredSecurityScheme: "key", securitySchemes: { key: { token } } } };
}

const reference = Scalar.createApiReference("#reference", withKey());
key.addEventListener("input", showProgram);
key.addEventListener("change", () => reference.updateConfiguration(withKey()));
prompt.addEventListener("input", showProgram);
showProgram();
