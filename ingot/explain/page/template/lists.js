"use strict";
// (d) breaks, (e) guards and recompilations, (g) the time of compiling.

function drawBreaks(element) {
  const { report, break_costs: costs } = page.data;
  if (!report.breaks.length) {
    add(element, h("p", null, "No break: the function is one graph."));
    return;
  }
  add(
    element,
    h(
      "p",
      { class: "quiet" },
      `${plural(report.graph_count, "graph")}, ${plural(report.break_count, "break")}. ` +
        "Behind a break the instruction runs for real, and what follows is a graph of its own.",
    ),
  );
  report.breaks.forEach((item, number) => {
    const cost = costs[number] || {};
    add(
      element,
      h(
        "article",
        { class: "card break", tabindex: "0" },
        h("h2", null, `${number + 1}. `, h("span", { class: "reason" }, item.reason)),
        h(
          "div",
          null,
          h(
            "span",
            { class: "chip" + (item.eager ? " bad" : "") },
            item.eager ? "runs in eager from here" : "break",
          ),
          h("span", { class: "chip" }, item.id),
          h(
            "span",
            { class: "mono", title: `${item.file}:${item.line}` },
            placeText(`${item.file}:${item.line}`),
          ),
          ` in ${item.function}`,
        ),
        h(
          "div",
          { class: "mono", style: "margin:8px 0" },
          item.code.map((line) =>
            h(
              "div",
              { class: "code-line" + (line.line === item.line ? " here" : "") },
              h("span", { class: "n" }, String(line.line)),
              h("span", { class: "t" }, line.text),
            ),
          ),
        ),
        item.hint && h("p", null, "hint: ", item.hint),
        rowsTable(
          ["what it costs", ""],
          [
            [
              "between the two graphs, in the call",
              numberCell(timeText(cost.seconds), cost.seconds),
            ],
            ["written by the one, read by the other", numberCell(sizeText(cost.bytes), cost.bytes)],
            [
              "compiling what follows",
              numberCell(timeText(cost.compile_seconds), cost.compile_seconds),
            ],
          ].filter((row) => row[1].textContent !== "–"),
        ),
      ),
    );
  });
}

const LISTS = [
  ["recompiles", "compiled again because"],
  ["fixed_sizes", "sizes that are compiled for"],
  ["cuda_graphs", "CUDA graphs"],
  ["tuned", "tuned products"],
  ["kept", "the cache"],
];

function drawHistory(element) {
  const report = page.data.report;
  add(element, h("h2", null, `${plural(report.history.length, "compilation")}, oldest first`));
  add(
    element,
    h(
      "ol",
      { class: "history" },
      report.history.map((entry) =>
        h(
          "li",
          { class: entry.outcome },
          h(
            "div",
            null,
            h("b", null, shortPlaces(entry.name)),
            " ",
            h("span", { class: "mono quiet", title: entry.where }, placeText(entry.where)),
            " ",
            h(
              "span",
              { class: "chip " + ({ eager: "bad", found: "good" }[entry.outcome] || "") },
              entry.outcome,
            ),
          ),
          entry.changed &&
            h("div", { class: "changed", title: entry.changed }, shortPlaces(entry.changed)),
          entry.reason &&
            h(
              "div",
              null,
              (entry.outcome === "eager" ? "eager: " : "ends at a break: ") +
                shortPlaces(entry.reason),
            ),
          h(
            "div",
            { class: "quiet" },
            `compiled in ${timeText(entry.seconds)}`,
            entry.first_call !== null && `, its first call took ${timeText(entry.first_call)}`,
          ),
        ),
      ),
    ),
  );
  for (const [name, title] of LISTS) {
    if (report[name].length)
      add(
        element,
        h("h2", null, title),
        h(
          "ul",
          { id: "list-" + name },
          report[name].map((text) => h("li", { title: text }, shortPlaces(text))),
        ),
      );
  }
  const guards = [];
  report.programs.forEach((program, p) =>
    program.guards.forEach((text) => guards.push({ p, program, text })),
  );
  const table = new BigTable(
    [
      {
        name: "#",
        width: 56,
        number: true,
        value: (item) => guards.indexOf(item),
        text: (item) => String(guards.indexOf(item) + 1),
      },
      {
        name: "of",
        width: 190,
        value: (item) => item.p,
        text: (item) => shortPlaces(item.program.name),
      },
      { name: "guard", width: 0, value: (item) => item.text, text: (item) => item.text },
    ],
    guards,
    (item) => fill(chosen, h("pre", null, item.text)),
  );
  const chosen = h("div", null);
  const search = h("input", {
    type: "search",
    placeholder: "search guards (/)",
    "aria-label": "search guards",
    oninput: () =>
      table.filter((item) => item.text.toLowerCase().includes(search.value.toLowerCase())),
  });
  table.element.style.height = "340px";
  table.element.id = "guards";
  add(
    element,
    h(
      "h2",
      null,
      `${plural(report.guards.length, "guard")} of the regions as they were compiled last`,
    ),
    h("div", { class: "tools" }, search),
    table.element,
    chosen,
  );
  table.draw();
}

function drawCompile(element) {
  const report = page.data.report,
    parts = [
      ["forward", report.stages],
      ["backward", report.backward_stages],
    ].filter((part) => Object.keys(part[1]).length);
  const names = [...new Set(parts.flatMap((part) => Object.keys(part[1])))];
  const most = Math.max(...parts.flatMap((part) => Object.values(part[1])), 1e-9);
  for (const [title, stages] of parts) {
    const total = sum(Object.values(stages));
    add(
      element,
      h("h2", null, `${title}: ${timeText(total)}`),
      h(
        "div",
        { class: "stack", role: "img", "aria-label": title },
        Object.entries(stages).map(([name, seconds]) =>
          h("span", {
            style: `flex:${seconds / total};background:${stageColor(names, name)}`,
            title: `${name} ${timeText(seconds)}`,
          }),
        ),
      ),
      rowsTable(
        ["stage", "time", "share", ""],
        Object.entries(stages).map(([name, seconds]) => [
          h(
            "td",
            null,
            h("span", { class: "key", style: `background:${stageColor(names, name)}` }),
            name,
          ),
          numberCell(timeText(seconds), seconds),
          numberCell(percent(seconds / total)),
          h(
            "td",
            { class: "bar", style: `width:240px;--share:${((seconds / most) * 100).toFixed(1)}%` },
            " ",
          ),
        ]),
        { "data-stages": title },
      ),
    );
  }
  if (report.first_call !== null)
    add(
      element,
      h(
        "p",
        null,
        "The calls that were compiled for took ",
        h("b", null, timeText(report.first_call)),
        ".",
      ),
    );
  add(
    element,
    h("h2", null, "by program"),
    rowsTable(
      ["program", "kind", ...names, "all"],
      report.programs.map((program) => [
        shortPlaces(program.name),
        kindOf(program),
        ...names.map((name) =>
          numberCell(program.stages[name] === undefined ? "" : timeText(program.stages[name])),
        ),
        numberCell(timeText(sum(Object.values(program.stages)))),
      ]),
    ),
  );
}

const stageColor = (names, name) =>
  `hsl(${(names.indexOf(name) * 360) / Math.max(names.length, 1)} 45% ${isDark() ? "45%" : "62%"})`;
