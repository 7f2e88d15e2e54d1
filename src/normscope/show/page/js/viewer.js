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
  const app = { root, model, hovered: null, fields: [], panels: [], back: "tokens", printing: false, view: wholeMatrix() };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  app.state = fitting(model, { ...opening(model), ...(page ? fromFragment(location.hash) : {}) });

  // ---- for the parts of the view

  Object.defineProperty(app, "part", { get: () => model.parts.find(({ name }) => name === app.state.part) });
  app.theme = () => app.printing ? "light" : app.state.theme || (dark.matches ? "dark" : "light");
  /** Whether colours follow the square root; by default in long matrices, where most cells are small. */
  app.rooted = () => app.state.root ?? (app.state.view === "matrix" && isDense(app.fields[0]));
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
  const tools = viewTools(app);
  const said = make("h2", { className: "ns-headline", dir: "auto", "aria-live": "polite" });
  const tip = tooltip(root);
  const live = announcer();
  const pictured = model.tokens.some(({ places }) => places);
  const help = keyHelp(pictured ? [...PICTURE_KEYS, ...KEYS] : KEYS);
  const stage = make("div", { className: "ns-stage", role: "tabpanel", tabIndex: -1 });
  const names = { picture: "Picture", tokens: "Tokens", matrix: "Matrix", overview: "Overview" };
  const hints = {
    picture: "Point at a patch or a token, click it, or tab to the picture and use the arrow keys.",
    tokens: "Point at a token, click it, or tab to it and use the arrow keys.",
    matrix: "Point at a cell, click it, or tab to the matrix and use the arrow keys.",
    overview: "Point at a picture to enlarge it; click to open it.",
  };
  const hint = make("p", { className: "ns-hint" });
  const printed = make("p", { className: "ns-printed" });
  const tabs = make("div", { className: "ns-tabs", role: "tablist", "aria-label": "View" },
    VIEWS.map((view) => make("button", { type: "button", role: "tab", "data-view": view, on: { click: () => app.set({ view }) } }, names[view])));
  tabs.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const views = viewsOf(model, app.part);
    app.set({ view: views[(views.indexOf(app.state.view) + by + views.length) % views.length] });
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
  const storyBox = make("section", { className: "ns-story-card", "aria-label": "Layer by layer" });
  const story = storyCard(app, storyBox);
  const fields = Object.fromEntries((model.signatures[0] ?? "").split("|").map((field) => [field.slice(0, field.indexOf(":")), field.slice(field.indexOf(":") + 1)]));
  const body = make("div", { className: "ns-body" }, stage, make("aside", { className: "ns-aside", "aria-label": "Numbers" }, listBox, mixBox, aboutBox), storyBox);
  root.append(
    make("header", { className: "ns-head" },
      make("div", { className: "ns-brand" }, make("h1", {}, "normscope"), make("span", { className: "ns-model" }, visible(fields.model || "", 60).replace("∅", ""))),
      make("div", { className: "ns-tools" }, saves, themes, helps)),
    said,
    bar.element,
    make("div", { className: "ns-views" }, tabs, hint),
    tools.element,
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
      tab.hidden = !viewsOf(model, app.part).includes(tab.dataset.view);
    }
    stage.setAttribute("aria-label", names[state.view]);
    hint.textContent = hints[state.view];
    bar.sync();
    showHeadline(app, said);
    const count = state.view === "overview" ? 1 : app.fields.length;
    const wanted = `${state.view}/${count}`;
    if (wanted !== kind) {
      kind = wanted;
      shape = "";
      const maker = { picture: picturePanel, tokens: tokensPanel, matrix: matrixPanel, overview: overviewPanel }[state.view];
      app.panels = Array.from({ length: count }, () => maker(app));
      stage.replaceChildren(...app.panels.map((panel) => panel.element));
      body.dataset.count = stage.dataset.count = count;
    }
    // Panels are rebuilt if their tokens change; otherwise they are only painted.
    const now = JSON.stringify([state.part, state.words, state.special, app.fields.map((field) => field.variant.keys)]);
    if (now !== shape) app.view = wholeMatrix();
    app.panels.forEach((panel, at) => (now === shape ? panel.change(app.fields[at]) : panel.show(app.fields[at])));
    shape = now;
    app.refocus();
    tools.sync();
    storyBox.hidden = state.view === "overview" || app.part.layers.length < 2;
    if (!storyBox.hidden) story.show();
    mixingStrip(app, mixBox);
    aboutMap(app, aboutBox);
    printed.textContent = Object.values(captionOf(app)).slice(1).flat().join(" · ");
    // If the focused element was replaced, focus its successor, so that keys keep working.
    if (held && !stage.contains(app.active())) {
      const pinned = app.pinned();
      if (state.view === "tokens" && pinned) app.panels[0].focusToken(pinned.side, pinned.index);
      else (stage.querySelector(".ns-matrix") ?? stage).focus();
    }
  }
  app.refocus = () => {
    const ends = sharedScale(app.fields, app.panels.map((panel) => panel.largest()));
    app.panels.forEach((panel, at) => panel.paint(ends[at]));
    contributors(app, listBox);
  };
  app.look = (view) => {
    app.view = view;
    app.refocus();
    tools.sync();
  };
  /** Zoom all heat maps by a factor, or to the whole with 0; the chosen cell stays in sight. */
  app.zoom = (by) => {
    const layout = app.panels[0].layout?.();
    if (!layout) return;
    const pinned = app.pinned();
    const place = (list, at) => (at === null || at === undefined ? -1 : list.indexOf(at));
    const cell = { x: place(app.fields[0].cols, pinned?.key), y: place(app.fields[0].rows, pinned?.query) };
    const middle = (at, from, count) => (at < 0 ? 0.5 : Math.max(0, Math.min(1, ((at + 0.5 - from) / count) * app.view.scale)));
    const view = by ? zoomed(app.view, app.view.scale * by, layout, middle(cell.x, app.view.x, layout.cols), middle(cell.y, app.view.y, layout.rows)) : wholeMatrix();
    app.look(view);
    app.say(view.scale > 1 ? `zoomed ${view.scale.toFixed(1)} times` : "the whole matrix");
  };
  const pan = (across, down) => {
    const layout = app.panels[0].layout?.();
    if (layout) app.look(within({ ...app.view, x: app.view.x + (across * layout.cols) / app.view.scale / 4, y: app.view.y + (down * layout.rows) / app.view.scale / 4 }, layout));
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
    const moves = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    const matrix = state.view !== "matrix" ? {} : {
      "+": () => app.zoom(ZOOM_STEP), "=": () => app.zoom(ZOOM_STEP), "-": () => app.zoom(1 / ZOOM_STEP), 0: () => app.zoom(0),
      ...(event.shiftKey && moves ? { [event.key]: () => pan(...moves) } : {}),
    };
    const does = {
      ...(pictured ? { 0: () => app.set({ view: "picture" }), i: () => app.set({ image: !state.image }) } : {}),
      ...matrix,
      1: () => app.set({ view: "tokens" }), 2: () => app.set({ view: "matrix" }), 3: () => app.set({ view: "overview" }),
      l: () => app.step("layer", 1), L: () => app.step("layer", -1),
      h: () => app.step("head", 1), H: () => app.step("head", -1),
      m: () => app.step("map", 1), M: () => app.step("map", -1),
      c: () => app.step("versus", 1), p: () => app.step("part", 1),
      r: () => app.set({ root: !app.rooted() }),
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
  if (page) window.addEventListener("hashchange", () => app.set({ ...opening(model), ...fromFragment(location.hash) }));
  show();
  // Fonts that load late change the layout.
  document.fonts?.ready.then(() => {
    app.panels.forEach((panel) => panel.resized());
    app.refocus();
  });
  root.dataset.ready = "true";
  return app;
}
