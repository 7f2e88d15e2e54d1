// Pictures as SVG and PNG.

function round(value) {
  return Math.round(value * 100) / 100;
}

function svg(tag, about = {}, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
}

/** The lines of a text as laid out on the screen, each with its box. */
function linesOf(node) {
  const lines = [];
  const range = document.createRange();
  for (let at = 0; at < (node?.length ?? 0); at++) {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const box = range.getBoundingClientRect();
    const last = lines[lines.length - 1];
    if (last && Math.abs(box.top - last.box.top) < 2) {
      last.text += node.data[at];
      const right = Math.max(last.box.left + last.box.width, box.right);
      last.box.left = Math.min(last.box.left, box.left);
      last.box.width = right - last.box.left;
    } else if (box.width) lines.push({ text: node.data[at], box: { left: box.left, top: box.top, width: box.width, height: box.height } });
  }
  return lines;
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
