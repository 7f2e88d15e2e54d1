// Scales of colour: shared by the maps that are compared, with a legend for each panel.

/** Whether the values of all maps have one unit, so that they can share a scale. */
function comparable(fields) {
  const maps = fields.filter((field) => !field.difference);
  return maps.every((field) => field.share === maps[0].share && (field.share || field.variant.unit === maps[0].variant.unit));
}

/** The value at the end of each panel's scale, from the largest value of each; maps share theirs if they can. */
function sharedScale(fields, largest) {
  if (!comparable(fields)) return largest;
  const most = Math.max(...fields.map((field, at) => (field.difference ? 0 : largest[at])));
  return fields.map((field, at) => (field.difference ? largest[at] : most));
}

/** What is said beside a legend: whether the scale is the same in the other panel. */
function scaleNote(app, field) {
  const root = app.rooted() ? "colours by the square root" : "";
  if (field.difference || app.fields.length < 2) return root;
  return [comparable(app.fields) ? "same scale in both" : "own scale: the units differ", root].filter(Boolean).join("; ");
}

function coloursOf(app, field) {
  return field.signed ? app.palette().difference : app.palette().up;
}

function lowest(field, max) {
  return field.signed ? field.text(-max) : "0";
}

function coloursBar(app, field) {
  const bar = make("canvas", { className: "ns-bar", width: 64, height: 1, "aria-hidden": "true" });
  const colours = coloursOf(app, field);
  const context = bar.getContext("2d");
  for (let x = 0; x < 64; x++) {
    const part = x / 63;
    context.fillStyle = colours.css[level(field.signed ? 2 * part - 1 : part, 1, field.signed, app.rooted())];
    context.fillRect(x, 0, 1, 1);
  }
  return bar;
}

/** The legend of a panel: the ramp with the numbers at its ends. */
function scaleBar(app, box, field, max, note = scaleNote(app, field)) {
  const key = [app.theme(), app.rooted(), field.signed, field.text(max), note].join("|");
  if (box.dataset.shows === key) return;
  box.dataset.shows = key;
  box.replaceChildren(make("span", {}, lowest(field, max)), coloursBar(app, field), make("span", {}, field.text(max)),
    ...(note ? [make("span", { className: "ns-note" }, note)] : []));
}

/** The same legend, for a saved picture. */
function scaleLine(app, into, field, max, x, y) {
  const note = scaleNote(app, field);
  into.append(svg("image", { x, y: y + 3, width: 64, height: 9, preserveAspectRatio: "none", href: enlarged(coloursBar(app, field)) }));
  into.append(svg("rect", { x, y: y + 3, width: 64, height: 9, fill: "none", stroke: app.inks().line }));
  into.append(svg("text", { x: x + 72, y: y + 12, "font-size": 11, fill: app.inks().muted }, `${lowest(field, max)} … ${field.text(max)}${note ? `, ${note}` : ""}`));
}
