// Whether somebody looks: at the element, which is then drawn, and at the page at all, which then follows the engine.

const PATIENCE = 30_000;

export class Attention {
  #wasThere = true;
  #wasHidden = false;
  #timer = null;

  /** `onLook` is called when element or page is seen again, `onLeave` when the page has been hidden for half a minute. */
  constructor(element, { onLook, onLeave }) {
    Object.assign(this, { element, onLook, onLeave });
    this.check = this.check.bind(this);
    this.observer = new ResizeObserver(this.check); // what is behind a tab of the page has no size
    this.observer.observe(element);
    document.addEventListener("visibilitychange", this.check);
    if (document.hidden) this.check(); // a page that is opened behind another one
  }

  get isThere() {
    return !document.hidden && this.element.checkVisibility();
  }

  check() {
    const { isThere } = this;
    const isHidden = document.hidden;
    const isSeenAgain = (isThere && !this.#wasThere) || (!isHidden && this.#wasHidden);
    const hasLeft = isHidden && !this.#wasHidden;
    [this.#wasThere, this.#wasHidden] = [isThere, isHidden];
    if (hasLeft) this.awaitLook();
    if (!isSeenAgain) return;
    clearTimeout(this.#timer);
    this.onLook();
  }

  /** Wait for the half minute anew, where the page is hidden. */
  awaitLook() {
    if (!this.#wasHidden) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.onLeave, PATIENCE);
  }

  destroy() {
    clearTimeout(this.#timer);
    this.observer.disconnect();
    document.removeEventListener("visibilitychange", this.check);
  }
}
