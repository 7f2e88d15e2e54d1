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
  let end = 0; // of the scale
  const place = () => {
    if (!layout) arrange();
    return layout;
  };
  const map = minimap(app, place);
  canvas.after(map.element);

  const label = (entry) => visible(entry.text, 16);

  function arrange() {
    const context = canvas.getContext("2d");
    const wide = Math.max(120, canvas.parentNode.clientWidth || 300);
    const [rows, cols] = [field.rows.length, field.cols.length];
    const guess = Math.min(LARGEST_CELL, (wide - 60 - AXIS) / cols);
    const named = guess >= SMALLEST_LABEL; // label every token; else every second, third, …
    context.font = `13px ${app.font()}`; // as large as labels become when zoomed
    const room = Math.min(110, 0.25 * wide);
    const longest = (list, shown) => Math.ceil(shown.reduce((most, at) => Math.max(most, context.measureText(label(list[at])).width), 0));
    const left = AXIS + Math.min(room, longest(field.queries, field.rows) + 8);
    const top = AXIS + Math.min(room, longest(field.keys, field.cols) + 8);
    const high = Math.max(320, 0.8 * window.innerHeight - top); // the whole matrix fits the screen
    const cell = Math.max(0.25, Math.min(LARGEST_CELL, (wide - left - 2) / cols, Math.max(high / rows, named ? 13 : 0)));
    const words = sideNames(field);
    context.font = `600 11px ${app.font()}`;
    const word = (text) => Math.ceil(context.measureText(text).width);
    layout = {
      left, top, cell, words, rows, cols, names: new Map(),
      width: Math.ceil(left + Math.max(cols * cell, word(words.key)) + 2), height: Math.ceil(top + Math.max(rows * cell, word(words.query)) + 2),
    };
    const ratio = window.devicePixelRatio || 1;
    canvas.width = layout.width * ratio;
    canvas.height = layout.height * ratio;
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
  }

  /** The labels that fit cells of this size: of every token, or of every second, third, … */
  function labels(cell) {
    const { left, top, names } = layout;
    const every = cell >= SMALLEST_LABEL - 1 ? 1 : Math.ceil((SMALLEST_LABEL + 2) / cell);
    const size = Math.max(8, Math.min(every > 1 ? 10 : 13, Math.floor(every * cell * 0.75)));
    const key = `${every}/${size}`;
    if (!names.has(key)) {
      const context = canvas.getContext("2d");
      context.font = `${size}px ${app.font()}`;
      const of = (list, shown, space) => shown.map((at, place) => (place % every ? null : fitted(context, label(list[at]), space - AXIS - 6)));
      names.set(key, { size, queries: of(field.queries, field.rows, left), keys: of(field.keys, field.cols, top) });
    }
    return names.get(key);
  }

  function marked() {
    const focus = app.focus();
    const y = focus?.query === null || focus?.query === undefined ? -1 : field.rows.indexOf(focus.query);
    const x = focus?.key === null || focus?.key === undefined ? -1 : field.cols.indexOf(focus.key);
    return { x, y };
  }

  function paint(max) {
    if (!layout) arrange();
    end = max;
    const colours = coloursOf(app, field);
    const root = app.rooted();
    if (!picture || picture.of !== field || picture.colours !== colours || picture.max !== max || picture.root !== root)
      picture = { of: field, colours, max, root, canvas: cellsPicture(field, colours, max, { root }) };
    scaleBar(app, legend, field, max);
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const style = app.inks();
    const { left, top, words, width, height, rows, cols } = layout;
    const { scale, x: firstColumn, y: firstRow } = app.view;
    const cell = layout.cell * scale;
    const [wide, high] = [cols * layout.cell, rows * layout.cell];
    const { size, queries, keys } = labels(cell);
    const across = (column) => left + (column - firstColumn) * cell;
    const down = (row) => top + (row - firstRow) * cell;
    canvas.style.touchAction = scale > 1 ? "none" : "pan-x pan-y";
    canvas.classList.toggle("ns-zoomed", scale > 1);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = cell < 1;
    context.drawImage(picture.canvas, firstColumn, firstRow, cols / scale, rows / scale, left, top, wide, high);
    context.save();
    context.beginPath();
    context.rect(left, top, wide, high);
    context.clip();
    if (cell >= 10) {
      context.strokeStyle = style.panel;
      context.globalAlpha = 0.6;
      context.lineWidth = 1;
      context.beginPath();
      for (let x = 1; x < cols; x++) { context.moveTo(across(x), top); context.lineTo(across(x), top + high); }
      for (let y = 1; y < rows; y++) { context.moveTo(left, down(y)); context.lineTo(left + wide, down(y)); }
      context.stroke();
      context.globalAlpha = 1;
    }
    const { x, y } = marked();
    context.strokeStyle = style.accent;
    context.lineWidth = 1.5;
    if (y >= 0) context.strokeRect(left, down(y), wide, Math.max(cell, 2));
    if (x >= 0) context.strokeRect(across(x), top, Math.max(cell, 2), high);
    if (x >= 0 && y >= 0 && app.active() === canvas) {
      context.lineWidth = 3;
      context.strokeRect(across(x), down(y), Math.max(cell, 4), Math.max(cell, 4));
    }
    context.restore();
    context.strokeStyle = style.line;
    context.lineWidth = 1;
    context.strokeRect(left - 0.5, top - 0.5, wide + 1, high + 1);
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
    const inside = (at, from, length) => at >= from && at <= from + length;
    context.font = `600 11px ${app.font()}`;
    write(words.key, [left, AXIS / 2], false, "left", style.muted);
    write(words.query, [AXIS / 2, top], true, "right", style.muted);
    context.font = `${size}px ${app.font()}`;
    queries.forEach((name, row) => name !== null && inside(down(row + 0.5), top, high)
      && write(name, [left - 6, down(row + 0.5)], false, "right", inkOf(field.queries[field.rows[row]], row === y)));
    keys.forEach((name, column) => name !== null && inside(across(column + 0.5), left, wide)
      && write(name, [across(column + 0.5), top - 6], true, "left", inkOf(field.keys[field.cols[column]], column === x)));
    map.paint(picture.canvas, style.accent);
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const { left, top, rows, cols, cell } = layout;
    const [across, down] = [(event.clientX - box.left - left) / cell, (event.clientY - box.top - top) / cell];
    const inside = (at, count) => at >= 0 && at < count;
    if (!inside(down, rows)) return null;
    const { scale, x, y } = app.view;
    return { query: field.rows[Math.floor(y + down / scale)], key: inside(across, cols) ? field.cols[Math.floor(x + across / scale)] : null };
  }
  const dragged = zoomable(app, canvas, place);
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
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => layout && paint(end)); // the cell in focus has a frame
  canvas.addEventListener("click", (event) => {
    const cell = dragged() ? null : under(event);
    if (cell) app.pinCell(cell.query, cell.key);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const ends = { Home: 0, End: field.cols.length - 1 }[event.key];
    if ((!step && ends === undefined) || event.shiftKey) return;
    event.preventDefault();
    let { x, y } = marked();
    if (x < 0 || y < 0) [x, y] = [Math.max(x, 0), Math.max(y, 0)];
    else if (step) [y, x] = [y + step[0], x + step[1]];
    else x = ends;
    y = Math.max(0, Math.min(field.rows.length - 1, y));
    x = Math.max(0, Math.min(field.cols.length - 1, x));
    app.view = showing(app.view, { x, y }, layout);
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
        `${field.variant.title}, ${field.rows.length} queries by ${field.cols.length} keys; arrow keys read the cells, plus and minus zoom`);
    },
    layout: place,
    largest: () => field.max,
    paint,
    resized() {
      layout = null;
    },
    svg(into, x, y) {
      paint(end);
      const { left, top, words, width, height, rows, cols } = layout;
      const { scale, x: firstColumn, y: firstRow } = app.view;
      const cell = layout.cell * scale;
      const { size, queries, keys } = labels(cell);
      const style = app.inks();
      scaleLine(app, into, field, end, x, y);
      y += 22;
      const [wide, high] = [cols * layout.cell, rows * layout.cell];
      const area = svg("svg", { x: x + left, y: y + top, width: wide, height: high, viewBox: `${round(firstColumn * cell)} ${round(firstRow * cell)} ${round(wide)} ${round(high)}` });
      area.append(svg("image", {
        x: 0, y: 0, width: cols * cell, height: rows * cell,
        preserveAspectRatio: "none", "image-rendering": "pixelated", href: enlarged(picture.canvas),
      }));
      into.append(area);
      const write = (text, across, down, about) => into.append(svg("text", { transform: `translate(${round(x + across)} ${round(y + down)})${about.turned ? " rotate(-90)" : ""}`,
        "text-anchor": about.end ? "end" : "start", "font-size": about.size, "font-weight": about.weight ?? 400, fill: about.fill }, text));
      write(words.key, left, AXIS / 2 + 4, { size: 11, weight: 600, fill: style.muted });
      write(words.query, AXIS / 2 + 4, top, { size: 11, weight: 600, fill: style.muted, turned: true, end: true });
      const middle = (at, first) => (at + 0.5 - first) * cell;
      queries.forEach((name, row) => {
        const down = middle(row, firstRow);
        if (name !== null && down >= 0 && down <= high) write(name, left - 6, top + down + size * 0.35, { size, fill: style.ink, end: true });
      });
      keys.forEach((name, column) => {
        const across = middle(column, firstColumn);
        if (name !== null && across >= 0 && across <= wide) write(name, left + across + size * 0.35, top - 6, { size, fill: style.ink, turned: true });
      });
      const chosen = marked();
      const frame = (box, about) => box.append(svg("rect", { fill: "none", stroke: style.accent, "stroke-width": 1.5, ...about }));
      frame(into, { x: x + left, y: y + top, width: wide, height: high, stroke: style.line, "stroke-width": 1 });
      if (chosen.y >= 0) frame(area, { x: 0, y: round(chosen.y * cell), width: round(cols * cell), height: Math.max(cell, 2) });
      if (chosen.x >= 0) frame(area, { x: round(chosen.x * cell), y: 0, width: Math.max(cell, 2), height: round(rows * cell) });
      return { width, height: height + 22 };
    },
  };
}

function cellNote(field, { query, key }) {
  return [
    `from ${isolated(visible(field.keys[key].text))} to ${isolated(visible(field.queries[query].text))}`,
    field.hidden(query, key) ? "hidden" : field.text(field.value(query, key)),
  ];
}
