// The live pages follow the colours chosen for the site where these are not the system's.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
    for (const frame of document.querySelectorAll("figure.live iframe")) {
      const [page, fragment = ""] = frame.getAttribute("src").split("#");
      const state = new URLSearchParams(fragment);
      if (!state.has("theme") && theme === (dark.matches ? "dark" : "light")) continue;
      state.set("theme", theme);
      frame.src = `${page}#${state}`;
    }
  };
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  follow();
}
