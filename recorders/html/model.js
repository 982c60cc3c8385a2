// What the page knows, without a document: the tree, its rows, what a turn showed, bars, colours. Runs in node too.
"use strict";
const Model = (() => {
  const OUTCOMES = ["completed", "raised", "aborted", "failed", "unfinished"];

  function build(data, texts) {
    const byId = new Map();
    const roots = [];
    const list = data.invocations;
    list.forEach((invocation, index) => {
      invocation.index = index;
      invocation.children = [];
      invocation.outcome ??= { status: "unfinished" };
      invocation.turns ??= [];
      invocation.messages ??= [];
      byId.set(invocation.id, invocation);
    });
    for (const invocation of list) {
      const parent = byId.get(invocation.parent);
      invocation.up = parent ?? null;
      (parent ? parent.children : roots).push(invocation);
      invocation.own = usageOf(invocation);
      invocation.whole = { ...invocation.own };
    }
    for (let index = list.length - 1; index >= 0; index--) {  // children come after their parents
      const { up, whole } = list[index];
      if (up) addUsage(up.whole, whole);
    }
    const model = { began: data.began, list, byId, roots, texts };
    model.end = list.reduce((end, invocation) => Math.max(end, endOf(invocation)), 1);
    return model;
  }

  const endOf = (invocation) => invocation.end ?? invocation.last;

  function usageOf(invocation) {
    const total = { prompt: 0, completion: 0, cached: 0, cost: null, unknown: 0, turns: invocation.turns.length };
    for (const { usage } of invocation.turns) {
      if (!usage) continue;
      total.prompt += usage.prompt_tokens ?? 0;
      total.completion += usage.completion_tokens ?? 0;
      total.cached += usage.cached_tokens ?? 0;
      if (usage.cost_usd == null) total.unknown += 1;
      else total.cost = (total.cost ?? 0) + usage.cost_usd;
    }
    return total;
  }

  function addUsage(total, usage) {
    for (const name of ["prompt", "completion", "cached", "unknown", "turns"]) total[name] += usage[name];
    if (usage.cost != null) total.cost = (total.cost ?? 0) + usage.cost;
  }

  function totals(model) {
    const total = { prompt: 0, completion: 0, cached: 0, cost: null, unknown: 0, turns: 0 };
    const outcomes = Object.fromEntries(OUTCOMES.map((status) => [status, 0]));
    for (const invocation of model.list) {
      addUsage(total, invocation.own);
      outcomes[invocation.outcome.status] += 1;
    }
    return { ...total, outcomes, requested: model.list.length };
  }

  // Everything that was said in an invocation, in small letters; made when it is first searched.
  function haystack(model, invocation) {
    if (invocation.haystack === undefined) {
      const { texts } = model;
      const parts = [invocation.id, invocation.outcome.status];
      const say = (number) => number !== undefined && parts.push(texts[number]);
      const sayValue = (value) => value && (parts.push(value.type), say(value.preview));
      const sayError = (error) => error && (parts.push(error.type), say(error.message));
      const sayResult = (result) => {
        if (!result) return;
        say(result.output);
        say(result.error_text);
        sayValue(result.value);
        sayError(result.error);
      };
      for (const input of [...(invocation.inputs ?? []), ...(invocation.scope ?? [])]) {
        parts.push(input.name);
        sayValue(input.value);
        say(input.description);
      }
      for (const message of invocation.messages) if (message.kind !== "seed") say(message.text);
      for (const turn of invocation.turns) {
        parts.push(turn.model ?? "");
        say(turn.response);
        say(turn.code_sent);
        sayResult(turn.result);
        sayError(turn.query?.error);
        sayError(turn.execution?.error);
      }
      sayValue(invocation.outcome.value);
      sayError(invocation.outcome.error);
      invocation.haystack = parts.join("\n").toLowerCase();
    }
    return invocation.haystack;
  }

  // The rows of the tree, top to bottom. Under a filter: what matches, and its ancestors, `matched` false.
  function rows(model, { query = "", outcomes = null, collapsed = new Set() } = {}) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const filtered = words.length > 0 || outcomes !== null;
    let wanted = null;
    let matching = null;
    if (filtered) {
      wanted = new Set();
      matching = new Set();
      for (const invocation of model.list) {
        if (outcomes && !outcomes.has(invocation.outcome.status)) continue;
        if (!words.every((word) => haystack(model, invocation).includes(word))) continue;
        matching.add(invocation);
        for (let at = invocation; at && !wanted.has(at); at = at.up) wanted.add(at);
      }
    }
    const result = [];
    const stack = [];
    const push = (invocations, level) => {
      for (let at = invocations.length - 1; at >= 0; at--) stack.push([invocations[at], level]);
    };
    push(model.roots, 0);
    while (stack.length) {
      const [invocation, level] = stack.pop();
      if (wanted && !wanted.has(invocation)) continue;
      const open = filtered || !collapsed.has(invocation.id);
      result.push({ invocation, level, open, matched: !matching || matching.has(invocation) });
      if (open) push(invocation.children, level + 1);
    }
    return result;
  }

  // The buffers of all turns, by message number, before the edits of each.
  function buffers(invocation) {
    let left = [];
    return invocation.turns.map((turn) => {
      const buffer = turn.query ? [...left.slice(0, turn.keep ?? 0), ...(turn.then ?? [])] : left;
      // Edits for good count only once the query has been answered.
      left = turn.response === undefined ? buffer : edit(buffer, turn, (change) => change.persistent)
        .filter((entry) => entry.state !== "hidden").map((entry) => entry.number);
      return buffer;
    });
  }

  function edit(buffer, turn, which) {
    const hidden = new Map();
    for (const drop of (turn.drops ?? []).filter(which))
      for (let at = drop.start; at < drop.stop; at++) hidden.set(at, drop);
    const before = new Map();
    for (const add of (turn.adds ?? []).filter(which)) {
      if (!before.has(add.position)) before.set(add.position, []);
      before.get(add.position).push(add);
    }
    const result = [];
    for (let at = 0; at <= buffer.length; at++) {
      for (const add of before.get(at) ?? [])
        for (const number of add.numbers) result.push({ number, state: "added", persistent: !!add.persistent });
      if (at === buffer.length) break;
      const drop = hidden.get(at);
      result.push({ number: buffer[at], state: drop ? "hidden" : "kept", persistent: !!drop?.persistent });
    }
    return result;
  }

  // The messages of a turn: what the model was shown, and what hooks hid from it. `fresh`: not in the turn before.
  function shown(model, invocation, index) {
    invocation.buffers ??= buffers(invocation);
    invocation.said ??= new Map(invocation.messages.map((message) => [message.number, message]));
    const seen = new Set(index > 0 ? invocation.buffers[index - 1] : []);
    return edit(invocation.buffers[index], invocation.turns[index], () => true).map((entry) => {
      const message = invocation.said.get(entry.number);
      return { ...entry, message, fresh: !seen.has(entry.number), text: textOf(model, invocation, message) };
    });
  }

  // The messages of a turn in groups: what the turn before was shown too, and nobody touched, is one group.
  function grouped(entries) {
    const groups = [];
    for (const entry of entries) {
      const old = entry.state === "kept" && !entry.fresh;
      const last = groups.at(-1);
      if (last && last.old === old) last.entries.push(entry);
      else groups.push({ old, entries: [entry] });
    }
    return groups;
  }

  function textOf(model, invocation, message) {
    if (!message) return "";
    if (message.text !== undefined) return model.texts[message.text];
    invocation.byIteration ??= new Map(invocation.turns.map((one) => [one.iteration, one]));
    const turn = invocation.byIteration.get(message.iteration);
    if (message.kind === "observation") return observed(model, turn?.result);
    return turn?.response === undefined ? "" : model.texts[turn.response];
  }

  function observed(model, result) {
    const output = model.texts[result?.output] ?? "";
    const error = model.texts[result?.error_text] ?? "";
    return (output + (output && error && !output.endsWith("\n") ? "\n" : "") + error).replace(/\n+$/, "");
  }

  function codeOf(model, turn) {
    if (!turn.execution) return null;
    return model.texts[turn.code ?? turn.response] ?? "";
  }

  const KEYWORDS = new Set(("False None True and as assert async await break case class continue def del elif else " +
    "except finally for from global if import in is lambda match nonlocal not or pass raise return try while with " +
    "yield").split(" "));
  const PIECES = new RegExp([
    String.raw`(?<comment>#[^\n]*)`,
    String.raw`(?<string>\b[rRbBfFuU]{0,2}(?:"""(?:\\[^]|(?!""")[^\\])*(?:"""|$)|'''(?:\\[^]|(?!''')[^\\])*(?:'''|$))` +
      String.raw`|(?:"""(?:\\[^]|(?!""")[^\\])*(?:"""|$)|'''(?:\\[^]|(?!''')[^\\])*(?:'''|$))` +
      String.raw`|(?:\b[rRbBfFuU]{1,2})?(?:"(?:\\[^]|[^"\\\n])*"?|'(?:\\[^]|[^'\\\n])*'?))`,
    String.raw`(?<number>\b\d[\w.]*)`,
    String.raw`(?<word>[^\W\d]\w*)`,
  ].join("|"), "gu");

  // The code as pieces {kind, text}; joined they are the code again.
  function highlight(code) {
    const pieces = [];
    let end = 0;
    const plain = (upTo) => upTo > end && pieces.push({ kind: "", text: code.slice(end, upTo) });
    for (const match of code.matchAll(PIECES)) {
      const { comment, string, number, word } = match.groups;
      let kind = comment !== undefined ? "comment" : string !== undefined ? "string" : number !== undefined ? "number" : "";
      if (word !== undefined) {
        if (KEYWORDS.has(word)) kind = "keyword";
        else if (word === "invoke" || word === "ainvoke" || word === "amap") kind = "invoke";
        else if (code[match.index + word.length] === "(") kind = "call";
      }
      if (!kind) continue;
      plain(match.index);
      pieces.push({ kind, text: match[0] });
      end = match.index + match[0].length;
    }
    plain(code.length);
    return pieces;
  }

  // What of an invocation is seen in the window [from, to] of microseconds: `left` and `width` in pixels. Spans of one
  // kind that fall on the same pixel are one bar, so there are never more than pixels.
  function bars(invocation, [from, to], pixels) {
    const scale = pixels / (to - from);
    const place = (kind, start, end, bad) => {
      if (end < from || start > to) return null;
      const left = Math.max(0, (start - from) * scale);
      const right = Math.min(pixels, (end - from) * scale);
      return { kind, left, width: Math.max(1, right - left), bad };
    };
    const result = [];
    const whole = place("invocation", invocation.start, endOf(invocation), false);
    if (whole) result.push(whole);
    const last = {};
    for (const turn of invocation.turns) {
      for (const kind of ["query", "execution"]) {
        const span = turn[kind];
        if (!span) continue;
        const bad = (span.status ?? "completed") !== "completed" || span.end === undefined;
        const bar = place(kind, span.start, span.end ?? endOf(invocation), bad);
        if (!bar) continue;
        const before = last[kind];
        if (before && bar.left + bar.width < before.left + before.width + 1 && bar.left - before.left - before.width < 1) {
          before.width = Math.max(before.width, bar.left + bar.width - before.left);
          before.bad ||= bar.bad;
        } else {
          result.push((last[kind] = bar));
        }
      }
    }
    return result;
  }

  function zoomed([from, to], factor, at, end) {
    const width = Math.min(end, Math.max(10, (to - from) * factor));
    const start = Math.min(Math.max(0, at - ((at - from) / (to - from)) * width), end - width);
    return [start, start + width];
  }

  // The tokens of a turn: ids with their logprob (null for what was sent), mask 1 exactly on what was sampled.
  function tokens(turn) {
    const record = turn.tokens;
    if (!record) return [];
    const sent = (record.prompt_new ?? []).map((id) => ({ id, logprob: null, mask: 0 }));
    return [...sent, ...record.ids.map((id, at) => ({ id, logprob: record.logprobs[at] ?? null, mask: 1 }))];
  }

  // 0 for a certain token, 1 for one of probability 1 in 1000 or less.
  const surprise = (logprob) => Math.min(1, Math.max(0, -logprob / Math.log(1000)));

  function duration(microseconds) {
    if (microseconds < 1000) return `${Math.round(microseconds)} µs`;
    if (microseconds < 1e6) return `${(microseconds / 1000).toPrecision(3)} ms`;
    if (microseconds < 60e6) return `${(microseconds / 1e6).toPrecision(3)} s`;
    const seconds = Math.round(microseconds / 1e6);
    return seconds < 3600
      ? `${Math.floor(seconds / 60)} min ${seconds % 60} s`
      : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }

  const dollars = (cost) => (cost == null ? "–" : cost === 0 ? "$0" : cost < 0.01 ? `$${cost.toPrecision(2)}` : `$${cost.toFixed(2)}`);
  const count = (number) => number.toLocaleString("en-US");
  const plural = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;

  return {
    OUTCOMES, build, totals, rows, shown, grouped, codeOf, highlight, bars, zoomed, tokens, surprise, endOf, duration, dollars,
    count, plural,
  };
})();
if (typeof module !== "undefined") module.exports = Model;
