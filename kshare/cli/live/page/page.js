// The page of `kshare ui`: asks for the newest snapshot, again and again, and shows it.
// All texts are put in as texts, never as markup: keys and names are other people's.
"use strict";

const HASH_SPACE = 2 ** 63;
const ROWS_MAX = 500;
const RETRY_SECONDS = 2;
const NAMES_MAX = 8; // more names of parked keys would hide the picture
const PERCENT = [0, 25, 50, 75, 100];

// By what ranges are sorted, and whether the greatest comes first.
const ORDERS = {
  hash: [(range) => [range.source, range.topic, range.partition, range.h[0][0]], false],
  position: [(range) => [range.position ?? Infinity], false],
  lag: [(range) => [range.lag ?? -1], true],
  speed: [(range) => [range.speed ?? Infinity], false],
  member: [(range) => [range.member ?? "\uffff"], false],
};

const state = { snapshot: null, sort: "hash", reversed: false, renewed: Date.now(), silent: false };

function element(id) {
  return document.getElementById(id);
}

function make(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function number(value) {
  return value === null || value === undefined ? "" : Math.round(value).toLocaleString("en-US");
}

// As `duration` of kshare/core/listing.py writes it: a unit is left at two of the next one.
function duration(seconds) {
  const units = [["day", 86400], ["h", 3600], ["min", 60]];
  const [name, unit] = units.find(([, unit]) => seconds >= 2 * unit) ?? ["s", 1];
  const count = Math.floor(Math.max(seconds, 0) / unit);
  return `${number(count)} ${name === "day" ? "days" : name}`;
}

// A time as how long ago it was; the time itself is its tooltip.
function ago(time, tag = "span") {
  const at = Date.parse(time);
  const made = make(tag, Number.isNaN(at) ? time : `${duration((Date.now() - at) / 1000)} ago`);
  if (!Number.isNaN(at)) made.title = new Date(at).toISOString();
  return made;
}

function row(cells, numbers = []) {
  const made = document.createElement("tr");
  cells.forEach((cell, i) => {
    const kind = numbers.includes(i) ? "number" : "";
    const td = make("td", cell instanceof Node ? "" : cell ?? "", kind);
    if (cell instanceof Node) td.append(cell);
    made.append(td);
  });
  return made;
}

function compare(left, right) {
  for (let i = 0; i < left.length; i += 1) {
    if (left[i] < right[i]) return -1;
    if (left[i] > right[i]) return 1;
  }
  return 0;
}

function sorted(ranges) {
  const [key, descends] = ORDERS[state.sort];
  const sign = descends === state.reversed ? 1 : -1;
  // Those that are alike stay in the order of their hashes.
  return [...ranges].sort((left, right) => sign * compare(key(left), key(right)));
}

function partitionName(range, several) {
  return `${range.topic}-${range.partition}${several ? ` (source ${range.source})` : ""}`;
}

function bar(shares, isStill) {
  const made = make("div", "", isStill ? "bar still" : "bar");
  if (shares === null) return make("span");
  const [done, read] = shares;
  for (const [kind, share] of [["read", read], ["done", done]]) {
    const part = make("span", "", kind);
    part.style.width = `${100 * share}%`;
    made.append(part);
  }
  made.title = `${Math.floor(100 * done)} % of what the picture shows`;
  return made;
}

function showRanges(snapshot) {
  const several = new Set(snapshot.ranges.map((range) => range.source)).size > 1;
  const isGroup = snapshot.kind === "group";
  const rows = sorted(snapshot.ranges).slice(0, ROWS_MAX).map((range) => {
    const made = row([
      partitionName(range, several), range.hashes, bar(range.bar, snapshot.is_still), number(range.position),
      number(range.lag), number(range.speed), isGroup ? range.member ?? "(nobody)" : "",
    ], [3, 4, 5]);
    made.lastChild.classList.add("group");
    if (range.is_outlier) made.className = "outlier";
    else if (range.lag === 0) made.className = "level";
    return made;
  });
  element("ranges").tBodies[0].replaceChildren(...rows);
  const left = snapshot.ranges.length - rows.length;
  element("more").textContent = left > 0 ? `${number(left)} ranges more, in this order` : "";
  for (const button of document.querySelectorAll("button[data-sort]")) {
    const isIt = button.dataset.sort === state.sort;
    const descends = ORDERS[state.sort][1] !== state.reversed;
    if (isIt) button.parentNode.setAttribute("aria-sort", descends ? "descending" : "ascending");
    else button.parentNode.removeAttribute("aria-sort");
  }
}

function showStrips(snapshot) {
  const several = new Set(snapshot.ranges.map((range) => range.source)).size > 1;
  const byPartition = new Map();
  for (const range of snapshot.ranges) {
    const name = partitionName(range, several);
    if (!byPartition.has(name)) byPartition.set(name, []);
    byPartition.get(name).push(range);
  }
  const strips = [...byPartition].map(([name, ranges]) => {
    const known = ranges.filter((range) => range.behind !== null);
    const most = Math.max(...known.map((range) => range.behind), 0);
    const hashes = make("div", "", "hashes");
    for (const range of ranges) {
      for (const [lo, hi] of range.h) {
        const part = document.createElement("span");
        part.style.left = `${(100 * lo) / HASH_SPACE}%`;
        part.style.width = `${(100 * (hi - lo)) / HASH_SPACE}%`;
        if (range.is_outlier) part.className = "outlier";
        const shade = range.behind_share ? 0.1 + 0.5 * range.behind_share : 0;
        part.style.background = range.is_outlier ? "var(--outlier)" : `rgba(var(--shade), ${shade})`;
        part.title = `${range.hashes}: behind ${number(range.behind) || "not known"}, lag ${number(range.lag) || "not known"}`;
        hashes.append(part);
      }
    }
    const strip = make("div", "", "strip");
    let text = most ? `behind up to ${number(most)}` : "level";
    if (known.length === 0) text = "position not known";
    strip.append(make("span", name), hashes, make("span", text, "most"));
    return strip;
  });
  element("strips").replaceChildren(...strips);
}

function showParked(snapshot) {
  const rows = snapshot.parked.map((parked) => {
    const since = parked.since === null ? "" : ago(parked.since);
    const made = row([parked.topic, parked.name, parked.waits, since, parked.by, parked.why]);
    made.lastChild.classList.add("wrap");
    if (Object.keys(parked.positions).length === 0) made.children[2].className = "unseen";
    return made;
  });
  element("parked").tBodies[0].replaceChildren(...rows);
  element("parked-section").hidden = rows.length === 0;
}

function showMembers(snapshot) {
  const rows = snapshot.members.map((member) => row([
    member.member, number(member.ranges), number(member.lag), number(member.leased),
    number(member.done), member.client_id, member.address, member.host,
  ], [1, 2, 3, 4]));
  element("members").tBodies[0].replaceChildren(...rows);
  element("members-section").hidden = rows.length === 0;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw(canvas, picture) {
  const scale = window.devicePixelRatio || 1;
  const width = (canvas.width = Math.max(Math.round(canvas.clientWidth * scale), 1));
  const height = (canvas.height = Math.max(Math.round(canvas.clientHeight * scale), 1));
  const pen = canvas.getContext("2d");
  const x = (offset) => (width * (offset - picture.start)) / (picture.end - picture.start);
  const y = (hash) => Math.round(height * hash); // downwards, as in the table
  const line = (hash, from) => pen.fillRect(x(from), y(hash) - 1, width - x(from), 2);
  pen.fillStyle = colour("--pending");
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = colour("--processed");
  for (const { lo, hi, bars } of picture.stripes) {
    for (const [start, wide] of bars) {
      pen.fillRect(x(start), y(lo), x(start + wide) - x(start), y(hi) - y(lo));
    }
  }
  pen.fillStyle = colour("--pending");
  picture.thin.forEach(([hash, from]) => line(hash, from));
  pen.fillStyle = colour("--parked");
  picture.parked.forEach(([hash, from]) => line(hash, from));
  if (picture.parked.length <= NAMES_MAX) {
    pen.font = `${12 * scale}px sans-serif`;
    pen.textAlign = "right";
    for (const [hash, , name] of picture.parked) {
      const isHigh = y(hash) < 16 * scale;
      pen.textBaseline = isHigh ? "top" : "bottom";
      pen.fillText(name, width - 4 * scale, y(hash) + (isHigh ? 3 : -2) * scale);
    }
  }
  if (picture.planned_to !== null) {
    pen.strokeStyle = colour("--grey");
    pen.setLineDash([2 * scale, 3 * scale]);
    pen.strokeRect(x(picture.planned_to), 0, 0, height);
  }
}

function showPictures(snapshot) {
  const drawn = snapshot.partitions.filter((partition) => partition.picture);
  const several = new Set(snapshot.partitions.map((partition) => partition.source)).size > 1;
  const figures = drawn.map((partition) => {
    const figure = document.createElement("figure");
    const lag = partition.lag === null ? "" : `, lag ${number(partition.lag)}`;
    const facts = `stable ${number(partition.stable)}, front ${number(partition.front)}${lag}`;
    const axis = make("div", "", "axis");
    const { start, end } = partition.picture;
    axis.append(make("span", number(start)), make("span", "offset"), make("span", number(end)));
    const caption = make("figcaption", `${partitionName(partition, several)}: ${facts}`);
    const hashes = make("div", "", "percent");
    hashes.append(...PERCENT.map((percent) => make("span", `${percent} %`)));
    const plot = make("div", "", "plot");
    plot.append(hashes, document.createElement("canvas"), axis);
    figure.append(caption, plot);
    return figure;
  });
  element("pictures").replaceChildren(...figures);
  figures.forEach((figure, i) => draw(figure.querySelector("canvas"), drawn[i].picture));
}

function showFaults(snapshot) {
  const faults = [];
  const seconds = Math.round((Date.now() - state.renewed) / 1000);
  if (state.silent) faults.push(make("li", "kshare ui does not answer: it has ended, or cannot be reached"));
  else if (snapshot?.fault) faults.push(make("li", `Not renewed: ${snapshot.fault}`));
  else if (snapshot && seconds > 15 + 3 * snapshot.interval) {
    faults.push(make("li", `Not renewed for ${seconds} s: the cluster or the checkpoint does not answer`));
  }
  for (const text of snapshot?.alarms ?? []) faults.push(make("li", text));
  for (const text of snapshot?.warnings ?? []) faults.push(make("li", text, "warning"));
  element("faults").replaceChildren(...faults);
}

function show() {
  const snapshot = state.snapshot;
  showFaults(snapshot);
  if (snapshot === null) return;
  document.title = `${snapshot.name} – kshare`;
  document.body.className = snapshot.is_still ? `${snapshot.kind} still` : snapshot.kind;
  element("name").textContent = `${snapshot.kind} ${snapshot.name}`;
  element("facts").textContent = snapshot.facts;
  element("lag").textContent = number(snapshot.lag) || "–";
  element("speed").textContent = number(snapshot.speed) || "–";
  element("count").textContent = number(snapshot.ranges.length);
  element("at").replaceChildren(ago(snapshot.at));
  showStrips(snapshot);
  showRanges(snapshot);
  showMembers(snapshot);
  showParked(snapshot);
  showPictures(snapshot);
}

async function renew() {
  let seconds = RETRY_SECONDS;
  try {
    const answer = await fetch("snapshot.json", { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.status);
    const snapshot = await answer.json();
    if (snapshot.at !== state.snapshot?.at) state.renewed = Date.now();
    state.snapshot = snapshot;
    state.silent = false;
    seconds = snapshot.interval;
  } catch {
    state.silent = true;
  }
  show();
  setTimeout(renew, 1000 * seconds);
}

for (const button of document.querySelectorAll("button[data-sort]")) {
  button.addEventListener("click", () => {
    state.reversed = state.sort === button.dataset.sort ? !state.reversed : false;
    state.sort = button.dataset.sort;
    show();
  });
}
window.addEventListener("resize", show);
renew();
