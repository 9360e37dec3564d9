// Whether somebody looks at an element: it is behind no other tab, neither of the page nor of the browser.

const PATIENCE = 30_000;

export class Attention {
  #wasThere = true;
  #timer = null;

  /** `onLook` is called when it is seen again, `onLeave` when it has not been for half a minute. */
  constructor(element, { onLook, onLeave }) {
    Object.assign(this, { element, onLook, onLeave });
    this.check = this.check.bind(this);
    this.observer = new ResizeObserver(this.check); // what is behind a tab of the page has no size
    this.observer.observe(element);
    document.addEventListener("visibilitychange", this.check);
  }

  get isThere() {
    return !document.hidden && this.element.checkVisibility();
  }

  check() {
    const { isThere } = this;
    if (isThere === this.#wasThere) return;
    this.#wasThere = isThere;
    clearTimeout(this.#timer);
    if (isThere) this.onLook();
    else this.awaitLook();
  }

  /** Wait for the half minute anew, where nobody looks. */
  awaitLook() {
    if (this.#wasThere) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.onLeave, PATIENCE);
  }

  destroy() {
    clearTimeout(this.#timer);
    this.observer.disconnect();
    document.removeEventListener("visibilitychange", this.check);
  }
}
