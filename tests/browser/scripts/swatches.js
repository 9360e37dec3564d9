() => [...document.querySelectorAll(".engine-queue .engine-swatch")].map((each) => {
  const { backgroundColor, backgroundImage } = getComputedStyle(each);
  return `${backgroundColor} ${backgroundImage}`;
})
