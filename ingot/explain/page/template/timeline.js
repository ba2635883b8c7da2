"use strict";
// (a) A call as a flame graph, eager above Ingot, to scale: rows are the user's modules and lines.

const FLAME_ROW = 18,
  LANE_HEAD = 20,
  AXIS = 22;

// Where no call was recorded: the kernels one behind the other, as long as they were measured to
// take, or as their bytes are.
function timelineOfKernels(data) {
  const programs = data.report.programs,
    all = programs.flatMap((program) => program.kernels);
  const measured = all.some((kernel) => kernel.seconds !== null);
  const events = [];
  let at = 0,
    phase = "forward";
  programs.forEach((program, p) => {
    if (program.kind !== "inside") phase = program.kind;
    program.kernels.forEach((kernel, k) => {
      const moved = kernel.reads_bytes + kernel.writes_bytes;
      const seconds = measured ? kernel.seconds || 0 : Math.max(moved, 1) * 1e-11;
      events.push({
        name: kernel.name,
        start: at,
        seconds,
        phase,
        module: kernel.modules[0] || "",
        where: kernel.where,
        bytes: moved,
        flops: data.flops[p] ? data.flops[p][k] : null,
        program: p,
        kernel: k,
      });
      at += seconds;
    });
  });
  return {
    name: "Ingot",
    seconds: at,
    measured,
    made: true,
    lanes: [
      {
        name: measured ? "kernels, as measured one by one" : "kernels, as long as their bytes",
        gpu: false,
        events,
      },
    ],
  };
}

