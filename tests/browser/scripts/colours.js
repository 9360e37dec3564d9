() => {
  const probe = document.body.appendChild(document.createElement("span"));
  return Array.from({ length: 12 }, (_, index) => {
    probe.style.color = `var(--owner-${index})`;
    return getComputedStyle(probe).color.match(/\d+/g).map(Number);
  });
}
