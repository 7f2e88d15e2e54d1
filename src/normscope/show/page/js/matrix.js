// The heat map: a row for each query, a column for each key.

const LARGEST_CELL = 30; // pixels
const SMALLEST_LABEL = 9;
const AXIS = 16; // for the word along each axis

function matrixPanel(app) {
  const canvas = make("canvas", {
    className: "ns-matrix", tabIndex: 0, role: "application", "aria-roledescription": "heat map",
  });
  const title = make("h3");
  const legend = make("div", { className: "ns-legend ns-scale" });
  const element = make("section", { className: "ns-panel" },
    make("div", { className: "ns-panel-head" }, title, legend),
    make("div", { className: "ns-frame" }, canvas));
  let field = null;
  let picture = null;
  let layout = null;

  const label = (entry) => visible(entry.text, 16);

  function arrange() {
    const context = canvas.getContext("2d");
    const wide = Math.max(120, canvas.parentNode.clientWidth || 300);
    const [rows, cols] = [field.rows.length, field.cols.length];
    const guess = Math.min(LARGEST_CELL, (wide - 60 - AXIS) / cols);
    const named = guess >= SMALLEST_LABEL; // label every token; else every second, third, …
    context.font = `${Math.max(9, Math.min(13, Math.floor(guess * 0.72)))}px ${app.font()}`;
    const room = Math.min(110, 0.25 * wide);
    const longest = (list, shown) => Math.ceil(shown.reduce((most, at) => Math.max(most, context.measureText(label(list[at])).width), 0));
    const left = AXIS + Math.min(room, longest(field.queries, field.rows) + 8);
    const top = AXIS + Math.min(room, longest(field.keys, field.cols) + 8);
    const high = Math.max(320, 0.8 * window.innerHeight - top); // the whole matrix fits the screen
    const cell = Math.max(0.25, Math.min(LARGEST_CELL, (wide - left - 2) / cols, Math.max(high / rows, named ? 13 : 0)));
    const every = cell >= SMALLEST_LABEL - 1 ? 1 : Math.ceil((SMALLEST_LABEL + 2) / cell);
    const size = Math.max(8, Math.min(every > 1 ? 10 : 13, Math.floor(every * cell * 0.75)));
    context.font = `${size}px ${app.font()}`;
    const names = (list, shown, space) => shown.map((at, place) => (place % every ? null : fitted(context, label(list[at]), space - AXIS - 6)));
    const [queries, keys] = [names(field.queries, field.rows, left), names(field.keys, field.cols, top)];
    const words = sideNames(field);
    context.font = `600 11px ${app.font()}`;
    const word = (text) => Math.ceil(context.measureText(text).width);
    layout = {
      left, top, cell, size, queries, keys, words,
      width: Math.ceil(left + Math.max(cols * cell, word(words.key)) + 2), height: Math.ceil(top + Math.max(rows * cell, word(words.query)) + 2),
    };
    const ratio = window.devicePixelRatio || 1;
    canvas.width = layout.width * ratio;
    canvas.height = layout.height * ratio;
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
  }

  function marked() {
    const focus = app.focus();
    const y = focus?.query === null || focus?.query === undefined ? -1 : field.rows.indexOf(focus.query);
    const x = focus?.key === null || focus?.key === undefined ? -1 : field.cols.indexOf(focus.key);
    return { x, y };
  }

  function paint() {
    if (!layout) arrange();
    const colours = field.signed ? app.palette().difference : app.palette().up;
    if (!picture || picture.of !== field || picture.colours !== colours)
      picture = { of: field, colours, canvas: cellsPicture(field, colours, field.max) };
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const style = app.inks();
    const { left, top, cell, size, queries, keys, words, width, height } = layout;
    const [rows, cols] = [field.rows.length, field.cols.length];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = cell < 1;
    context.drawImage(picture.canvas, left, top, cols * cell, rows * cell);
    if (cell >= 10) {
      context.strokeStyle = style.panel;
      context.globalAlpha = 0.6;
      context.lineWidth = 1;
      context.beginPath();
      for (let x = 1; x < cols; x++) { context.moveTo(left + x * cell, top); context.lineTo(left + x * cell, top + rows * cell); }
      for (let y = 1; y < rows; y++) { context.moveTo(left, top + y * cell); context.lineTo(left + cols * cell, top + y * cell); }
      context.stroke();
      context.globalAlpha = 1;
    }
    context.strokeStyle = style.line;
    context.lineWidth = 1;
    context.strokeRect(left - 0.5, top - 0.5, cols * cell + 1, rows * cell + 1);
    const { x, y } = marked();
    context.textBaseline = "middle";
    const write = (text, at, turn, align, ink) => {
      context.save();
      context.translate(...at);
      if (turn) context.rotate(-Math.PI / 2);
      context.textAlign = align;
      context.fillStyle = ink;
      context.fillText(text, 0, 0);
      context.restore();
    };
    const inkOf = (entry, chosen) => (chosen ? style.accent : entry.special ? style.muted : style.ink);
    context.font = `600 11px ${app.font()}`;
    write(words.key, [left, AXIS / 2], false, "left", style.muted);
    write(words.query, [AXIS / 2, top], true, "right", style.muted);
    context.font = `${size}px ${app.font()}`;
    queries.forEach((name, row) => name !== null
      && write(name, [left - 6, top + (row + 0.5) * cell], false, "right", inkOf(field.queries[field.rows[row]], row === y)));
    keys.forEach((name, column) => name !== null
      && write(name, [left + (column + 0.5) * cell, top - 6], true, "left", inkOf(field.keys[field.cols[column]], column === x)));
    context.strokeStyle = style.accent;
    context.lineWidth = 1.5;
    if (y >= 0) context.strokeRect(left, top + y * cell, cols * cell, Math.max(cell, 2));
    if (x >= 0) context.strokeRect(left + x * cell, top, Math.max(cell, 2), rows * cell);
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
    const y = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
    const inside = (at, count) => at >= 0 && at < count;
    if (!inside(y, field.rows.length)) return null;
    return { query: field.rows[y], key: inside(x, field.cols.length) ? field.cols[x] : null };
  }
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const cell = under(event);
    app.hover(cell && { side: "query", index: cell.query, ...cell });
    app.tip(cell && cell.key !== null ? event : null, cell && cell.key !== null ? cellNote(field, cell) : []);
  });
  canvas.addEventListener("pointerleave", () => {
    app.hover(null);
    app.tip(null);
  });
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (cell) app.pinCell(cell.query, cell.key);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const ends = { Home: 0, End: field.cols.length - 1 }[event.key];
    if (!step && ends === undefined) return;
    event.preventDefault();
    let { x, y } = marked();
    if (x < 0 || y < 0) [x, y] = [Math.max(x, 0), Math.max(y, 0)];
    else if (step) [y, x] = [y + step[0], x + step[1]];
    else x = ends;
    y = Math.max(0, Math.min(field.rows.length - 1, y));
    x = Math.max(0, Math.min(field.cols.length - 1, x));
    app.pinCell(field.rows[y], field.cols[x]);
    app.say(cellNote(field, { query: field.rows[y], key: field.cols[x] }).join(", "));
  });

  return {
    element,
    show(now) {
      field = now;
      layout = null;
      this.change(now);
    },
    change(now) {
      field = now;
      title.textContent = panelTitle(app, field);
      canvas.setAttribute("aria-label",
        `${field.variant.title}, ${field.rows.length} queries by ${field.cols.length} keys; arrow keys read the cells`);
      scaleBar(app, legend, field);
    },
    paint,
    resized() {
      layout = null;
    },
    svg(into, x, y) {
      if (!layout) arrange();
      paint();
      const { left, top, cell, size, queries, keys, words, width, height } = layout;
      const style = app.inks();
      scaleLine(app, into, field, field.max, x, y);
      y += 22;
      const [wide, high] = [field.cols.length * cell, field.rows.length * cell];
      into.append(svg("image", {
        x: x + left, y: y + top, width: wide, height: high,
        preserveAspectRatio: "none", "image-rendering": "pixelated", href: enlarged(picture.canvas),
      }));
      const write = (text, across, down, about) => into.append(svg("text", { transform: `translate(${round(x + across)} ${round(y + down)})${about.turned ? " rotate(-90)" : ""}`,
        "text-anchor": about.end ? "end" : "start", "font-size": about.size, "font-weight": about.weight ?? 400, fill: about.fill }, text));
      write(words.key, left, AXIS / 2 + 4, { size: 11, weight: 600, fill: style.muted });
      write(words.query, AXIS / 2 + 4, top, { size: 11, weight: 600, fill: style.muted, turned: true, end: true });
      queries.forEach((name, row) => name !== null && write(name, left - 6, top + (row + 0.5) * cell + size * 0.35, { size, fill: style.ink, end: true }));
      keys.forEach((name, column) => name !== null && write(name, left + (column + 0.5) * cell + size * 0.35, top - 6, { size, fill: style.ink, turned: true }));
      const chosen = marked();
      const frame = (about) => into.append(svg("rect", { fill: "none", stroke: style.accent, "stroke-width": 1.5, ...about }));
      frame({ x: x + left, y: y + top, width: wide, height: high, stroke: style.line, "stroke-width": 1 });
      if (chosen.y >= 0) frame({ x: x + left, y: round(y + top + chosen.y * cell), width: wide, height: Math.max(cell, 2) });
      if (chosen.x >= 0) frame({ x: round(x + left + chosen.x * cell), y: y + top, width: Math.max(cell, 2), height: high });
      return { width, height: height + 22 };
    },
  };
}

