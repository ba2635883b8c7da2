"use strict";
// (f) The memory of a call: each buffer is a block from its first kernel to its last.

const PLACES = {
  arena: 212,
  small: 190,
  output: 130,
  own: 40,
  library: 300,
  input: 0,
  constant: 0,
};

const placeColor = (place, name) => {
  const hue = PLACES[place],
    grey = place === "input" || place === "constant";
  let jitter = 0;
  for (let k = 0; k < name.length; k++) jitter = (jitter * 31 + name.charCodeAt(k)) % 17;
  return `hsl(${hue} ${grey ? "6%" : "48%"} ${isDark() ? 30 + jitter : 62 + jitter}%)`;
};

// Bytes that are alive at each kernel.
function liveBytes(program) {
  const live = new Float64Array(Math.max(program.kernels.length, 1) + 1);
  for (const buffer of program.buffers) {
    live[buffer.first] += buffer.bytes;
    live[buffer.last + 1] -= buffer.bytes;
  }
  for (let k = 1; k < live.length; k++) live[k] += live[k - 1];
  return live.subarray(0, Math.max(program.kernels.length, 1));
}

// Each block at the lowest place where nothing else lies in its time.
function stacked(buffers) {
  const placed = [];
  let top = 0;
  for (const buffer of [...buffers].sort(
    (a, b) => b.last - b.first - (a.last - a.first) || b.bytes - a.bytes,
  )) {
    let y = top;
    if (buffers.length <= 1500) {
      y = 0;
      for (const [low, high] of placed
        .filter((one) => one.buffer.first <= buffer.last && buffer.first <= one.buffer.last)
        .map((one) => [one.y, one.y + one.buffer.bytes])
        .sort((a, b) => a[0] - b[0])) {
        if (y + buffer.bytes <= low) break;
        y = Math.max(y, high);
      }
    }
    placed.push({ buffer, y });
    top = Math.max(top, y + buffer.bytes);
  }
  return { blocks: placed, top };
}

class MemoryChart {
  constructor(title, program, blocks, top, height) {
    Object.assign(this, { title, program, blocks, top: Math.max(top, 1), height });
    this.steps = Math.max(program.kernels.length, 1);
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": title + ": arrow keys go through its blocks",
    });
    this.canvas.addEventListener("mousemove", (event) => {
      const block = this.at(event.offsetX, event.offsetY);
      if (block) this.tip(block.buffer, event.clientX, event.clientY);
      else hideTip();
    });
    this.canvas.addEventListener("mouseleave", hideTip);
    this.canvas.addEventListener("click", (event) => {
      const block = this.at(event.offsetX, event.offsetY);
      if (block) this.choose(block);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !this.blocks.length) return;
      event.preventDefault();
      this.ordered =
        this.ordered || [...this.blocks].sort((a, b) => a.buffer.first - b.buffer.first);
      const at = this.ordered.indexOf(this.chosen);
      this.choose(this.ordered[Math.max(0, Math.min(this.ordered.length - 1, at + step))]);
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  x(step) {
    return 4 + (step / this.steps) * (this.canvas.clientWidth - 8);
  }
  y(bytes) {
    return this.height - 18 - (bytes / this.top) * (this.height - 26);
  }

  at(x, y) {
    for (let k = this.blocks.length - 1; k >= 0; k--) {
      const { buffer, y: from } = this.blocks[k];
      if (
        x >= this.x(buffer.first) &&
        x <= this.x(buffer.last + 1) &&
        y <= this.y(from) &&
        y >= this.y(from + buffer.bytes)
      )
        return this.blocks[k];
    }
    return null;
  }

  facts(buffer) {
    const kernel = (k) =>
      this.program.kernels[k] ? `${k + 1} ${this.program.kernels[k].name}` : "–";
    return [
      ["holds", buffer.value],
      ["bytes", sizeText(buffer.bytes)],
      ["place", buffer.place + (buffer.offset === null ? "" : `, from byte ${buffer.offset}`)],
      ["first kernel", kernel(buffer.first)],
      ["last kernel", kernel(buffer.last)],
    ];
  }

  tip(buffer, x, y) {
    showTip(x, y, buffer.name, this.facts(buffer));
  }

  choose(block) {
    this.chosen = block;
    if (this.onChoose) this.onChoose(block.buffer, this.facts(block.buffer));
    this.draw();
  }

  draw() {
    const context = sized(this.canvas, this.height),
      width = this.canvas.clientWidth;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const { buffer, y } of this.blocks) {
      const left = this.x(buffer.first),
        right = this.x(buffer.last + 1),
        top = this.y(y + buffer.bytes),
        bottom = this.y(y);
      context.fillStyle = placeColor(buffer.place, buffer.name);
      context.fillRect(
        left,
        top,
        Math.max(0.8, right - left - (right - left > 3 ? 0.5 : 0)),
        Math.max(0.8, bottom - top - (bottom - top > 3 ? 0.5 : 0)),
      );
      if (bottom - top > 12 && right - left > 30) {
        context.fillStyle = style("--text");
        fitted(context, `${buffer.name} ${buffer.value}`, left, (top + bottom) / 2, right - left);
      }
    }
    context.fillStyle = style("--quiet");
    for (const at of ticks(0, this.steps, Math.min(10, this.steps)).filter(Number.isInteger))
      context.fillText(String(at + 1), this.x(at) + 2, this.height - 8);
    for (const at of ticks(0, this.top, 3))
      context.fillText(sizeText(at), width - 70, this.y(at) - 6);
    if (this.chosen) {
      const { buffer, y } = this.chosen;
      context.strokeStyle = style("--accent");
      context.lineWidth = 2;
      context.strokeRect(
        this.x(buffer.first),
        this.y(y + buffer.bytes),
        Math.max(2, this.x(buffer.last + 1) - this.x(buffer.first)),
        Math.max(2, this.y(y) - this.y(y + buffer.bytes)),
      );
      context.lineWidth = 1;
    }
  }
}

