// Layer by layer: for each layer, a strip of tokens shaded by each map, for the chosen token or on average.

const NAMED = 34; // pixels that a name needs above a strip

function storyCard(app, box) {
  const title = make("h3");
  const legend = make("div", { className: "ns-legend ns-scale" });
  const hint = make("p", { className: "ns-hint" }, "One row for each layer, one column for each token. Click a row to go to its layer.");
  const grid = make("div", { className: "ns-layers-grid" });
  box.append(make("div", { className: "ns-panel-head" }, title, legend), hint, grid);
  let strips = { key: "", rows: [], fields: [] };
  let job = 0;

  const rooted = () => app.state.root ?? isDense(app.fields[0]);

  /** What the strips depend on; the layer is not part of it. */
  function keyOf(state) {
    const { part, map, versus, head, scale, words, special, own, query, key } = state;
    return JSON.stringify([part, map, versus, head, scale, words, special, own, query, key]);
  }

  /** The values of one layer, by map. */
  function rowOf(layer) {
    const { model, part, state } = app;
    const focus = app.pinned();
    return [state.map, state.versus].filter(Boolean).map((name) => {
      const field = fieldOf(model, part, name, layer, state);
      const vector = vectorOf(field, focus);
      const shown = focus?.side === "key" ? field.rows : field.cols;
      return { field, shown, values: shown.map((at) => (focus && field.own && at === focus.index ? 0 : vector[at])) };
    });
  }

  function draw() {
    const { part, state } = app;
    const maps = strips.fields.map(({ field }) => field);
    const largest = maps.map((_, which) => Math.max(...strips.rows.map((row) => Math.max(...row[which]))));
    const ends = sharedScale(maps, largest);
    legend.hidden = !comparable(maps);
    const note = [maps.length > 1 ? "same scale for both" : "", rooted() ? "colours by the square root" : ""].filter(Boolean).join("; ");
    if (!legend.hidden) scaleBar({ ...app, rooted }, legend, maps[0], ends[0], note);
    hint.textContent = `One row for each layer, one column for each token. Click a row to go to its layer.${legend.hidden ? " Each map has its own scale: the units differ." : ""}`;
    grid.style.setProperty("--strips", maps.length);
    grid.replaceChildren(make("span"),
      ...strips.fields.map(({ field }) => make("span", { className: "ns-strip-title" }, panelTitle(app, field))));
    const wide = (box.clientWidth - 40) / maps.length;
    if (strips.fields.every(({ shown }) => wide / shown.length >= NAMED)) {
      grid.append(make("span"));
      for (const { field, shown } of strips.fields) {
        const list = app.pinned()?.side === "key" ? field.queries : field.keys;
        grid.append(make("div", { className: "ns-strip-columns", "aria-hidden": "true" }, shown.map((at) => make("bdi", {}, visible(list[at].text, 16)))));
      }
    }
    part.layers.forEach((layer, at) => {
      const now = layer === state.layer;
      grid.append(make("button", {
        type: "button", className: `ns-layer-name${now ? " ns-now" : ""}`, "aria-label": `show layer ${layer}: ${spoken(at)}`, "aria-current": now ? "true" : null,
        on: { click: () => app.set({ layer }) },
      }, String(layer)));
      strips.fields.forEach(({ field }, which) => grid.append(stripOf(at, layer, which, field, ends[which])));
    });
  }

  /** The largest of each map in a layer, for screen readers. */
  function spoken(at) {
    return strips.fields.map(({ field, shown }, which) => {
      const list = app.pinned()?.side === "key" ? field.queries : field.keys;
      const best = largestOf(strips.rows[at][which].map((_, place) => place), (place) => strips.rows[at][which][place]);
      return `${field.variant.short} most ${visible(list[shown[best]].text, 24)} ${field.text(strips.rows[at][which][best])}`;
    }).join(", ");
  }

  function stripOf(at, layer, which, field, end) {
    const values = strips.rows[at][which];
    const { bytes } = app.palette().up;
    const canvas = make("canvas", { className: layer === app.state.layer ? "ns-now" : "", width: values.length, height: 1, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    const image = context.createImageData(values.length, 1);
    values.forEach((value, x) => {
      const colour = level(value, end, false, rooted()) * 3;
      image.data.set([bytes[colour], bytes[colour + 1], bytes[colour + 2], 255], 4 * x);
    });
    context.putImageData(image, 0, 0);
    const { shown } = strips.fields[which];
    const list = app.pinned()?.side === "key" ? field.queries : field.keys;
    canvas.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect();
      const x = Math.max(0, Math.min(values.length - 1, Math.floor(((event.clientX - area.left) / area.width) * values.length)));
      app.tip(event, [`${isolated(visible(list[shown[x]].text))}, layer ${layer}, ${field.variant.short}`, field.text(values[x])]);
    });
    canvas.addEventListener("pointerleave", () => app.tip(null));
    canvas.addEventListener("click", () => app.set({ layer }));
    return canvas;
  }

  return {
    /** Show the state; layers are computed one after the other, so that long texts do not block the page. */
    show() {
      const { part, state } = app;
      const focus = app.pinned();
      const held = grid.contains(app.active());
      const list = app.fields[app.fields.length - 1];
      const name = focus && visible((focus.side === "key" ? list.keys : list.queries)[focus.index].text, 24);
      title.replaceChildren(...(!focus ? ["Layer by layer, on average"]
        : ["Layer by layer: ", focus.side === "key" ? "from " : "to ", make("bdi", { className: "ns-quoted" }, name)]));
      const key = keyOf(state);
      const redraw = () => {
        draw();
        box.dataset.drawn = key;
        if (held) grid.querySelector("button.ns-now")?.focus();
      };
      if (key === strips.key) return redraw();
      delete box.dataset.drawn;
      const mine = ++job;
      const rows = [];
      let fields = null;
      const step = () => {
        if (mine !== job || !box.isConnected) return;
        const start = performance.now();
        while (rows.length < part.layers.length && performance.now() - start < 12) {
          const row = rowOf(rows.length);
          fields ??= row;
          rows.push(row.map(({ values }) => values));
        }
        if (rows.length < part.layers.length) return void setTimeout(step, 0);
        strips = { key, rows, fields };
        redraw();
      };
      setTimeout(step, 0);
    },
  };
}
