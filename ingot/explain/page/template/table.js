"use strict";
// A table of any number of rows: only those in sight are elements.

const ROW = 26;

// `columns`: {name, width, number, value(item), text(item), bar(item)}. `onChoose(item)` is called
// for the row that is chosen.
class BigTable {
  constructor(columns, items, onChoose) {
    this.columns = columns;
    this.all = items;
    this.items = items;
    this.onChoose = onChoose;
    this.chosen = null;
    this.order = null;
    this.down = false;
    this.heads = h(
      "div",
      { class: "heads", role: "row" },
      columns.map((column, k) =>
        h(
          "button",
          {
            role: "columnheader",
            class: column.number ? "number" : null,
            style: this.width(column),
            onclick: () => this.sortBy(k),
          },
          column.name,
        ),
      ),
    );
    this.space = h("div", { class: "space", role: "rowgroup" });
    this.element = h(
      "div",
      { class: "grid", role: "grid", tabindex: "0", "aria-rowcount": items.length },
      this.heads,
      this.space,
    );
    this.element.addEventListener("scroll", () => this.draw());
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  width(column) {
    return column.width ? `width:${column.width}px` : "width:320px;flex:1 0 auto;max-width:100%";
  }

  sortBy(k) {
    this.down = this.order === k ? !this.down : Boolean(this.columns[k].number);
    this.order = k;
    this.heads.childNodes.forEach((head, j) =>
      head.setAttribute("aria-sort", j !== k ? "none" : this.down ? "descending" : "ascending"),
    );
    this.show(this.items);
  }

  filter(keep) {
    this.show(this.all.filter(keep));
  }

  show(items) {
    this.items = items;
    if (this.order !== null) {
      const value = this.columns[this.order].value,
        sign = this.down ? -1 : 1;
      const known = (item) => {
        const v = value(item);
        return v === null || v === undefined ? -Infinity : v;
      };
      this.items = [...items].sort((a, b) => {
        const x = known(a),
          y = known(b);
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      });
    }
    this.element.setAttribute("aria-rowcount", this.items.length);
    this.element.scrollTop = 0;
    this.draw();
  }

  choose(item, scroll) {
    this.chosen = item;
    const at = this.items.indexOf(item);
    if (scroll && at >= 0) {
      const room = this.element.clientHeight - this.heads.offsetHeight,
        top = at * ROW;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      else if (top + ROW > this.element.scrollTop + room) this.element.scrollTop = top + ROW - room;
    }
    this.draw();
    this.onChoose(item);
  }

  onKey(event) {
    const most = this.items.length - 1,
      at = this.items.indexOf(this.chosen),
      pageful = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 2);
    const steps = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + pageful,
      PageUp: at - pageful,
      Home: 0,
      End: most,
    };
    if (steps[event.key] === undefined || most < 0) return;
    event.preventDefault();
    this.choose(this.items[Math.max(0, Math.min(most, steps[event.key]))], true);
  }

  draw() {
    const top = this.element.scrollTop,
      first = Math.max(0, Math.floor(top / ROW) - 4);
    const last = Math.min(
      this.items.length,
      first + Math.ceil((this.element.clientHeight || 600) / ROW) + 8,
    );
    this.space.style.height = this.items.length * ROW + "px";
    const rows = [];
    for (let k = first; k < last; k++) {
      const item = this.items[k];
      rows.push(
        h(
          "div",
          {
            class: "row",
            role: "row",
            style: `top:${k * ROW}px`,
            "aria-rowindex": k + 1,
            "aria-selected": String(item === this.chosen),
            onclick: () => this.choose(item),
          },
          this.columns.map((column) => this.cell(column, item)),
        ),
      );
    }
    this.space.replaceChildren(...rows);
  }

  cell(column, item) {
    const share = column.bar ? column.bar(item) : null,
      text = column.text(item);
    const classes = ["cell", column.number && "number", share !== null && "bar"]
      .filter(Boolean)
      .join(" ");
    const bar = share === null ? "" : `;--share:${Math.min(100, share * 100).toFixed(1)}%`;
    return h(
      "div",
      {
        class: classes,
        role: "gridcell",
        style: this.width(column) + bar,
        title: column.number ? null : text,
      },
      text,
    );
  }
}
