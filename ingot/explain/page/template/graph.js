"use strict";
// (c) The graph, collapsible by module: forward, what is kept, backward.

const TREE_ROW = 22;

// Nodes in the modules that they are of: {label, path, children, nodes, open}.
function moduleTree(nodes) {
  const root = { label: "", path: "", depth: -1, children: new Map(), items: [], count: 0 };
  const at = new Map([["", root]]);
  for (const node of nodes) {
    let parent = root;
    const group =
      node.op === "input" || node.op === "constant"
        ? [[node.op + "s", "(" + node.op + "s)"]]
        : modulePath(node.module);
    for (const [label, path] of group) {
      let child = at.get(path);
      if (!child) {
        child = {
          label,
          path,
          depth: parent.depth + 1,
          children: new Map(),
          items: [],
          count: 0,
          parent,
        };
        at.set(path, child);
        parent.children.set(path, child);
        parent.items.push(child);
      }
      parent = child;
    }
    parent.items.push({ node, parent, depth: parent.depth + 1 });
    for (let up = parent; up; up = up.parent) up.count += 1;
  }
  return root;
}

class GraphTree {
  constructor(nodes, label, onChoose) {
    this.nodes = nodes;
    this.onChoose = onChoose;
    this.root = moduleTree(nodes);
    this.rows = new Map();
    this.users = new Map();
    for (const node of nodes)
      for (const name of node.inputs)
        this.users.set(name, [...(this.users.get(name) || []), node.name]);
    const index = (group) => {
      for (const item of group.items)
        if (item.node) this.rows.set(item.node.name, item);
        else index(item);
    };
    index(this.root);
    this.open(this.root, nodes.length <= 120 ? Infinity : 1);
    for (const group of this.root.items)
      if (group.path && group.path.startsWith("(")) group.open = false;
    this.root.open = true;
    this.near = new Set();
    this.space = h("div", { style: "position:relative" });
    this.element = h(
      "div",
      { class: "tree mono", role: "tree", tabindex: "0", "aria-label": label },
      this.space,
    );
    this.element.addEventListener("scroll", () => this.draw());
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.layout();
  }

  open(group, depth) {
    for (const item of group.items) {
      if (item.node) continue;
      item.open = depth > item.depth;
      this.open(item, depth);
    }
  }

  openAll(open) {
    this.open(this.root, open ? Infinity : 0);
    this.layout();
  }

  layout() {
    this.visible = [];
    const walk = (group) => {
      for (const item of group.items) {
        this.visible.push(item);
        if (!item.node && item.open) walk(item);
      }
    };
    walk(this.root);
    this.space.style.height = this.visible.length * TREE_ROW + "px";
    this.draw();
  }

  toggle(item, open) {
    item.open = open === undefined ? !item.open : open;
    this.layout();
  }

  // The row that stands for a node now: itself, or the closed module around it.
  standsFor(name) {
    let item = this.rows.get(name),
      shown = item;
    for (let up = item && item.parent; up; up = up.parent)
      if (!up.open && up !== this.root) shown = up;
    return shown;
  }

  mark(names) {
    this.near = new Set(names.map((name) => this.standsFor(name)).filter(Boolean));
    this.draw();
  }

  reveal(name) {
    const item = this.rows.get(name);
    if (!item) return null;
    for (let up = item.parent; up; up = up.parent) up.open = true;
    this.layout();
    return item;
  }

  scrollTo(item) {
    const at = this.visible.indexOf(item) * TREE_ROW,
      room = this.element.clientHeight;
    if (at >= 0 && (at < this.element.scrollTop || at + TREE_ROW > this.element.scrollTop + room))
      this.element.scrollTop = Math.max(0, at - room / 2);
  }

  choose(item, scroll) {
    this.chosen = item;
    if (scroll) this.scrollTo(item);
    if (item.node) this.mark([...item.node.inputs, ...(this.users.get(item.node.name) || [])]);
    else this.mark([]);
    this.onChoose(item, this);
  }

  onKey(event) {
    const at = this.visible.indexOf(this.chosen),
      pageful = Math.max(1, Math.floor(this.element.clientHeight / TREE_ROW) - 1),
      most = this.visible.length - 1;
    const steps = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + pageful,
      PageUp: at - pageful,
      Home: 0,
      End: most,
    };
    const group = this.chosen && !this.chosen.node;
    if (steps[event.key] !== undefined && most >= 0)
      this.choose(this.visible[Math.max(0, Math.min(most, steps[event.key]))], true);
    else if (event.key === "ArrowRight" && group) this.toggle(this.chosen, true);
    else if (event.key === "ArrowLeft" && group && this.chosen.open)
      this.toggle(this.chosen, false);
    else if (event.key === "ArrowLeft" && this.chosen && this.chosen.parent !== this.root)
      this.choose(this.chosen.parent, true);
    else if (event.key === "Enter" && group) this.toggle(this.chosen);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  draw() {
    const top = this.element.scrollTop,
      first = Math.max(0, Math.floor(top / TREE_ROW) - 6),
      last = Math.min(
        this.visible.length,
        first + Math.ceil((this.element.clientHeight || 600) / TREE_ROW) + 12,
      );
    const rows = [];
    for (let k = first; k < last; k++) rows.push(this.row(this.visible[k], k));
    this.space.replaceChildren(...rows, ...this.arcs(first, last));
  }

