// The pool's page: tables that are kept up to date by one stream of events, and one job that is shown in full.
"use strict";

const $ = (id) => document.getElementById(id);
const ENDED = new Set(["finished", "failed", "cancelled", "interrupted"]);
const ORDER = { running: 0, starting: 0, queued: 1 };
const LOG_S = 3;
const tables = { jobs: new Map(), workers: new Map(), hosts: new Map() };
const lines = { jobs: new Map(), workers: new Map(), hosts: new Map() };
let filter = "all", wanted = "", chosen = "", stream, offset_s = 0, job = null;

// ---- words ----------------------------------------------------------------------------------------------------------

const number = (value) => (value || 0).toLocaleString("en");
const number_of = (name) => Number(name.split("-").pop()) || 0;
const now_s = () => Date.now() / 1000 + offset_s;

function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; size >= 1000 && i < units.length - 1; i++) size /= 1000;
  return `${i && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[i]}`;
}

function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds)), m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? `${h}h ${String(m % 60).padStart(2, "0")}m` : m ? `${m}m ${String(s % 60).padStart(2, "0")}s` : `${s}s`;
}

const rate = (value) => (value ? String(+value.toPrecision(3)) : "");
const lasted = (row) => duration((row.ended_s || now_s()) - row.submitted_s);
const percent = (part) => (part == null ? "–" : `${Math.round(100 * part)} %`);

// ---- tables ---------------------------------------------------------------------------------------------------------

// Each cell: its text, and the class of its place.
const cells = {
  jobs: (row) => [
    [row.name, "name"], [row.state, `state ${row.state}`], [row.mode, ""], [number(row.workers), "number"], [number(row.steps), "number"],
    [rate(row.rate), "number"], [lasted(row), "number time"], [row.owner, ""], [row.script, "script"],
  ],
  workers: (row) => [
    [row.name, ""], [row.host, ""], [row.state, ""], [row.job, ""], [row.rank == null ? "" : String(row.rank), "number"],
    [row.cores.toFixed(1), "number"], [bytes(row.memory_bytes), "number"], [row.silent_s ? `${row.silent_s} s` : "", "number"],
  ],
  hosts: (row) => [
    [row.name, ""], [`${row.busy} of ${row.slots}`, "number"], [`${row.cores.toFixed(1)} of ${row.num_cores}`, "number"],
    [bytes(row.memory_bytes), "number"], [`${bytes(row.sent_s)}/s`, "number"], [`${bytes(row.received_s)}/s`, "number"],
    [row.gpus.map((gpu) => `${gpu.index}: ${percent(gpu.utilization)}, ${bytes(gpu.memory_bytes)}`).join("; ") || "none", ""],
  ],
};

function fill(line, contents) {
  contents.forEach(([text, kind], i) => {
    const cell = line.cells[i] || line.insertCell();
    if (cell.className !== kind) cell.className = kind;
    const place = cell.firstElementChild || cell;
    if (place.textContent !== text) place.textContent = text;
  });
}

function show_row(table, row) {
  let line = lines[table].get(row.name);
  if (!line) {
    line = document.createElement("tr");
    lines[table].set(row.name, line);
    if (table === "jobs") {
      const link = document.createElement("a");
      link.href = `#${encodeURIComponent(row.name)}`;
      line.insertCell().append(link);
    }
    if (table !== "jobs") document.querySelector(`#${table} tbody`).append(line);
  }
  fill(line, cells[table](row));
  if (table !== "jobs") return;
  line.cells[8].title = row.script;
  line.cells[1].title = row.reason;
  line.classList.toggle("chosen", row.name === chosen);
  const mark = line.cells[0].querySelector(".fault");
  if (row.faults && !mark) {
    const fault = document.createElement("span");
    fault.className = "fault";
    fault.textContent = ` after ${row.faults} fault${row.faults > 1 ? "s" : ""}`;
    line.cells[0].append(fault);
  }
}

function is_wanted(row) {
  const fits = filter === "all" || (filter === "ended" ? ENDED.has(row.state) : filter === "running" ? row.state === "running" || row.state === "starting" : row.state === filter);
  return fits && (!wanted || row.name.includes(wanted) || row.owner.toLowerCase().includes(wanted) || row.script.toLowerCase().includes(wanted));
}