function drawLive(canvas, program) {
  const live = liveBytes(program),
    most = Math.max(...live, 1),
    height = 90,
    context = sized(canvas, height),
    width = canvas.clientWidth;
  const x = (k) => 4 + (k / live.length) * (width - 8),
    y = (bytes) => height - 6 - (bytes / most) * (height - 26),
    peak = live.indexOf(most);
  context.fillStyle = style("--bar");
  context.beginPath();
  context.moveTo(x(0), y(0));
  for (let k = 0; k < live.length; k++) {
    context.lineTo(x(k), y(live[k]));
    context.lineTo(x(k + 1), y(live[k]));
  }
  context.lineTo(x(live.length), y(0));
  context.fill();
  context.fillStyle = style("--bad");
  context.fillRect(x(peak), y(most) - 1, Math.max(2, x(peak + 1) - x(peak)), 3);
  context.fillStyle = style("--text");
  context.font = "11px system-ui, sans-serif";
  const text = `most: ${sizeText(most)} at kernel ${peak + 1}`;
  context.fillText(text, Math.min(x(peak), width - context.measureText(text).width - 8), 12);
}

function drawMemory(element) {
  const programs = page.data.report.programs
    .map((program, p) => ({ program, p }))
    .filter((one) => one.program.buffers.length);
  if (!programs.length) {
    add(element, h("p", null, "No program has a plan of its memory."));
    return;
  }
  const select = h(
    "select",
    { "aria-label": "program" },
    programs.map(({ program, p }) =>
      h("option", { value: p }, `${kindOf(program)}: ${shortPlaces(program.name)}`),
    ),
  );
  const body = h("div"),
    panel = page.panels.find((one) => one.id === "memory");
  const show = () => {
    const program = page.data.report.programs[select.value],
      arena = program.buffers.filter((buffer) => buffer.offset !== null),
      others = program.buffers.filter((buffer) => buffer.offset === null);
    const live = h("canvas", { role: "img", "aria-label": "bytes that are alive at each kernel" }),
      said = h("p", { "aria-live": "polite", class: "quiet" }, "Hover over a block, or click it.");
    const rest = stacked(others);
    const charts = [];
    if (arena.length)
      charts.push(
        new MemoryChart(
          `the arena, ${sizeText(program.arena_bytes)}: where each temporary lies`,
          program,
          arena.map((buffer) => ({ buffer, y: buffer.offset })),
          Math.max(
            program.arena_bytes || 0,
            ...arena.map((buffer) => buffer.offset + buffer.bytes),
          ),
          300,
        ),
      );
    if (others.length)
      charts.push(
        new MemoryChart(
          "inputs, results and memory of its own, stacked",
          program,
          rest.blocks,
          rest.top,
          300,
        ),
      );
    for (const chart of charts)
      chart.onChoose = (buffer, facts) =>
        fill(
          said,
          h("b", null, buffer.name),
          " ",
          facts.map(([name, text]) => `${name} ${text}; `),
        );
    fill(
      body,
      h(
        "div",
        { class: "facts", id: "memory-facts" },
        h(
          "div",
          null,
          "peak, as planned ",
          h(
            "b",
            { "data-fact": "peak", "data-value": program.peak_bytes },
            sizeText(program.peak_bytes),
          ),
        ),
        h(
          "div",
          null,
          "arena ",
          h(
            "b",
            { "data-fact": "arena", "data-value": program.arena_bytes },
            sizeText(program.arena_bytes),
          ),
        ),
        h(
          "div",
          null,
          "buffers ",
          h(
            "b",
            { "data-fact": "buffers", "data-value": program.buffers.length },
            String(program.buffers.length),
          ),
        ),
      ),
      h("h2", null, "alive at each kernel"),
      live,
      ...charts.flatMap((chart) => [h("h2", null, chart.title), chart.canvas]),
      said,
      h(
        "p",
        null,
        Object.keys(PLACES).map((place) =>
          h(
            "span",
            { style: "margin-right:14px" },
            h("span", { class: "key", style: `background:${placeColor(place, "")}` }),
            place,
          ),
        ),
      ),
    );
    page.memory = { program, charts, live: liveBytes(program) };
    panel.redraw = () => {
      drawLive(live, program);
      charts.forEach((chart) => chart.draw());
    };
    panel.redraw();
  };
  select.addEventListener("change", show);
  page.showMemory = (p, name) => {
    if (select.value !== String(p)) {
      select.value = String(p);
      show();
    }
    for (const chart of page.memory.charts) {
      const block = chart.blocks.find((one) => one.buffer.name === name);
      if (block) {
        chart.choose(block);
        chart.canvas.scrollIntoView({ block: "center" });
      }
    }
  };
  add(
    element,
    h(
      "div",
      { class: "tools" },
      select,
      h(
        "span",
        { class: "quiet" },
        "From left to right the kernels in order; from the bottom up bytes.",
      ),
    ),
    body,
  );
  show();
}

function openBuffer(p, name) {
  openPanel("memory");
  if (page.showMemory) page.showMemory(p, name);
}
