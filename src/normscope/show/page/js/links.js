// The view of an alignment: one sentence pair, or a list of them.

const LINK_KEYS = [
  ["← →", "next and previous word"],
  ["↑ ↓", "go to the linked word"],
  ["Enter", "keep the word selected"],
  ["n  p", "next pair, previous pair"],
  ["/", "search for a word"],
  ["g", "show or hide gold links"],
  ["m", "lines or matrix"],
  ["t", "dark or light"],
  ["Esc", "clear the selection"],
  ["?", "this list"],
];
const SCORES = Array.from({ length: 20 }, (_, at) => 5 * at); // percentages that links can be filtered by
const LINK_STATE = { pair: 0, from: 0, find: "", show: "all", order: "text", view: "lines", layout: "", gold: true, word: null, theme: "" };

/** Return a valid state: fields that do not fit this result get a default. */
function fittingLinks(model, wanted) {
  const state = { ...LINK_STATE, ...wanted };
  if (!(Number.isInteger(state.pair) && model.pairs[state.pair])) state.pair = 0;
  if (!SCORES.includes(state.from)) state.from = 0;
  if (!["all", "unlinked", ...(model.gold ? ["errors"] : [])].includes(state.show)) state.show = "all";
  if (!["text", "worst"].includes(state.order)) state.order = "text";
  if (!["lines", "matrix"].includes(state.view)) state.view = "lines";
  if (!["", "across", "down"].includes(state.layout)) state.layout = "";
  if (!["light", "dark"].includes(state.theme)) state.theme = "";
  const { source, target } = model.pairs[state.pair];
  if (state.word && !(state.word.side ? target : source)[state.word.at]) state.word = null;
  return state;
}

function linksToFragment(state, single) {
  const fields = {
    pair: single ? "" : state.pair + 1, score: state.from || "", find: state.find, show: state.show === "all" ? "" : state.show,
    order: state.order === "text" ? "" : state.order, view: state.view === "lines" ? "" : state.view, layout: state.layout,
    gold: state.gold ? "" : "off", word: state.word ? `${state.word.side ? "target" : "source"}-${state.word.at + 1}` : "", theme: state.theme,
  };
  return "#" + Object.entries(fields).filter(([, value]) => value !== "").map((pair) => pair.map(encodeURIComponent).join("=")).join("&");
}

