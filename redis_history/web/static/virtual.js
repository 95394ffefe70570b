// A virtual list of rows of different heights: only rows near the viewport are in the document.
// Visible rows keep their place on the screen when rows are added, removed or resized.

const AHEAD = 700; // pixels that are drawn above and below the viewport
const AT_END = 32; // pixels; closer to the end than this, the list follows added rows

export class VirtualList {
  /**
   * `scroller` contains `.canvas`, which contains `.slice`. `draw(row)` creates an element; `same(a, b)`: whether the
   * element can stay; `grow(element, row, before)` changes it and returns true if it can, `redraw(element, next)` gives
   * it the content of a new one. The element of a row stays, with what is under the pointer. `estimate(row)`: its height before it is measured; `onScroll()`: called after a scroll or change.
   */
  constructor(scroller, { draw, same, grow, redraw, estimate, onScroll }) {
    this.scroller = scroller;
    this.canvas = scroller.querySelector(".canvas");
    this.slice = scroller.querySelector(".slice");
    Object.assign(this, { draw, same, grow, become: redraw, estimate, onScroll });
    this.rows = [];
    this.index = new Map();
    this.offsets = [0];
    this.heights = new Map();
    this.drawn = new Map();
    this.pinned = true; // whether the list is at the end, and follows it
    this.end = 0; // where the list itself scrolled to, to follow the end
    this.endless = false; // whether rows after these are not loaded, so that there is no end to follow
    this.held = null; // a row that was just unfolded or navigated to: it keeps its place while heights are measured
    this.resizes = new ResizeObserver((entries) => this.measured(entries));
    this.resizes.observe(scroller);
    scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    for (const own of ["wheel", "touchmove"])
      scroller.addEventListener(own, () => (this.held = null), { passive: true });
  }

  reset() {
    this.heights.clear();
    this.set([]);
    this.pinned = true;
  }

  set(rows) {
    const anchor = this.anchor();
    this.rows = rows;
    this.index = new Map(rows.map((row, at) => [row.key, at]));
    this.layout(anchor);
  }

  height(row) {
    return this.heights.get(row.key) ?? this.estimate(row);
  }

  /** The first visible row and its place. Later rows replace it if it is removed. */
  anchor() {
    if (this.held) return this.held;
    if (!this.rows.length) return null;
    const top = this.scroller.scrollTop;
    const at = this.at(top);
    return { keys: this.rows.slice(at, at + 60).map((row) => row.key), delta: top - this.offsets[at] };
  }

  /** The index of the row at a vertical offset. */
  at(y) {
    let low = 0;
    let high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= y) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  layout(anchor) {
    const offsets = new Float64Array(this.rows.length + 1);
    this.rows.forEach((row, at) => {
      offsets[at + 1] = offsets[at] + this.height(row);
    });
    this.offsets = offsets;
    this.canvas.style.height = `${offsets[this.rows.length]}px`;
    if (this.pinned) this.scroller.scrollTop = this.scroller.scrollHeight;
    else if (anchor) {
      const position = anchor.keys.findIndex((key) => this.index.has(key));
      if (position >= 0) {
        const at = this.index.get(anchor.keys[position]);
        this.scroller.scrollTop = offsets[at] + (position === 0 ? anchor.delta : 0);
      }
    }
    this.paint();
    if (this.pinned) this.end = this.scroller.scrollTop;
  }

  /** Draw only the rows near the viewport. */
  paint() {
    const top = this.scroller.scrollTop;
    const bottom = top + this.scroller.clientHeight;
    let first = this.at(top - AHEAD);
    const last = this.rows.length ? this.at(bottom + AHEAD) : -1;
    if (last < 0) first = 0;
    const wanted = new Map();
    for (let at = first; at <= last; at += 1) wanted.set(this.rows[at].key, this.rows[at]);
    for (const [key, drawn] of this.drawn) if (!wanted.has(key)) this.erase(key, drawn);
    let place = this.slice.firstElementChild;
    for (const [key, row] of wanted) {
      let drawn = this.drawn.get(key);
      drawn ??= this.make(row);
      this.update(drawn, row);
      drawn.element.ariaPosInSet = String(this.index.get(key) + 1);
      drawn.element.ariaSetSize = "-1"; // the total number of rows is unknown
      if (drawn.element === place) place = place.nextElementSibling;
      else this.slice.insertBefore(drawn.element, place);
    }
    this.slice.style.transform = `translateY(${this.offsets[first] ?? 0}px)`;
  }