  row(item, k) {
    const attributes = {
      class: "row" + (this.near.has(item) ? " near" : ""),
      role: "treeitem",
      "aria-level": item.depth + 1,
      "aria-selected": String(item === this.chosen),
      style: `top:${k * TREE_ROW}px;padding-left:${34 + item.depth * 16}px`,
    };
    if (item.node) {
      const node = item.node;
      return h(
        "div",
        { ...attributes, onclick: () => this.choose(item), "data-node": node.name },
        h("b", null, node.source || node.name),
        h(
          "span",
          { class: "quiet" },
          node.op === "input" || node.op === "constant"
            ? ""
            : ` = ${shortOp(node.op)}(${node.inputs.join(", ")})`,
        ),
        "  ",
        node.values.join(", "),
        h("span", { class: "quiet" }, "  " + placeText(node.where)),
      );
    }
    return h(
      "div",
      {
        ...attributes,
        "aria-expanded": String(Boolean(item.open)),
        "data-module": item.path,
        onclick: () => {
          this.chosen = item;
          this.toggle(item);
          this.onChoose(item, this);
        },
      },
      item.open ? "▾ " : "▸ ",
      h("b", null, item.label),
      h("span", { class: "quiet" }, `  ${item.count}`),
    );
  }

  // The edges from the chosen row to those that it reads and that read it, on the left.
  arcs(first, last) {
    const from = this.visible.indexOf(this.chosen);
    if (from < 0 || !this.near.size) return [];
    const paths = [];
    for (const item of this.near) {
      const to = this.visible.indexOf(item);
      if (to < 0 || Math.max(from, to) < first || Math.min(from, to) > last) continue;
      const y1 = from * TREE_ROW + 11,
        y2 = to * TREE_ROW + 11,
        bend = 24 - Math.min(22, Math.abs(to - from));
      paths.push(`M30 ${y1} C ${bend} ${y1}, ${bend} ${y2}, 30 ${y2}`);
    }
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute(
      "style",
      "position:absolute;left:0;top:0;width:34px;pointer-events:none;" +
        `height:${this.visible.length * TREE_ROW}px`,
    );
    for (const d of paths) {
      const path = document.createElementNS(svg.namespaceURI, "path");
      for (const [name, value] of [
        ["d", d],
        ["fill", "none"],
        ["stroke", style("--bar-2")],
        ["stroke-width", "1.5"],
      ])
        path.setAttribute(name, value);
      svg.append(path);
    }
    return [svg];
  }
}

// The forwards, each with the backward that belongs to it, and what is inside of them.
function graphPairs(programs) {
  const pairs = [];
  programs.forEach((program, p) => {
    if (program.kind === "backward") {
      const pair = pairs.find(
        (one) =>
          one.forward &&
          one.forward.kind === "forward" &&
          one.forward.region === program.region &&
          !one.backward,
      );
      if (pair) {
        pair.backward = program;
        pair.q = p;
        return;
      }
    }
    pairs.push({ forward: program, p, title: `${kindOf(program)}: ${shortPlaces(program.name)}` });
  });
  return pairs;
}

