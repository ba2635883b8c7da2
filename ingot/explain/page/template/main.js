"use strict";
// The head of the page, and its beginning.

function headOf(report) {
  const programs = report.programs,
    forward = [],
    backward = [];
  let kind = "forward";
  for (const program of programs) {
    if (program.kind !== "inside") kind = program.kind;
    (kind === "backward" ? backward : forward).push(...program.kernels);
  }
  const fact = (name, label, value, text) =>
    value === null || value === undefined
      ? null
      : h(
          "div",
          null,
          label + " ",
          h(
            "b",
            { "data-fact": name, "data-value": value },
            text === undefined ? String(value) : text,
          ),
        );
  return [
    h("h1", null, report.name),
    " ",
    h("span", { class: "mono quiet", title: report.where }, placeText(report.where)),
    h("span", { class: "quiet" }, `  ingot ${report.ingot}`),
    h(
      "div",
      { class: "facts", id: "facts" },
      fact("graphs", "graphs", report.graph_count),
      fact("breaks", "breaks", report.break_count),
      fact("kernels", "kernels", forward.length),
      backward.length ? fact("backward-kernels", "in the backward", backward.length) : null,
      fact("guards", "guards", report.guards.length),
      fact("peak", "peak memory", report.peak_bytes, sizeText(report.peak_bytes)),
      fact(
        "backward-peak",
        "in the backward",
        report.backward_peak_bytes,
        sizeText(report.backward_peak_bytes),
      ),
      fact("first-call", "first call", report.first_call, timeText(report.first_call)),
      fact(
        "compiled",
        "compiled in",
        sum(Object.values(report.stages)) + sum(Object.values(report.backward_stages)),
        timeText(sum(Object.values(report.stages)) + sum(Object.values(report.backward_stages))),
      ),
    ),
    programs
      .filter((program) => program.eager)
      .map((program) =>
        h("div", { style: "color:var(--bad)" }, `${program.name} runs in eager: ${program.eager}`),
      ),
    document.body.dataset.leftOut !== "0" &&
      h(
        "div",
        { class: "quiet" },
        document.body.dataset.leftOut +
          " of the largest texts are left out, to keep this file small.",
      ),
  ]
    .flat(Infinity)
    .filter(Boolean);
}

async function begin() {
  try {
    const theme = localStorage.getItem("ingot-theme");
    if (theme) document.documentElement.dataset.theme = theme;
  } catch {
    /* a file may have no storage */
  }
  page.data = await readData();
  const report = page.data.report,
    kernels = sum(report.programs.map((program) => program.kernels.length));
  document.getElementById("head").replaceChildren(...headOf(report));
  addPanel({
    id: "timeline",
    title: "Timeline",
    draw: drawTimeline,
    redraw: () => page.flame && page.flame.draw(),
  });
  addPanel({
    id: "kernels",
    title: "Kernels",
    count: kernels,
    draw: drawKernels,
    redraw: () => page.kernelTable && page.kernelTable.draw(),
  });
  addPanel({ id: "graph", title: "Graph", draw: drawGraph });
  addPanel({ id: "breaks", title: "Breaks", count: report.break_count, draw: drawBreaks });
  addPanel({
    id: "history",
    title: "Guards and history",
    count: report.history.length,
    draw: drawHistory,
  });
  addPanel({ id: "memory", title: "Memory", draw: drawMemory });
  addPanel({ id: "compile", title: "Compile time", draw: drawCompile });
  document.getElementById("tabs").replaceChildren(...page.panels.map((panel) => panel.tab));
  document.getElementById("panels").replaceChildren(...page.panels.map((panel) => panel.element));
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.addEventListener("keydown", onKey);
  darkQuery.addEventListener("change", redraw);
  openPanel("timeline");
  requestAnimationFrame(() => {
    page.ready = true;
    page.seconds = (performance.now() - 0) / 1000; // from the begin of the navigation
  });
}

begin().catch((error) => {
  page.error = String((error && error.stack) || error);
  document
    .getElementById("panels")
    .replaceChildren(document.createTextNode("This page could not be drawn: " + page.error));
});
addEventListener("error", (event) => {
  page.error = String((event.error && event.error.stack) || event.message);
});
