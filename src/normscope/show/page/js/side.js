// Beside the picture: the largest contributors, the mixing ratio, and the formula of the map.

const LISTED = 10;

// The column that the list is sorted by, of two maps and their difference.
const SORTS = ["first", "second", "difference"];

function sortedBy(app) {
  return app.fields.length > 1 ? SORTS.indexOf(app.state.by) : 0;
}

function contributors(app, box) {
  const focus = app.focus();
  const fields = app.fields;
  const first = fields[0];
  const vectors = fields.map((field) => vectorOf(field, focus));
  const main = sortedBy(app);
  const widest = fields.length > 1 && fields[1].width > first.width ? fields[1] : first;
  const list = focus?.side === "key" ? first.queries : widest.keys;
  const order = ranked(widest, focus, list.map((_, at) => vectors[main][at] ?? 0));
  const name = focus && visible((focus.side === "key" ? widest.keys : first.queries)[focus.index].text, 24);
  const caption = !focus ? ["Largest contributors, on average"] : focus.side === "key"
    ? ["Tokens to which ", make("bdi", { className: "ns-quoted" }, name), " contributes most"]
    : ["Largest contributors to ", make("bdi", { className: "ns-quoted" }, name)];
  const largest = Math.max(...order.map((at) => Math.abs(vectors[main][at] ?? 0)), 1e-30);
  const rows = order.slice(0, LISTED).map((at, rank) => {
    const values = fields.map((field, which) => make("td", { className: field.signed ? (vectors[which][at] < 0 ? "ns-minus" : "ns-plus") : "" }, field.text(vectors[which][at] ?? 0)));
    const bar = make("span", { className: "ns-share" });
    bar.style.width = `${(100 * Math.abs(vectors[main][at] ?? 0)) / largest}%`;
    const row = make("tr", {},
      make("td", { className: "ns-rank" }, String(rank + 1)),
      make("th", { scope: "row" }, make("bdi", {}, visible(list[at].text, 22)), bar), values);
    return row;
  });
  const rest = order.slice(LISTED);
  // Shares of different rows have no sum.
  const others = rest.length && focus?.side !== "key" ? [make("tr", { className: "ns-rest" }, make("td"), make("th", { scope: "row" }, `${rest.length} more`),
    fields.map((field, which) => make("td", {}, field.text(rest.reduce((sum, at) => sum + (vectors[which][at] ?? 0), 0)))))] : [];
  const header = (field, which) => {
    const short = field.difference ? "difference" : field.variant.short;
    if (fields.length === 1) return make("th", { scope: "col", title: field.variant.title }, short);
    const chosen = which === main;
    return make("th", { scope: "col", title: field.variant.title, "aria-sort": chosen && "descending" },
      make("button", { type: "button", className: "ns-sort", title: `sort by ${short}`, on: { click: () => app.set({ by: SORTS[which] }) } },
        short, make("span", { "aria-hidden": "true" }, chosen ? " ▾" : "")));
  };
  const held = [...box.querySelectorAll(".ns-sort")].indexOf(box.getRootNode().activeElement);
  box.replaceChildren(make("table", { className: "ns-list" },
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, make("th", { scope: "col", "aria-label": "rank" }), make("th", { scope: "col" }, "token"),
      fields.map(header))),
    make("tbody", {}, rows, others)));
  if (held >= 0) box.querySelectorAll(".ns-sort")[held]?.focus(); // keep the focus on the button that was pressed
}

/** A sentence for screen readers with the three largest contributors. */
function summary(app) {
  const focus = app.focus();
  const field = app.fields[Math.min(sortedBy(app), 1)];
  const vector = vectorOf(field, focus);
  const list = focus?.side === "key" ? field.queries : field.keys;
  const top = ranked(field, focus, vector).slice(0, 3).map((at) => `${visible(list[at].text, 24)} ${field.text(vector[at])}`).join(", ");
  const what = `${field.variant.short}${field.label ? `, ${field.label}` : ""}, layer ${app.state.layer}`;
  if (!focus) return `${what}. Largest contributors on average: ${top}.`;
  const widest = app.fields[app.fields.length - 1]; // one of two maps may lack the residual's column
  const name = visible((focus.side === "key" ? widest.keys : field.queries)[focus.index].text, 24);
  return focus.side === "key" ? `${what}. ${name} contributes most to ${top}.` : `${what}. Largest contributors to ${name}: ${top}.`;
}

