// The paths of the calls of this page: a router of many applications has the page of each below its name. A proxy may
// publish the router under a prefix, so the page says where the router's root is, relative to itself.

const root = new URL(document.body.dataset.root, location.href).pathname;
const NAMED = /^admin\/applications\/([^/]+)\//.exec(location.pathname.slice(root.length));

// The application of a page below one's name; null: the router has one application.
export const application = NAMED && decodeURIComponent(NAMED[1]);
export const ownPage = NAMED ? `${root}admin/applications/${NAMED[1]}/` : `${root}admin/`;
export const reports = NAMED ? `${root}admin/v1/applications/${NAMED[1]}` : `${root}admin/v1`;
// The URL of the router, as clients take it.
export const router = `${location.origin}${root}`.replace(/\/$/, "");

const stores = NAMED ? `${root}v1/applications/${NAMED[1]}/stores` : `${root}v1/stores`;

export const storePath = (store) => `${stores}/${encodeURIComponent(store)}`;
