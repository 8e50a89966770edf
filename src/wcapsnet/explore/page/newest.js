import { ask } from "./api.js";

/** Requests of one kind, sent one at a time; of the waiting ones, only the newest is sent. */
export class Newest {
  constructor(path) {
    this.path = path;
    this.pending = null;
    this.wanted = null;
  }

  /** The answer, or null if a newer request replaced this one. */
  async ask(body) {
    this.wanted = body;
    await this.pending?.catch(() => {}); // the caller reports it
    if (this.wanted !== body) return null;
    this.pending = ask(this.path, body);
    return this.pending;
  }

  /** Drop the waiting request. */
  drop() {
    this.wanted = null;
  }
}