/** How much of each token comes from others: a row for each layer, a column for each token. */
function mixingStrip(app, box) {
  const { part, model, state } = app;
  const wanted = state.versus && part.mixing[state.versus] !== undefined ? state.versus : state.map;
  const slab = part.mixing[wanted];
  box.hidden = slab === undefined;
  if (box.hidden) return;
  const { queries, rows } = app.fields[0];
  const layers = part.layers.length;
  const values = part.layers.map((_, layer) => {
    const ratios = model.slabs[slab].slice(layer, 0);
    return queries.map((entry) => entry.at.reduce((sum, at) => sum + ratios[at], 0) / entry.at.length);
  });
  const field = { values: values.flat(), width: queries.length, rows: part.layers.map((_, at) => at), cols: rows, signed: false, own: false };
  field.at = (y, x) => values[y][rows[x]];
  const picture = cellsPicture(field, app.palette().up, 1);
  const legend = { signed: false, share: true, text: (value) => (value === 1 ? "100%" : percent(value)) };
  const mean = values.map((row) => rows.reduce((sum, at) => sum + row[at], 0) / rows.length);
  let canvas = box.querySelector(".ns-strip canvas");
  if (!canvas) {
    box.append(make("div", { className: "ns-panel-head" }, make("h3", {}, "Mixing ratio"), make("div", { className: "ns-legend ns-scale" })), make("p", { className: "ns-hint" }),
      make("div", { className: "ns-strip" }, make("div", { className: "ns-strip-names" }), make("canvas", { role: "img" }), make("div", { className: "ns-strip-means" })));
    canvas = box.querySelector(".ns-strip canvas");
    const under = (event) => {
      const area = canvas.getBoundingClientRect();
      const { cols, part: now } = canvas.about;
      const y = Math.min(now.layers.length - 1, Math.max(0, Math.floor(((event.clientY - area.top) / area.height) * now.layers.length)));
      const x = Math.min(cols.length - 1, Math.max(0, Math.floor(((event.clientX - area.left) / area.width) * cols.length)));
      return { layer: now.layers[y], y, at: cols[x] };
    };
    canvas.addEventListener("pointermove", (event) => {
      const { layer, y, at } = under(event);
      app.tip(event, [`${isolated(visible(canvas.about.queries[at].text))}, layer ${layer}`, `${percent(canvas.about.values[y][at])} from others`]);
    });
    canvas.addEventListener("pointerleave", () => app.tip(null));
    canvas.addEventListener("click", (event) => {
      const { layer, at } = under(event);
      app.set({ layer, query: canvas.about.queries[at].at[0], key: null });
    });
  }
  canvas.about = { cols: rows, part, queries, values };
  scaleBar({ ...app, rooted: () => false }, box.querySelector(".ns-scale"), legend, 1, "");
  box.querySelector("p").textContent = `How much of each token comes from ${part.tokens === part.keys ? "other tokens" : "the source"} (${choose(part, wanted, { head: "sum" }).variant.short}). Rows are layers, columns are tokens; the mean is on the right.`;
  canvas.width = picture.width;
  canvas.height = picture.height;
  canvas.style.height = `${layers * 14}px`;
  canvas.getContext("2d").drawImage(picture, 0, 0);
  canvas.setAttribute("aria-label", "Mixing ratio by layer, mean over tokens: " + part.layers.map((layer, at) => `layer ${layer} ${percent(mean[at])}`).join(", "));
  const names = box.querySelector(".ns-strip-names");
  const means = box.querySelector(".ns-strip-means");
  names.replaceChildren(...part.layers.map((layer) => make("button", {
    type: "button", className: layer === state.layer ? "ns-now" : "", "aria-label": `go to layer ${layer}`, on: { click: () => app.set({ layer }) },
  }, String(layer))));
  means.replaceChildren(...mean.map((value) => make("span", {}, `${Math.round(value * 100)}%`)));
}

function aboutMap(app, box) {
  const { fields, model } = app;
  const maps = fields.filter((field) => !field.difference);
  const fineness = Math.min(...maps.map((field) => field.levels));
  const open = box.querySelector("details")?.open ?? false;
  box.replaceChildren(
    ...maps.flatMap((field) => [
      make("h3", {}, field.variant.title),
      make("p", { className: "ns-math" }, formula(field.variant.formula)),
      make("p", { className: "ns-hint" }, field.variant.meaning),
      make("p", { className: "ns-hint" }, "Reconstruction error: ",
        make("b", {}, typeof field.variant.error === "number" ? errorText(field.variant.error) : "not measured"),
        ", the largest gap to the model’s own state."),
    ]),
    make("details", { open },
      make("summary", {}, "Signature and precision"),
      ...model.signatures.map((text) => make("p", { className: "ns-signature", dir: "ltr" }, visible(text || "none", 4000))),
      make("p", { className: "ns-hint" }, `On this page values are rounded by at most 1/${fineness} of the largest of their layer or head, small values by less. The saved result has all digits.`)),
  );
}
