// A picture of what is on the screen: texts and filled boxes where the browser has laid them out.

/** Draw elements as SVG, one below the other as they are on the screen. */
function screenSvg(elements, font, ground) {
  const shown = elements.filter((element) => !element.hidden && element.getClientRects().length);
  const boxes = shown.map((element) => element.getBoundingClientRect());
  const left = Math.min(...boxes.map((box) => box.left)) - 16;
  const width = round(Math.max(...boxes.map((box) => box.right)) - left + 16);
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": font });
  whole.append(svg("rect", { width: "100%", height: "100%", fill: ground }));
  let bottom = 16;
  shown.forEach((element, at) => {
    drawElement(whole, element, left, boxes[at].top - bottom);
    bottom += boxes[at].height + 12;
  });
  for (const [name, value] of [["width", width], ["height", round(bottom)], ["viewBox", `0 0 ${width} ${round(bottom)}`]]) whole.setAttribute(name, value);
  return new XMLSerializer().serializeToString(whole);
}

function drawElement(into, element, left, top) {
  const style = getComputedStyle(element);
  if (element.tagName === "CANVAS" && style.display !== "none") {
    const box = element.getBoundingClientRect();
    into.append(svg("image", { x: round(box.left - left), y: round(box.top - top), width: round(box.width), height: round(box.height), href: element.toDataURL("image/png") }));
    return;
  }
  if (style.display === "none" || element.classList.contains("ns-advice")) return;
  const ramp = style.backgroundImage.match(/rgba?\([^)]*\)/g);
  for (const box of element.getClientRects()) {
    const place = { y: round(box.top - top), height: round(box.height) };
    const fills = ramp ?? (style.backgroundColor.endsWith(", 0)") ? [] : [style.backgroundColor]);
    fills.forEach((fill, at) => into.append(svg("rect", {
      ...place, x: round(box.left - left + (at * box.width) / fills.length), width: round(box.width / fills.length + (ramp ? 0.5 : 0)), rx: ramp ? 0 : 3, fill,
    })));
  }
  for (const node of element.childNodes)
    if (node.nodeType === Node.ELEMENT_NODE) drawElement(into, node, left, top);
    else if (node.nodeType === Node.TEXT_NODE)
      for (const { text, box } of linesOf(node)) {
        if (!text.trim()) continue;
        into.append(svg("text", {
          x: round(box.left + box.width / 2 - left), y: round(box.top - top + box.height * 0.77), "text-anchor": "middle",
          "font-size": parseFloat(style.fontSize), "font-weight": style.fontWeight, fill: style.color, "xml:space": "preserve",
        }, text));
      }
}
