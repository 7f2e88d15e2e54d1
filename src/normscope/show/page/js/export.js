// Save what is shown: SVG from the same numbers, PNG from the SVG, CSV from the cells.

/** Enlarge a picture with one pixel for each cell, for programs that would smooth it. */
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

/** The lines above a picture: its sentence, what is shown, what is selected, and what is hidden. */
function captionOf(app) {
  const { state, fields } = app;
  const overview = state.view === "overview";
  const names = overview ? "all layers" : fields.map((field) => field.variant.short).join("  |  ");
  const where = overview ? app.panels[0].ways().join(" and ") : `layer ${state.layer}${fields[0].label ? `, ${fields[0].label}` : ""}`;
  const shown = [`${state.part ? `${state.part}: ` : ""}${names}`, where, state.scale === "share" ? "shares of the row" : "absolute"];
  const about = [];
  const widest = fields[fields.length - 1];
  const focus = overview ? null : app.focus();
  const has = (index) => index !== null && index !== undefined && index >= 0;
  const chosen = [
    has(focus?.query) ? `query “${visible(widest.queries[focus.query].text, 24)}”` : "",
    has(focus?.key) && (state.view === "matrix" || focus.side === "key") ? `key “${visible(widest.keys[focus.key].text, 24)}”` : "",
  ].filter(Boolean).join(", ");
  if (chosen) about.push(`chosen: ${chosen}`);
  if (state.words) about.push("pieces merged into words");
  if (widest.rows.length < widest.queries.length || widest.cols.length < widest.keys.length) about.push("special tokens are hidden");
  if (widest.own) about.push("the token itself is hidden");
  return { said: overview ? [] : [sentenceText(app)], shown, about };
}

/** The signatures of the results that are shown. */
function signaturesOf(app) {
  const variants = app.state.view === "overview"
    ? app.panels[0].panels().map(({ state }) => choose(app.part, state.map, state).variant)
    : app.fields.filter((field) => !field.difference).map((field) => field.variant);
  return [...new Set(variants.map((variant) => variant.signature))].map((at) => app.model.signatures[at]);
}

/** Break a sentence into lines between words. */
function wordsInLines(sentences, fits) {
  const lines = [];
  for (const word of sentences.flatMap((text) => text.split(" "))) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && fits(longer)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Join pieces into as few lines as the width allows. */
function inLines(pieces, fits) {
  const lines = [];
  for (const piece of pieces) {
    const longer = lines.length ? `${lines[lines.length - 1]} · ${piece}` : piece;
    if (lines.length && fits(longer)) lines[lines.length - 1] = longer;
    else lines.push(piece);
  }
  return lines;
}

function toSvg(app) {
  const style = app.inks();
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": app.font() });
  const ground = svg("rect", { fill: style.panel });
  const pictures = svg("g");
  const context = document.createElement("canvas").getContext("2d");
  whole.append(ground);
  let [x, width, height] = [16, 320, 0];
  const named = app.panels.length > 1 ? 22 : 0;
  for (const [at, panel] of app.panels.entries()) {
    const title = named ? panelTitle(app, app.fields[at]) : "";
    if (title) pictures.append(svg("text", { x, y: 12, "font-size": 13, "font-weight": 600, fill: style.ink }, title));
    const size = panel.svg(pictures, x, named);
    context.font = `600 13px ${app.font()}`;
    x += Math.ceil(Math.max(size.width, context.measureText(title).width)) + 24;
    width = Math.max(width, x);
    height = Math.max(height, named + size.height);
  }
  const { said, shown, about } = captionOf(app);
  let bottom = 8;
  for (const [pieces, size, weight, fill] of [[said, 17, 650, style.ink], [shown, 12, 600, style.muted], [about, 12, 400, style.muted]]) {
    context.font = `${weight} ${size}px ${app.font()}`;
    const fits = (text) => context.measureText(text).width <= width - 32;
    for (const line of pieces === said ? wordsInLines(said, fits) : inLines(pieces, fits))
      whole.append(svg("text", { x: 16, y: (bottom += size + 4), "font-size": size, "font-weight": weight, fill }, fitted(context, line, width - 32)));
  }
  bottom += 16;
  pictures.setAttribute("transform", `translate(0 ${bottom})`);
  whole.append(pictures);
  bottom += height + 24;
  // Signatures are not cut, but broken into lines.
  const length = Math.max(40, Math.floor((width - 32) / 5.2));
  for (const text of signaturesOf(app)) {
    const signature = visible(text || "none", 4000);
    for (let start = 0; start < signature.length; start += length, bottom += 12)
      whole.append(svg("text", { x: 16, y: round(bottom), "font-size": 9, fill: style.muted }, signature.slice(start, start + length)));
  }
  whole.setAttribute("width", round(width));
  whole.setAttribute("height", round(bottom + 14));
  whole.setAttribute("viewBox", `0 0 ${round(width)} ${round(bottom + 14)}`);
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  return new XMLSerializer().serializeToString(whole);
}

function toCsv(app) {
  const { state, fields } = app;
  if (state.view === "overview") {
    let text = csvLine(["layer", "head", "map", "largest", "query", "query_token", "key", "key_token"]);
    for (const { state: of, at, layer } of app.panels[0].panels()) {
      const field = fieldOf(app.model, app.part, of.map, at, of);
      const best = largestCell(field);
      text += csvLine([layer, of.head, of.map, digits(field.value(...best)), best[0], field.queries[best[0]].piece, best[1], field.keys[best[1]].piece]);
    }
    return text;
  }
  const widest = fields[fields.length - 1];
  const pinned = ["tokens", "picture"].includes(state.view) ? app.pinned() : null;
  const rows = pinned?.side === "query" ? [pinned.index] : widest.rows;
  const cols = pinned?.side === "key" ? [pinned.index] : widest.cols;
  // The header names the head or the scale of a column where it differs from that of the rows.
  const names = fields.map((field) => {
    if (field.difference) return field.share && state.scale !== "share" ? `${field.name} of shares` : field.name;
    return field.label === fields[0].label ? field.name : `${field.name} (${field.label || "sum"})`;
  });
  let text = csvLine(["part", "layer", "head", "query", "query_token", "key", "key_token", ...names]);
  for (const i of rows)
    for (const j of cols)
      text += csvLine([state.part, state.layer, fields[0].label.replace("head ", "") || "sum", i, widest.queries[i].piece, j, widest.keys[j].piece,
        ...fields.map((field) => (field.hidden(i, j) ? "" : digits(field.value(i, j))))]);
  return text;
}

async function save(app, kind) {
  const text = kind === "csv" ? toCsv(app) : toSvg(app);
  const type = { csv: "text/csv;charset=utf-8", svg: "image/svg+xml" }[kind];
  const blob = kind === "png" ? await toPng(text) : new Blob([text], { type });
  const { state } = app;
  const name = ["normscope", state.part, state.view === "overview" ? "overview" : `layer${state.layer}`, state.map, state.versus].filter(Boolean).join("-");
  download(`${name}.${kind}`, blob);
  app.say(`saved ${name}.${kind}`);
}