// "self.blocks[0].norm" as its steps: [["self", "self"], ["blocks[0]", "self.blocks[0]"], ...].
function modulePath(module) {
  const parts = module ? module.match(/\.?[^.[]*\[[^\]]*\]|\.?[^.[]+/g) || [] : [];
  let path = "";
  return parts.map((part) => [part.replace(/^\./, ""), (path += part)]);
}

// The boxes of a lane, by row; those of the same module or line side by side are one.
function flameOf(events) {
  const rows = [],
    open = [];
  const withPhase = events.some((event) => event.phase !== "forward");
  for (const event of events) {
    const stack = withPhase ? [["phase", event.phase, event.phase]] : [];
    for (const [label, path] of modulePath(event.module)) stack.push(["module", label, path]);
    if (event.where)
      stack.push(["line", placeText(event.where) + "  " + codeAt(event.where), event.where]);
    const end = event.start + event.seconds;
    let same = true;
    for (let depth = 0; depth < stack.length; depth++) {
      const [kind, label, key] = stack[depth];
      same = same && depth < open.length && open[depth].key === key && open[depth].kind === kind;
      if (!same) {
        open.length = depth;
        const box = {
          kind,
          label,
          key,
          depth,
          start: event.start,
          end,
          events: 0,
          busy: 0,
          bytes: 0,
          flops: 0,
          phase: event.phase,
        };
        open.push(box);
        (rows[depth] = rows[depth] || []).push(box);
      }
      const box = open[depth];
      box.end = Math.max(box.end, end);
      box.events += 1;
      box.busy += event.seconds;
      box.bytes += event.bytes || 0;
      box.flops += event.flops || 0;
    }
    open.length = stack.length;
    const depth = stack.length;
    (rows[depth] = rows[depth] || []).push({
      kind: "op",
      label: event.name,
      key: event.name,
      depth,
      start: event.start,
      end,
      events: 1,
      busy: event.seconds,
      bytes: event.bytes,
      flops: event.flops,
      phase: event.phase,
      event,
    });
  }
  for (let depth = 0; depth < rows.length; depth++) rows[depth] = rows[depth] || [];
  return rows;
}

class Flame {
  constructor(timelines) {
    this.lanes = [];
    let y = AXIS;
    for (const timeline of timelines) {
      for (const lane of timeline.lanes) {
        const rows = flameOf(lane.events);
        this.lanes.push({
          timeline,
          lane,
          rows,
          y,
          top: y + LANE_HEAD,
          head: `${timeline.name}: ${lane.name}`,
        });
        y += LANE_HEAD + rows.length * FLAME_ROW + 12;
      }
    }
    this.height = y + 4;
    this.whole = Math.max(...timelines.map((timeline) => timeline.seconds), 1e-9);
    this.from = 0;
    this.to = this.whole;
    this.chosen = null;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": "timeline of a call; arrow keys go through its events",
    });
    this.said = h("p", { class: "quiet", "aria-live": "polite" }, " ");
    this.listen();
  }

  listen() {
    const canvas = this.canvas;
    let dragged = null;
    canvas.addEventListener("mousemove", (event) => {
      if (dragged) {
        const by = ((dragged.x - event.offsetX) * (dragged.to - dragged.from)) / canvas.clientWidth;
        if (Math.abs(dragged.x - event.offsetX) > 3) dragged.moved = true;
        this.view(dragged.from + by, dragged.to + by);
        return;
      }
      const box = this.boxAt(event.offsetX, event.offsetY);
      canvas.style.cursor = box ? "pointer" : "default";
      if (box) this.tip(box, event.clientX, event.clientY);
      else hideTip();
    });
    canvas.addEventListener("mouseleave", hideTip);
    canvas.addEventListener("mousedown", (event) => {
      dragged = { x: event.offsetX, from: this.from, to: this.to, moved: false };
    });
    addEventListener("mouseup", () => {
      const was = dragged;
      dragged = null;
      this.wasDragged = was && was.moved;
    });
    canvas.addEventListener("click", (event) => {
      if (this.wasDragged) return;
      const box = this.boxAt(event.offsetX, event.offsetY);
      if (box && box.event) this.choose(box);
      else if (box)
        this.view(box.start - (box.end - box.start) * 0.02, box.end + (box.end - box.start) * 0.02);
    });
    canvas.addEventListener("dblclick", () => this.chosen && this.open(this.chosen));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY))
          return;
        event.preventDefault();
        const span = this.to - this.from;
        if (event.ctrlKey)
          this.zoom(Math.exp(event.deltaY * 0.004), event.offsetX / canvas.clientWidth);
        else
          this.view(
            this.from + (span * (event.deltaX || event.deltaY)) / 1000,
            this.to + (span * (event.deltaX || event.deltaY)) / 1000,
          );
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const span = this.to - this.from;
      const acts = {
        "+": () => this.zoom(0.6, 0.5),
        "=": () => this.zoom(0.6, 0.5),
        "-": () => this.zoom(1 / 0.6, 0.5),
        0: () => this.view(0, this.whole),
        a: () => this.view(this.from - span * 0.2, this.to - span * 0.2),
        d: () => this.view(this.from + span * 0.2, this.to + span * 0.2),
        ArrowRight: () => this.step(1),
        ArrowLeft: () => this.step(-1),
        ArrowDown: () => this.otherLane(1),
        ArrowUp: () => this.otherLane(-1),
        Enter: () => this.chosen && this.open(this.chosen),
      };
      if (acts[event.key] && !event.ctrlKey && !event.metaKey) {
        acts[event.key]();
        event.preventDefault();
        event.stopPropagation();
      }
    });
  }

  // -- moves --------------------------------------------------------------------------------------

  view(from, to) {
    const span = Math.min(Math.max(to - from, this.whole * 1e-6), this.whole);
    this.from = Math.min(Math.max(0, from), this.whole - span);
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, at) {
    const span = this.to - this.from,
      middle = this.from + span * at;
    this.view(middle - span * factor * at, middle + span * factor * (1 - at));
  }

  ops(lane) {
    if (!lane.ops)
      lane.ops = lane.rows
        .flat()
        .filter((box) => box.event)
        .sort((a, b) => a.start - b.start);
    return lane.ops;
  }

  step(by) {
    const lane = this.chosen ? this.laneOf(this.chosen) : this.lanes[0],
      ops = this.ops(lane);
    const at = this.chosen ? ops.indexOf(this.chosen) + by : 0;
    if (ops[at]) this.choose(ops[at], true);
  }

  otherLane(by) {
    const k = this.chosen ? this.lanes.indexOf(this.laneOf(this.chosen)) + by : 0,
      lane = this.lanes[k];
    if (!lane) return;
    const ops = this.ops(lane),
      start = this.chosen ? this.chosen.start : 0;
    const next = ops.find((box) => box.end > start) || ops[ops.length - 1];
    if (next) this.choose(next, true);
  }

  laneOf(box) {
    return this.lanes.find((lane) => (lane.rows[box.depth] || []).includes(box));
  }

  choose(box, scroll) {
    this.chosen = box;
    if (scroll && (box.end < this.from || box.start > this.to)) {
      const span = this.to - this.from;
      this.view(box.start - span / 2, box.start + span / 2);
    }
    fill(
      this.said,
      this.facts(box).map(([name, text]) =>
        h("span", null, text === "" || text === undefined ? "" : `${name} ${text}; `),
      ),
      " ",
      box.event &&
        box.event.kernel !== null &&
        h("button", { class: "link", onclick: () => this.open(box) }, "its kernel ›"),
    );
    this.draw();
  }

  open(box) {
    if (box.event && box.event.kernel !== null) openKernel(box.event.program, box.event.kernel);
  }

  // -- what is at a place -------------------------------------------------------------------------

  x(seconds) {
    return ((seconds - this.from) / (this.to - this.from)) * this.canvas.clientWidth;
  }

  boxAt(x, y) {
    const at = this.from + (x / this.canvas.clientWidth) * (this.to - this.from),
      near = (this.to - this.from) / this.canvas.clientWidth;
    for (const lane of this.lanes) {
      const row = lane.rows[Math.floor((y - lane.top) / FLAME_ROW)];
      if (!row || y < lane.top) continue;
      let low = 0,
        high = row.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (row[middle].start <= at) low = middle + 1;
        else high = middle;
      }
      for (const box of [row[low - 1], row[low]])
        if (box && box.start - near <= at && at <= box.end + near) return box;
    }
    return null;
  }

  // The place on the screen of an event of a lane, for tests.
  placeOf(lane, number) {
    const box = this.ops(lane).find((one) => one.event === lane.lane.events[number]),
      at = this.canvas.getBoundingClientRect();
    return {
      x: at.left + this.x((box.start + box.end) / 2),
      y: at.top + lane.top + box.depth * FLAME_ROW + FLAME_ROW / 2,
    };
  }

  facts(box) {
    const duration = box.end - box.start;
    return [
      ["", box.kind === "op" ? box.label : ""],
      ["time", timeText(box.kind === "op" ? box.busy : duration)],
      [
        "of it in ops",
        box.kind === "op" ? "" : `${timeText(box.busy)} in ${plural(box.events, "op")}`,
      ],
      ["of the call", percent(duration / this.laneOf(box).timeline.seconds)],
      ["begins at", timeText(box.start)],
      ["bytes", box.bytes === null || box.bytes === undefined ? "" : sizeText(box.bytes)],
      ["products", box.flops ? (box.flops / 1e9).toPrecision(3) + " GFLOP" : ""],
      ["share of the limit", limitText(box.bytes, box.flops, box.busy)],
      ["module", box.event ? box.event.module : box.kind === "module" ? box.key : ""],
      [
        "line",
        box.event ? placeText(box.event.where) : box.kind === "line" ? placeText(box.key) : "",
      ],
      ["", box.event ? codeAt(box.event.where) : ""],
      ["", box.phase === "backward" ? "backward" : ""],
    ];
  }

  tip(box, x, y) {
    showTip(x, y, box.label, this.facts(box).slice(1));
  }

  // -- drawing ------------------------------------------------------------------------------------

  draw() {
    const context = sized(this.canvas, this.height),
      width = this.canvas.clientWidth;
    const text = style("--text"),
      quiet = style("--quiet"),
      line = style("--line"),
      accent = style("--accent");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = quiet;
    context.strokeStyle = line;
    for (const at of ticks(this.from, this.to)) {
      const x = Math.round(this.x(at)) + 0.5;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, this.height);
      context.stroke();
      context.fillText(timeText(at), x + 3, 10);
    }
    for (const lane of this.lanes) {
      const end = this.x(lane.timeline.seconds);
      context.fillStyle = text;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(
        `${lane.head}  ` +
          (lane.timeline.measured === false
            ? "(not measured)"
            : `(${timeText(lane.timeline.seconds)})`),
        4,
        lane.y + LANE_HEAD / 2,
      );
      context.font = "11px system-ui, sans-serif";
      lane.rows.forEach((row, depth) =>
        this.drawRow(context, row, lane.top + depth * FLAME_ROW, width, text),
      );
      context.fillStyle = accent;
      if (end <= width + 1) context.fillRect(end - 1, lane.top, 2, lane.rows.length * FLAME_ROW);
    }
    if (this.chosen) {
      const lane = this.laneOf(this.chosen),
        x = this.x(this.chosen.start);
      context.strokeStyle = accent;
      context.lineWidth = 2;
      context.strokeRect(
        x,
        lane.top + this.chosen.depth * FLAME_ROW,
        Math.max(3, this.x(this.chosen.end) - x),
        FLAME_ROW - 2,
      );
      context.lineWidth = 1;
    }
  }

  drawRow(context, row, y, width, text) {
    let low = 0,
      high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row[middle].end < this.from) low = middle + 1;
      else high = middle;
    }
    let drawn = -1;
    for (let k = low; k < row.length && row[k].start <= this.to; k++) {
      const box = row[k],
        left = Math.max(0, this.x(box.start)),
        right = Math.min(width, this.x(box.end));
      if (right < drawn + 0.4 && right - left < 0.4) continue; // it would cover the one before
      drawn = right;
      const wide = Math.max(0.7, right - left - (right - left > 3 ? 0.6 : 0));
      context.fillStyle =
        box.kind === "phase"
          ? style(box.key === "backward" ? "--bar-2" : "--bar")
          : colorOf(
              box.kind === "op" ? box.label : box.key,
              box.kind === "op" ? null : isDark() ? "27%" : "84%",
            );
      context.fillRect(left, y, wide, FLAME_ROW - 2);
      if (wide > 22) {
        context.fillStyle = text;
        fitted(context, box.label, left, y + FLAME_ROW / 2 - 1, wide);
      }
    }
  }
}

