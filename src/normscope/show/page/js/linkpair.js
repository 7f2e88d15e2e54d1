// One sentence pair: words as buttons with curves between them, or the soft matrix.

const MARK_WORDS = { sure: "sure, found", possible: "possible, found", wrong: "wrong", missing: "sure, missing" };

/** The view of a pair. `show()` draws the pair of the state; `mark()` only what is chosen or pointed at. */
function pairView(app) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "ns-wires");
  svg.setAttribute("aria-hidden", "true");
  const rows = ["Source sentence", "Target sentence"].map((label, side) => make("div", { className: `ns-words ns-side${side}`, role: "group", "aria-label": label }));
  const box = make("div", { className: "ns-wired" }, svg, ...rows);
  const scroller = make("div", { className: "ns-scroller" }, box);
  const matrixBox = make("div", { className: "ns-soft" });
  const element = make("div", {}, scroller, matrixBox);
  let buttons = [[], []];
  let curves = [];
  let pointed = null; // the word under the pointer or with the focus

  const spot = () => pointed ?? app.state.word;

  function build() {
    const { pair } = app;
    const found = app.state.find.trim().toLowerCase();
    buttons = rows.map((row, side) => {
      const words = side ? pair.target : pair.source;
      row.dir = directionOf(words);
      const list = words.map((word, at) => make("button", {
        type: "button", className: "ns-word", tabIndex: at ? -1 : 0,
        on: {
          click: () => app.set({ word: same(app.state.word, { side, at }) ? null : { side, at } }),
          pointerenter: (event) => point({ side, at }, event),
          pointerleave: () => point(null),
          focus: () => point({ side, at }),
          blur: () => point(null),
          keydown: (event) => walk(event, side, at),
        },
      }, make("bdi", {}, visible(word, 60))));
      if (found) words.forEach((word, at) => list[at].classList.toggle("ns-hit", word.toLowerCase().includes(found)));
      row.replaceChildren(...list);
      return list;
    });
  }

  /** Name each word by its links, for screen readers. */
  function name() {
    const { pair } = app;
    buttons.forEach((list, side) => list.forEach((button, at) => {
      const mine = app.links.filter((link) => (side ? link.t : link.s) === at);
      const said = mine.map((link) => `${visible(side ? pair.source[link.s] : pair.target[link.t], 40)}${link.score === null ? "" : ` ${wholePercent(link.score)}`}${link.mark ? ` (${MARK_WORDS[link.mark]})` : ""}`);
      const real = mine.some(({ mark }) => mark !== "missing");
      button.setAttribute("aria-label", `${visible(side ? pair.target[at] : pair.source[at], 40)}: ${said.length ? `linked to ${said.join(", ")}` : "not linked"}`);
      button.classList.toggle("ns-alone", !real);
    }));
  }

  /** Lay the words out in rows if they fit, else in columns. */
  function arrange() {
    const wanted = app.state.layout;
    scroller.dataset.layout = "across";
    if (wanted === "down" || (!wanted && box.scrollWidth > scroller.clientWidth + 1)) scroller.dataset.layout = "down";
  }

  function wire() {
    const down = scroller.dataset.layout === "down";
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${box.offsetWidth} ${box.offsetHeight}`);
    const ordered = [...app.links].sort((a, b) => (a.score ?? 1) - (b.score ?? 1));
    curves = ordered.map((link) => {
      const [from, to] = [buttons[0][link.s], buttons[1][link.t]];
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      if (down) {
        const [x1, x2] = [from.offsetLeft + from.offsetWidth, to.offsetLeft];
        const [y1, y2] = [from, to].map((word) => word.offsetTop + word.offsetHeight / 2);
        path.setAttribute("d", `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`);
      } else {
        const [x1, x2] = [from, to].map((word) => word.offsetLeft + word.offsetWidth / 2);
        const [y1, y2] = [from.offsetTop + from.offsetHeight, to.offsetTop];
        path.setAttribute("d", `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`);
      }
      const strength = link.score ?? 1;
      path.setAttribute("class", `ns-wire ${link.mark ? `ns-${link.mark}` : "ns-plain"}`);
      path.style.strokeWidth = link.mark === "missing" ? "2px" : `${(1.2 + 5 * strength).toFixed(2)}px`;
      path.style.strokeOpacity = link.mark === "missing" ? "0.85" : (0.3 + 0.7 * strength).toFixed(3);
      path.dataset.link = `${link.s}-${link.t}`;
      svg.append(path);
      return { link, path };
    });
  }

  function same(a, b) {
    return a !== null && b !== null && a.side === b.side && a.at === b.at;
  }

  function point(word, event = null) {
    pointed = word;
    mark();
    app.tip(event, event ? wordLines(app, word) : []);
  }

  /** Show what the chosen word, or the one pointed at, is linked to. */
  function mark() {
    const word = spot();
    const near = (link) => word !== null && (word.side ? link.t : link.s) === word.at;
    box.classList.toggle("ns-some", word !== null);
    for (const { link, path } of curves) path.classList.toggle("ns-near", near(link));
    const linked = [new Set(), new Set()];
    for (const link of app.links) if (near(link)) linked[0].add(link.s), linked[1].add(link.t);
    buttons.forEach((list, side) => list.forEach((button, at) => {
      const own = same(word, { side, at });
      button.classList.toggle("ns-near", own || linked[side].has(at));
      button.setAttribute("aria-pressed", String(same(app.state.word, { side, at })));
    }));
    app.marked(word, near);
  }

  /** Move the focus: along the sentence, or to the word that this one is linked to. */
  function walk(event, side, at) {
    const down = scroller.dataset.layout === "down";
    const rtl = !down && rows[side].dir === "rtl";
    const [forward, back] = down ? ["ArrowDown", "ArrowUp"] : rtl ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
    const across = down ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
    const list = buttons[side];
    let next = null;
    if (event.key === forward) next = list[Math.min(at + 1, list.length - 1)];
    else if (event.key === back) next = list[Math.max(at - 1, 0)];
    else if (event.key === "Home") next = list[0];
    else if (event.key === "End") next = list.at(-1);
    else if (across.includes(event.key)) {
      const mine = app.links.filter((link) => (side ? link.t : link.s) === at).sort((a, b) => (b.score ?? 1) - (a.score ?? 1));
      const other = buttons[1 - side];
      next = mine.length ? other[side ? mine[0].s : mine[0].t] : other[Math.min(at, other.length - 1)];
    }
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    for (const button of buttons.flat()) button.tabIndex = -1;
    next.tabIndex = 0;
    for (const [row, own] of [[0, buttons[0]], [1, buttons[1]]]) if (!own.includes(next) && own.length) buttons[row][0].tabIndex = 0;
    next.focus();
  }

  let shown = "";
  function show() {
    const { pair, state } = app;
    const both = app.model.single; // one pair has room for its lines and its matrix
    const matrix = pair.soft && (both || state.view === "matrix");
    scroller.hidden = Boolean(matrix) && !both;
    matrixBox.hidden = !matrix;
    const key = `${pair.number} ${state.find}`;
    if (shown !== key) {
      pointed = null;
      build();
      shown = key;
    }
    name();
    if (matrix) softMatrix(app, matrixBox);
    if (!scroller.hidden) {
      arrange();
      wire();
    }
    mark();
  }

  new ResizeObserver(() => {
    if (scroller.hidden || !app.pair) return;
    arrange();
    wire();
    mark();
  }).observe(scroller);
  return { element, show, mark, point, forget: () => (shown = "") };
}

/** What the tooltip of a word says. */
function wordLines(app, { side, at }) {
  const { pair } = app;
  const mine = app.links.filter((link) => (side ? link.t : link.s) === at);
  const own = isolatedWord(side ? pair.target[at] : pair.source[at]);
  if (!mine.length) return [own, "not linked"];
  return [own, ...mine.map((link) => [isolatedWord(side ? pair.source[link.s] : pair.target[link.t]), link.score === null ? "" : wholePercent(link.score), link.mark ? MARK_WORDS[link.mark] : ""].filter(Boolean).join(", "))];
}

/** The soft alignment as a table: target words as rows, source words and </s> as columns. */
function softMatrix(app, box) {
  const { pair } = app;
  const columns = [...pair.source, "</s>"];
  const links = new Map(app.links.map((link) => [`${link.s}-${link.t}`, link]));
  const gold = app.compared ? pair.gold : null;
  const rows = pair.target.map((word, t) => make("tr", {},
    make("th", { scope: "row" }, make("bdi", {}, visible(word, 24))),
    columns.map((column, s) => {
      const share = pair.soft[t][s] / 1000;
      const link = links.get(`${s}-${t}`);
      const truth = gold?.get(`${s}-${t}`);
      const cell = make("td", {
        className: [link && link.mark !== "missing" ? "ns-cell-link" : "", truth ? (truth.sure ? "ns-cell-sure" : "ns-cell-possible") : ""].join(" ").trim(),
        "aria-label": `${visible(column, 24)} to ${visible(word, 24)}: ${wholePercent(share)}${link && link.mark !== "missing" ? ", linked" : ""}${truth ? `, gold ${truth.sure ? "sure" : "possible"}` : ""}`,
        on: {
          pointerenter: (event) => app.tip(event, [`${isolatedWord(column)} – ${isolatedWord(word)}`, `${wholePercent(share)} of the row`]),
          pointerleave: () => app.tip(null),
        },
      }, share >= 0.1 ? String(Math.floor(100 * share + 0.5)) : "");
      cell.style.setProperty("--depth", String(share));
      return cell;
    })));
  box.replaceChildren(
    make("p", { className: "ns-hint" }, "How each target word (row) divides over the source words (columns), in percent. The last column is the end of the sentence."),
    make("table", { "aria-label": "Soft alignment" },
      make("thead", {}, make("tr", {}, make("td"), columns.map((column) => make("th", { scope: "col" }, make("bdi", {}, visible(column, 24)))))),
      make("tbody", {}, rows)));
}
