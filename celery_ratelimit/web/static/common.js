// What all pages have in common. Whatever comes from the server becomes text, never markup.

export const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a text is a text. */
export function make(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Write a text, if it is another one: selected text stays selected. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The class of what shows a limit's state: tasks that no worker can start are a warning. */
export function classOf(part) {
  return `is-${part.word.replaceAll(" ", "-")}${part["held up"] ? " is-held-up" : ""}`;
}

/** The token in the fragment of this page's address, which no server is sent; "" if there is none. */
export const tokenInAddress = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
if (tokenInAddress) history.replaceState(null, "", location.pathname + location.search);

const trouble = document.getElementById("trouble");

export function complain(text) {
  trouble.hidden = !text;
  say(trouble, text || "");
}

/**
 * Listen for what is to be shown, as long as the page is visible: a browser has few connections for all its tabs.
 * `show` gets all parts, and the names of the changed ones.
 */
export function listen(address, show) {
  let source = null;
  let parts = new Map();
  let at = "";

  function begin() {
    source = new EventSource(address);
    source.onmessage = hear;
    source.onerror = fail;
  }

  function hear(event) {
    const said = JSON.parse(event.data);
    if (said.trouble) {
      complain(`${said.trouble.replace(/\.$/, "")}.${at ? ` What is shown is of ${at}.` : ""}`);
      return;
    }
    complain("");
    if (said.whole) parts = new Map();
    for (const name of said.gone) parts.delete(name);
    for (const [name, part] of Object.entries(said.parts)) parts.set(name, part);
    at = said.at;
    say(document.getElementById("at"), at);
    show(parts, Object.keys(said.parts), said.whole || said.gone.length > 0);
  }

  function fail() {
    complain(`The server of this page does not answer.${at ? ` What is shown is of ${at}.` : ""}`);
    if (source.readyState === EventSource.CLOSED) whether();
  }

  // A server that has come back may want the token again.
  async function whether() {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
    if (answer === null || answer.status >= 500) setTimeout(whether, 2000);
    else location.reload();
  }

  document.addEventListener("visibilitychange", () => {
    source?.close();
    source = null;
    if (!document.hidden) begin();
  });
  if (!document.hidden) begin();
}

/** Send a form of ours, with the token that proves it. Returns what the server says. */
export async function post(address, fields) {
  const body = new URLSearchParams(fields);
  body.set("form_token", document.body.dataset.formToken);
  let answer;
  try {
    answer = await fetch(address, { method: "POST", body, redirect: "error" });
  } catch {
    return { error: "The server of this page does not answer." };
  }
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    return { error: text };
  }
}

document.getElementById("logout")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = await post("/logout", {});
  if (said.error) complain(said.error);
  else location.assign(said.next);
});
