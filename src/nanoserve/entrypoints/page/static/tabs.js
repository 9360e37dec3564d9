// The two views as tabs: arrow keys move, and the address names the view (#engine).

/**
 * @param {HTMLElement} list the element of role tablist
 * @returns {(name: string) => void} shows the view of this name
 */
export function wireTabs(list) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const nameOf = (tab) => tab.id.replace("tab-", "");

  function show(tab, { focus = false } = {}) {
    for (const each of tabs) {
      const isShown = each === tab;
      each.setAttribute("aria-selected", String(isShown));
      each.tabIndex = isShown ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !isShown;
    }
    if (focus) tab.focus();
  }

  function showAddress() {
    show(tabs.find((tab) => `#${nameOf(tab)}` === location.hash) ?? tabs[0]);
  }

  function choose(tab, options) {
    history.replaceState(null, "", `#${nameOf(tab)}`);
    show(tab, options);
  }

  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
  list.addEventListener("keydown", (event) => {
    const here = tabs.indexOf(document.activeElement);
    const next = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (here < 0 || next === undefined) return;
    event.preventDefault();
    choose(tabs[(next + tabs.length) % tabs.length], { focus: true });
  });
  window.addEventListener("hashchange", () => {
    if (tabs.some((tab) => `#${nameOf(tab)}` === location.hash)) showAddress();
  });
  showAddress();
  return (name) => choose(tabs.find((tab) => nameOf(tab) === name));
}
