// Requests to the server.

const token = document.querySelector("meta[name=token]").content;
const tab = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Send a request and return the answer; throws an Error whose message is a sentence. */
export async function ask(path, body, kind = "application/json") {
  const headers = { "Content-Type": kind, "X-Wcapsnet-Token": token, "X-Wcapsnet-Tab": tab };
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers, body: kind === "application/json" ? JSON.stringify(body) : body });
  } catch {
    throw new Error("The server does not answer; is it still running?");
  }
  const facts = await answer.json();
  if (!answer.ok) throw new Error(facts.error);
  return facts;
}

export async function about() {
  const answer = await fetch("/api/about");
  return answer.json();
}

/** Requests of one kind: while one is pending, only the newest of the following is kept. */
export class Newest {
  constructor(path) {
    this.path = path;
    this.busy = false;
    this.next = null;
  }

  /** The answer, or null if a newer request replaced it. */
  ask(body) {
    return new Promise((resolve, reject) => {
      this.next?.resolve(null);
      this.next = { body, resolve, reject };
      if (!this.busy) this.send();
    });
  }

  /** Drop the waiting request. */
  drop() {
    this.next?.resolve(null);
    this.next = null;
  }

  async send() {
    this.busy = true;
    while (this.next) {
      const { body, resolve, reject } = this.next;
      this.next = null;
      try {
        const answer = await ask(this.path, body);
        resolve(answer.superseded ? null : answer);
      } catch (error) {
        reject(error);
      }
    }
    this.busy = false;
  }
}

export function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function floats(text) {
  return new Float32Array(bytes(text).buffer);
}

export function text(data) {
  let letters = "";
  for (let start = 0; start < data.length; start += 8192) letters += String.fromCharCode(...data.subarray(start, start + 8192));
  return btoa(letters);
}
