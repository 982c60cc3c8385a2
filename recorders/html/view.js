// The document. Everything that was recorded goes in as text, never as markup.
"use strict";
(() => {
  const ROW = 24;
  const LONG = 20000;  // characters of one text that are shown at first
  const MANY = 50;     // children that are shown at first
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const model = Model.build(read("data"), read("texts"));
  const text = (number) => (number === undefined ? "" : model.texts[number]);
  const by = (id) => document.getElementById(id);
  const state = {
    rows: [], collapsed: new Set(), outcomes: null, query: "", selected: null, window: [0, model.end], colour: "logprob",
  };

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(element.style, value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  // -- the list: tree and timeline, only the rows in sight

  const list = by("list");
  const sheet = by("sheet");
  let drawn = "";

  function refresh() {
    state.rows = Model.rows(model, state);
    state.at = new Map(state.rows.map((row, index) => [row.invocation.id, index]));
    sheet.style.height = `${state.rows.length * ROW}px`;
    const matched = state.rows.reduce((sum, row) => sum + (row.matched ? 1 : 0), 0);
    by("found").textContent = `${Model.count(matched)} of ${Model.count(model.list.length)}`;
    draw(true);
  }

  function draw(force = false) {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
    const last = Math.min(state.rows.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
    const range = `${first}-${last}`;
    if (!force && range === drawn) return;
    drawn = range;
    const pixels = by("scale").clientWidth || 300;
    sheet.replaceChildren(...state.rows.slice(first, last).map((row, index) => line(row, first + index, pixels)));
    drawScale(pixels);
  }

  function line({ invocation, level, open, matched }, index, pixels) {
    const { status } = invocation.outcome;
    const toggle = make("span", {
      class: "toggle",
      onclick: (event) => { event.stopPropagation(); fold(invocation); },
    }, invocation.children.length ? (open ? "▾" : "▸") : "");
    const path = invocation.id.slice(invocation.id.indexOf(":") + 1);
    const name = level === 0 ? path : path.slice(path.lastIndexOf(".") + 1);
    const bars = Model.bars(invocation, state.window, pixels).map((bar) =>
      make("i", {
        class: `bar ${bar.kind}${bar.bad ? " bad" : ""} of-${status}`,
        style: { left: `${bar.left}px`, width: `${bar.width}px` },
      }));
    return make("div", {
      class: `row${matched ? "" : " ancestor"}${invocation === state.selected ? " selected" : ""}`,
      role: "treeitem", "aria-level": level + 1, "aria-selected": invocation === state.selected, id: `row-${index}`,
      "data-id": invocation.id, title: invocation.id, style: { top: `${index * ROW}px` }, onclick: () => select(invocation),
    },
      make("span", { class: "name" },
        make("span", { class: "indent", style: { width: `${Math.min(level, 20) * 12}px` } }), toggle,
        make("span", { class: `dot ${status}` }), name),
      make("span", { class: `outcome ${status}` }, status),
      make("span", { class: "number" }, String(invocation.depth)),
      make("span", { class: "number" }, Model.duration(Model.endOf(invocation) - invocation.start)),
      make("span", { class: "number" }, Model.dollars(invocation.own.cost)),
      make("span", { class: "bars" }, ...bars));
  }

  function drawScale(pixels) {
    const [from, to] = state.window;
    const step = [1, 2, 5].flatMap((digit) => [...Array(12).keys()].map((power) => digit * 10 ** power))
      .sort((a, b) => a - b).find((size) => (to - from) / size <= Math.max(2, pixels / 90)) ?? to - from;
    const marks = [];
    for (let at = Math.ceil(from / step) * step; at <= to && marks.length < 50; at += step)
      marks.push(make("span", { class: "mark", style: { left: `${((at - from) / (to - from)) * pixels}px` } }, Model.duration(at)));
    by("scale").replaceChildren(...marks);
  }

  function fold(invocation, shut = !state.collapsed.has(invocation.id)) {
    if (shut) state.collapsed.add(invocation.id);
    else state.collapsed.delete(invocation.id);
    refresh();
  }

  function zoom(factor, at = (state.window[0] + state.window[1]) / 2) {
    state.window = Model.zoomed(state.window, factor, at, model.end);
    draw(true);
  }

  function pan(share) {
    const [from, to] = state.window;
    const width = to - from;
    const start = Math.min(Math.max(0, from + share * width), model.end - width);
    state.window = [start, start + width];
    draw(true);
  }

  function fit(invocation = null) {
    if (!invocation) state.window = [0, model.end];
    else state.window = [invocation.start, Math.max(Model.endOf(invocation), invocation.start + 10)];
    draw(true);
  }

  // -- selection

  function select(invocation, { link = true } = {}) {
    state.selected = invocation;
    for (let up = invocation.up; up; up = up.up) state.collapsed.delete(up.id);
    refresh();
    const index = state.at.get(invocation.id);
    if (index !== undefined) {
      const top = index * ROW;
      if (top < list.scrollTop) list.scrollTop = top;
      else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
      list.setAttribute("aria-activedescendant", `row-${index}`);
      draw(true);
    }
    if (link) history.replaceState(null, "", `#${invocation.id}`);
    by("detail").replaceChildren(...detail(invocation));
    by("detail").scrollTop = 0;
  }

  function move(by) {
    if (!state.rows.length) return;
    const at = state.selected ? state.at.get(state.selected.id) ?? -1 : -1;
    select(state.rows[Math.min(Math.max(0, at + by), state.rows.length - 1)].invocation);
  }

  function followLink() {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { /* a link that is none selects nothing */ }
    const invocation = model.byId.get(id);
    if (invocation) select(invocation, { link: false });
    return invocation !== undefined;
  }

  // -- the selected invocation

  function detail(invocation) {
    const { own, whole, outcome } = invocation;
    const usage = (total) =>
      `${Model.count(total.prompt)} in (${Model.count(total.cached)} cached), ${Model.count(total.completion)} out, ` +
      Model.dollars(total.cost) + (total.unknown ? ` (${Model.plural(total.unknown, "answer")} without a price)` : "");
    const models = [...new Set(invocation.turns.map((turn) => turn.model).filter(Boolean))].join(", ");
    const facts = [
      ["depth", String(invocation.depth)],
      ["took", Model.duration(Model.endOf(invocation) - invocation.start) + (invocation.end === undefined ? ", and has no end" : "")],
      ["began", new Date(model.began * 1000 + invocation.start / 1000).toISOString()],
      ["model", models || "–"],
      ["tokens and cost", usage(own)],
    ];
    if (invocation.children.length) facts.push(["with what it invoked", usage(whole)]);
    if (invocation.hooks?.length) facts.push(["hooks", invocation.hooks.join(", ")]);
    const parts = [
      make("h2", {}, invocation.id, " ", make("span", { class: `outcome ${outcome.status}` }, outcome.status)),
      make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    ];
    if (invocation.parent)
      parts.push(make("p", {}, "invoked by ", link(invocation.parent),
        invocation.parent_iteration === undefined ? "" : ` in turn ${invocation.parent_iteration}`));
    if (invocation.children.length) parts.push(children(invocation));
    for (const [title, inputs] of [["Inputs", invocation.inputs], ["Scope", invocation.scope]])
      if (inputs?.length) parts.push(make("h3", {}, title), make("div", {}, ...inputs.map(input)));
    parts.push(make("h3", {}, "Outcome"));
    if (outcome.value) parts.push(value(outcome.value));
    if (outcome.error) parts.push(error(outcome.error));
    if (outcome.status === "unfinished") parts.push(make("p", { class: "faint" }, "The record stops before its end."));
    parts.push(make("h3", {}, Model.plural(invocation.turns.length, "turn")));
    const open = invocation.turns.length <= 5;
    invocation.turns.forEach((turn, index) =>
      parts.push(turnBox(invocation, turn, index, open || index === invocation.turns.length - 1)));
    return parts;
  }

  function link(id, shown = id) {
    return make("a", { href: `#${id}`, title: id }, shown);
  }

  function children(invocation) {
    const box = make("p", { class: "children" }, `invoked ${Model.count(invocation.children.length)}: `);
    const show = (some) => some.forEach((child) => box.append(
      make("span", { class: `dot ${child.outcome.status}` }), link(child.id, child.id.slice(child.id.lastIndexOf(".") + 1)), " "));
    show(invocation.children.slice(0, MANY));
    const rest = invocation.children.slice(MANY);
    if (rest.length) {
      const more = make("button", { onclick: () => { more.remove(); show(rest); } }, `${Model.count(rest.length)} more`);
      box.append(more);
    }
    return box;
  }

  function input(item) {
    const marks = [item.change, item.hidden ? "not shown" : null].filter(Boolean);
    return make("div", { class: `input${item.change ? ` ${item.change}` : ""}` },
      make("b", {}, item.name), `: ${item.value.type} `, ...marks.map((mark) => make("span", { class: "badge" }, mark)),
      long(item.description === undefined ? text(item.value.preview) : text(item.description)));
  }

  const value = (item) => make("div", { class: "value" }, make("b", {}, item.type), long(text(item.preview)));

  function error(item) {
    const box = make("div", { class: "error" }, make("b", {}, item.type), ": ", text(item.message));
    if (item.traceback !== undefined)
      box.append(make("details", {}, make("summary", {}, "traceback"), long(text(item.traceback))));
    return box;
  }

  // A text as it is; a very long one first without its end.
  function long(string, fill = (element, part) => { element.textContent = part; }) {
    const box = make("pre");
    fill(box, string.slice(0, LONG));
    if (string.length > LONG) {
      const more = make("button", { onclick: () => { fill(box, string); } },
        `${Model.count(string.length - LONG)} more characters`);
      box.append("\n", more);
    }
    return box;
  }

  const code = (string) => long(string, (element, part) => {
    element.className = "code";
    element.replaceChildren(...Model.highlight(part).map((piece) =>
      piece.kind ? make("span", { class: `py-${piece.kind}` }, piece.text) : piece.text));
  });

  // A box that makes its content when it is first opened.
  function lazy(attributes, summary, content, open) {
    const box = make("details", attributes, make("summary", {}, ...summary));
    let filled = false;
    const fill = () => {
      if (!filled && box.open) { filled = true; box.append(...content()); }
    };
    box.addEventListener("toggle", fill);
    box.open = open;
    fill();
    return box;
  }

  function turnBox(invocation, turn, index, open) {
    const bad = [turn.query, turn.execution].find((span) => span && (span.status ?? "completed") !== "completed");
    const how = bad ? bad.status : turn.result?.kind ?? "unfinished";
    const marks = [make("b", {}, `turn ${turn.iteration}`), " ",
      make("span", { class: `badge ${bad ? "failed" : how}` }, how), " ",
      turn.usage ? `${turn.usage.completion_tokens == null ? "? tokens" : Model.plural(turn.usage.completion_tokens, "token")} out, ${Model.dollars(turn.usage.cost_usd)}` : ""];
    if (turn.retries?.length) marks.push(" ", make("span", { class: "badge aborted" }, Model.plural(turn.retries.length, "failed attempt")));
    return lazy({ class: "turn" }, marks, () => turnContent(invocation, turn, index), open);
  }

  const took = (invocation, span) =>
    span ? Model.duration((span.end ?? Model.endOf(invocation)) - span.start) + (span.end === undefined ? ", not closed" : "") : "";

  function turnContent(invocation, turn, index) {
    const parts = [];
    if (turn.query) {
      const entries = Model.shown(model, invocation, index);
      const count = entries.filter((entry) => entry.state !== "hidden").length;
      const hidden = entries.length - count;
      const added = entries.filter((entry) => entry.state === "added").length;
      parts.push(make("h4", {}, `Messages: ${count} shown`, hidden ? `, ${hidden} hidden by hooks` : "",
        added ? `, ${added} added by hooks` : ""));
      for (const group of Model.grouped(entries)) {
        const { length } = group.entries;
        if (group.old && length > 3)
          parts.push(lazy({ class: "old" }, [`${Model.count(length)} messages as in the turn before`], () => group.entries.map(message), false));
        else parts.push(...group.entries.map(message));
      }
    }
    for (const retry of turn.retries ?? [])
      parts.push(make("div", { class: "retry" }, `attempt ${retry.attempt} failed, the next after ${retry.wait.toPrecision(3)} s`, error(retry.error)));
    if (turn.response !== undefined) {
      parts.push(make("h4", {}, "Response ", make("span", { class: "faint" },
        [took(invocation, turn.query), turn.finish_reason].filter(Boolean).join(", "))));
      if (turn.original !== undefined)
        parts.push(make("div", { class: "message hidden" }, make("span", { class: "badge" }, "replaced by hooks"), long(text(turn.original))));
      if (!turn.execution || turn.code !== undefined) parts.push(long(text(turn.response)));
    }
    if (turn.query?.error) parts.push(error(turn.query.error));
    if (turn.tokens) parts.push(tokenBox(turn));
    const written = Model.codeOf(model, turn);
    if (written !== null) {
      parts.push(make("h4", {}, "Code ", make("span", { class: "faint" }, took(invocation, turn.execution))), code(written));
      if (turn.code_sent !== undefined) parts.push(make("h4", {}, "Code as hooks changed it"), code(text(turn.code_sent)));
      for (const [title, names] of [["bound", turn.variables_added], ["removed", turn.variables_dropped]])
        if (names?.length) parts.push(make("p", { class: "faint" }, `variables ${title} by hooks: ${names.join(", ")}`));
    }
    if (turn.original_result)
      parts.push(make("h4", {}, "Result before hooks changed it"), ...result(turn.original_result));
    if (turn.result) parts.push(make("h4", {}, turn.result.kind === "continue" ? "Output" : "Result"), ...result(turn.result));
    if (turn.execution?.error) parts.push(error(turn.execution.error));
    return parts;
  }

  function message(entry) {
    const said = entry.message ?? { role: "?", kind: "?" };
    const marks = [`#${entry.number}`, said.kind];
    if (said.pinned) marks.push("pinned");
    if (entry.state !== "kept") marks.push(`${entry.state} by hooks${entry.persistent ? " for good" : ""}`);
    const start = entry.text.slice(0, 120).replace(/\s+/g, " ");
    const open = entry.state === "added" || (entry.fresh && said.kind === "observation");
    return lazy({ class: `message ${said.role} ${entry.state}` },
      [make("b", {}, said.role), " ", ...marks.map((mark) => make("span", { class: "badge" }, mark)),
        make("span", { class: "start" }, start)],
      () => [long(entry.text)], open);
  }

  function result(item) {
    if (item.value)
      return [value(item.value), ...(item.rejections ?? []).map((reason) => make("div", { class: "error" }, `refused: ${reason}`))];
    if (item.error) return [error(item.error)];
    const parts = [];
    if (item.output !== undefined && text(item.output)) parts.push(long(text(item.output)));
    if (item.error_text !== undefined) parts.push(make("div", { class: "error" }, long(text(item.error_text))));
    return parts.length ? parts : [make("p", { class: "faint" }, "no output")];
  }

  function tokenBox(turn) {
    const record = turn.tokens;
    const fill = (box) => box.replaceChildren(...Model.tokens(turn).map((token) => {
      const element = make("span", {
        class: `token mask-${token.mask}`,
        title: token.mask ? `id ${token.id}, logprob ${token.logprob ?? "?"}, p ${token.logprob === null ? "?" : Math.exp(token.logprob).toPrecision(3)}, loss mask 1` : `id ${token.id}, sent, loss mask 0`,
      }, String(token.id));
      if (state.colour === "logprob" && token.logprob !== null)
        element.style.setProperty("--surprise", Model.surprise(token.logprob).toFixed(3));
      return element;
    }));
    const box = make("div", { class: `tokens by-${state.colour}` });
    const version = record.version_at_submit === undefined ? "" :
      `, weights ${record.version_at_submit}` + (record.version_at_return === record.version_at_submit ? "" : ` → ${record.version_at_return}`);
    const sent = record.prompt_new === undefined ? "not continuing the turn before, ids not kept here" : `${Model.count(record.prompt_new.length)} new`;
    const choice = make("select", {
      "aria-label": "colour of tokens",
      onchange: () => { state.colour = choice.value; box.className = `tokens by-${state.colour}`; fill(box); },
    }, ...["logprob", "mask"].map((name) => make("option", { value: name, selected: name === state.colour }, `colour by ${name}`)));
    return lazy({ class: "token-box" },
      [`Tokens: ${Model.count(record.prompt)} sent (${sent}), ${Model.count(record.ids.length)} sampled${version}`],
      () => {
        fill(box);
        return [choice, make("div", { class: "beside" }, box, long(text(turn.original ?? turn.response)))];
      }, record.ids.length <= 200);
  }

  // -- controls

  const total = Model.totals(model);
  by("totals").textContent =
    `${Model.plural(total.requested, "invocation")}, ${Model.plural(total.turns, "turn")}, ${Model.count(total.prompt)} tokens in, ` +
    `${Model.count(total.completion)} out, ${Model.dollars(total.cost)}` +
    (total.unknown ? ` (${Model.plural(total.unknown, "answer")} without a price)` : "") + `, ${Model.duration(model.end)}`;
  for (const status of Model.OUTCOMES) {
    const button = make("button", {
      class: `filter ${status}`, "data-status": status, "aria-pressed": "false",
      onclick: () => {
        const chosen = state.outcomes ?? new Set();
        if (!chosen.delete(status)) chosen.add(status);
        state.outcomes = chosen.size ? chosen : null;
        button.setAttribute("aria-pressed", String(chosen.has(status)));
        list.scrollTop = 0;
        refresh();
      },
    }, `${status} ${Model.count(total.outcomes[status])}`);
    if (total.outcomes[status]) by("filters").append(button);
  }
  let waiting = 0;
  by("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.query = by("search").value; list.scrollTop = 0; refresh(); }, 120);
  });
  by("zoom-in").addEventListener("click", () => zoom(0.5));
  by("zoom-out").addEventListener("click", () => zoom(2));
  by("zoom-one").addEventListener("click", () => state.selected && fit(state.selected));
  by("zoom-all").addEventListener("click", () => fit());
  by("fold-all").addEventListener("click", () => {
    const inner = model.list.filter((invocation) => invocation.children.length);
    const shut = inner.some((invocation) => !state.collapsed.has(invocation.id));
    state.collapsed = new Set(shut ? inner.map((invocation) => invocation.id) : []);
    refresh();
  });
  by("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  list.addEventListener("scroll", () => draw());
  list.addEventListener("wheel", (event) => {
    const scale = by("scale").getBoundingClientRect();
    if (event.ctrlKey) {
      event.preventDefault();
      const [from, to] = state.window;
      const share = Math.min(1, Math.max(0, (event.clientX - scale.left) / scale.width));
      zoom(event.deltaY < 0 ? 0.8 : 1.25, from + share * (to - from));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / scale.width);
    }
  }, { passive: false });
  new ResizeObserver(() => draw(true)).observe(list);
  addEventListener("hashchange", followLink);
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const chosen = state.selected;
    const actions = {
      ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(page), PageUp: () => move(-page),
      Home: () => move(-Infinity), End: () => move(Infinity),
      ArrowLeft: () => chosen && (chosen.children.length && !state.collapsed.has(chosen.id) ? fold(chosen, true) : chosen.up && select(chosen.up)),
      ArrowRight: () => chosen && (state.collapsed.has(chosen.id) ? fold(chosen, false) : chosen.children.length && select(chosen.children[0])),
      "/": () => by("search").focus(), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => fit(),
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });

  refresh();
  if (!followLink() && model.list.length) select(model.roots[0], { link: false });
})();