function arrange() {
  const rows = [...tables.jobs.values()].filter(is_wanted);
  // Those that run, then the queue as it will be served, then the newest that have ended.
  rows.sort((a, b) => (ORDER[a.state] ?? 2) - (ORDER[b.state] ?? 2) || (a.state === "queued" ? 1 : -1) * (number_of(a.name) - number_of(b.name)));
  const body = document.querySelector("#jobs tbody");
  const focused = document.activeElement;
  body.replaceChildren(...rows.map((row) => lines.jobs.get(row.name)));
  if (focused && body.contains(focused)) focused.focus({ preventScroll: true });
  $("no-jobs").hidden = rows.length > 0;
}

function summarise() {
  const jobs = [...tables.jobs.values()], hosts = [...tables.hosts.values()];
  const count = (test) => jobs.filter(test).length;
  const counts = {
    all: jobs.length, running: count((row) => row.state === "running" || row.state === "starting"),
    queued: count((row) => row.state === "queued"), ended: count((row) => ENDED.has(row.state)),
  };
  for (const button of $("filters").children) button.lastElementChild.textContent = number(counts[button.dataset.filter]);
  const sum = (name) => hosts.reduce((total, host) => total + host[name], 0);
  $("summary").textContent = `${sum("busy")} of ${sum("slots")} workers busy · ${hosts.length} host${hosts.length === 1 ? "" : "s"} · ${sum("cores").toFixed(1)} of ${sum("num_cores")} cores`;
  $("workers-count").textContent = `(${number(tables.workers.size)})`;
}

function take(changes) {
  offset_s = changes.time_s - Date.now() / 1000;
  let moved = false;
  for (const table of Object.keys(tables)) {
    for (const row of changes[table]?.rows ?? []) {
      const before = tables[table].get(row.name);
      moved ||= table === "jobs" && before?.state !== row.state;
      tables[table].set(row.name, row);
      show_row(table, row);
    }
    for (const name of changes[table]?.gone ?? []) {
      tables[table].delete(name);
      lines[table].get(name).remove();
      lines[table].delete(name);
      moved ||= table === "jobs";
    }
  }
  if (moved || !tables.jobs.size) arrange();
  summarise();
}

setInterval(() => {
  for (const row of tables.jobs.values()) {
    if (!row.ended_s && lines.jobs.has(row.name)) fill(lines.jobs.get(row.name), cells.jobs(row));
  }
}, 1000);

// ---- one job --------------------------------------------------------------------------------------------------------

function show_job(found) {
  job = found;
  if (!found) {
    $("detail-state").textContent = "";
    $("about").textContent = "The pool knows no such job (any more).";
    for (const id of ["report", "cancel", "log"]) $(id).hidden = true;
    return;
  }
  $("detail-state").className = `state ${found.state}`;
  $("detail-state").textContent = found.state;
  $("about").textContent = `${found.script} · ${found.owner ? `of ${found.owner} · ` : ""}${found.mode}, ${found.workers} worker${found.workers === 1 ? "" : "s"} · ${number(found.steps)} steps${found.rate ? `, ${rate(found.rate)} a second` : ""} · submitted ${new Date(1000 * found.submitted_s).toLocaleString()}`;
  $("reason").hidden = !found.reason || found.state === "queued";
  $("reason").textContent = found.reason;
  $("bottleneck").textContent = found.bottleneck;
  $("report").href = `/jobs/${encodeURIComponent(found.name)}/report`;
  $("report").hidden = false;
  $("cancel").hidden = ENDED.has(found.state);
  $("faults").hidden = !found.lost.length;
  $("faults").lastElementChild.replaceChildren(...found.lost.map((lost) => Object.assign(document.createElement("li"), { textContent: `${lost.name}, ${lost.end}` })));
  show_accounts(found.accounts);
  show_ranks(found);
  Plots.show(found);
}

function show_accounts(accounts) {
  const body = document.querySelector("#accounts tbody");
  while (body.rows.length > accounts.length) body.deleteRow(-1);
  accounts.forEach((row, i) => fill(body.rows[i] || body.insertRow(), [
    [String(row.rank), "number"], [number(row.steps), "number"], [percent(row.shares.compute_s), "number"],
    [percent(row.shares.exchange_s), "number"], [percent(row.shares.wait_s), "number"], [bytes(row.exchanged_bytes), "number"],
    [bytes(row.peak_memory_bytes), "number"], [row.delays ? row.delays.mean.toFixed(2) : "–", "number"],
  ]));
  $("accounts").hidden = !accounts.length;
  $("no-accounts").hidden = accounts.length > 0;
}

