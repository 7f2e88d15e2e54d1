// Controls, a tooltip, messages for screen readers and downloads, which every view uses.

let instances = 0;

/** Plain form elements, which keyboards and screen readers can use. */
function forms() {
  const prefix = `ns${++instances}`;
  const groups = new Map();

  /** Return the existing group while its choices stay the same: a slider that is replaced stops being dragged. */
  function kept(name, choices, create) {
    const key = JSON.stringify(choices);
    if (groups.get(name)?.key !== key) groups.set(name, { key, group: create() });
    return groups.get(name).group;
  }

  /** Radio buttons in a row; a choice is {value, text, title, off}. */
  function segmented(legend, name, choices, chosen, choose, extra = "") {
    const group = kept(name, choices, () => make("fieldset", { className: `ns-group ${extra}` }, make("legend", {}, legend),
      make("div", { className: "ns-segments" }, choices.map(({ value, text, title, off }) => make("label", { title },
        make("input", {
          type: "radio", name: `${prefix}-${name}`, value: String(value), disabled: Boolean(off),
          on: { change: () => choose(value) },
        }), make("span", {}, text))))));
    for (const input of group.querySelectorAll("input")) input.checked = input.value === String(chosen);
    return group;
  }

  function dropdown(legend, name, choices, chosen, choose) {
    const group = kept(name, null, () => {
      const select = make("select", { id: `${prefix}-${name}`, name, on: { change: () => choose(select.value) } });
      return make("div", { className: "ns-group" }, make("label", { htmlFor: select.id }, legend), select);
    });
    const select = group.lastChild;
    const key = JSON.stringify(choices);
    if (select.dataset.choices !== key) select.replaceChildren(...choices.map(({ value, text }) => make("option", { value: String(value) }, text)));
    select.dataset.choices = key;
    select.value = String(chosen);
    select.disabled = choices.length < 2;
    return group;
  }

  function tick(text, name, choose) {
    return make("label", { className: "ns-tick" },
      make("input", { type: "checkbox", name, on: { change: (event) => choose(event.target.checked) } }),
      make("span", {}, text));
  }

  /** A slider over a list of values, with a button at either end. */
  function slider(legend, name, values, at, { choose, step, said, spoken }) {
    const group = kept(name, values, () => {
      const range = make("input", {
        type: "range", id: `${prefix}-${name}`, name, min: 0, max: values.length - 1, step: 1,
        on: { input: () => choose(values[Number(range.value)]) },
      });
      const shift = (by, sign, label) => make("button", {
        type: "button", className: "ns-step", "aria-label": label, on: { click: () => step(by) },
      }, sign);
      return make("div", { className: "ns-group ns-layers" },
        make("label", { htmlFor: range.id }, legend),
        make("div", { className: "ns-slider" }, shift(-1, "‹", `previous ${name}`), range, shift(1, "›", `next ${name}`),
          make("span", { "aria-hidden": "true" })));
    });
    const [back, range, on, words] = group.lastChild.children;
    range.value = String(at);
    range.setAttribute("aria-valuetext", spoken);
    back.disabled = at === 0;
    on.disabled = at === values.length - 1;
    words.textContent = said;
    return group;
  }

  return { kept, segmented, dropdown, tick, slider };
}

/** A bar of controls: `build` lists its groups; only those that have changed are replaced. */
function controlBar(app, build) {
  const bar = make("div", { className: "ns-controls" });
  return {
    element: bar,
    /** Show the state, and keep the focus on its control. */
    sync() {
      const active = bar.contains(app.active()) ? app.active() : null;
      const groups = build();
      groups.forEach((group, at) => {
        const old = bar.children[at];
        if (!old) bar.append(group);
        else if (old !== group) old.replaceWith(group);
      });
      while (bar.children.length > groups.length) bar.lastChild.remove();
      if (!active) return;
      const same = active.type === "radio" ? bar.querySelector(`input[name="${active.name}"]:checked`) : active;
      const next = bar.contains(same) && !same.disabled ? same : bar.querySelector("input[type=range]") ?? bar.querySelector("input, button:not(:disabled)");
      if (next && next !== app.active()) next.focus();
    },
  };
}

/** A dialog that lists keys and what they do. */
function keyHelp(list) {
  const close = make("button", { type: "button" }, "Close");
  const dialog = make("dialog", { className: "ns-help", "aria-label": "Keys" },
    make("h2", {}, "Keys"),
    make("table", {}, make("tbody", {}, list.map(([keys, does]) => make("tr", {},
      make("th", { scope: "row" }, keys.split(/\s+/).flatMap((key) => [make("kbd", {}, key), " "])), make("td", {}, does))))),
    make("p", { className: "ns-hint" }, "The address of the page keeps what is shown: copy it to share the view together with the file."),
    close);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}

/** A box beside the pointer; without an event or lines it is hidden. */
function tooltip(root) {
  const tip = make("div", { className: "ns-tip", role: "tooltip", hidden: true });
  const show = (event, lines = []) => {
    tip.hidden = !event || !lines.length;
    if (tip.hidden) return;
    tip.replaceChildren(...lines.map((line) => make("div", { dir: "ltr" }, line)));
    const box = tip.getBoundingClientRect();
    const area = root.getBoundingClientRect(); // the tip's position is relative to the root
    const [right, bottom] = [Math.min(window.innerWidth, area.right), Math.min(window.innerHeight, area.bottom)];
    const left = Math.max(area.left + 4, Math.min(event.clientX + 14, right - box.width - 8));
    const top = event.clientY + 18 + box.height > bottom ? event.clientY - box.height - 10 : event.clientY + 18;
    tip.style.left = `${left - area.left - root.clientLeft}px`;
    tip.style.top = `${top - area.top - root.clientTop}px`;
  };
  return { element: tip, show };
}

/** A region whose text screen readers say, once it has stayed the same for a moment. */
function announcer() {
  const live = make("div", { className: "ns-live", role: "status", "aria-live": "polite" });
  let saying = 0;
  const say = (text) => {
    clearTimeout(saying);
    saying = setTimeout(() => (live.textContent = text), 250);
  };
  return { element: live, say };
}

/** Download a file. */
function download(name, blob) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** A line of a CSV file. */
function csvLine(cells) {
  return cells.map((cell) => {
    const text = String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",") + "\n";
}

/** A number with the digits of a float32. */
function digits(value) {
  return Number(value.toPrecision(7));
}
