// The question as a command, for curl and for the command line of Understudy; and a button that copies it.

import { element } from "./dom.js";
import { application, router, storePath } from "./paths.js";

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

const words = (...parts) => parts.map(quoted).join(" ");

// The paths of the calls; the page itself uses them as well.
export function lookupPath(store, key, bounds) {
  return `${storePath(store)}/lookup?${new URLSearchParams({ key, ...bounds })}`;
}

export function explainPath(store, key, bounds) {
  return `${storePath(store)}/metadata?${new URLSearchParams({ key, ...bounds })}`;
}

export const scanPath = (store, parameters) =>
  `${storePath(store)}/scan?${new URLSearchParams(parameters)}`;

export const historyPath = (store, parameters) =>
  `${storePath(store)}/history?${new URLSearchParams(parameters)}`;

// Where a credential is needed, commands take it from the variable that the command line reads: none holds a secret.
const VARIABLE = "UNDERSTUDY_API_KEY";
const asksKey = () => "asksKey" in document.body.dataset;

export function asCurl(path) {
  const command = words("curl", "-s", `${location.origin}${path}`);
  return asksKey() ? `${command} -H "Authorization: Bearer $${VARIABLE}"` : command;
}

// JSON's texts are Python's, too. A scan follows its pages.
function asPython(path) {
  const [before, query] = path.split("?");
  const pairs = [...new URLSearchParams(query)].map((pair) => pair.map((text) => JSON.stringify(text)).join(": "));
  const headers = asksKey() ? `{"Authorization": "Bearer " + os.environ["${VARIABLE}"]}` : "{}";
  const imports = ["json", ...(asksKey() ? ["os"] : [])].map((name) => `import ${name}`);
  const head = [
    ...imports,
    "from urllib.parse import urlencode",
    "from urllib.request import Request, urlopen",
    "",
    `question = {${pairs.join(", ")}}`,
  ];
  const ask = [
    `url = ${JSON.stringify(`${location.origin}${before}?`)} + urlencode(question)`,
    `with urlopen(Request(url, headers=${headers}), timeout=30) as reply:`,
    "    answer = json.load(reply)",
  ];
  if (!before.endsWith("/scan")) return [...head, ...ask, "print(answer)"].join("\n");
  const follow = [
    ...ask,
    'for row in answer["rows"]:',
    "    print(row)",
    'if answer["next_cursor"] is None:',
    "    break",
    'question["cursor"] = answer["next_cursor"]',
  ];
  return [...head, "while True:", ...follow.map((line) => `    ${line}`)].join("\n");
}

const flags = (bounds) =>
  Object.entries(bounds).flatMap(([name, value]) => {
    const flag = `--${name.replaceAll("_", "-")}`;
    return value === "true" ? [flag] : [flag, value];
  });

const server = () => [...(application === null ? [] : ["--application", application]), "--url", router];

export const lookupCommand = (store, key, bounds) =>
  words("understudy", "lookup", store, key, ...flags(bounds), ...server());

export const explainCommand = (store, key, bounds) =>
  words("understudy", "explain", store, "--key", key, ...flags(bounds), ...server());

export function commandLine(name, text) {
  const code = element("code", { tabIndex: 0 }, text);
  const button = element("button", { type: "button" }, `Copy ${name}`);
  button.addEventListener("click", () => copy(text, button, code));
  return element("p", { class: "command" }, code, button);
}

// A question as commands, folded away below its answer.
export function foldedCommands(path, ...more) {
  const lines = [commandLine("curl", asCurl(path)), commandLine("Python", asPython(path)), ...more];
  return element("details", {}, element("summary", {}, "The same as a command"), ...lines);
}

// Without TLS, only a page of localhost has a clipboard: elsewhere the text is selected for Ctrl-C.
export async function copy(text, button, shown = null) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    if (shown) getSelection().selectAllChildren(shown);
    button.textContent = shown ? "Selected: press Ctrl-C" : "No clipboard here";
  }
  setTimeout(() => {
    button.textContent = label;
  }, 2000);
}
