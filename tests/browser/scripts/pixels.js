([column, places]) => {
  const { canvas, scale } = document.querySelector("#engine-view").view.timeline;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const x = (scale.start(column) + scale.stop(column + 1)) / 2;
  return places.map((y) => [...copy.getImageData(x, y, 1, 1).data.slice(0, 3)]);
}
