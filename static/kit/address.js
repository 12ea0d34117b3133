// Runs in the head. Panel adds an entry to the history of the tab for each link that the server gives it. The page
// replaces its link instead, so that Back leaves the page at once, and no entry keeps the token.
history.pushState = (state, title, link) => history.replaceState(state, title, link);