  make(row) {
    const drawn = { row, element: this.element(row) };
    drawn.element.row = row;
    this.drawn.set(row.key, drawn);
    this.resizes.observe(drawn.element);
    return drawn;
  }

  element(row) {
    const element = this.draw(row);
    element.dataset.key = row.key;
    return element;
  }

  /** Show a newer state of a row. */
  update(drawn, row) {
    const before = drawn.row;
    drawn.row = drawn.element.row = row;
    if (before === row || this.same(before, row) || this.grow(drawn.element, row, before)) return;
    this.become(drawn.element, this.element(row));
  }

  /** Replace a row, without a new layout. */
  replace(row) {
    const at = this.index.get(row.key);
    this.rows[at] = row;
    const drawn = this.drawn.get(row.key);
    if (drawn) this.update(drawn, row);
  }

  erase(key, drawn) {
    const focused = drawn.element.contains(document.activeElement);
    this.resizes.unobserve(drawn.element);
    drawn.element.remove();
    this.drawn.delete(key);
    if (focused) this.scroller.focus({ preventScroll: true });
  }

  /** Redraw a row whose content depends on other state than the row. */
  redraw(key) {
    const drawn = this.drawn.get(key);
    if (!drawn) return;
    this.become(drawn.element, this.element(drawn.row));
    this.paint();
  }

  measured(entries) {
    let changed = false;
    for (const { target } of entries) {
      if (target === this.scroller) {
        changed = true;
        continue;
      }
      const key = target.dataset.key;
      const height = target.getBoundingClientRect().height;
      if (this.drawn.get(key)?.element !== target || Math.abs((this.heights.get(key) ?? -1) - height) < 0.5) continue;
      if (this.heights.size > 20_000) this.heights.clear();
      this.heights.set(key, height);
      changed = true;
    }
    if (!changed) return;
    this.layout(this.anchor());
    this.scrolled();
  }

  /** Keep this row's place on the screen during the next changes, even at the end. `shrinks`: show its beginning. */
  hold(key, shrinks = false) {
    const at = this.index.get(key);
    if (at === undefined) return;
    const delta = this.scroller.scrollTop - this.offsets[at];
    const held = { keys: [key], delta: shrinks ? Math.min(0, delta) : delta };
    this.held = held;
    this.pinned = false;
    setTimeout(() => {
      if (this.held === held) this.held = null;
    }, 150);
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    // The view may have become lower since the list scrolled to the end: only a reader who scrolls up leaves it.
    const stays = this.pinned && scrollTop > this.end - 1;
    this.pinned = !this.endless && (stays || scrollHeight - scrollTop - clientHeight < AT_END);
    this.paint();
    this.onScroll();
  }

  toEnd() {
    this.held = null;
    this.pinned = true;
    this.layout(null);
  }

  toStart() {
    this.held = null;
    this.pinned = false;
    this.scroller.scrollTop = 0;
    this.paint();
  }

  /** Scroll to a row: to a fraction of the viewport from its top, or only as far as necessary. */
  show(key, share = null) {
    const at = this.index.get(key);
    if (at === undefined) return false;
    const [top, bottom] = [this.offsets[at], this.offsets[at + 1]];
    const { scrollTop, clientHeight } = this.scroller;
    this.pinned = false;
    this.held = null;
    if (share !== null) this.scroller.scrollTop = top - clientHeight * share;
    else if (top < scrollTop || bottom - top > clientHeight) this.scroller.scrollTop = top - 8;
    else if (bottom > scrollTop + clientHeight) this.scroller.scrollTop = bottom - clientHeight + 8;
    this.hold(key);
    this.paint();
    return true;
  }

  /** The keys of the rows that are at least partly visible. */
  seen() {
    if (!this.rows.length) return [];
    const top = this.scroller.scrollTop;
    const last = this.at(top + this.scroller.clientHeight - 1);
    return this.rows.slice(this.at(top), last + 1).map((row) => row.key);
  }
}
