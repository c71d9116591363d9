// The curves of one job: three plots that share a cursor.
"use strict";

const Plots = (() => {
  const HEIGHT = 170;
  const PARTS = ["compute", "exchange", "wait"];
  const kept = new Map();
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => (value == null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4)));
  const percent = (value) => (value == null ? "–" : `${Math.round(100 * value)} %`);

  // Seconds only where a plot is short.
  function clock(plot, ticks) {
    const length = plot.scales.x.max - plot.scales.x.min;
    const parts = { hour: "2-digit", minute: "2-digit", hour12: false, ...(length < 300 ? { second: "2-digit" } : {}) };
    return ticks.map((tick) => new Date(1000 * tick).toLocaleTimeString("en", parts));
  }

  // Sets what a screen reader says of a plot.
  function say(place, names, rows, shown) {
    const words = names.map((name, i) => {
      const known = rows[i].filter((value) => value != null);
      return known.length ? `${name} from ${shown(known[0])} to ${shown(known[known.length - 1])}` : `${name} not known`;
    });
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", words.join("; "));
  }

  function make(place, names, values, shown, fills, range) {
    place.replaceChildren();
    const axis = { stroke: color("--soft"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    const series = names.map((name, i) => ({
      label: name,
      stroke: color(`--s${i % 8 + 1}`),
      fill: fills ? color(`--s${i % 8 + 1}`) + "99" : undefined,
      width: 1.5,
      spanGaps: true,
      points: { show: false },
      value: (_, value, index, at) => shown(at == null ? null : kept.get(place.id).raw[index - 1][at]),
    }));
    return new uPlot({
      width: Math.max(200, place.clientWidth),
      height: HEIGHT,
      series: [{ label: "at", value: "{HH}:{mm}:{ss}" }, ...series],
      // Each is filled down to the next one, the last to zero.
      bands: fills ? names.slice(1).map((_, i) => ({ series: [i + 1, i + 2] })) : [],
      axes: [{ ...axis, size: 32, values: clock }, { ...axis, size: 62, values: (_, ticks) => ticks.map(shown) }],
      scales: { y: range ? { range } : {} },
      cursor: { sync: { key: "job" } },
    }, values, place);
  }

  // Draws `curve` ({times, series}) at a place; where there is nothing to be drawn, says so.
  function draw(id, curve, { shown = short, stacked = false, range, nothing }) {
    const place = document.getElementById(id);
    const names = stacked ? PARTS.filter((name) => name in curve.series) : Object.keys(curve.series);
    const raw = names.map((name) => curve.series[name]);
    if (!curve.times.length || !names.length) {
      clear(id);
      const line = document.createElement("p");
      line.className = "empty";
      line.textContent = nothing;
      place.replaceChildren(line);
      return;
    }
    // The highest first.
    const rows = stacked ? raw.map((row, i) => row.map((value, at) => (value == null ? null : raw.slice(0, i + 1).reduce((sum, each) => sum + each[at], 0)))) : raw;
    const order = stacked ? names.map((_, i) => names.length - 1 - i) : names.map((_, i) => i);
    const data = [curve.times, ...order.map((i) => rows[i])];
    const key = names.join("\n");
    const before = kept.get(id);
    const drawn = { key, raw: order.map((i) => raw[i]), curve, settings: { shown, stacked, range, nothing } };
    if (before && before.key === key) {
      kept.set(id, { ...drawn, plot: before.plot });
      before.plot.setData(data);
    } else {
      if (before) before.plot.destroy();
      kept.set(id, drawn);
      drawn.plot = make(place, order.map((i) => names[i]), data, shown, stacked, range);
    }
    say(place, names, raw, shown);
  }

  function clear(id) {
    const before = kept.get(id);
    if (before) before.plot.destroy();
    kept.delete(id);
    const place = document.getElementById(id);
    place.removeAttribute("role");
    place.removeAttribute("aria-label");
    place.replaceChildren();
  }

  // Colours and widths are taken when a plot is made.
  function again() {
    for (const [id, { curve, settings }] of [...kept]) {
      clear(id);
      draw(id, curve, settings);
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(again, 200); });

  return {
    show(job) {
      draw("plot-shown", job.shown, { nothing: "Nothing yet: the script is shown numbers at the end of an epoch, by its progress bar, or where it looks at a step's result." });
      draw("plot-rate", job.rate_curve, { nothing: "Nothing yet." });
      draw("plot-time", job.time_curve, { shown: percent, stacked: true, range: [0, 1], nothing: "Nothing yet: known from the second full synchronisation on." });
    },
    clear() { ["plot-shown", "plot-rate", "plot-time"].forEach(clear); },
  };
})();
