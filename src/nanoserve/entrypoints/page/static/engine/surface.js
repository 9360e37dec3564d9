// A canvas that is as sharp as the screen and as wide as its place.

export class Surface {
  /** `onResize` is called when the width has changed, and the picture is to be drawn again. */
  constructor(canvas, onResize) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.width = 0;
    this.observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width === this.width) return;
      this.width = width;
      onResize();
    });
    this.observer.observe(canvas.parentElement);
  }

  /** An empty context of this height, in CSS pixels; null while the canvas has no place. */
  clear(height) {
    if (!this.width) return null;
    const ratio = globalThis.devicePixelRatio || 1;
    const [wide, high] = [Math.round(this.width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, height);
    this.context.font = FONT;
    return this.context;
  }

  /** Where a pointer is, in CSS pixels of the picture. */
  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  destroy() {
    this.observer.disconnect();
  }
}

const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';
export const FONT = `11px ${FAMILY}`;
export const SMALL_FONT = `9px ${FAMILY}`;
