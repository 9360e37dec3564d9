blocks => {
  const canvas = document.querySelector("[aria-roledescription='block map']");
  const { layout } = document.querySelector("#engine-view").view.blocks.maps[0];
  const side = Math.min(12, layout.cell - 5);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return blocks.map((block) => {
    const { x, y } = layout.corner(block - 1);
    const { data } = copy.getImageData(x + 4, y + (layout.cell > 24 ? 14 : 3), side, side);
    return Array.from({ length: data.length / 4 }, (_, pixel) => [...data.slice(4 * pixel, 4 * pixel + 3)]);
  });
}
