// Zoom and pan of the heat maps. Panels that are compared show the same cells, so there is one view for all.

const ZOOMED_CELL = 36; // pixels: the largest cell
const ZOOM_STEP = 1.6;
const MINIMAP = 96; // pixels, the longer side

/** The part of the matrix that is shown: `scale` times the size that fits, from cell (x, y) on. */
function wholeMatrix() {
  return { scale: 1, x: 0, y: 0 };
}

function largestScale({ cell }) {
  return Math.max(1, ZOOMED_CELL / cell);
}

/** Return the view at another scale; the point at these fractions of the area stays where it is. */
function zoomed(view, wanted, { rows, cols, cell }, across = 0.5, down = 0.5) {
  const scale = Math.max(1, Math.min(largestScale({ cell }), wanted));
  return within({
    scale,
    x: view.x + across * cols * (1 / view.scale - 1 / scale),
    y: view.y + down * rows * (1 / view.scale - 1 / scale),
  }, { rows, cols });
}

/** Return the view moved into the matrix. */
function within({ scale, x, y }, { rows, cols }) {
  const inside = (at, count) => Math.max(0, Math.min(count - count / scale, at));
  return { scale, x: inside(x, cols), y: inside(y, rows) };
}

/** Return the view moved so that a cell can be seen. */
function showing(view, { x, y }, { rows, cols }) {
  const near = (from, at, count) => {
    const span = count / view.scale;
    if (at < 0) return from;
    return at < from ? at : at + 1 > from + span ? at + 1 - span : from;
  };
  return within({ scale: view.scale, x: near(view.x, x, cols), y: near(view.y, y, rows) }, { rows, cols });
}

/**
 * Let a canvas be zoomed with Ctrl and the wheel, or with two fingers, and moved by dragging. `place` gives the
 * layout of the matrix on the canvas. Returns whether the last press was a drag, which is not a click.
 */
function zoomable(app, canvas, place) {
  const fingers = new Map();
  let dragged = false;
  const fraction = (event) => {
    const box = canvas.getBoundingClientRect();
    const { left, top, cell, rows, cols } = place();
    return [(event.clientX - box.left - left) / (cols * cell), (event.clientY - box.top - top) / (rows * cell)].map((part) => Math.max(0, Math.min(1, part)));
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    app.look(zoomed(app.view, app.view.scale * Math.exp(-event.deltaY * 0.004), place(), ...fraction(event)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    dragged = false;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const layout = place();
    const others = [...fingers.values()].filter((finger) => finger.pointerId !== event.pointerId);
    const apart = (one) => Math.hypot(one.clientX - others[0].clientX, one.clientY - others[0].clientY);
    if (others.length === 1) {
      dragged = true;
      app.look(zoomed(app.view, app.view.scale * (apart(event) / Math.max(1, apart(before))), layout, ...fraction(event)));
    } else if (app.view.scale > 1) {
      const [across, down] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (!dragged && Math.hypot(across, down) < 4) return; // a click may tremble
      if (!dragged) canvas.setPointerCapture(event.pointerId);
      dragged = true;
      const size = layout.cell * app.view.scale;
      app.look(within({ ...app.view, x: app.view.x - across / size, y: app.view.y - down / size }, layout));
    } else return;
    fingers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"])
    canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  return () => dragged;
}

/** The whole matrix in a corner, with a frame round the part that is shown; a press moves the part. */
function minimap(app, place) {
  const canvas = make("canvas", { className: "ns-minimap", hidden: true, "aria-hidden": "true" });
  const move = (event) => {
    if (!(event.buttons & 1)) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    const { rows, cols } = place();
    const [x, y] = [((event.clientX - box.left) / box.width) * cols, ((event.clientY - box.top) / box.height) * rows];
    app.look(within({ ...app.view, x: x - cols / app.view.scale / 2, y: y - rows / app.view.scale / 2 }, { rows, cols }));
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", move);
  return {
    element: canvas,
    paint(picture, accent) {
      const { view } = app;
      canvas.hidden = view.scale <= 1;
      if (canvas.hidden) return;
      const { rows, cols, left, top, cell } = place();
      const size = MINIMAP / Math.max(rows, cols);
      const ratio = window.devicePixelRatio || 1;
      const [wide, high] = [Math.max(8, cols * size), Math.max(8, rows * size)];
      canvas.width = wide * ratio;
      canvas.height = high * ratio;
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
      // The upper right, which is empty where tokens see only those before them.
      canvas.style.left = `${left + cols * cell - wide - 8}px`;
      canvas.style.top = `${top + 6}px`;
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.drawImage(picture, 0, 0, wide, high);
      context.strokeStyle = accent;
      context.lineWidth = 2;
      context.strokeRect(view.x * size, view.y * size, Math.max(4, (cols / view.scale) * size), Math.max(4, (rows / view.scale) * size));
    },
  };
}

/** Buttons to zoom in and out, and back to the whole. */
function zoomButtons(app, { kept }) {
  const group = kept("zoom", null, () => {
    const by = (sign, label, does) => make("button", { type: "button", className: "ns-step", "aria-label": label, title: label, on: { click: does } }, sign);
    return make("div", { className: "ns-zoom", role: "group", "aria-label": "Zoom" },
      by("−", "zoom out", () => app.zoom(1 / ZOOM_STEP)), by("+", "zoom in", () => app.zoom(ZOOM_STEP)), by("fit", "show the whole matrix", () => app.zoom(0)),
      make("span", { className: "ns-hint" }));
  });
  const [out, into, fit, hint] = group.children;
  const layout = app.panels[0]?.layout?.();
  out.disabled = fit.disabled = app.view.scale <= 1;
  into.disabled = Boolean(layout) && app.view.scale >= largestScale(layout) * 0.999;
  hint.textContent = app.view.scale > 1 ? `${app.view.scale.toFixed(1)}×; drag to move` : "Ctrl + wheel or pinch to zoom";
  return group;
}
