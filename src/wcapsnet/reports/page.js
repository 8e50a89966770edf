"use strict";
// Numbers at the pointer and the keyboard cursor, light and dark mode, sortable tables. The page works without it.
(() => {
  const root = document.documentElement, tip = document.getElementById("tip");

  function show(text, x, y) {
    if (tip.textContent !== text) tip.textContent = text;
    tip.classList.add("on");
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18) + "px";
  }
  const hide = () => tip.classList.remove("on");

  // A position in a drawing, in the drawing's units.
  function inside(svg, event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [at.x, at.y];
  }
  function onScreen(svg, x, y) {
    const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
    return [at.x, at.y];
  }
  function cursor(svg) {
    let path = svg.querySelector(".cursor");
    if (!path) {
      path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", "cursor");
      svg.append(path);
    }
    return path;
  }

  function chart(svg, d) {
    let place = d.x.length - 1;
    function point(index, screen) {
      place = Math.max(0, Math.min(d.x.length - 1, index));
      cursor(svg).setAttribute("d", `M${d.at[place]} ${d.top}V${d.bottom}`);
      const x = d.x[place], lines = d.lines.filter((line) => x in line.at).map((line) => `${line.name}: ${line.at[x]}`);
      show([`${d.name} ${x}`, ...lines, ...(d.marks[x] ? [d.marks[x]] : [])].join("\n"), ...(screen || onScreen(svg, d.at[place], d.top)));
    }
    svg.addEventListener("pointermove", (event) => {
      const [x] = inside(svg, event);
      const gaps = d.at.map((at) => Math.abs(at - x));
      point(gaps.indexOf(Math.min(...gaps)), [event.clientX, event.clientY]);
    });
    return { step: (dx) => point(place + dx), end: (first) => point(first ? 0 : d.x.length - 1), enter: () => point(place) };
  }

  function grid(svg, d) {
    let row = 0, column = 0;
    const [wide, tall] = d.cell;
    function point(i, j, screen) {
      row = Math.max(0, Math.min(d.rows.length - 1, i));
      column = Math.max(0, Math.min(d.columns.length - 1, j));
      const x = d.left + wide * column, y = d.top + tall * row;
      cursor(svg).setAttribute("d", `M${x} ${y}h${wide}v${tall}h${-wide}z`);
      const value = d.said[`${row},${column}`] ?? d.nothing;
      const words = { row: d.rows[row], column: d.columns[column], value };
      const text = d.say.replace(/\{(row|column|value)\}/g, (_, name) => words[name]);
      show(text, ...(screen || onScreen(svg, x + wide, y + tall)));
    }
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = inside(svg, event), i = Math.floor((y - d.top) / tall), j = Math.floor((x - d.left) / wide);
      if (i < 0 || j < 0 || i >= d.rows.length || j >= d.columns.length) leave(svg);
      else point(i, j, [event.clientX, event.clientY]);
    });
    return {
      step: (dx, dy) => point(row + dy, column + dx),
      end: (first) => point(row, first ? 0 : d.columns.length - 1),
      enter: () => point(row, column),
    };
  }

  function leave(svg) {
    svg.querySelector(".cursor")?.remove();
    hide();
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const widgets = new Map();
  for (const svg of document.querySelectorAll("svg[data-numbers]")) {
    const d = JSON.parse(svg.dataset.numbers), widget = d.kind === "lines" ? chart(svg, d) : grid(svg, d);
    widgets.set(svg, widget);
    svg.addEventListener("pointerleave", () => leave(svg));
    svg.addEventListener("blur", () => leave(svg));
    svg.addEventListener("focus", () => svg.matches(":focus-visible") && widget.enter());
    svg.addEventListener("keydown", (event) => {
      if (event.key in ARROWS && !(d.kind === "lines" && event.key.match(/Up|Down/))) widget.step(...ARROWS[event.key]);
      else if (event.key === "Home" || event.key === "End") widget.end(event.key === "Home");
      else if (event.key === "Escape") return leave(svg);
      else return;
      event.preventDefault();
    });
  }
  document.addEventListener("pointerover", (event) => {
    const told = event.target.closest?.("[data-tip]");
    if (told) show(told.dataset.tip, event.clientX, event.clientY);
    else if (!event.target.closest?.("svg[data-numbers]")) hide();
  });
  // The element under the pointer has scrolled away; the focused element keeps its number.
  addEventListener("scroll", () => {
    const focused = document.querySelector("svg[data-numbers]:focus-visible");
    if (focused && tip.classList.contains("on")) widgets.get(focused).enter();
    else hide();
  }, { passive: true });

  const button = document.getElementById("theme");
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => (button.textContent = dark() ? "Light" : "Dark");
  try {
    const kept = localStorage.getItem("wcapsnet-theme");
    if (kept) root.dataset.theme = kept;
  } catch { /* pages from disk may not remember */ }
  button.hidden = false;
  name();
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("wcapsnet-theme", root.dataset.theme); } catch { /* see above */ }
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);

  const figure = (cell) => {
    const value = parseFloat(cell.textContent.replace(/[,\s\u202f%]/g, "").replace("−", "-"));
    return Number.isNaN(value) ? null : value;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    table.querySelectorAll("thead button").forEach((head, column) => {
      head.addEventListener("click", () => {
        const heading = head.parentElement, down = heading.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].sort((one, other) => {
          const [a, b] = [one.cells[column], other.cells[column]], [x, y] = [figure(a), figure(b)];
          const order = x !== null && y !== null ? x - y : a.textContent.localeCompare(b.textContent);
          return down ? -order : order;
        });
        body.append(...rows);
      });
    });
  }

  for (const copy of document.querySelectorAll("button.copy")) {
    copy.hidden = !navigator.clipboard;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(copy.previousElementSibling.textContent);
      copy.textContent = "Copied";
    });
  }
})();
