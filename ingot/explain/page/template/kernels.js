"use strict";
// (b) The kernels: a row each, and all that is known of the one that is chosen.

function kernelItems(data) {
  const modules = new Map();
  for (const timeline of data.timelines) {
    for (const lane of timeline.lanes)
      for (const event of lane.events)
        if (event.kernel !== null) modules.set(event.program + "/" + event.kernel, event.module);
  }
  const items = [];
  data.report.programs.forEach((program, p) =>
    program.kernels.forEach((kernel, k) => {
      const bytes = kernel.reads_bytes + kernel.writes_bytes,
        flops = data.flops[p] ? data.flops[p][k] : null;
      const module = kernel.modules.join(", ") || modules.get(p + "/" + k) || "";
      items.push({
        p,
        k,
        number: items.length + 1,
        program,
        kernel,
        bytes,
        flops,
        module,
        limit: shareOfLimit(bytes, flops, kernel.seconds),
      });
    }),
  );
  return items;
}

const kindOf = (program) =>
  (program.kind === "inside" ? "inside" : program.kind) +
  (program.region ? ` ${program.region}` : "");

function drawKernels(element) {
  const items = (page.kernels = page.kernels || kernelItems(page.data)),
    most = Math.max(...items.map((item) => item.kernel.seconds || 0), 0);
  const measured = most > 0,
    largest = Math.max(...items.map((item) => item.bytes), 1);
  const columns = [
    {
      name: "#",
      width: 52,
      number: true,
      value: (item) => item.number,
      text: (item) => String(item.number),
    },
    { name: "program", width: 86, value: (item) => item.p, text: (item) => kindOf(item.program) },
    {
      name: "kernel",
      width: 180,
      value: (item) => item.kernel.name,
      text: (item) => item.kernel.name,
    },
    measured && {
      name: "time",
      width: 84,
      number: true,
      value: (item) => item.kernel.seconds,
      text: (item) => timeText(item.kernel.seconds),
      bar: (item) => (item.kernel.seconds || 0) / most,
    },
    {
      name: "bytes",
      width: 84,
      number: true,
      value: (item) => item.bytes,
      text: (item) => sizeText(item.bytes),
      bar: measured ? null : (item) => item.bytes / largest,
    },
    measured &&
      page.data.limits && {
        name: "of limit",
        width: 124,
        number: true,
        value: (item) => item.limit && item.limit.share,
        text: (item) =>
          item.limit
            ? `${item.limit.known ? "" : "≥ "}${percent(item.limit.share)} ${item.limit.by}`
            : "–",
      },
    {
      name: "line",
      width: 150,
      value: (item) => item.kernel.where,
      text: (item) => placeText(item.kernel.where),
    },
    { name: "module", width: 180, value: (item) => item.module, text: (item) => item.module },
    {
      name: "ops",
      width: 0,
      value: (item) => opsText(item.kernel.ops),
      text: (item) => opsText(item.kernel.ops),
    },
  ].filter(Boolean);
  const detail = h(
    "div",
    { class: "detail", tabindex: "0", "aria-label": "the kernel that is chosen" },
    h("p", { class: "quiet" }, "Choose a kernel."),
  );
  const table = (page.kernelTable = new BigTable(columns, items, (item) =>
    fill(detail, kernelDetail(item)),
  ));
  const shown = h("span", { class: "quiet" }, plural(items.length, "kernel"));
  const search = h("input", {
    type: "search",
    placeholder: "name, op, line, module (/)",
    "aria-label": "search kernels",
  });
  const programs = h(
    "select",
    { "aria-label": "program" },
    h("option", { value: "" }, "all programs"),
    page.data.report.programs.map((program, p) =>
      h("option", { value: p }, `${kindOf(program)}: ${shortPlaces(program.name)}`),
    ),
  );
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean),
      program = programs.value;
    table.filter((item) => {
      if (program !== "" && item.p !== Number(program)) return false;
      item.words =
        item.words ||
        [
          item.kernel.name,
          item.kernel.ops.join(" "),
          item.kernel.lines.join(" "),
          item.module,
          item.kernel.kind,
        ]
          .join(" ")
          .toLowerCase();
      return words.every((word) => item.words.includes(word));
    });
    shown.textContent =
      table.items.length === items.length
        ? plural(items.length, "kernel")
        : `${table.items.length} of ${plural(items.length, "kernel")}`;
  };
  search.addEventListener("input", filter);
  programs.addEventListener("change", filter);
  add(
    element,
    h(
      "div",
      { class: "split" },
      h("section", null, h("div", { class: "tools" }, search, programs, shown), table.element),
      detail,
    ),
  );
  table.draw();
  if (items.length) table.choose(items[0]);
}