function drawTimeline(element) {
  const data = page.data,
    recorded = data.timelines.length > 0;
  const timelines = recorded ? data.timelines : [timelineOfKernels(data)];
  const flame = (page.flame = new Flame(timelines));
  const rows = timelines.map((timeline) => {
    const cpu = timeline.lanes.flatMap((lane) => (lane.gpu ? [] : lane.events)),
      gpu = timeline.lanes.flatMap((lane) => (lane.gpu ? lane.events : []));
    const busy = sum((gpu.length ? gpu : cpu).map((event) => event.seconds));
    const backward = sum(
      (gpu.length ? gpu : cpu).map((event) => (event.phase === "backward" ? event.seconds : 0)),
    );
    return [
      timeline.name,
      numberCell(timeText(timeline.seconds), timeline.seconds),
      numberCell(timeText(busy), busy),
      numberCell(timeText(backward), backward),
      numberCell(String(cpu.length), cpu.length),
      numberCell(gpu.length ? String(gpu.length) : "–", gpu.length),
    ];
  });
  const [eager, ingot] = ["eager", "Ingot"].map((name) =>
    data.timelines.find((timeline) => timeline.name === name),
  );
  const limits = data.limits;
  const button = (label, title, act) =>
    h(
      "button",
      {
        title,
        onclick: () => {
          act();
          flame.canvas.focus();
        },
      },
      label,
    );
  add(
    element,
    h(
      "div",
      { class: "tools" },
      button("+", "closer", () => flame.zoom(0.6, 0.5)),
      button("−", "farther", () => flame.zoom(1 / 0.6, 0.5)),
      button("all", "all of it (0)", () => flame.view(0, flame.whole)),
      h(
        "span",
        { class: "quiet" },
        "Hover for bytes and the share of the limit, click a module to come closer, " +
          "an op to choose it; drag to move.",
      ),
    ),
    flame.canvas,
    flame.said,
    !recorded &&
      h(
        "p",
        { class: "quiet" },
        timelines[0].measured
          ? "No call was recorded: the kernels one behind the other, as Report.measure timed them."
          : "No call was recorded and nothing measured: each kernel is as long as its bytes. " +
              "`python -m ingot explain --html` records one, and " +
              "report.html(path, call=..., eager=...).",
      ),
    eager &&
      ingot &&
      h(
        "p",
        null,
        "eager takes ",
        h("b", { id: "speedup" }, (eager.seconds / ingot.seconds).toFixed(2)),
        " times as long as Ingot in these two calls, each under a profiler; " +
          "`python -m ingot try` compares them fairly.",
      ),
    rowsTable(["", "the call", "in ops", "of them backward", "events on CPUs", "on GPUs"], rows, {
      id: "timeline-sums",
    }),
    limits &&
      h(
        "p",
        { class: "quiet", id: "limits" },
        `The limit, measured on ${limits.device}: a copy moves ` +
          sizeText(limits.bytes_per_second) +
          " in a second, a product of float32 matrices does " +
          `${(limits.flops_per_second / 1e9).toPrecision(3)} GFLOP. ` +
          "The share is of the one that takes longer.",
      ),
  );
  flame.draw();
  new ResizeObserver(() => flame.draw()).observe(flame.canvas);
}
