// An enlarged picture of a thumbnail, while it is pointed at or has the focus.

const PREVIEW = 260; // pixels a side

function preview(root) {
  const title = make("p", { className: "ns-preview-title" });
  const canvas = make("canvas", { width: 1, height: 1 });
  const note = make("p", { className: "ns-hint" });
  const element = make("div", { className: "ns-preview", hidden: true, "aria-hidden": "true" }, title, canvas, note);

  /** Show a picture of the field beside a button. */
  function show(button, { caption, field, picture, about }) {
    title.textContent = caption;
    note.textContent = about;
    canvas.width = picture.width;
    canvas.height = picture.height;
    canvas.getContext("2d").drawImage(picture, 0, 0);
    const longest = Math.max(field.rows.length, field.cols.length);
    canvas.style.width = `${(PREVIEW * field.cols.length) / longest}px`;
    canvas.style.height = `${(PREVIEW * field.rows.length) / longest}px`;
    canvas.classList.toggle("ns-sharp", picture.width < 2 * PREVIEW);
    element.hidden = false;
    const [box, area, own] = [button.getBoundingClientRect(), root.getBoundingClientRect(), element.getBoundingClientRect()];
    const right = Math.min(window.innerWidth, area.right);
    const left = box.right + 10 + own.width < right ? box.right + 10 : Math.max(area.left + 4, box.left - own.width - 10);
    const top = Math.max(8, Math.min(box.top - 20, window.innerHeight - own.height - 8));
    element.style.left = `${left - area.left - root.clientLeft}px`;
    element.style.top = `${top - area.top - root.clientTop}px`;
  }
  return { element, show, hide: () => (element.hidden = true) };
}
