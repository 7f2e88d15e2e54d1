// The heat map: every query a row, every key a column.

const LARGEST_CELL = 30; // pixels
const SMALLEST_LABEL = 9;

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
    const guess = Math.min(LARGEST_CELL, (wide - 60) / cols);
    const size = Math.max(8, Math.min(13, Math.floor(guess * 0.72)));
    const named = guess >= SMALLEST_LABEL;
    context.font = `${size}px ${app.font()}`;
    const longest = (list, shown) => Math.ceil(shown.reduce((most, at) => Math.max(most, context.measureText(label(list[at])).width), 0));
    const left = named ? Math.min(110, longest(field.queries, field.rows) + 8) : 4;
    const top = named ? Math.min(110, longest(field.keys, field.cols) + 8) : 4;
    const high = Math.max(320, 0.8 * window.innerHeight - top); // the whole of it on the screen
    const cell = Math.max(0.25, Math.min(LARGEST_CELL, (wide - left - 2) / cols, Math.max(high / rows, named ? 13 : 0)));
    layout = { left, top, cell, size: Math.max(8, Math.min(13, Math.floor(cell * 0.72))), named: named && cell >= SMALLEST_LABEL - 1,
      width: Math.ceil(left + cols * cell + 2), height: Math.ceil(top + rows * cell + 2) };
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
    const { left, top, cell, size, named, width, height } = layout;
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
    if (named) {
      context.font = `${size}px ${app.font()}`;
      context.textBaseline = "middle";
      context.textAlign = "right";
      field.rows.forEach((at, row) => {
        context.fillStyle = row === y ? style.accent : field.queries[at].special ? style.muted : style.ink;
        context.fillText(label(field.queries[at]), left - 6, top + (row + 0.5) * cell, left - 6);
      });
      field.cols.forEach((at, column) => {
        context.save();
        context.translate(left + (column + 0.5) * cell, top - 6);
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
        context.fillStyle = column === x ? style.accent : field.keys[at].special ? style.muted : style.ink;
        context.fillText(label(field.keys[at]), 0, 0, top - 6);
        context.restore();
      });
    }
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
    const found = under(event);
    app.hover(found && { side: "query", index: found.query, ...found });
    app.tip(found && found.key !== null ? event : null, found && found.key !== null ? cellNote(field, found) : []);
  });
  canvas.addEventListener("pointerleave", () => {
    app.hover(null);
    app.tip(null);
  });
  canvas.addEventListener("click", (event) => {
    const found = under(event);
    if (found) app.pinCell(found.query, found.key);
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
      const { left, top, cell, size, named, width, height } = layout;
      const style = app.inks();
      into.append(svg("image", {
        x: x + left, y: y + top, width: field.cols.length * cell, height: field.rows.length * cell,
        preserveAspectRatio: "none", "image-rendering": "pixelated", href: enlarged(picture.canvas),
      }));
      if (named) {
        field.rows.forEach((at, row) => into.append(svg("text", {
          x: round(x + left - 6), y: round(y + top + (row + 0.5) * cell + size * 0.35), "text-anchor": "end", "font-size": size, fill: style.ink,
        }, label(field.queries[at]))));
        field.cols.forEach((at, column) => into.append(svg("text", {
          transform: `translate(${round(x + left + (column + 0.5) * cell + size * 0.35)} ${round(y + top - 6)}) rotate(-90)`, "font-size": size, fill: style.ink,
        }, label(field.keys[at]))));
      }
      return { width, height };
    },
  };
}

function cellNote(field, { query, key }) {
  return [
    `${visible(field.queries[query].text)} takes from ${visible(field.keys[key].text)}`,
    field.text(field.value(query, key)),
  ];
}

/** What the colours mean: from nothing to the largest cell. */
function scaleBar(app, box, field) {
  box.textContent = "";
  const bar = make("canvas", { className: "ns-bar", width: 64, height: 1, "aria-hidden": "true" });
  const colours = field.signed ? app.palette().difference : app.palette().up;
  const context = bar.getContext("2d");
  for (let x = 0; x < 64; x++) {
    context.fillStyle = colours.css[Math.round((x / 63) * 255)];
    context.fillRect(x, 0, 1, 1);
  }
  box.append(make("span", {}, field.signed ? field.text(-field.max) : "0"), bar, make("span", {}, field.text(field.max)));
}
