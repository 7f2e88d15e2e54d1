// The data of an alignment: sentence pairs with their links, what gold links say about them, and headlines.

/** Unpack bytes that Python compressed with zlib. */
async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

async function unpackLinks(data) {
  if (data.format !== "normscope.links" || data.version !== 1) throw new Error("it was made by another version of normscope");
  const rows = JSON.parse(await inflated(data.pairs));
  const pairs = rows.map(([source, target, links, gold, soft, skipped], number) => ({
    number, source, target, skipped, soft,
    links: links.map(([s, t, score]) => ({ s, t, score: score ?? null })),
    gold: gold && new Map(gold.map(([s, t, sure]) => [`${s}-${t}`, { s, t, sure: Boolean(sure) }])),
    text: `${source.join(" ")}\n${target.join(" ")}`.toLowerCase(),
  }));
  return { pairs, signature: data.signature, error: data.error, gold: pairs.some(({ gold }) => gold), single: pairs.length === 1 };
}

/** The links of a pair with a score of at least `from`, and, compared with gold, its missing ones, by words. */
function linksOf(pair, from, compared) {
  const kept = pair.links.filter(({ score }) => score === null || score >= from);
  if (!compared || !pair.gold) return kept.map((link) => ({ ...link, mark: "" }));
  const made = new Set(kept.map(({ s, t }) => `${s}-${t}`));
  const marked = kept.map((link) => {
    const gold = pair.gold.get(`${link.s}-${link.t}`);
    return { ...link, mark: gold ? (gold.sure ? "sure" : "possible") : "wrong" };
  });
  for (const [key, { s, t, sure }] of pair.gold) if (sure && !made.has(key)) marked.push({ s, t, score: null, mark: "missing" });
  return marked.sort((a, b) => a.s - b.s || a.t - b.t);
}

/** Counts of some pairs, as normscope.alignment.summary.totals makes them. */
function totalsOf(pairs, from) {
  const sum = { pairs: pairs.length, linked: 0, words: 0, links: 0, scores: 0, scored: 0, judged: 0, sure: 0, found: 0, right: 0, best: null };
  for (const pair of pairs) {
    sum.words += pair.target.length;
    const linked = new Set();
    let sureHits = 0;
    let hits = 0;
    let count = 0;
    for (const link of pair.links) {
      if (link.score !== null && link.score < from) continue;
      count++;
      linked.add(link.t);
      if (link.score !== null) {
        sum.scores += link.score;
        sum.scored++;
        if (!sum.best || link.score > sum.best.score) sum.best = { ...link, pair };
      }
      const gold = pair.gold?.get(`${link.s}-${link.t}`);
      if (gold) hits++;
      if (gold?.sure) sureHits++;
    }
    sum.linked += linked.size;
    sum.links += count;
    if (!pair.gold) continue;
    sum.judged += count;
    for (const { sure } of pair.gold.values()) if (sure) sum.sure++;
    sum.found += sureHits;
    sum.right += hits;
  }
  return sum;
}

/** The alignment error rate of counts, or null without sure gold links. */
function errorRate(sum) {
  return sum.sure ? (sum.judged + sum.sure - sum.right - sum.found) / (sum.judged + sum.sure) : null;
}

function wholePercent(share) {
  return `${Math.floor(100 * share + 0.5)}%`;
}

function finePercent(share) {
  return `${(Math.floor(1000 * share + 0.5) / 10).toFixed(1)}%`;
}

function counted(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** What an alignment found, in the words of normscope.alignment.summary.headline. */
function linksHeadline(pairs, from) {
  const sum = totalsOf(pairs, from);
  const rate = errorRate(sum);
  if (rate !== null) {
    if (sum.pairs === 1) {
      const wrong = sum.judged - sum.right;
      return `AER ${finePercent(rate)}: ${sum.found} of ${sum.sure} sure ${sum.sure === 1 ? "link" : "links"} found, ${wrong ? `${wrong} of ${sum.links} links ${wrong === 1 ? "is" : "are"}` : "no link is"} wrong.`;
    }
    const wrong = sum.judged ? (sum.judged - sum.right) / sum.judged : 0;
    return `AER ${finePercent(rate)} on ${counted(sum.pairs)} pairs: ${wholePercent(sum.found / sum.sure)} of the sure links are found, ${wholePercent(wrong)} of the links are wrong.`;
  }
  if (!sum.linked) return "No words are linked.";
  if (sum.pairs === 1) {
    let which = `${sum.linked} of ${sum.words}`;
    if (sum.linked === sum.words) which = sum.words === 2 ? "Both" : `All ${sum.words}`;
    const some = sum.words === 1 ? "The target word is linked" : `${which} target words are linked`;
    if (!sum.best) return `${some}.`;
    const { pair, s, t, score } = sum.best;
    return `${some}; “${isolatedWord(pair.source[s])}” – “${isolatedWord(pair.target[t])}” is the surest link (${wholePercent(score)}).`;
  }
  const mean = sum.scored ? `, with a mean score of ${wholePercent(sum.scores / sum.scored)}` : "";
  return `${counted(sum.linked)} of ${counted(sum.words)} target words in ${counted(sum.pairs)} pairs are linked${mean}.`;
}

/** A word for running text: hidden characters written out, and a direction of its own if it is not that of the text. */
function isolatedWord(word) {
  const shown = visible(word);
  return directionOf([shown]) === "rtl" ? `\u2068${shown}\u2069` : shown;
}

/** The words of each side that have no link among these. */
function unlinkedOf(pair, links) {
  const real = links.filter(({ mark }) => mark !== "missing");
  const [sources, targets] = [new Set(real.map(({ s }) => s)), new Set(real.map(({ t }) => t))];
  return [pair.source.filter((_, at) => !sources.has(at)), pair.target.filter((_, at) => !targets.has(at))];
}