function show_ranks(found) {
  const select = $("log-rank");
  $("log").hidden = !found.processes;
  if (select.options.length === found.processes) return;
  select.replaceChildren(...Array.from({ length: found.processes }, (_, rank) => new Option(String(rank), String(rank))));
}

async function show_log() {
  if (!job || !$("log").open) return;
  const name = job.name, answer = await fetch(`/jobs/${encodeURIComponent(name)}/log/${$("log-rank").value || 0}`);
  const text = await answer.text(), place = $("log-text");
  if (name !== chosen || place.textContent === text) return;
  const follows = place.scrollTop + place.clientHeight >= place.scrollHeight - 8;
  place.textContent = text;
  if (follows) place.scrollTop = place.scrollHeight;
}

$("log").addEventListener("toggle", show_log);
$("log-rank").addEventListener("change", show_log);
setInterval(() => { if (job && !ENDED.has(job.state)) show_log().catch(() => {}); }, 1000 * LOG_S);

function choose() {
  const before = chosen;
  chosen = decodeURIComponent(location.hash.slice(1));
  if (chosen === "jobs-heading") chosen = before;
  for (const name of [before, chosen]) lines.jobs.get(name)?.classList.toggle("chosen", name === chosen);
  $("main").classList.toggle("open", Boolean(chosen));
  $("detail").hidden = !chosen;
  document.title = chosen ? `${chosen} · FDT pool` : "FDT pool";
  if (chosen === before && stream) return;
  job = null;
  Plots.clear();
  $("log-text").textContent = "";
  $("log").open = false;
  if (chosen) {
    $("detail-heading").textContent = chosen;
    for (const id of ["about", "reason", "bottleneck", "detail-state"]) $(id).textContent = "";
    if (before !== chosen && stream) $("detail-heading").focus();
  } else if (before) {
    lines.jobs.get(before)?.querySelector("a").focus();
  }
  listen();
}

// ---- cancel ---------------------------------------------------------------------------------------------------------

$("cancel").addEventListener("click", () => {
  $("confirm-text").textContent = `Cancel ${chosen}? Its script stops with an error; what it has not saved is lost.`;
  $("confirm").showModal();
});
$("confirm-no").addEventListener("click", () => $("confirm").close());
$("confirm-yes").addEventListener("click", async () => {
  $("confirm").close();
  const answer = await fetch(`/jobs/${encodeURIComponent(chosen)}/cancel`, { method: "POST" });
  if (!answer.ok) $("bottleneck").textContent = `It was not cancelled: ${await answer.text()}`;
});
addEventListener("keydown", (event) => { if (event.key === "Escape" && chosen && !$("confirm").open) location.hash = ""; });

// ---- the stream -----------------------------------------------------------------------------------------------------

function state(text, lost) {
  if ($("connection").textContent !== text) $("connection").textContent = text;
  $("connection").classList.toggle("lost", lost);
}

// One stream a page: browsers open six to a server.
function listen() {
  stream?.close();
  const opened = stream = new EventSource(`/events?job=${encodeURIComponent(chosen)}`);
  let first = true;
  opened.addEventListener("pool", (event) => {
    const changes = JSON.parse(event.data);
    if (first) {
      // A stream begins with everything: what is not in it has gone meanwhile.
      for (const table of Object.keys(tables)) {
        const known = new Set((changes[table]?.rows ?? []).map((row) => row.name));
        const gone = [...tables[table].keys()].filter((name) => !known.has(name));
        changes[table] = { rows: changes[table]?.rows ?? [], gone };
      }
      first = false;
    }
    take(changes);
    state("live", false);
  });
  opened.addEventListener("job", (event) => { if (opened === stream) show_job(JSON.parse(event.data)); });
  opened.onopen = () => { first = true; };
  opened.onerror = () => state(opened.readyState === EventSource.CLOSED ? "not let in any more: `fdt page` prints a new link" : "the pool does not answer; trying again", true);
}

for (const button of $("filters").children) {
  button.addEventListener("click", () => {
    filter = button.dataset.filter;
    for (const other of $("filters").children) other.setAttribute("aria-pressed", String(other === button));
    arrange();
  });
}
$("search").addEventListener("input", (event) => { wanted = event.target.value.trim().toLowerCase(); arrange(); });
addEventListener("hashchange", choose);
choose();