function cellNote(field, { query, key }) {
  return [
    `${isolated(visible(field.queries[query].text))} takes from ${isolated(visible(field.keys[key].text))}`,
    field.hidden(query, key) ? "hidden" : field.text(field.value(query, key)),
  ];
}

/** The legend of the colours, from nothing to the largest cell. */
function scaleBar(app, box, field) {
  box.textContent = "";
  box.append(make("span", {}, lowest(field, field.max)), coloursBar(app, field), make("span", {}, field.text(field.max)));
}

/** The same legend, for a saved picture. */
function scaleLine(app, into, field, max, x, y) {
  into.append(svg("image", { x, y: y + 3, width: 64, height: 9, preserveAspectRatio: "none", href: enlarged(coloursBar(app, field)) }));
  into.append(svg("rect", { x, y: y + 3, width: 64, height: 9, fill: "none", stroke: app.inks().line }));
  into.append(svg("text", { x: x + 72, y: y + 12, "font-size": 11, fill: app.inks().muted }, `${lowest(field, max)} … ${field.text(max)}`));
}

function lowest(field, max) {
  return field.signed ? field.text(-max) : "0";
}

function coloursBar(app, field) {
  const bar = make("canvas", { className: "ns-bar", width: 64, height: 1, "aria-hidden": "true" });
  const colours = field.signed ? app.palette().difference : app.palette().up;
  const context = bar.getContext("2d");
  for (let x = 0; x < 64; x++) {
    context.fillStyle = colours.css[Math.round((x / 63) * 255)];
    context.fillRect(x, 0, 1, 1);
  }
  return bar;
}
