// The form, the wait and the result. Text from outside is only ever set as text.

const FORMATS = { html: "HTML page", safetensors: "safetensors", json: "JSON", csv: "CSV" };
// What is checked at first: the story from weights to norms to the block to the whole layer.
const FIRST = ["attn_w", "attn_n", "attn_res_ln_n", "atb_ff_res_ln", "atb_ln_ff_res"];

const $ = (id) => document.getElementById(id);
const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

let models = [];
let limits = {};
let job = null; // the one that is waited for
let startedAt = 0; // when it began to run, by this page's clock

class Problem extends Error {
  constructor(message, status, wait) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds after which to ask again; 0 where that would not help
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Problem("The server does not answer. Does it still run?", 0, 0);
  }
  const told = await response.json().catch(() => ({}));
  if (!response.ok) {
    const wait = Number(response.headers.get("Retry-After")) || 0;
    throw new Problem(told.error || `The server says ${response.status}.`, response.status, wait);
  }
  return told;
}

function post(path, body) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

function say(message, wrong = false, where = $("status")) {
  where.textContent = message;
  where.classList.toggle("wrong", wrong);
}

// ---- the start

async function start() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname); // out of sight, and out of bookmarks
    try {
      await post("/api/session", { token: given });
    } catch (problem) {
      say(problem.message, true, $("login-status"));
    }
  }
  try {
    ({ models, limits } = await call("/api/models"));
  } catch (problem) {
    const login = problem.status === 401;
    $("login").hidden = !login;
    $("ask").hidden = login;
    $("go").disabled = !login;
    if (login) $("token").focus();
    else say(problem.message, true);
    return;
  }
  $("login").hidden = true;
  $("ask").hidden = false;
  $("go").disabled = false;
  $("model").replaceChildren(...models.map((model) => new Option(model.name, model.name)));
  chooseModel();
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await post("/api/session", { token: $("token").value });
  } catch (problem) {
    say(problem.message, true, $("login-status"));
    return;
  }
  $("token").value = "";
  await start();
  $("text").focus();
});

// ---- the form

function chosen() {
  return models[$("model").selectedIndex];
}

function chooseModel() {
  const model = chosen();
  $("target-field").hidden = !model.target;
  $("target").required = model.target;
  $("pair-field").hidden = model.target;
  $("text-label").textContent = model.target ? "Source" : "Text";
  $("hint").textContent =
    `Up to ${model.max_length} tokens; an analysis may take ${limits.time_limit} seconds.`;
  $("maps").replaceChildren(
    ...model.maps.map((name) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.name = "maps";
      box.value = name;
      box.checked = FIRST.includes(name);
      label.append(box, ` ${model.titles[name] ?? name}`);
      label.title = name;
      return label;
    }),
  );
  chooseHeads();
}

function heads() {
  return document.querySelector("input[name=heads]:checked").value;
}

function chooseHeads() {
  for (const box of $("maps").querySelectorAll("input")) {
    box.disabled = heads() === "each" && !["attn_w", "attn_n"].includes(box.value);
  }
}

$("model").addEventListener("change", chooseModel);
for (const radio of document.querySelectorAll("input[name=heads]")) {
  radio.addEventListener("change", chooseHeads);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("ask").hidden) {
    event.preventDefault();
    if (!$("go").disabled) $("ask").requestSubmit();
  } else if (event.key === "Escape" && job) {
    cancel();
  }
});

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (job || $("go").disabled) return;
  const model = chosen();
  const boxes = [...$("maps").querySelectorAll("input:checked:not(:disabled)")];
  if (!boxes.length) {
    say("Choose at least one map.", true);
    return;
  }
  const asked = {
    model: model.name,
    text: $("text").value,
    maps: boxes.map((box) => box.value),
    heads: heads(),
  };
  if (model.target) asked.target = $("target").value;
  else if ($("pair").value.trim()) asked.text_pair = $("pair").value;
  busy(true);
  say("Sending …");
  try {
    await follow(await patiently(() => post("/api/jobs", asked)));
  } catch (problem) {
    say(problem.message, true);
    if (problem.status === 401) await start();
  } finally {
    job = null;
    busy(false);
  }
});

function busy(now) {
  $("go").disabled = now;
  $("cancel").hidden = !now;
  $("progress").hidden = !now;
  $("ask").setAttribute("aria-busy", String(now));
}

// ---- the wait

let given_up = false; // Cancel was pressed before there was a job

async function patiently(request) {
  given_up = false;
  for (;;) {
    try {
      return await request();
    } catch (problem) {
      if (!problem.wait || given_up) throw problem;
      say(`${problem.message} (trying again)`);
      await sleep(problem.wait);
      if (given_up) throw new Problem("Cancelled.", 0, 0);
    }
  }
}

async function follow(told) {
  job = told;
  const clock = setInterval(tick, 250);
  try {
    while (job.state === "queued" || job.state === "running") {
      startedAt = performance.now() - 1000 * job.seconds;
      tick();
      const seen = `wait=15&state=${job.state}&position=${job.position}`;
      job = await patiently(() => call(`/api/jobs/${job.id}?${seen}`));
    }
  } finally {
    clearInterval(clock);
  }
  if (job.state === "done") show(job);
  else if (job.state === "cancelled") say("Cancelled.");
  else say(job.error, true);
}

function tick() {
  if (job.state === "running") {
    const seconds = (performance.now() - startedAt) / 1000;
    say(`Running, ${seconds.toFixed(0)} of at most ${job.time_limit} seconds`);
  } else if (job.state === "queued") {
    const before = job.position === 1 ? "1 analysis" : `${job.position} analyses`;
    const reason = job.ready ? "" : " (the models are being loaded)";
    say(job.position ? `Waiting for ${before}${reason}` : `Waiting${reason}`);
  }
}

async function cancel() {
  given_up = true;
  if (!job) return;
  say("Cancelling …");
  await call(`/api/jobs/${job.id}`, { method: "DELETE" }).catch((problem) => {
    say(problem.message, true);
  });
}

$("cancel").addEventListener("click", cancel);

// Who leaves the page does not want the answer.
addEventListener("pagehide", () => {
  if (job) fetch(`/api/jobs/${job.id}`, { method: "DELETE", keepalive: true });
});

// ---- the result

function show(done) {
  const base = `/api/jobs/${done.id}`;
  const links = Object.entries(FORMATS).map(([kind, name]) => {
    const link = document.createElement("a");
    link.href = `${base}/result.${kind}`;
    link.download = `normscope.${kind}`;
    link.textContent = name;
    return link;
  });
  $("tab").href = `${base}/page`;
  $("downloads").replaceChildren(
    ...links.map((link) => {
      const item = document.createElement("li");
      item.append(link);
      return item;
    }),
  );
  // A new frame each time, so that the browser's Back does not step through old results.
  const frame = $("view").cloneNode();
  frame.src = `${base}/page`;
  $("view").replaceWith(frame);
  $("result").hidden = false;
  const gap = done.reconstruction_error.toExponential(1);
  say(`Done in ${done.seconds.toFixed(1)} seconds; the parts add up to the model's output within ${gap}.`);
  $("result").scrollIntoView({ block: "start" });
}

start();
