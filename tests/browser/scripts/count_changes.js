() => {
  window.changes = 0;
  const everything = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver((all) => (window.changes += all.length)).observe(document.querySelector("#engine-view"), everything);
}
