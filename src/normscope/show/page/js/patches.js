// A picture of patches: cells in colour over the image that the model reads, or over a recording's sound.

const PICTURE_WIDTH = 460; // the most pixels that an image is wide
const SOUND_HEIGHT = 96;
const OPACITY = 0.6; // the power of a value that gives how opaque its colour is, so that small ones are seen
const BACKDROPS = new Map(); // address and theme -> {image: in pale or dark grey, when it has been decoded; waiting: whom to tell}

/** The image of a picture in grey, so pale or so dark that the colours of cells are seen on it; null until it is decoded. */
function backdropOf(picture, theme, ready) {
  if (!picture.address) return null;
  const key = `${theme}/${picture.address}`;
  if (BACKDROPS.has(key)) {
    const known = BACKDROPS.get(key);
    if (!known.image) known.waiting.add(ready);
    return known.image;
  }
  const known = { image: null, waiting: new Set([ready]) };
  BACKDROPS.set(key, known);
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    const { data } = pixels;
    for (let i = 0; i < data.length; i += 4) {
      const grey = 0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2];
      data.fill(theme === "dark" ? 14 + 0.5 * grey : 105 + 0.58 * grey, i, i + 3);
    }
    context.putImageData(pixels, 0, 0);
    known.image = canvas;
    for (const tell of known.waiting) tell();
    known.waiting.clear();
  };
  image.src = picture.address;
  return null;
}

/** The pictures of some tokens, each with the entries of a list that are its patches, as {picture, at: [entry]}. */
function picturesOf(tokens, list) {
  if (!tokens.places) return [];
  const shown = tokens.pictures.map((picture) => ({ picture, cells: [] }));
  list.forEach((entry, at) => {
    const place = tokens.places[entry.at[0]];
    if (place) shown[place[0]].cells.push({ at, row: place[1], column: place[2] });
  });
  return shown.filter(({ cells }) => cells.length);
}

/**
 * One picture. `choose(entry)` is told which patch was chosen, `hover(event, entry)` which the pointer is over, or null.
 * `colour(entry)` gives the colour of a patch and how strong it is, from 0 to 1.
 */
