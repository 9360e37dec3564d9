() => {
  window.heard = [];
  const live = "[aria-live=polite], [aria-live=assertive], [role=status], [role=alert]";
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const region = (target.nodeType === Node.TEXT_NODE ? target.parentElement : target)?.closest(live);
      if (region?.textContent) window.heard.push(region.textContent);
    }
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}
