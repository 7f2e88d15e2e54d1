// Colours from the palette, COLOURS: ramps that differ mainly in lightness, and categories for heads.

function parse(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** 256 colours along a ramp, as bytes and as CSS, with the text colour that is legible on each. */
function ramp(stops) {
  const points = stops.map(parse);
  const bytes = new Uint8Array(256 * 3);
  const css = [];
  const ink = [];
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(place), points.length - 2);
    const rgb = points[low].map((from, c) => Math.round(from + (points[low + 1][c] - from) * (place - low)));
    bytes.set(rgb, i * 3);
    css.push(`rgb(${rgb.join(",")})`);
    const [r, g, b] = rgb.map((c) => ((c / 255) <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    ink.push(0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff");
  }
  return { bytes, css, ink };
}

const PALETTES = Object.fromEntries(
  Object.entries(COLOURS).map(([theme, { up, difference, categories }]) => [
    theme,
    { up: ramp(up), difference: ramp(difference), categories },
  ]),
);

/**
 * The number of a value's colour, of 256: from 0 to max, or for a difference from −max to max. With `root`
 * colours follow the square root, so that small values can be seen beside a large one.
 */
function level(value, max, signed, root = false) {
  if (!(max > 0)) return signed ? 128 : 0;
  let part = value / max;
  if (root) part = Math.sign(part) * Math.sqrt(Math.abs(part));
  const place = signed ? 127.5 + 127.5 * part : 255 * part;
  return Math.max(0, Math.min(255, Math.round(place)));
}

/** A picture of the cells, one pixel each; larger ones are pooled to at most `limit` pixels a side. */
function cellsPicture(field, colours, max, { limit = Infinity, root = false } = {}) {
  const { values, rows, cols, width } = field; // rows and cols: the entries that are shown
  const signed = field.signed;
  const step = Math.max(1, Math.ceil(Math.max(rows.length, cols.length) / limit));
  const wide = Math.max(1, Math.ceil(cols.length / step));
  const high = Math.max(1, Math.ceil(rows.length / step));
  const canvas = document.createElement("canvas");
  canvas.width = wide;
  canvas.height = high;
  const context = canvas.getContext("2d");
  const image = context.createImageData(wide, high);
  const { data } = image;
  const { bytes } = colours;
  for (let y = 0, out = 0; y < high; y++)
    for (let x = 0; x < wide; x++, out += 4) {
      let value = step === 1 ? field.at(y, x) : -Infinity;
      if (step > 1)
        for (let b = y * step; b < Math.min(rows.length, (y + 1) * step); b++) {
          const from = rows[b] * width;
          for (let a = x * step; a < Math.min(cols.length, (x + 1) * step); a++) {
            const cell = values[from + cols[a]];
            if (cell > value && !(field.own && rows[b] === cols[a])) value = cell;
          }
        }
      const colour = level(value, max, signed, root) * 3;
      data[out] = bytes[colour];
      data[out + 1] = bytes[colour + 1];
      data[out + 2] = bytes[colour + 2];
      data[out + 3] = 255;
    }
  context.putImageData(image, 0, 0);
  return canvas;
}
