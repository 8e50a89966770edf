import { ask } from "./api.js";

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
