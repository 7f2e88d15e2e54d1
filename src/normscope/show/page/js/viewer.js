// The viewer: a record of state, and a function that shows it.

const SHEET = 880; // the largest height of a panel on paper, in pixels

/** Isolate a token, so that one written from right to left does not move the words around it. */
function isolated(text) {
  return `\u2068${text}\u2069`;
}

async function mountNormscope(root, data, { page = false } = {}) {
  root.classList.add("normscope");
  root.textContent = "";
  let model;
  try {
    model = await unpack(data);
  } catch (problem) {
    root.append(make("p", { className: "ns-problem", role: "alert" }, `This page could not be opened: ${problem.message}`));
    return null;
  }
  const app = { root, model, hovered: null, fields: [], panels: [], back: "tokens", printing: false };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  app.state = fitting(model, { ...opening(model, root.clientWidth >= 900), ...(page ? fromFragment(location.hash) : {}) });

  // ---- for the parts of the view

  Object.defineProperty(app, "part", { get: () => model.parts.find(({ name }) => name === app.state.part) });
  app.theme = () => app.printing ? "light" : app.state.theme || (dark.matches ? "dark" : "light");
  app.palette = () => PALETTES[app.theme()];
  app.active = () => root.getRootNode().activeElement; // in a notebook, the root may be in a shadow tree
  app.font = () => getComputedStyle(root).fontFamily;
  app.inks = () => {
    const style = getComputedStyle(root);
    return Object.fromEntries(["ink", "muted", "line", "panel", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  };
  const entryOf = (list, position) => (position === null ? null : list.findIndex(({ at }) => at.includes(position)));
  app.pinned = () => {
    const { state } = app;
    const widest = app.fields[app.fields.length - 1];
    const query = entryOf(widest.queries, state.query);
    const key = entryOf(widest.keys, state.key);
    if (query !== null && query >= 0) return { side: "query", index: query, query, key };
    if (key !== null && key >= 0) return { side: "key", index: key, query: null, key };
    return null;
  };
  app.focus = () => {
    const target = app.hovered ?? app.pinned();
    if (!target || target.query !== undefined) return target;
    return { ...target, query: target.side === "query" ? target.index : null, key: target.side === "key" ? target.index : null };
  };
  app.hover = (target) => {
    if (!target && !app.hovered) return;
    app.hovered = target;
    app.refocus();
  };
  app.pin = (side, index, toggle = false) => {
    const widest = app.fields[app.fields.length - 1];
    const position = (side === "key" ? widest.keys : widest.queries)[index].at[0];
    const same = side === "key" ? app.state.query === null && app.state.key === position : app.state.query === position && app.state.key === null;
    app.hovered = null;
    if (same && !toggle) return;
    app.set(same ? { query: null, key: null } : { query: side === "query" ? position : null, key: side === "key" ? position : null });
  };
  app.pinCell = (query, key) => {
    const widest = app.fields[app.fields.length - 1];
    app.set({ query: widest.queries[query].at[0], key: key === null ? null : widest.keys[key].at[0] });
  };
  app.step = (what, by) => {
    const { part, state } = app;
    const map = part.maps.find(({ name }) => name === state.map);
    const lists = {
      layer: part.layers,
      head: [...(map.sum ? ["sum"] : []), ...(map.heads ?? [])],
      map: part.maps.map(({ name }) => name),
      versus: ["", ...part.maps.map(({ name }) => name).filter((name) => name !== state.map)],
      part: model.parts.map(({ name }) => name),
    };
    const list = lists[what];
    const at = list.indexOf(state[what]) + by;
    if (what === "layer" && list[at] === undefined) return; // layers stop at the ends; the other lists wrap around
    const value = list[(at + list.length) % list.length];
    app.set({ [what]: value, ...(what === "map" && value === state.versus ? { versus: "" } : {}), ...(what === "part" ? { query: null, key: null } : {}) });
  };

  // ---- the frame

  const bar = controls(app);
  const tip = tooltip(root);
  const live = announcer();
  const help = keyHelp(KEYS);
  const stage = make("div", { className: "ns-stage", role: "tabpanel", tabIndex: -1 });
  const names = { tokens: "Tokens", matrix: "Matrix", overview: "Overview" };
  const hints = {
    tokens: "Point at a token, click it, or tab to it and use the arrow keys.",
    matrix: "Point at a cell, click it, or tab to the matrix and use the arrow keys.",
    overview: "Choose a picture to open it.",
  };
  const hint = make("p", { className: "ns-hint" });
  const printed = make("p", { className: "ns-printed" });
  const tabs = make("div", { className: "ns-tabs", role: "tablist", "aria-label": "View" },
    VIEWS.map((view) => make("button", { type: "button", role: "tab", "data-view": view, on: { click: () => app.set({ view }) } }, names[view])));
  tabs.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    app.set({ view: VIEWS[(VIEWS.indexOf(app.state.view) + by + VIEWS.length) % VIEWS.length] });
    tabs.querySelector("[aria-selected=true]").focus();
  });
  const saves = make("div", { className: "ns-saves", role: "group", "aria-label": "Save what is shown" },
    ["png", "svg", "csv"].map((kind) => make("button", { type: "button", title: `save what is shown as ${kind.toUpperCase()}`,
      on: { click: () => save(app, kind).catch((problem) => app.say(`not saved: ${problem.message}`)) } }, kind.toUpperCase())));
  const themes = make("button", { type: "button", className: "ns-theme", on: { click: () => app.set({ theme: app.theme() === "dark" ? "light" : "dark" }) } }, "◐");
  const helps = make("button", { type: "button", "aria-label": "keys", title: "keys (?)", on: { click: () => help.showModal() } }, "?");
  const listBox = make("section", { className: "ns-card" });
  const mixBox = make("section", { className: "ns-card" });
  const aboutBox = make("section", { className: "ns-card" });
  const fields = Object.fromEntries((model.signatures[0] ?? "").split("|").map((field) => [field.slice(0, field.indexOf(":")), field.slice(field.indexOf(":") + 1)]));
  const body = make("div", { className: "ns-body" }, stage, make("aside", { className: "ns-aside", "aria-label": "Numbers" }, listBox, mixBox, aboutBox));
  root.append(
    make("header", { className: "ns-head" },
      make("div", { className: "ns-brand" }, make("h1", {}, "normscope"), make("span", { className: "ns-model" }, visible(fields.model || "", 60).replace("∅", ""))),
      make("div", { className: "ns-tools" }, saves, themes, helps)),
    bar.element,
    make("div", { className: "ns-views" }, tabs, hint),
    printed,
    body,
    tip.element, live.element, help);

  app.tip = tip.show;
  app.say = live.say;

  // ---- showing the state

  let shape = "";
  let kind = "";
  function show() {
    const { state } = app;
    const before = app.active();
    const held = stage.contains(before) ? before : null;
    app.fields = fieldsOf(model, app.part, state);
    if (state.view !== "overview") app.back = state.view;
    root.dataset.theme = app.theme();
    root.dataset.view = state.view;
    themes.setAttribute("aria-label", app.theme() === "dark" ? "light colours" : "dark colours");
    themes.title = `${themes.getAttribute("aria-label")} (t)`;
    for (const tab of tabs.children) {
      const current = tab.dataset.view === state.view;
      tab.setAttribute("aria-selected", String(current));
      tab.tabIndex = current ? 0 : -1;
    }
    stage.setAttribute("aria-label", names[state.view]);
    hint.textContent = hints[state.view];
    bar.sync();
    const count = state.view === "overview" ? 1 : app.fields.length;
    const wanted = `${state.view}/${count}`;
    if (wanted !== kind) {
      kind = wanted;
      shape = "";
      const maker = { tokens: tokensPanel, matrix: matrixPanel, overview: overviewPanel }[state.view];
      app.panels = Array.from({ length: count }, () => maker(app));
      stage.replaceChildren(...app.panels.map((panel) => panel.element));
      body.dataset.count = stage.dataset.count = count;
    }
    // Panels are rebuilt if their tokens change; otherwise they are only painted.
    const now = JSON.stringify([state.part, state.words, state.special, app.fields.map((field) => field.variant.keys)]);
    app.panels.forEach((panel, at) => (now === shape ? panel.change(app.fields[at]) : panel.show(app.fields[at])));
    shape = now;
    app.refocus();
    mixingStrip(app, mixBox);
    aboutMap(app, aboutBox);
    printed.textContent = Object.values(headline(app)).flat().join(" · ");
    // If the focused element was replaced, focus its successor, so that keys keep working.
    if (held && !stage.contains(app.active())) {
      const pinned = app.pinned();
      if (state.view === "tokens" && pinned) app.panels[0].focusToken(pinned.side, pinned.index);
      else (stage.querySelector(".ns-matrix") ?? stage).focus();
    }
  }
  app.refocus = () => {
    app.panels.forEach((panel) => panel.paint());
    contributors(app, listBox);
  };

  let writing = 0;
  app.set = (changes) => {
    const start = performance.now();
    app.hovered = null;
    app.tip(null);
    app.state = fitting(model, { ...app.state, ...changes });
    show();
    app.say(summary(app));
    if (page) {
      clearTimeout(writing);
      // Browsers limit how often the address may be changed.
      writing = setTimeout(() => {
        try {
          history.replaceState(null, "", toFragment(app.state));
        } catch {
          // An embedded page may have no address of its own.
        }
      }, 120);
    }
    root.dispatchEvent(new CustomEvent("normscope:shown", { detail: { ms: performance.now() - start, state: { ...app.state } } }));
  };

  // ---- events

  const listen = page ? document : root;
  listen.addEventListener("keydown", (event) => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (at.matches?.("select, textarea, [contenteditable], input:not([type=radio]):not([type=checkbox]):not([type=range])")) return;
    const { state } = app;
    const does = {
      1: () => app.set({ view: "tokens" }), 2: () => app.set({ view: "matrix" }), 3: () => app.set({ view: "overview" }),
      l: () => app.step("layer", 1), L: () => app.step("layer", -1),
      h: () => app.step("head", 1), H: () => app.step("head", -1),
      m: () => app.step("map", 1), M: () => app.step("map", -1),
      c: () => app.step("versus", 1), p: () => app.step("part", 1),
      n: () => app.set({ scale: state.scale === "share" ? "absolute" : "share" }),
      w: () => app.set({ words: !state.words }),
      x: () => app.set({ special: !state.special }),
      d: () => app.set({ own: !state.own }),
      t: () => app.set({ theme: app.theme() === "dark" ? "light" : "dark" }),
      "?": () => help.showModal(),
      Escape: () => app.set({ query: null, key: null }),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });
  let wide = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === wide) return;
    wide = root.clientWidth;
    app.panels.forEach((panel) => panel.resized());
    app.refocus();
  }).observe(root);
  dark.addEventListener("change", show);
  // Listen to both: browsers differ in which event comes once the page has the width of the paper, or the window's again.
  const onPaper = (on) => {
    if (!body.isConnected) return;
    app.printing = on;
    root.classList.toggle("ns-print", on);
    const redraw = (zoom) => {
      for (const panel of app.panels) {
        panel.element.style.zoom = zoom(panel.element);
        panel.resized();
      }
      show();
    };
    redraw(() => "");
    if (!on) return;
    if (app.state.view === "overview") app.panels[0].finish();
    else redraw((element) => Math.max(0.5, Math.min(1, SHEET / element.offsetHeight)));
  };
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));
  window.matchMedia("print").addEventListener("change", (paper) => onPaper(paper.matches));
  if (page) window.addEventListener("hashchange", () => app.set({ ...opening(model, root.clientWidth >= 900), ...fromFragment(location.hash) }));
  show();
  // Fonts that load late change the layout.
  document.fonts?.ready.then(() => {
    app.panels.forEach((panel) => panel.resized());
    app.refocus();
  });
  root.dataset.ready = "true";
  return app;
}
