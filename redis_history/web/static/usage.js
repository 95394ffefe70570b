// Tokens and cost: totals by day and by agent, of all users or of one, and the budget of that user.

import { api, go, hashOf } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { compact, costOf, exact, number, ownerText, shorten, utcDay, utcDayName } from "./format.js";

const DAY = 86_400_000; // milliseconds
const MOST_AGENTS = 100;

const totalOf = ({ input_tokens: read, output_tokens: written }) => read + written;
const joined = (texts) => texts.filter(Boolean).join(" · ");
const inWords = (usage) => joined([`${number(totalOf(usage))} tokens`, costOf(usage)]);

export class UsageView {
  constructor() {
    this.form = byId("usage-form");
    this.day = null; // the chosen bar
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      const user = this.form.elements.user.value.trim();
      this.day = null;
      if (user === (this.user ?? "")) this.load();
      else go({ view: "usage", user: user || null });
    });
    byId("usage-chart").addEventListener("click", ({ target }) => {
      const { day } = target.closest("[data-day]")?.dataset ?? {};
      if (!day) return;
      this.day = day === this.day ? null : day;
      this.load();
    });
  }

  open(user) {
    if (user !== this.user) this.day = null;
    this.user = user;
    this.form.elements.user.value = user ?? "";
    this.load();
  }

  /** The days of the chart, the oldest first. Totals count days in UTC. */
  days() {
    const count = Number(this.form.elements.days.value);
    return Array.from({ length: count }, (_, at) => utcDay(new Date(Date.now() - (count - 1 - at) * DAY)));
  }

  async load() {
    this.aborter?.abort();
    const { signal } = (this.aborter = new AbortController());
    const days = this.days();
    const chosen = { user_id: this.user, since: days[0] };
    const detail = this.day ? { since: this.day, until: this.day } : {};
    try {
      const [byDay, byAgent] = await Promise.all([
        api.usage({ ...chosen, by: "day" }, signal),
        api.usage({ ...chosen, ...detail, by: "agent" }, signal),
      ]);
      this.draw(days, byDay, byAgent);
      setText(byId("usage-note"), "");
    } catch (error) {
      if (error.name !== "AbortError") setText(byId("usage-note"), error.message);
    }
  }

  draw(days, byDay, byAgent) {
    const { usage } = byAgent;
    const facts = [
      [
        "Input",
        `${number(usage.input_tokens)} tokens`,
        usage.cached_tokens > 0 && `${number(usage.cached_tokens)} cached`,
      ],
      ["Output", `${number(usage.output_tokens)} tokens`],
      ["Cost", costOf(usage)],
    ];
    byId("usage-facts").replaceChildren(
      ...facts
        .filter(([, value]) => value)
        .map(([name, value, more]) => el("div", el("dt", name), el("dd", value, more && el("small", more)))),
    );
    this.drawBudget(byDay.budget);
    this.drawChart(days, new Map(byDay.groups.map((group) => [group.name, group.usage])));
    const when = this.day ? utcDayName(this.day) : `${utcDayName(days[0])} – ${utcDayName(days.at(-1))}`;
    setText(byId("usage-when"), `By agent, ${when}`);
    const rows = byAgent.groups
      .sort((left, right) => totalOf(right.usage) - totalOf(left.usage))
      .slice(0, MOST_AGENTS)
      .map(({ name, usage: used }) => [
        el("bdi", shorten(name, 80) || "no agent"),
        number(used.input_tokens),
        number(used.output_tokens),
        costOf(used),
      ]);
    byId("usage").classList.toggle("free", !costOf(usage)); // hides the column of costs
    byId("usage-agents").replaceChildren(...rows.map((cells) => el("tr", ...cells.map((cell) => el("td", cell)))));
  }

  drawChart(days, totals) {
    const none = { input_tokens: 0, output_tokens: 0 };
    const most = Math.max(1, ...days.map((day) => totalOf(totals.get(day) ?? none)));
    const bars = days.map((day) => {
      const used = totals.get(day) ?? none;
      const label = `${utcDayName(day)}: ${inWords(used)}`;
      const pressed = String(day === this.day);
      const bar = el("button", {
        type: "button",
        title: label,
        "aria-label": label,
        "aria-pressed": pressed,
        data: { day },
      });
      bar.style.setProperty("--height", totalOf(used) / most);
      return el("li", bar);
    });
    const focused = document.activeElement?.dataset.day;
    byId("usage-chart").replaceChildren(...bars);
    byId("usage-chart").querySelector(`[data-day="${focused}"]`)?.focus();
    setText(byId("usage-most"), most > 1 ? `${compact(most)} tokens` : "Nothing was used in these days.");
    setText(byId("usage-first"), utcDayName(days[0]));
    setText(byId("usage-last"), `${utcDayName(days.at(-1))} (UTC)`);
  }

  drawBudget(budget) {
    const texts = [];
    if (budget) {
      const { tokens, cost, period, used, exhausted, resets_at: resets } = budget;
      texts.push(
        `Budget${period === "total" ? "" : ` of a ${period}`}`,
        tokens !== null && `${number(totalOf(used))} of ${number(tokens)} tokens`,
        cost !== null && `${costOf({ cost: used.cost }) || "$0"} of ${costOf({ cost }) || "$0"}`,
        exhausted && "used up",
        resets && `begins anew ${exact(resets)}`,
      );
    }
    setText(byId("usage-budget"), joined(texts));
    byId("usage-budget").classList.toggle("failed", Boolean(budget?.exhausted));
  }
}

/** What a conversation has used, for its header. */
export const usedText = (usage) =>
  usage && `${compact(totalOf(usage))} tokens used${costOf(usage) && `, ${costOf(usage)}`}`;

/** The owner of a conversation; a link to what this user has used, for those who may read it. */
export function ownerLink(owner, mayRead) {
  const text = shorten(String(owner), 60);
  if (!mayRead) return el("bdi", `for ${text}`);
  return el(
    "a",
    { href: hashOf({ view: "usage", user: ownerText(owner) }), title: "what this user has used" },
    "for ",
    el("bdi", text),
  );
}
