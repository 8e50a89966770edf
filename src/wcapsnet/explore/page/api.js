// Requests to the server. A page without a server has local.js in the place of this module.

const token = document.querySelector("meta[name=token]").content;
const tab = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const SILENT = "The server does not answer; is it still running?";

/** Send a request and return the answer; throws an Error whose message is a sentence. */
export async function ask(path, body, kind = "application/json") {
  const headers = { "Content-Type": kind, "X-Wcapsnet-Token": token, "X-Wcapsnet-Tab": tab };
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers, body: kind === "application/json" ? JSON.stringify(body) : body });
  } catch {
    throw new Error(SILENT);
  }
  const facts = await answer.json();
  if (!answer.ok) throw new Error(facts.error);
  return facts;
}

/** Facts about the network and its test images. */
export async function about() {
  try {
    return await (await fetch("/api/about")).json();
  } catch {
    throw new Error(SILENT);
  }
}

/** The address of a test image's picture. */
export function testPicture(index) {
  return `/api/test/${index}.png`;
}
