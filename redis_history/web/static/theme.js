// Runs before the first paint, so that the page does not flash in the wrong colors. app.js connects the button.
(() => {
  const KEY = "redis-history:theme";
  const CHOICES = ["system", "light", "dark"];
  let choice = "system";
  try {
    choice = localStorage.getItem(KEY) || choice;
  } catch {
    // storage may be disabled: then the choice lasts as long as the page
  }
  const apply = (next) => {
    choice = CHOICES.includes(next) ? next : "system";
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    return choice;
  };
  apply(choice);
  window.pageTheme = {
    get choice() {
      return choice;
    },
    next() {
      apply(CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length]);
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // as above
      }
      return choice;
    },
  };
})();
