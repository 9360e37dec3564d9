() => {
  window.growth = [];
  new MutationObserver(() => {
    const text = document.querySelector(".answer-text")?.textContent;
    if (text && text !== window.growth.at(-1)) window.growth.push(text);
  }).observe(document.querySelector("#transcript"), {subtree: true, childList: true, characterData: true});
}
