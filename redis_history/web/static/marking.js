// Marks words inside of what is drawn already, without touching it (CSS Custom Highlight API, where there is one).

const NAME = "found";
const MOST = 200;

export function mark(element, words) {
  unmark();
  if (!globalThis.Highlight || !CSS.highlights || !words.length) return;
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && ranges.length < MOST; node = walker.nextNode()) {
    if (node.parentElement.closest(".heading, time, .day")) continue;
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue; // a letter whose small form is longer: places would be wrong
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0 && ranges.length < MOST; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set(NAME, new Highlight(...ranges));
}

export function unmark() {
  globalThis.CSS?.highlights?.delete(NAME);
}
