// Asks a service as `conversation.py` says, by the types that openapi-typescript makes of its document. Prints what it understood.
import createClient from "openapi-fetch";
import type { components, paths } from "./document.js";

type Schemas = components["schemas"];
type Answer = Schemas["Found"] | Schemas["Absent"] | Schemas["Problem"];
type Result = Schemas["BatchResult"] | Schemas["CompactResult"];

const [url, word, pair, missing, keys] = JSON.parse(process.argv[2]!) as [string, string, string, string, unknown[]];
const client = createClient<paths>({ baseUrl: url });

function understood(answer: Answer | Result): unknown[] {
  if ("type" in answer) return ["problem", answer.type];
  if (!answer.found || !("value" in answer)) return ["absent", answer.key["word"]];
  return ["found", answer.key["word"], answer.value?.["count"]];
}

async function lookUp(store: string, key: string, query: paths["/v1/stores/{store}/keys/{key}"]["get"]["parameters"]["query"] = {}) {
  const { data, error } = await client.GET("/v1/stores/{store}/keys/{key}", { params: { path: { store, key }, query } });
  return understood(data ?? error);
}

async function exactly(store: string, key: string) {
  const { data, error } = await client.GET("/v1/stores/{store}/lookup", { params: { path: { store }, query: { key } } });
  return understood(data ?? error);
}

async function many(compact: boolean) {
  const bounds = { max_lag: 0, require_active: true, include_expired: false };
  const { data } = await client.POST("/v1/stores/{store}/lookup", {
    params: { path: { store: "op0" }, query: { compact } },
    body: { keys, bounds },
  });
  return data!.results.map(understood);
}

const stores = await client.GET("/v1/stores");
console.log(
  JSON.stringify({
    "one column": await lookUp("op0", word),
    "one column, under bounds": await lookUp("op0", word, { max_lag: 0, require_active: true, include_expired: false, limit: 10 }),
    "two columns": await exactly("op1", pair),
    absent: await lookUp("op0", "nobody"),
    "absent, exact form": await exactly("op1", missing),
    "no such store": await lookUp("op9", word),
    batch: await many(false),
    "compact batch": await many(true),
    refused: await lookUp("op0", word, { cursor: "x" }),
    stores: stores.data!.stores.map((each) => each.store),
  }),
);
