// The paths of the calls of this page: a router of many applications has the page of each below its name.

const NAMED = /^\/admin\/applications\/([^/]+)\//.exec(location.pathname);

export const ownPage = NAMED ? `/admin/applications/${NAMED[1]}/` : "/admin/";
export const reports = NAMED ? `/admin/v1/applications/${NAMED[1]}` : "/admin/v1";

const stores = NAMED ? `/v1/applications/${NAMED[1]}/stores` : "/v1/stores";

export const storePath = (store) => `${stores}/${encodeURIComponent(store)}`;
