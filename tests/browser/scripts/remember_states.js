() => {
  const line = document.querySelector(".engine-state");
  window.states = [line.textContent];
  const note = () => window.states.at(-1) === line.textContent || window.states.push(line.textContent);
  new MutationObserver(note).observe(line, {subtree: true, childList: true, characterData: true});
}
