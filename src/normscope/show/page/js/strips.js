// Beside the text: the largest shares, and what a trace keeps of each layer as small pictures.

const LISTED = 12;
const LABELLED = 24; // columns that have room for a name

/** The largest shares, the rest, the bias and the sum. */
function shareList(app, box) {
  const { shown, state, model } = app;
  const order = shown.shares.map((_, at) => at).sort((a, b) => Math.abs(shown.shares[b]) - Math.abs(shown.shares[a]) || a - b);
  const decimals = decimalsFor(shown.largest, shown.bias, shown.value);
  const widest = Math.max(shown.largest, Math.abs(shown.bias), 1e-30);
  const row = (rank, name, share, { className = "", title, on, bare } = {}) => {
    const bar = make("span", { className: `ns-share${share < 0 ? " ns-below" : ""}` });
    bar.style.width = `${Math.min(100, (100 * Math.abs(share)) / widest)}%`;
    const label = make("bdi", {}, name);
    return make("tr", { className },
      make("td", { className: "ns-rank" }, rank),
      make("th", { scope: "row" }, bare ? null : bar, on ? make("button", { type: "button", className: "ns-pick", title, on: { click: on } }, label) : label),
      make("td", { className: share < 0 ? "ns-minus" : "ns-plus" }, amount(share, decimals)));
  };
  const rows = order.slice(0, LISTED).map((at, rank) => row(String(rank + 1), visible(shown.entries[at].text || "·", 24), shown.shares[at], {
    title: `choose position ${shown.entries[at].at[0]}`,
    on: () => app.set({ chosen: [shown.entries[at].at[0], shown.entries[at].at[shown.entries[at].at.length - 1] + 1] }),
  }));
  const rest = order.slice(LISTED);
  if (rest.length) rows.push(row("", `${rest.length} more`, rest.reduce((sum, at) => sum + shown.shares[at], 0), { className: "ns-rest", bare: true }));
  if (shown.others) rows.push(row("", "other parts", shown.others, { className: "ns-rest", bare: true }));
  if (shown.bias || !model.settings.baseline) rows.push(row("", "bias (no token)", shown.bias, { className: "ns-rest" }));
  rows.push(make("tr", { className: "ns-rest ns-total" }, make("td"), make("th", { scope: "row" }, "sum"), make("td", {}, amount(shown.sum + shown.others + shown.bias, decimals))));
  const held = [...box.querySelectorAll(".ns-pick")].indexOf(app.active());
  box.replaceChildren(make("table", { className: "ns-list" },
    make("caption", {}, state.words ? "Words with the largest shares" : "Tokens with the largest shares"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col", "aria-label": "rank" }), make("th", { scope: "col" }, state.words ? "word" : "token"), make("th", { scope: "col" }, "share"))),
    make("tbody", {}, rows)));
  if (held >= 0) box.querySelectorAll(".ns-pick")[held]?.focus();
}

/**
 * A picture with a row for each layer: `rows[y][x]` are shares, `names` are those of the rows, of which
 * `short` stand at the left and the sums at the right; `columns` stand above, if there are few. `about` says what a cell is, `choose` what a click does.
 */
function strip(app, box, { title, hint, rows, columns, names, short, current, about, choose }) {
  const largest = rows.flat().reduce((most, share) => Math.max(most, Math.abs(share)), 0);
  const { bytes } = app.palette().difference;
  const [high, wide] = [rows.length, rows[0].length];
  let canvas = box.querySelector("canvas");
  if (!canvas) {
    canvas = make("canvas", { role: "img" });
    box.append(make("div", { className: "ns-panel-head" }, make("h3", {}, title), make("p", { className: "ns-legend ns-scale" })), make("p", { className: "ns-hint" }),
      make("div", { className: "ns-strip" }, make("div", { className: "ns-strip-columns", "aria-hidden": "true" }), make("div", { className: "ns-strip-names" }), canvas, make("div", { className: "ns-strip-means" })));
    const under = (event) => {
      const area = canvas.getBoundingClientRect();
      const place = (at, size, count) => Math.min(count - 1, Math.max(0, Math.floor((at / size) * count)));
      const now = canvas.about;
      return [place(event.clientY - area.top, area.height, now.rows.length), place(event.clientX - area.left, area.width, now.rows[0].length)];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [y, x] = under(event);
      app.tip(event, canvas.about.about(y, x, canvas.about.rows[y][x]));
    });
    canvas.addEventListener("pointerleave", () => app.tip(null));
    canvas.addEventListener("click", (event) => canvas.about.choose?.(...under(event)));
  }
  canvas.about = { rows, about, choose };
  box.querySelector(".ns-hint").textContent = hint;
  shareLegend(app, box.querySelector(".ns-scale"), largest, ["", ""]);
  canvas.width = wide;
  canvas.height = high;
  canvas.style.height = `${high * 14}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(wide, high);
  rows.forEach((row, y) => row.forEach((share, x) => {
    const colour = shareLevel(share, largest, app.state.root) * 3;
    image.data.set([bytes[colour], bytes[colour + 1], bytes[colour + 2], 255], (y * wide + x) * 4);
  }));
  context.putImageData(image, 0, 0);
  const sums = rows.map((row) => total(row));
  const decimals = decimalsFor(...sums);
  canvas.setAttribute("aria-label", `${title}, sums: ${names.map((name, y) => `${name} ${amount(sums[y], decimals)}`).join(", ")}`);
  box.querySelector(".ns-strip-names").replaceChildren(...names.map((name, y) => (choose
    ? make("button", { type: "button", className: y === current ? "ns-now" : "", "aria-label": `show ${name}`, on: { click: () => choose(y, null) } }, short[y])
    : make("span", {}, short[y]))));
  const above = box.querySelector(".ns-strip-columns");
  above.hidden = wide > LABELLED;
  above.replaceChildren(...(above.hidden ? [] : columns).map((name) => make("bdi", {}, name)));
  box.querySelector(".ns-strip-means").replaceChildren(...sums.map((sum) => make("span", {}, amount(sum, Math.min(decimals, 2)))));
}

/** What the trace keeps: states at every cut, heads, feed-forwards. */
function traceStrips(app, { cuts, heads, forwards }) {
  const { model, state, shown } = app;
  const count = model.tokens.pieces.length;
  const grouped = (values, start) => shown.entries.map(({ at }) => at.reduce((sum, position) => sum + values[start + position], 0));
  const table = (name) => {
    const [, high, wide] = model.arrays[name].shape;
    const values = overSteps(model, state, name, 0, high * wide);
    return Array.from({ length: high }, (_, y) => (wide === count ? grouped(values, y * wide) : Array.from(values.subarray(y * wide, (y + 1) * wide))));
  };
  const told = (at) => `‘${isolated(visible(shown.entries[at].text, 24))}’`;
  strip(app, cuts, {
    title: "From layer to layer", hint: "Shares of the states before each layer and after the last. Rows are layers, columns are tokens; the sum without the bias is on the right.",
    rows: table("layers"), columns: shown.entries.map(({ text }) => visible(text, 24)), names: model.cuts.map((_, cut) => cutName(model, cut)), current: state.cut,
    short: model.cuts.map((label, cut) => (cut > 0 && cut === model.cuts.length - 1 ? "end" : String(label))),
    about: (y, x, share) => [`${told(x)}, ${cutName(model, y)}`, amount(share, decimalsFor(share))],
    choose: (y) => app.set({ cut: y }),
  });
  for (const [box, name, title, hint, about, column] of [
    [heads, "heads", "Heads", "What each head added. Rows are layers, columns are heads; sums are on the right.", (y, x) => `layer ${y}, head ${x}`, String],
    [forwards, "feed_forward", "Feed-forward", "What each feed-forward added at each token. Rows are layers, columns are tokens; sums are on the right.", (y, x) => `${told(x)}, layer ${y}`, (x) => visible(shown.entries[x].text, 24)],
  ]) {
    box.hidden = !model.arrays[name];
    if (box.hidden) continue;
    const rows = table(name);
    const cells = rows.flatMap((row, y) => row.map((share, x) => [share, about(y, x)])).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 3);
    const most = `Largest: ${cells.map(([share, place]) => `${place} ${amount(share, decimalsFor(share))}`).join("; ")}.`;
    strip(app, box, { title, hint: `${hint} ${most}`, rows, columns: rows[0].map((_, x) => column(x)), names: rows.map((_, y) => `layer ${y}`), short: rows.map((_, y) => String(y)), current: -1, about: (y, x, share) => [about(y, x), amount(share, decimalsFor(share))] });
  }
}
