// The log of events: newest first, each with a link to itself.

import { byId, fill, keyed, setAttribute, setTime } from "./dom.js";
import { eventAnchor, eventSlots } from "./views.js";
import { clock } from "./words.js";

export function updateEvents(overview) {
  keyed(byId("events"), byId("t-event"), overview.events, (event) => event.id, (row, event) => {
    fill(row, eventSlots(event));
    const anchor = eventAnchor(event);
    setAttribute(row, "id", anchor);
    setAttribute(row.querySelector("a"), "href", `#${anchor}`);
    setTime(row, event.at, clock(event.at));
  });
  byId("no-events").hidden = overview.events.length > 0;
}
