// Tokens are untrusted text. They are added to the page as text nodes only, and characters that hide,
// move or reverse other text are written out as escapes.

const HIDDEN =
  /[\p{Cc}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
// Joiners of emoji and letters, and the empty Braille cell: written out only if a token has nothing else.
const EMPTY = /[\p{Default_Ignorable_Code_Point}\u2800]/gu;
const KNOWN = { "\n": "↵", "\t": "⇥", "\r": "␍" };
const RTL = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/gu;

/** Return a text with hidden characters written out, cut to `limit` characters. */
function visible(text, limit = 40) {
  let shown = String(text);
  let cut = false;
  if (shown.length > limit) {
    const characters = Array.from(shown.slice(0, 2 * limit + 2));
    cut = characters.length > limit || shown.length > 2 * limit + 2;
    if (cut) shown = characters.slice(0, limit).join("");
  }
  const written = (character) => KNOWN[character] ?? `\\u{${character.codePointAt(0).toString(16)}}`;
  shown = shown.replace(HIDDEN, written);
  if (shown.replace(EMPTY, "").trim() === "") shown = shown.replace(EMPTY, written);
  if (/^(?!\p{Default_Ignorable_Code_Point})\p{M}/u.test(shown)) shown = `◌${shown}`; // a combining mark without a letter
  if (shown === "") return "∅";
  if (/^\s+$/u.test(shown)) shown = "␣".repeat(Math.min(shown.length, 8));
  return cut ? shown + "…" : shown;
}

/** Cut a text to `width` pixels in the font of the context. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text.replace(/…$/, ""));
  while (characters.length > 1 && context.measureText(`${characters.join("")}…`).width > width) characters.pop();
  return `${characters.join("")}…`;
}

/** "rtl" if most letters are of a script that is written from right to left. */
function directionOf(texts) {
  const all = texts.join("").slice(0, 20000);
  const right = (all.match(RTL) ?? []).length;
  const letters = (all.match(/\p{L}/gu) ?? []).length;
  return right * 2 > letters ? "rtl" : "ltr";
}

/** A share: "53.0%", "0.41%". */
function percent(value) {
  return `${value < 0 ? "−" : ""}${hundredths(Math.abs(value))}%`;
}

/** A difference of two shares, in percentage points: "+12.3 pts". */
function points(value) {
  return `${value < 0 ? "−" : value > 0 ? "+" : ""}${hundredths(Math.abs(value))} pts`;
}

function hundredths(size) {
  return size === 0 ? "0" : (100 * size).toFixed(100 * size >= 9.995 ? 1 : 2);
}

/** An error: "4.0e−8", and "0" where there is none. */
function errorText(value, decimals = 1) {
  return value === 0 ? "0" : value.toExponential(decimals).replace("-", "−");
}

function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return (value < 0 ? "−" : "") + (size >= 1e4 || size < 1e-3 ? size.toExponential(2) : size.toPrecision(3));
}

/** Create an element from its properties and attributes, and its children; strings become text. */
function make(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (name in element && !name.startsWith("aria") && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element for a formula, in which _{…} is set low and ^{…} high. */
function formula(text) {
  const whole = make("span", { className: "ns-formula", dir: "ltr" });
  for (const piece of text.split(/([_^]\{[^}]*\})/)) {
    if (piece.startsWith("_{")) whole.append(make("sub", {}, piece.slice(2, -1)));
    else if (piece.startsWith("^{")) whole.append(make("sup", {}, piece.slice(2, -1)));
    else if (piece) whole.append(piece);
  }
  return whole;
}