function patchPicture(app, { picture, cells }, { choose, hover, name }) {
  const canvas = make("canvas", { className: "ns-patches", tabIndex: 0, role: "application", "aria-roledescription": picture.recording ? "recording" : "image" });
  const caption = make("figcaption", { className: "ns-hint" });
  const element = make("figure", { className: "ns-picture" }, canvas, caption);
  const sound = picture.recording;
  const found = new Map(cells.map((cell) => [cell.row * picture.columns + cell.column, cell]));
  let painted = null;
  let width = 0;
  let height = 0;
  let at = null; // the cell that arrow keys are on

  function arrange() {
    const room = Math.max(120, element.clientWidth || 300);
    const ratio = window.devicePixelRatio || 1;
    const image = backdropOf(picture, app.theme(), repaint);
    const shape = image ? image.height / image.width : picture.rows / picture.columns;
    width = sound ? room : Math.min(room, PICTURE_WIDTH, Math.max(160, 0.72 * window.innerHeight) / shape);
    height = sound ? SOUND_HEIGHT : width * shape;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    return image;
  }
  function repaint() {
    if (painted && element.isConnected) paint(painted);
  }
  const box = ({ row, column }) => [(column / picture.columns) * width, (row / picture.rows) * height, width / picture.columns, height / picture.rows];

  /** Draw the picture; `bare` leaves the image away, `chosen` are entries with a frame, `lit` those under the pointer. */
  function paint(about) {
    painted = about;
    const image = arrange();
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const inks = pictureInks(app);
    context.fillStyle = inks.panel;
    context.fillRect(0, 0, width, height);
    const under = image && !about.bare;
    context.imageSmoothingEnabled = true;
    if (under) context.drawImage(image, 0, 0, width, height);
    for (const cell of cells) {
      const { css, strength } = about.colour(cell.at);
      const [x, y, wide, high] = box(cell);
      context.globalAlpha = under ? 0.9 * strength ** OPACITY : 1;
      context.fillStyle = css;
      if (strength > 0 || !under) context.fillRect(x, y, wide + (sound ? 0.5 : 0), high);
    }
    context.globalAlpha = 1;
    if (!sound && width / picture.columns >= 9) {
      context.strokeStyle = inks.panel;
      context.globalAlpha = under ? 0.35 : 0.6;
      context.lineWidth = 1;
      context.beginPath();
      for (let x = 1; x < picture.columns; x++) { context.moveTo((x * width) / picture.columns, 0); context.lineTo((x * width) / picture.columns, height); }
      for (let y = 1; y < picture.rows; y++) { context.moveTo(0, (y * height) / picture.rows); context.lineTo(width, (y * height) / picture.rows); }
      context.stroke();
      context.globalAlpha = 1;
    }
    const frame = (cell, ink, thick) => {
      const [x, y, wide, high] = box(cell);
      context.strokeStyle = ink;
      context.lineWidth = thick;
      context.strokeRect(x + 1, y + 1, Math.max(wide, 3) - 2, high - 2);
    };
    for (const cell of cells) {
      if (!about.chosen.has(cell.at)) continue;
      frame(cell, inks.panel, 5);
      frame(cell, inks.accent, 2.5);
    }
    if (at && app.active() === canvas) frame(at, inks.ink, 1.5);
    context.strokeStyle = inks.line;
    context.lineWidth = 1;
    context.strokeRect(0.5, 0.5, width - 1, height - 1);
    canvas.dataset.drawn = under ? "image" : "cells";
    canvas.setAttribute("aria-label", `${name}: ${about.label}`);
    const length = picture.seconds === null ? "" : `, ${picture.seconds.toFixed(2)} s`;
    caption.textContent = `${name}${sound ? `${length}, ${picture.columns} frames` : `, ${picture.rows} × ${picture.columns} patches`}`;
  }

  function under(event) {
    const area = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - area.left) / area.width) * picture.columns);
    const row = Math.floor(((event.clientY - area.top) / area.height) * picture.rows);
    if (row < 0 || column < 0 || row >= picture.rows || column >= picture.columns) return null;
    return found.get(row * picture.columns + column) ?? null;
  }
  let last;
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const cell = under(event);
    if (cell !== last) hover(event, cell && cell.at);
    last = cell;
  });
  canvas.addEventListener("pointerleave", () => {
    last = null;
    hover(null, null);
  });
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (!cell) return;
    at = cell;
    choose(cell.at);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const ends = { Home: cells[0], End: cells[cells.length - 1] }[event.key];
    if ((!step && !ends) || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const chosen = cells.find((cell) => painted.chosen.has(cell.at));
    const from = chosen ?? at;
    const next = ends ?? (from ? found.get((from.row + step[0]) * picture.columns + from.column + step[1]) : cells[0]);
    const crosses = from && step && (from.column + step[1] < 0 || from.column + step[1] >= picture.columns);
    if (!next || crosses) return;
    at = next;
    if (next !== chosen) choose(next.at);
  });
  for (const event of ["focus", "blur"]) canvas.addEventListener(event, repaint);
  let wide = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === wide) return;
    wide = element.clientWidth;
    repaint();
  }).observe(element);

  return {
    element,
    paint,
    focus: () => canvas.focus(),
    /** Append what is shown to a drawing; returns its size. */
    svg(into, x, y) {
      into.append(svg("image", { x, y, width: round(width), height: round(height), href: canvas.toDataURL("image/png") }));
      return { width, height };
    },
  };
}

/** Colours of the surfaces, as the style of the page has them. */
function pictureInks(app) {
  const style = getComputedStyle(app.root);
  return Object.fromEntries(["ink", "muted", "line", "panel", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
