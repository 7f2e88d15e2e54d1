// The sentence at the top of the page: what the maps that are shown say, computed from the current state.

const AGREE = 0.01; // shares that differ by less than a point are said to agree

/** A share in a sentence: "53%", "0.4%". */
function rounded(share) {
  const hundred = 100 * share;
  return hundred < 0.05 ? "0%" : `${hundred.toFixed(hundred >= 0.95 ? 0 : 1)}%`;
}

/** A token as it is named in a sentence, as an isolated piece: "cat", [CLS], "the" at position 6. */
function tokenName(list, at) {
  const entry = list[at];
  const text = visible(entry.text, 24);
  const name = { token: entry.special ? text : `"${text}"` };
  const repeated = list.some((other, place) => place !== at && other.text === entry.text);
  return repeated ? [name, ` at position ${entry.at[0]}`] : [name];
}

/** The one or two maps that are shown, as shares of rows. */
function shareFields(app) {
  const { model, part, state } = app;
  const layer = part.layers.indexOf(state.layer);
  return app.fields.filter((field) => !field.difference)
    .map((field) => (field.share ? field : fieldOf(model, part, field.name, layer, state, true)));
}

/** The position of the largest value. */
function largestOf(list, value) {
  return list.reduce((best, at) => (best < 0 || value(at) > value(best) ? at : best), -1);
}

/** The sentence, as strings and tokens. */
function sentence(app) {
  const { state, part } = app;
  const fields = shareFields(app);
  const focus = app.pinned();
  const place = part.place ? ` of ${part.place}` : "";
  const start = `In layer ${state.layer}${place}${fields[0].label ? `, ${fields[0].label}` : ""}, `;
  const query = focus?.query ?? null;
  return [start, ...(query === null ? aboutMean(fields, focus?.key ?? null) : aboutRow(fields, query, focus.key ?? null, app.model.pair))];
}

/** What the key that differs most, or the chosen one, gets on average. */
function aboutMean(fields, chosen) {
  const vectors = fields.map((field) => vectorOf(field, null));
  const widest = fields[fields.length - 1].width > fields[0].width ? fields[fields.length - 1] : fields[0];
  const of = (which, key) => vectors[which][key] ?? 0;
  const verb = fields[0].variant.unit === "weight" ? "gets" : "contributes";
  if (fields.length === 1) {
    const key = chosen ?? largestOf(widest.cols, (at) => of(0, at));
    return [...tokenName(widest.keys, key), ` ${verb}${chosen === null ? " the most:" : ""} ${rounded(of(0, key))} of ${fields[0].variant.whole}.`];
  }
  const key = chosen ?? largestOf(widest.cols, (at) => Math.abs(of(0, at) - of(1, at)));
  const [first, second] = [of(0, key), of(1, key)];
  const agree = Math.abs(first - second) < AGREE;
  if (agree && chosen === null) return [agreement(fields)];
  return [...tokenName(widest.keys, key), ` ${verb} ${rounded(first)} of ${fields[0].variant.whole} ${agree ? "and" : "but"} ${rounded(second)} of ${fields[1].variant.whole}.`];
}

/** What the chosen query gets from the key that differs most, or from the chosen one. */
function aboutRow(fields, query, chosen, [weightsName, normsName]) {
  const widest = fields[fields.length - 1].width > fields[0].width ? fields[fields.length - 1] : fields[0];
  const of = (which, key) => fields[which].value(query, key);
  const receiver = tokenName(fields[0].queries, query);
  const pair = fields.length > 1;
  const key = chosen ?? largestOf(widest.cols, pair ? (at) => Math.abs(of(0, at) - of(1, at)) : (at) => of(0, at));
  const own = widest.self && key === query;
  const giver = own ? ["itself"] : tokenName(widest.keys, key);
  const [first, second] = [of(0, key), pair ? of(1, key) : 0];
  const weights = fields[0].name === weightsName;
  if (!pair) {
    if (weights) return [...receiver, chosen === null ? " gives the most attention weight to " : " gives attention weight to ", ...giver, `: ${rounded(first)}.`];
    return [chosen === null ? "the largest contributor to " : "the contribution to ", ...receiver, chosen === null ? " is " : " from ", ...giver, `: ${rounded(first)} of ${fields[0].variant.whole}.`];
  }
  const agree = Math.abs(first - second) < AGREE;
  if (agree && chosen === null) return ["for ", ...receiver, `, ${agreement(fields)}`];
  const only = second < first && !agree ? "only " : "";
  if (weights && fields[1].name === normsName)
    return [...receiver, ` gives ${rounded(first)} of its attention weight to `, ...giver,
      `, ${agree ? "and" : "but"} ${only}${rounded(second)} of what is added to it comes from ${own ? "itself" : "there"}.`];
  return [...(own ? [...receiver, " itself"] : giver), ` makes up ${rounded(first)} of ${fields[0].variant.whole} for `, ...receiver,
    ` ${agree ? "and" : "but"} ${only}${rounded(second)} of ${fields[1].variant.whole}.`];
}

function agreement(fields) {
  return `the shares of ${fields[0].variant.whole} and of ${fields[1].variant.whole} agree to within 1 point.`;
}

/** The sentence as plain text, for titles of pictures. */
function sentenceText(app) {
  return sentence(app).map((piece) => piece.token ?? piece).join("");
}

/** Show the sentence; unchanged text is left alone, so that screen readers do not repeat it. */
function showHeadline(app, box) {
  const pieces = sentence(app);
  const text = pieces.map((piece) => piece.token ?? piece).join("");
  if (box.textContent === text) return;
  box.replaceChildren(...pieces.map((piece) => (piece.token === undefined ? piece : make("bdi", {}, piece.token))));
}
