// Marks words in existing elements without changing them (CSS Custom Highlight API, if available).

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
    if (text.length !== node.data.length) continue; // lower case changed the length, so the offsets would be wrong
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
