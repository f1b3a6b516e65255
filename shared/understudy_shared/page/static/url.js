// The state of the page that its address holds; replicas.py reads the same. Each change is a step in the history.

const EXPLORED = { explore: "", prefix: "", where: "", order: "", row: "" };
const DEFAULTS = { store: "", state: "", view: "grid", page: 1, open: "", ask: "", key: "", ...EXPLORED };
const KINDS = ["unwell", "lagging", "error", "restoring", "opening", "unknown", "dead", "closed"];

function readQuery(search) {
  const given = new URLSearchParams(search);
  const query = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) query[name] = given.get(name) ?? DEFAULTS[name];
  if (!KINDS.includes(query.state)) query.state = "";
  if (!["grid", "table"].includes(query.view)) query.view = "grid";
  query.page = /^\d{1,6}$/.test(query.page) ? Math.max(1, Number(query.page)) : 1;
  return query;
}

// On a phone the grid lists the replicas that are not well, until the reader chooses.
function queryOfPage() {
  const given = new URLSearchParams(location.search);
  const isList = matchMedia("(max-width: 640px)").matches && !given.has("view") && !given.has("state");
  return { ...readQuery(location.search), ...(isList && { view: "table", state: "unwell" }) };
}

export function linkTo(query, changes = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...query, ...changes })) {
    if (value !== DEFAULTS[name]) parameters.set(name, value);
  }
  return `?${parameters}`;
}

export function startUrl(onChange) {
  let query = queryOfPage();
  const tell = () => onChange(query);
  addEventListener("popstate", () => {
    query = queryOfPage();
    tell();
  });
  return {
    // Follows a link of the page without loading the page.
    follow(search) {
      query = readQuery(search);
      history.pushState(null, "", `${search}${location.hash}`);
      tell();
    },
    get query() {
      return query;
    },
    set(changes) {
      this.follow(linkTo({ ...query, ...changes }));
    },
  };
}
