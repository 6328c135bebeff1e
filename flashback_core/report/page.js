(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const WIDTH = 1000000, HEIGHT = 1000;

  // ---- theme -------------------------------------------------------------------------------
  const theme = document.getElementById("theme");
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const sayTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; sayTheme(); });
  sayTheme();

  // ---- copying -----------------------------------------------------------------------------
  const select = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  for (const button of all("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      let done = false;
      try { await navigator.clipboard.writeText(code.textContent); done = true; } catch {
        select(code);
        try { done = document.execCommand("copy"); } catch { done = false; }
      }
      button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 2500);
    });
  }

  // ---- numbers in words ----------------------------------------------------------------------
  const say = (value, digits = 4) => {
    if (typeof value === "string") return value;
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return Number(value.toExponential(digits - 2)).toExponential();
    return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
  };
  const sayStep = (step) => "step " + Math.round(step).toLocaleString("en-US");

  // ---- axes ----------------------------------------------------------------------------------
  const niceTicks = (low, high, wanted = 6, least = 1) => {
    const rough = Math.max(least, (high - low) / wanted), power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / size - 1e-9); i * size <= high + 1e-9 * size; i++) ticks.push(i * size);
    return ticks;
  };
  // the rules of scales.py: some room, zero kept at the foot, powers of ten on a wide logarithmic scale
  class Scale {
    constructor(values, log) {
      const least = values.reduce((a, b) => Math.min(a, b)), most = values.reduce((a, b) => Math.max(a, b));
      this.log = log && least > 0 && most > 5 * least;
      const [low, high] = this.log ? [Math.log10(least), Math.log10(most)] : [least, most];
      const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
      this.high = high + room;
      this.low = !this.log && low >= 0 && low < room ? -0.02 * this.high : low - room;
    }

    share(value) {
      if (this.log && value <= 0) return 0.97;
      const at = ((this.log ? Math.log10(value) : value) - this.low) / (this.high - this.low);
      return 1 - Math.max(-0.2, Math.min(1.2, at));
    }

    ticks() {
      if (!this.log) {
        const few = niceTicks(this.low, this.high, 3, 0);
        return few.length > 1 ? few : niceTicks(this.low, this.high, 5, 0);
      }
      const inside = (marks) => {
        const found = [];
        for (let p = Math.floor(this.low); p <= this.high; p++) {
          for (const m of marks) if (Math.log10(m) + p >= this.low && Math.log10(m) + p <= this.high) found.push(m * 10 ** p);
        }
        return found;
      };
      const powers = inside([1]), values = powers.length > 1 ? powers : inside([1, 2, 5]);
      return values.filter((_, i) => i % Math.ceil(values.length / 4) === 0);
    }

    words(value) {
      const size = Math.abs(value) / (this.high - this.low);
      return say(value, this.log ? 4 : Math.max(4, Math.min(8, Math.ceil(Math.log10(size || 1)) + 2)));
    }
  }

  // ---- one plot ------------------------------------------------------------------------------
  class Plot {
    constructor(node) {
      this.node = node;
      this.data = JSON.parse(node.dataset.chart);
      this.first = this.home0 = Number(node.dataset.first);
      this.last = this.home1 = Number(node.dataset.last);
      this.svg = node.querySelector("svg");
      this.drawn = all(".line, .dots", this.svg);
      this.ys = node.parentElement.querySelector(".ys");
      this.ticks = [...this.ys.children];
      this.cursor = document.createElement("div");
      this.cursor.className = "cursor";
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.setAttribute("aria-live", "polite");
      node.append(this.cursor, this.tip);
      this.hide();
      this.unpack();
      this.at = null;
      node.addEventListener("pointermove", (event) => this.point(event));
      node.addEventListener("pointerdown", (event) => this.point(event));
      node.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.hide(); });
      node.addEventListener("blur", () => this.hide());
      node.addEventListener("keydown", (event) => this.key(event));
    }

    unpack() {
      const data = this.data;
      if (data.kind === "lines") {
        data.lines = data.lines.map(([label, deltas, values, role]) => {
          let step = 0;
          return { label, values, role, steps: deltas.map((d) => (step += d)) };
        });
        this.stops = [...new Set(data.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
      } else if (data.kind === "heat") {
        this.stops = data.edges.slice(0, -1).map((edge) => Math.ceil(edge));
      } else {
        this.stops = [...new Set(data.lanes.flatMap(([, marks]) => marks.map((m) => m[0])))].sort((a, b) => a - b);
      }
    }

    share(step) { return (step - this.first) / (this.last - this.first); }

    nearest(step) {
      let low = 0, high = this.stops.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.stops[middle] < step) low = middle + 1; else high = middle;
      }
      return low > 0 && step - this.stops[low - 1] < this.stops[low] - step ? low - 1 : low;
    }

    column(step) {
      const edges = this.data.edges;
      let j = 0;
      while (j < edges.length - 2 && edges[j + 1] <= step) j++;
      return j;
    }

    point(event) {
      const box = this.node.getBoundingClientRect();
      const step = this.first + (event.clientX - box.left) / box.width * (this.last - this.first);
      const row = Math.floor((event.clientY - box.top) / box.height * this.rows());
      this.show(step, row);
    }

    rows() { return this.data.rows ? this.data.rows.length : (this.data.lanes ? this.data.lanes.length : 1); }

    key(event) {
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
      const rows = { ArrowUp: -1, ArrowDown: 1 };
      if (event.key in moves && this.stops.length) {
        const inside = this.stops.filter((s) => s >= this.first && s <= this.last);
        if (!inside.length) return;
        const now = this.at === null ? inside[0] : this.at;
        let i = inside.findIndex((s) => s >= now);
        i = i < 0 ? inside.length - 1 : i;
        const next = this.at === null ? i : Math.max(0, Math.min(inside.length - 1, i + moves[event.key]));
        this.show(inside[next], this.row || 0);
        event.preventDefault();
      } else if (event.key in rows && this.rows() > 1) {
        this.show(this.at === null ? this.first : this.at, Math.max(0, (this.row || 0) + rows[event.key]));
        event.preventDefault();
      }
    }

    show(step, row) {
      if (!this.stops.length) return;
      this.row = Math.max(0, Math.min(this.rows() - 1, row));
      const lines = this.words(step);
      this.tip.replaceChildren(...lines.map((text) => {
        const line = document.createElement("div");
        line.textContent = text;
        return line;
      }));
      const share = this.share(this.at);
      const visible = share >= 0 && share <= 1;
      this.cursor.style.left = this.tip.style.left = `${100 * share}%`;
      this.tip.classList.toggle("left", share > 0.5);
      this.cursor.hidden = this.tip.hidden = !visible;
    }

    words(step) {
      const data = this.data;
      if (data.kind === "heat") {
        const j = this.column(step), first = Math.ceil(data.edges[j]);
        const last = Math.max(first, Math.ceil(data.edges[j + 1]) - 1);
        this.at = first;
        const value = data.cells[this.row][j];
        const where = last > first ? `${sayStep(first)} to ${last.toLocaleString("en-US")}` : sayStep(first);
        const lead = data.leads && data.leads[this.row][j] >= 0 ? data.words[data.leads[this.row][j]] : "";
        return [where, data.rows[this.row], this.cell(value), lead].filter((t) => t);
      }
      this.at = this.stops[this.nearest(step)];
      if (data.kind === "lines") {
        const values = data.lines.map((line) => {
          const i = line.steps.indexOf(this.at);
          return i < 0 ? "" : say(line.values[i]);
        });
        return [sayStep(this.at), ...values].filter((t) => t);
      }
      const found = data.lanes.flatMap(([, marks]) => marks.filter((m) => m[0] === this.at).map((m) => m[2]));
      return found.slice(0, 6);
    }

    cell(value) {
      if (value === null) return "nothing to compare with";
      if (this.data.scale === "share") return `${say(100 * value)} %`;
      if (Math.abs(value) < 4) return "as usual";
      return `${Math.abs(value) >= 99 ? "99 or more" : Math.abs(value)} deviations ${value > 0 ? "above" : "below"}`;
    }

    hide() { this.cursor.hidden = this.tip.hidden = true; this.at = null; }

    zoom(first, last) {
      this.first = first;
      this.last = last;
      const whole = this.home1 - this.home0;
      const x = (first - this.home0) / whole * WIDTH, w = (last - first) / whole * WIDTH;
      this.svg.setAttribute("viewBox", `${x} 0 ${w} ${HEIGHT}`);
      for (const label of all("[data-step]", this.node)) {
        const share = this.share(Number(label.dataset.step));
        label.hidden = share < 0 || share > 1;
        label.style.left = `${100 * share}%`;
        label.classList.toggle("left", share > 0.7);
      }
      if (this.data.kind === "lines") this.rescale(first === this.home0 && last === this.home1);
      this.hide();
    }

    // ---- the values of the steps in view, from foot to top
    rescale(isWhole) {
      const cut = isWhole ? [] : this.data.lines.map((line) => this.inView(line));
      const values = cut.flatMap((line) => line.inside).filter((v) => typeof v === "number" && (v > 0 || !this.data.log));
      for (const path of this.drawn) path.style.display = values.length ? "none" : "";
      for (const path of all(".near", this.svg)) path.remove();
      if (!values.length) { this.ys.replaceChildren(...this.ticks); return; }
      const scale = new Scale(values, this.data.log);
      for (const line of cut) this.draw(line, scale);
      this.ys.replaceChildren(...scale.ticks().map((value) => {
        const tick = document.createElement("span");
        tick.textContent = scale.words(value);
        tick.style.top = `${100 * scale.share(value)}%`;
        return tick;
      }));
    }

    inView({ steps, values, role }) {
      const begin = steps.findIndex((s) => s >= this.first);
      if (begin < 0) return { role, inside: [], steps: [], values: [] };
      const past = steps.findIndex((s) => s > this.last), end = past < 0 ? steps.length : past;
      const from = Math.max(0, begin - 1); // one on each side, so that lines go on past the edge
      return { role, inside: values.slice(begin, end), steps: steps.slice(from, end + 1), values: values.slice(from, end + 1) };
    }

    draw({ role, steps, values }, scale) {
      const whole = this.home1 - this.home0, lines = [], dots = [];
      let run = [];
      const close = () => {
        if (run.length > 1) lines.push("M" + run.join("L"));
        if (run.length === 1 || steps.length <= 160) dots.push(...run.map((p) => `M${p}h0`));
        run = [];
      };
      values.forEach((value, i) => {
        if (typeof value !== "number") { close(); return; }
        run.push(`${((steps[i] - this.home0) / whole * WIDTH).toFixed(2)} ${(HEIGHT * scale.share(value)).toFixed(1)}`);
      });
      close();
      for (const [name, parts] of [["line", lines], ["dots", dots]]) {
        if (!parts.length) continue;
        const path = document.createElementNS(this.svg.namespaceURI, "path");
        path.setAttribute("class", `near ${name} ${role}`);
        path.setAttribute("d", parts.join(""));
        this.svg.append(path);
      }
    }
  }
  const plots = new Map(all(".plot").map((node) => [node, new Plot(node)]));

  // ---- zooming a stack -----------------------------------------------------------------------
  document.addEventListener("pointerdown", (event) => {
    for (const [node, plot] of plots) if (!node.contains(event.target)) plot.hide();
  });
  for (const stack of all("[data-zoom]")) {
    const inside = all(".plot", stack).map((node) => plots.get(node));
    const home = [inside[0].home0, inside[0].home1];
    const buttons = all(".tools button", stack);
    const view = (first, last) => {
      first = Math.max(home[0], first);
      last = Math.min(home[1], last);
      if (last - first < 4) return;
      inside.forEach((plot) => plot.zoom(first, last));
      for (const xs of all(".xs", stack)) {
        xs.replaceChildren(...niceTicks(first, last).map((value) => {
          const tick = document.createElement("span");
          tick.textContent = value.toLocaleString("en-US");
          tick.style.left = `${100 * (value - first) / (last - first)}%`;
          return tick;
        }));
      }
      for (const button of buttons) {
        const pressed = button.classList.contains("all") ? first === home[0] && last === home[1]
          : Number(button.dataset.first) === first && Number(button.dataset.last) === last;
        button.setAttribute("aria-pressed", String(pressed));
      }
    };
    for (const button of buttons) {
      button.addEventListener("click", () => button.classList.contains("all")
        ? view(...home) : view(Number(button.dataset.first), Number(button.dataset.last)));
    }
    for (const plot of inside) brush(plot, inside, view, home);
  }

  function brush(plot, inside, view, home) {
    const node = plot.node, box = document.createElement("div");
    let from = null;
    box.className = "brush";
    box.hidden = true;
    node.append(box);
    const share = (event) => {
      const at = node.getBoundingClientRect();
      return Math.max(0, Math.min(1, (event.clientX - at.left) / at.width));
    };
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !event.isPrimary) return;
      from = share(event); // a finger that moves up or down scrolls the page, and this is cancelled
      node.setPointerCapture(event.pointerId);
    });
    node.addEventListener("pointermove", (event) => {
      if (from === null || !event.isPrimary) return;
      const to = share(event), least = event.pointerType === "touch" ? 14 : 4;
      box.hidden = Math.abs(to - from) * node.clientWidth < least;
      box.style.left = `${100 * Math.min(from, to)}%`;
      box.style.width = `${100 * Math.abs(to - from)}%`;
    });
    node.addEventListener("pointerup", (event) => {
      if (from !== null && !box.hidden) {
        const [a, b] = [from, share(event)].sort((x, y) => x - y), width = plot.last - plot.first;
        view(plot.first + a * width, plot.first + b * width);
      }
      from = null;
      box.hidden = true;
    });
    node.addEventListener("pointercancel", () => { from = null; box.hidden = true; });
    node.addEventListener("dblclick", () => view(...home));
    node.addEventListener("keydown", (event) => {
      const width = plot.last - plot.first, middle = plot.at === null ? plot.first + width / 2 : plot.at;
      if (event.key === "+" || event.key === "=") view(middle - width / 4, middle + width / 4);
      else if (event.key === "-") view(middle - width, middle + width);
      else if (event.key === "Escape") view(...home);
      else return;
      event.preventDefault();
    });
  }
})();