function drawGraph(element) {
  const pairs = graphPairs(page.data.report.programs);
  const select = h(
    "select",
    { "aria-label": "program" },
    pairs.map((pair, k) => h("option", { value: k }, pair.title)),
  );
  const level = h(
    "select",
    { "aria-label": "ops" },
    h("option", { value: "nodes" }, "ATen ops"),
    h("option", { value: "calls" }, "torch calls"),
  );
  const body = h("div", { class: "three" }),
    detail = h("span", { "aria-live": "polite" }),
    texts = h("select", { "aria-label": "texts" });
  const show = () => {
    const pair = pairs[select.value],
      programs = [pair.forward, pair.backward].filter(Boolean);
    const say = (item) => {
      if (!item.node) {
        fill(detail, h("b", null, item.path), ` ${plural(item.count, "node")}`);
        return;
      }
      const node = item.node;
      fill(
        detail,
        h("b", null, node.name),
        ` ${node.op} ${node.values.join(", ")} `,
        h("span", { class: "mono" }, placeText(node.where)),
        " ",
        h("code", null, codeAt(node.where)),
      );
    };
    const trees = programs.map(
      (program, k) =>
        new GraphTree(
          k === 0 && level.value === "calls" && program.calls.length
            ? program.calls
            : program.nodes,
          program.name,
          say,
        ),
    );
    page.graph = { pair, trees };
    const kept = keptTable(pair, trees);
    const titles = [
      `${pair.forward.kind}: ${plural(trees[0].nodes.length, "node")}`,
      trees[1] && `backward: ${plural(trees[1].nodes.length, "node")}`,
    ];
    const section = (tree, title) =>
      h(
        "section",
        null,
        h(
          "div",
          { class: "tools", style: "margin:0 0 6px" },
          h("h2", { style: "margin:0" }, title),
          h("button", { onclick: () => tree.openAll(true) }, "open all"),
          h("button", { onclick: () => tree.openAll(false) }, "close all"),
        ),
        tree.element,
      );
    body.className = trees[1] ? "three" : "three one";
    fill(
      body,
      section(trees[0], titles[0]),
      ...(trees[1] ? [kept, section(trees[1], titles[1])] : [kept]),
    );
    const names = programs.flatMap((program, k) =>
      Object.keys(program.texts).map((name) => [k, name]),
    );
    texts.replaceChildren(
      h("option", { value: "" }, "texts …"),
      ...names.map(([k, name]) =>
        h("option", { value: k + " " + name }, `${programs[k].kind}: ${name}`),
      ),
    );
    texts.onchange = () => {
      const [k, name] = texts.value.split(" ");
      if (!name) return;
      showText(`${programs[k].name}: ${name}`, programs[k].texts[name]);
      texts.value = "";
    };
    trees.forEach((tree) => tree.draw());
    const fused = pair.forward.kernels.filter((kernel) => kernel.kind === "fused");
    if (fused.length && !fused.some((kernel) => kernel.loops))
      fill(
        detail,
        h(
          "span",
          { class: "quiet" },
          "Of layers that are alike a few are compiled, for all: " +
            "the ATen graph may have those alone.",
        ),
      );
    else fill(detail);
  };
  page.showNode = (p, name) => {
    const at = pairs.findIndex((pair) => pair.p === p || pair.q === p),
      pair = pairs[at];
    if (!pair) return;
    if (select.value !== String(at) || level.value !== "nodes") {
      select.value = String(at);
      level.value = "nodes";
      show();
    }
    const tree = page.graph.trees[pair.p === p ? 0 : 1],
      item = tree && tree.reveal(name);
    if (item) {
      tree.choose(item, true);
      tree.element.focus();
    }
  };
  select.addEventListener("change", show);
  level.addEventListener("change", show);
  add(element, h("div", { class: "tools" }, select, level, texts, detail), body);
  show();
  page.panels.find((one) => one.id === "graph").redraw = () =>
    page.graph.trees.forEach((tree) => tree.draw());
}

function showText(title, text) {
  const dialog = document.getElementById("keys");
  dialog.replaceChildren(
    h("h2", null, title),
    h("pre", { style: "max-width:85vw;max-height:75vh" }, text),
    h("form", { method: "dialog" }, h("button", null, "close")),
  );
  dialog.showModal();
}

// What is kept between forward and backward, and what is computed again.
function keptTable(pair, trees) {
  const values = [
    ...pair.forward.saved.map((value) => ({ ...value, again: false })),
    ...(pair.backward ? pair.backward.recomputed.map((value) => ({ ...value, again: true })) : []),
  ];
  const said = h(
    "p",
    { class: "quiet", style: "margin:6px 0 0;max-height:110px;overflow:auto" },
    " ",
  );
  const table = new BigTable(
    [
      {
        name: "bytes",
        width: 84,
        number: true,
        value: (item) => item.total_bytes,
        text: (item) => sizeText(item.total_bytes),
      },
      {
        name: "what",
        width: 74,
        value: (item) => item.kind,
        text: (item) => (item.again ? "again" : item.kind),
      },
      {
        name: "value",
        width: 0,
        value: (item) => item.name,
        text: (item) =>
          (item.op ? `${shortOp(item.op)} ` : "") +
          item.name +
          (item.count > 1 ? ` ×${item.count}` : "") +
          ` ${item.value}`,
      },
    ],
    values,
    (item) => {
      fill(
        said,
        h("b", null, item.name),
        ` ${item.value} `,
        h("span", { class: "mono" }, placeText(item.where)),
        " ",
        item.module,
        `: ${item.again ? "computed again, since" : "saved:"} ${item.why}`,
      );
      for (const tree of trees) {
        const names = tree.nodes
          .filter((node) => node.name === item.name || node.source === item.name)
          .map((node) => node.name);
        tree.chosen = null;
        tree.mark(names);
        if (names.length) tree.scrollTo(tree.standsFor(names[0]));
      }
    },
  );
  table.element.id = "kept";
  table.sortBy(0);
  const saved = values.filter((value) => !value.again),
    own = saved.filter((value) => value.kind === "kept");
  const count = sum(saved.map((value) => value.count)),
    bytes = sum(saved.map((value) => value.total_bytes));
  const title = values.length
    ? h(
        "div",
        { class: "quiet", id: "kept-sums", "data-bytes": bytes, "data-count": count },
        `${plural(count, "value")}, ${sizeText(bytes)}; ` +
          `${sizeText(sum(own.map((value) => value.total_bytes)))} for the backward alone; ` +
          `${values.length - saved.length} computed again`,
      )
    : h(
        "div",
        { class: "quiet", id: "kept-sums", "data-bytes": 0, "data-count": 0 },
        pair.backward ? "nothing is kept" : "no backward, so nothing is kept",
      );
  return h("section", null, h("h2", null, "kept between"), title, table.element, said);
}

function openNode(p, name) {
  openPanel("graph");
  if (name && page.showNode) page.showNode(p, name);
}
