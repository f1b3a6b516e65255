// The paths of the calls of this page: a router of many applications has the page of each below its name.

const NAMED = /^\/admin\/applications\/([^/]+)\//.exec(location.pathname);

// The application of a page below one's name; null: the router has one application.
export const application = NAMED && decodeURIComponent(NAMED[1]);
export const ownPage = NAMED ? `/admin/applications/${NAMED[1]}/` : "/admin/";
export const reports = NAMED ? `/admin/v1/applications/${NAMED[1]}` : "/admin/v1";

const stores = NAMED ? `/v1/applications/${NAMED[1]}/stores` : "/v1/stores";

export const storePath = (store) => `${stores}/${encodeURIComponent(store)}`;