/** Read the fields of a fragment; `fittingLinks` has to check them. */
function linksFromFragment(fragment) {
  const fields = {};
  for (const field of fragment.replace(/^#/, "").split("&")) {
    const cut = field.indexOf("=");
    if (cut < 0) continue;
    const name = field.slice(0, cut);
    let value;
    try {
      value = decodeURIComponent(field.slice(cut + 1));
    } catch {
      continue;
    }
    if (name === "pair") fields.pair = Number(value) - 1;
    else if (name === "score") fields.from = Number(value);
    else if (name === "find") fields.find = value.slice(0, 200);
    else if (name === "gold") fields.gold = value !== "off";
    else if (name === "word") {
      const parts = /^(source|target)-(\d{1,6})$/.exec(value);
      if (parts) fields.word = { side: parts[1] === "target" ? 1 : 0, at: Number(parts[2]) - 1 };
    } else if (["show", "order", "view", "layout", "theme"].includes(name)) fields[name] = value;
  }
  return fields;
}

function linkControls(app, search) {
  const { segmented, slider, dropdown } = forms();
  const { model } = app;
  return controlBar(app, () => {
    const { state } = app;
    const list = [];
    if (!model.single) {
      list.push(search);
      list.push(dropdown("Pairs", "show", [
        { value: "all", text: "all" }, { value: "unlinked", text: "with unlinked words" },
        ...(model.gold ? [{ value: "errors", text: "with errors" }] : []),
      ], state.show, (show) => app.set({ show })));
      list.push(dropdown("Order", "order", [
        { value: "text", text: "as in the text" }, { value: "worst", text: model.gold ? "highest AER first" : "lowest scores first" },
      ], state.order, (order) => app.set({ order })));
    }
    const said = state.from ? `from ${state.from}%` : "all links";
    list.push(slider("Score", "score", SCORES, SCORES.indexOf(state.from), {
      choose: (from) => app.set({ from }), step: (by) => app.set({ from: app.state.from + 5 * by }), said, spoken: said,
    }));
    const still = !model.single && state.view === "matrix" && Boolean(app.pair.soft);
    if (!model.single && app.pair.soft) list.push(segmented("View", "view", [
      { value: "lines", text: "lines", title: "words with a line for every link" },
      { value: "matrix", text: "matrix", title: "the share of every source word" },
    ], state.view, (view) => app.set({ view })));
    const layout = dropdown("Layout", "layout", [
      { value: "", text: "auto" }, { value: "across", text: "rows" }, { value: "down", text: "columns" },
    ], state.layout, (value) => app.set({ layout: value }));
    layout.classList.add("ns-layout");
    layout.lastChild.disabled = still;
    list.push(layout);
    if (model.gold) list.push(segmented("Gold links", "gold", [
      { value: true, text: "compared", title: "mark links that are right, wrong and missing" }, { value: false, text: "off" },
    ], state.gold, (gold) => app.set({ gold })));
    return list;
  });
}

/** The links as a table, and the words that have none. */
function linkTable(app, box) {
  const { pair, links } = app;
  const gold = app.compared && pair.gold;
  const rows = links.map((link) => {
    const row = make("tr", { on: { pointerenter: () => app.view.point({ side: 1, at: link.t }), pointerleave: () => app.view.point(null) } },
      make("th", { scope: "row" }, make("bdi", {}, visible(pair.source[link.s], 30))), make("td", {}, make("bdi", {}, visible(pair.target[link.t], 30))),
      make("td", {}, link.score === null ? "–" : wholePercent(link.score)),
      gold ? make("td", { className: `ns-mark ns-${link.mark}` }, link.mark) : null);
    row.dataset.link = `${link.s}-${link.t}`;
    return row;
  });
  const alone = unlinkedOf(pair, links);
  const quoted = (words) => words.slice(0, 60).flatMap((word, at) => [at ? ", " : "", make("bdi", {}, `“${visible(word, 30)}”`)]);
  box.replaceChildren(
    make("div", { className: "ns-linkbox" }, make("table", { className: "ns-links" },
      make("caption", {}, "Links"),
      make("thead", {}, make("tr", {}, ["source", "target", "score", ...(gold ? ["gold"] : [])].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, rows))),
    ...["source", "target"].map((side, at) => make("p", { className: "ns-hint", hidden: !alone[at].length }, `Not linked in the ${side}: `, ...quoted(alone[at]))),
    make("p", { className: "ns-hint" }, "Score: the source word’s share of what the target word gets from the source."));
}

function linksCsv(app) {
  let text = csvLine(["pair", "source_index", "source", "target_index", "target", "score", "gold"]);
  for (const pair of app.listed)
    for (const { s, t, score, mark } of linksOf(pair, app.state.from / 100, app.compared))
      text += csvLine([pair.number + 1, s, pair.source[s], t, pair.target[t], score === null ? "" : digits(score), mark]);
  return text;
}

/** The pairs that the search and the filter leave, in the chosen order. */
function listedPairs(model, state) {
  const from = state.from / 100;
  const find = state.find.trim().toLowerCase();
  let list = model.pairs;
  if (find) list = list.filter(({ text }) => text.includes(find));
  if (state.show === "unlinked") list = list.filter((pair) => unlinkedOf(pair, linksOf(pair, from, false)).some((words) => words.length));
  if (state.show === "errors") list = list.filter((pair) => linksOf(pair, from, true).some(({ mark }) => mark === "wrong" || mark === "missing"));
  if (state.order === "text") return list;
  const badness = new Map(list.map((pair) => {
    const sum = totalsOf([pair], from);
    return [pair, model.gold ? errorRate(sum) ?? -1 : sum.scored ? 1 - sum.scores / sum.scored : 2];
  }));
  return [...list].sort((a, b) => badness.get(b) - badness.get(a) || a.number - b.number);
}

async function mountNormscope(root, data, { page = false } = {}) {
  root.classList.add("normscope");
  root.textContent = "";
  let model;
  try {
    model = await unpackLinks(data);
  } catch (problem) {
    root.append(make("p", { className: "ns-problem", role: "alert" }, `This page could not be opened: ${problem.message}`));
    return null;
  }
  const app = { root, model, links: [], listed: model.pairs };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  app.state = fittingLinks(model, page ? linksFromFragment(location.hash) : {});
  app.pair = model.pairs[app.state.pair];
  app.compared = model.gold;
  app.printing = false;
  app.theme = () => (app.printing ? "light" : app.state.theme || (dark.matches ? "dark" : "light"));
  app.active = () => root.getRootNode().activeElement; // in a notebook, the root may be in a shadow tree
  const tip = tooltip(root);
  const live = announcer();
  app.tip = tip.show;
  app.say = live.say;

  // ---- the frame

  const find = make("input", { type: "search", id: `nsf${++instances}`, name: "find", autocomplete: "off", spellcheck: false, on: { input: () => app.set({ find: find.value }) } });
  const search = make("div", { className: "ns-group ns-find" }, make("label", { htmlFor: find.id }, "Search a word"), find);
  const bar = linkControls(app, search);
  const help = keyHelp(LINK_KEYS);
  const themes = make("button", { type: "button", className: "ns-theme", on: { click: () => app.set({ theme: app.theme() === "dark" ? "light" : "dark" }) } }, "◐");
  const csv = make("button", { type: "button", title: "save the links that are shown as CSV", on: {
    click: () => {
      download("normscope-links.csv", new Blob([linksCsv(app)], { type: "text/csv;charset=utf-8" }));
      app.say("saved normscope-links.csv");
    },
  } }, "CSV");
  const helps = make("button", { type: "button", "aria-label": "keys", title: "keys (?)", on: { click: () => help.showModal() } }, "?");
  const fields = Object.fromEntries((model.signature ?? "").split("|").map((field) => [field.slice(0, field.indexOf(":")), field.slice(field.indexOf(":") + 1)]));
  const view = pairView(app);
  app.view = view;
  const list = pairList(app);
  const question = make("h2", { className: "ns-headline ns-found", dir: "auto" });
  const subtitle = make("p", { className: "ns-proof" });
  const pairTitle = make("h3");
  const steps = [[-1, "‹", "previous pair"], [1, "›", "next pair"]].map(([by, sign, label]) => make("button", { type: "button", className: "ns-step", "aria-label": label, title: `${label} (${by < 0 ? "p" : "n"})`, on: { click: () => app.move(by) } }, sign));
  const stepBox = make("span", { className: "ns-pairsteps", hidden: model.single }, ...steps);
  const pairHeadline = make("p", { className: "ns-hint ns-pairline" });
  const legend = make("p", { className: "ns-legend ns-marks" });
  const none = make("p", { className: "ns-hint ns-none" }, "No pair fits the search and the filter.");
  const pairPanel = make("section", { className: "ns-panel ns-pairpanel" },
    make("div", { className: "ns-panel-head" }, pairTitle, stepBox, legend), pairHeadline, none, view.element);
  const tableBox = make("section", { className: "ns-card ns-linkcard", "aria-label": "Links of the pair" });
  const listCount = make("h3");
  const listPanel = make("section", { className: "ns-card ns-listcard", hidden: model.single }, listCount, list.element);
  const about = make("section", { className: "ns-card ns-later" },
    make("h3", {}, "What this shows"),
    make("p", { className: "ns-hint" }, "Each target word is linked to the source word that contributes most to it in the model’s cross-attention, unless that is the end of the sentence. A thicker line is a higher score."),
    make("details", {}, make("summary", {}, "Signature"), make("p", { className: "ns-signature", dir: "ltr" }, visible(model.signature || "none", 4000))));
  root.append(
    make("header", { className: "ns-head" },
      make("div", { className: "ns-brand" }, make("h1", {}, "normscope"), make("span", { className: "ns-model" }, visible(fields.model || "", 60).replace("∅", ""))),
      make("div", { className: "ns-tools" }, csv, themes, helps)),
    question, subtitle, bar.element,
    make("div", { className: `ns-body ns-aligned${model.single ? "" : " ns-several"}` },
      make("div", { className: "ns-stage" }, pairPanel, tableBox),
      make("aside", { className: "ns-aside", "aria-label": model.single ? "Numbers" : "All pairs" }, listPanel, about)),
    tip.element, live.element, help);
  if (model.single) root.querySelector(".ns-aside").prepend(tableBox);

  // ---- showing the state

  /** Follow the word that is chosen or pointed at, in the table. */
  app.marked = (word, near) => {
    for (const row of tableBox.querySelectorAll("tbody tr")) {
      const [s, t] = row.dataset.link.split("-").map(Number);
      row.classList.toggle("ns-near", word !== null && near({ s, t }));
    }
  };

  let sorted = "";
  function show() {
    const { state } = app;
    root.dataset.theme = app.theme();
    themes.setAttribute("aria-label", app.theme() === "dark" ? "light colours" : "dark colours");
    themes.title = `${themes.getAttribute("aria-label")} (t)`;
    app.compared = model.gold && state.gold;
    const key = JSON.stringify([state.find, state.show, state.order, state.order === "worst" || state.show !== "all" ? state.from : 0]);
    if (sorted !== key) {
      app.listed = listedPairs(model, state);
      sorted = key;
      const listed = app.listed.includes(model.pairs[state.pair]);
      if (app.listed.length && !listed) Object.assign(state, { pair: app.listed[0].number, word: null });
    }
    app.pair = model.pairs[app.state.pair];
    app.links = linksOf(app.pair, state.from / 100, app.compared);
    if (find.value !== state.find) find.value = state.find;
    bar.sync();
    const judged = app.compared ? app.listed : app.listed.map((pair) => ({ ...pair, gold: null }));
    question.textContent = linksHeadline(judged, state.from / 100);
    subtitle.textContent = model.single ? "" : `${counted(app.listed.length)} of ${counted(model.pairs.length)} pairs${state.from ? `, links with a score of at least ${state.from}%` : ""}`;
    subtitle.hidden = model.single;
    const place = app.listed.indexOf(app.pair);
    none.hidden = place >= 0;
    view.element.hidden = place < 0;
    tableBox.hidden = place < 0;
    legend.hidden = place < 0;
    pairTitle.textContent = model.single ? "Words and links" : place < 0 ? "No pair" : `Pair ${counted(app.pair.number + 1)}`;
    pairHeadline.textContent = place < 0 || model.single ? "" : app.pair.skipped ? `Not aligned: ${app.pair.skipped}.` : linksHeadline([app.compared ? app.pair : { ...app.pair, gold: null }], state.from / 100);
    pairHeadline.hidden = !pairHeadline.textContent;
    steps[0].disabled = place <= 0;
    steps[1].disabled = place >= app.listed.length - 1;
    legendOf(app, legend);
    listCount.textContent = `Pairs (${counted(app.listed.length)})`;
    linkTable(app, tableBox);
    view.show();
    if (!model.single) list.draw();
  }

  app.move = (by) => {
    const last = app.listed.length - 1;
    const place = Math.max(0, Math.min(last, app.listed.indexOf(app.pair) + by));
    if (last >= 0) app.set({ pair: app.listed[Number.isFinite(place) ? place : 0].number, word: null });
  };

  let writing = 0;
  app.set = (changes) => {
    app.state = fittingLinks(model, { ...app.state, ...changes });
    show();
    if ("pair" in changes || "find" in changes) list.reveal(), list.draw();
    app.say(spokenLinks(app));
    if (page) {
      clearTimeout(writing);
      // Browsers limit how often the address may be changed.
      writing = setTimeout(() => {
        try {
          history.replaceState(null, "", linksToFragment(app.state, model.single));
        } catch {
          // An embedded page may have no address of its own.
        }
      }, 120);
    }
    root.dispatchEvent(new CustomEvent("normscope:shown", { detail: { state: { ...app.state } } }));
  };

  (page ? document : root).addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target === find) {
      if (event.key === "Escape") app.set({ find: "" });
      return;
    }
    const does = {
      n: () => app.move(1), p: () => app.move(-1), "/": () => find.focus(),
      g: () => model.gold && app.set({ gold: !app.state.gold }), m: () => app.set({ view: app.state.view === "matrix" ? "lines" : "matrix" }),
      t: () => app.set({ theme: app.theme() === "dark" ? "light" : "dark" }),
      "?": () => help.showModal(), Escape: () => app.set({ word: null }),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });
  dark.addEventListener("change", show);
  const onPaper = (on) => {
    app.printing = on;
    root.classList.toggle("ns-print", on);
    show();
  };
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));
  if (page) window.addEventListener("hashchange", () => app.set({ ...LINK_STATE, ...linksFromFragment(location.hash) }));
  show();
  list.reveal();
  list.draw();
  root.dataset.ready = "true";
  return app;
}

/** What the lines mean; with gold links, how many there are of each kind. */
function legendOf(app, box) {
  if (!app.compared || !app.pair.gold) {
    box.replaceChildren(make("span", {}, "thicker: higher score"));
    return;
  }
  box.replaceChildren(...Object.keys(MARK_WORDS).map((mark) => {
    const count = app.links.filter((link) => link.mark === mark).length;
    return make("span", { className: `ns-marksign ns-${mark}` }, make("i", { "aria-hidden": "true" }), `${MARK_WORDS[mark]} ${count}`);
  }));
}

/** What a screen reader says after a change. */
function spokenLinks(app) {
  const { pair, state } = app;
  if (!app.listed.length) return "No pair matches.";
  if (state.word) return wordLines(app, state.word).map((line) => line.replace(/[\u2068\u2069]/g, "")).join(": ");
  const which = app.model.single ? "" : `Pair ${pair.number + 1} of ${app.model.pairs.length}. `;
  return which + linksHeadline([app.compared ? pair : { ...pair, gold: null }], state.from / 100);
}
