// Start the viewer as a widget: the data comes from Python.
export default {
  render({ model, el }) {
    const root = document.createElement("div");
    el.append(root);
    const draw = () => mountNormscope(root, JSON.parse(model.get("data")));
    model.on("change:data", draw);
    draw();
    return () => model.off("change:data", draw);
  },
};
