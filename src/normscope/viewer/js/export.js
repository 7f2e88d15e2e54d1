// What is shown, as a file: SVG from the same numbers, PNG from the SVG, CSV from the cells.

function round(value) {
  return Math.round(value * 100) / 100;
}

function svg(tag, about = {}, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
}

/** A picture with one pixel a cell, made larger, for programs that would smooth it. */
function enlarged(canvas) {
  const times = Math.max(1, Math.min(16, Math.floor(1024 / Math.max(canvas.width, canvas.height))));
  const large = document.createElement("canvas");
  large.width = canvas.width * times;
  large.height = canvas.height * times;
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large.toDataURL("image/png");
}

function headline(app) {
  const { state } = app;
  const names = app.fields.map((field) => field.variant.short).join("  |  ");
  const where = state.view === "overview" ? "all layers" : `layer ${state.layer}${app.fields[0].label ? `, ${app.fields[0].label}` : ""}`;
  return `${state.part ? `${state.part}: ` : ""}${names} · ${where} · ${state.scale === "share" ? "share of the row" : "absolute"}`;
}

function toSvg(app) {
  const style = app.inks();
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": "system-ui, sans-serif" });
  const ground = svg("rect", { fill: style.panel });
  whole.append(ground, svg("text", { x: 16, y: 26, "font-size": 15, "font-weight": 600, fill: style.ink }, headline(app)));
  let [x, width, height] = [16, 320, 0];
  for (const [at, panel] of app.panels.entries()) {
    if (app.panels.length > 1)
      whole.append(svg("text", { x, y: 50, "font-size": 12, fill: style.muted }, app.fields[at].variant.short));
    const size = panel.svg(whole, x, 60);
    x += size.width + 24;
    width = Math.max(width, x);
    height = Math.max(height, size.height);
  }
  let bottom = 60 + height + 24;
  // The signature whole, in as many lines as it takes.
  const signature = visible(app.model.signatures[app.model.signatures.length - 1] || "none", 4000);
  const length = Math.max(40, Math.floor((width - 32) / 5.2));
  for (let start = 0; start < signature.length; start += length, bottom += 12)
    whole.append(svg("text", { x: 16, y: bottom, "font-size": 9, fill: style.muted }, signature.slice(start, start + length)));
  whole.setAttribute("width", round(width));
  whole.setAttribute("height", round(bottom + 14));
  whole.setAttribute("viewBox", `0 0 ${round(width)} ${round(bottom + 14)}`);
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  return new XMLSerializer().serializeToString(whole);
}

async function toPng(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    await new Promise((done, fail) => {
      image.onload = done;
      image.onerror = () => fail(new Error("the picture could not be drawn"));
      image.src = address;
    });
    const times = Math.min(2, 8000 / Math.max(image.width, image.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(image.width * times);
    canvas.height = Math.ceil(image.height * times);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

function toCsv(app) {
  const { state, fields } = app;
  const line = (cells) => cells.map((cell) => {
    const text = String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",") + "\n";
  if (state.view === "overview") {
    let text = line(["layer", "head", "map", "largest", "query", "query_token", "key", "key_token"]);
    for (const { state: of, at, layer } of app.panels[0].panels()) {
      const field = fieldOf(app.model, app.part, of.map, at, of);
      let best = [field.rows[0], field.cols[0]];
      for (const i of field.rows) for (const j of field.cols) if (field.value(i, j) > field.value(...best)) best = [i, j];
      text += line([layer, of.head, of.map, field.value(...best), best[0], field.queries[best[0]].piece, best[1], field.keys[best[1]].piece]);
    }
    return text;
  }
  const widest = fields[fields.length - 1];
  const pinned = state.view === "tokens" ? app.pinned() : null;
  const rows = pinned?.side === "query" ? [pinned.index] : widest.rows;
  const cols = pinned?.side === "key" ? [pinned.index] : widest.cols;
  // A column that is not of the head that the rows name, or not on their scale, says so itself.
  const names = fields.map((field) => {
    if (field.signed) return field.share && state.scale !== "share" ? `${field.name} of shares` : field.name;
    return field.label === fields[0].label ? field.name : `${field.name} (${field.label || "sum"})`;
  });
  let text = line(["part", "layer", "head", "query", "query_token", "key", "key_token", ...names]);
  for (const i of rows)
    for (const j of cols)
      text += line([state.part, state.layer, fields[0].label.replace("head ", "") || "sum", i, widest.queries[i].piece, j, widest.keys[j].piece,
        ...fields.map((field) => field.value(i, j))]);
  return text;
}

async function save(app, kind) {
  const text = kind === "csv" ? toCsv(app) : toSvg(app);
  const type = { csv: "text/csv;charset=utf-8", svg: "image/svg+xml" }[kind];
  const blob = kind === "png" ? await toPng(text) : new Blob([text], { type });
  const { state } = app;
  const address = URL.createObjectURL(blob);
  const name = ["normscope", state.part, state.view === "overview" ? "overview" : `layer${state.layer}`, state.map, state.versus].filter(Boolean).join("-");
  const link = make("a", { href: address, download: `${name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  app.say(`saved ${name}.${kind}`);
}