function openKernel(p, k) {
  openPanel("kernels");
  const item = page.kernels.find((one) => one.p === p && one.k === k);
  if (!item) return;
  page.kernelTable.show(page.kernelTable.all);
  page.kernelTable.choose(item, true);
  page.kernelTable.element.focus();
}

function sourceKind(kernel) {
  if (kernel.kind === "extern") return "library function";
  if (/@triton\.jit|tl\.(load|program_id)/.test(kernel.source)) return "Triton";
  if (/^define |^\s*%|getelementptr/m.test(kernel.source)) return "LLVM IR";
  return "C++";
}

function lineButtons(lines) {
  return lines.map((where) =>
    h(
      "div",
      null,
      h("span", { class: "mono", title: where }, placeText(where)),
      "  ",
      h("code", null, codeAt(where)),
    ),
  );
}

function kernelDetail(item) {
  const { kernel, program } = item,
    total = sum(program.kernels.map((one) => one.seconds));
  const buffer = (name) => {
    const found = program.buffers.find((one) => one.name === name);
    return h(
      "button",
      {
        class: "chip",
        title: "in the memory of the call",
        onclick: () => openBuffer(item.p, name),
      },
      found ? `${name} ${found.value} ${sizeText(found.bytes)} ${found.place}` : name,
    );
  };
  const moved = kernel.seconds ? sizeText(item.bytes / kernel.seconds) + " in a second" : "–";
  const facts = [
    [
      "program",
      `${shortPlaces(program.name)}, ${kindOf(program)}, ` +
        `kernel ${item.k + 1} of ${program.kernels.length}`,
    ],
    [
      "kind",
      kernel.kind === "fused" ? "fused: a kernel of Ingot's" : "extern: a call of a library",
    ],
    [
      "time",
      h(
        "td",
        { "data-fact": "seconds", "data-value": kernel.seconds },
        kernel.seconds === null
          ? "not measured"
          : `${timeText(kernel.seconds)}, ` +
              `${percent(total ? kernel.seconds / total : null)} of the program's kernels`,
      ),
    ],
    [
      "bytes",
      h(
        "td",
        { "data-fact": "bytes", "data-value": item.bytes },
        `reads ${sizeText(kernel.reads_bytes)}, writes ${sizeText(kernel.writes_bytes)}`,
      ),
    ],
    ["moves", moved],
    [
      "products",
      item.flops === null || item.flops === undefined
        ? "not known"
        : item.flops
          ? (item.flops / 1e9).toPrecision(3) + " GFLOP"
          : "none",
    ],
    [
      "at the limit",
      item.limit
        ? `${timeText(item.limit.least)}, bound by ${item.limit.by}: ` +
          `${item.limit.known ? "" : "at least "}${percent(item.limit.share)} of it is reached`
        : "–",
    ],
    ["module", item.module || "–"],
  ];
  const block = (title, text) =>
    text ? [h("h3", null, title), h("pre", { "data-text": title }, text)] : [];
  return [
    h("h2", null, kernel.name),
    rowsTable(null, facts),
    h("h3", null, "lines"),
    lineButtons(kernel.lines),
    h("h3", null, "ops"),
    h(
      "div",
      { "data-fact": "ops" },
      kernel.ops.map((op, k) =>
        h(
          "button",
          {
            class: "chip",
            title: kernel.nodes[k] ? `node ${kernel.nodes[k]}` : "",
            onclick: () => openNode(item.p, kernel.nodes[k]),
          },
          shortOp(op),
        ),
      ),
    ),
    h("h3", null, "reads"),
    h("div", null, kernel.buffers_read.map(buffer)),
    h("h3", null, "writes"),
    h("div", null, kernel.buffers_written.map(buffer)),
    ...(kernel.loops
      ? block("loop IR", kernel.loops)
      : program.texts.loops && kernel.kind === "fused"
        ? [
            h("h3", null, "loop IR"),
            h(
              "p",
              { class: "quiet" },
              "Of layers that are alike a few are compiled: " +
                "the program's loop IR is among the graph's texts.",
            ),
          ]
        : []),
    ...block(sourceKind(kernel), kernel.source),
  ].flat();
}
