"""The style sheet of the `/docs` page: one type scale, one spacing scale, light and dark."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b656e; --line: #d9dee3; --ground: #fbfcfd; --box: #f1f4f6;
  --link: #0b5cad; --get: #1a6b3c; --post: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5af; --line: #333b43; --ground: #14181c;
  --box: #1e242a; --link: #7ab8f5; --get: #6fcf97; --post: #f2b266; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
.all { display: grid; grid-template-columns: 20rem minmax(0, 1fr); gap: 2rem; max-width: 76rem; margin: 0 auto;
  padding: 1rem; }
nav { position: sticky; top: 1rem; align-self: start; max-height: calc(100vh - 2rem); overflow: auto;
  font-size: .875rem; }
nav ul { list-style: none; margin: 0 0 1rem; padding: 0; }
nav li { padding: .125rem 0; overflow-wrap: anywhere; }
nav li a { text-decoration: none; }
nav li a:hover { text-decoration: underline; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .5rem; }
h1 small, nav p { color: var(--soft); font-weight: normal; font-size: .875rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
h3 { font-size: 1rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere; }
h4 { font-size: .875rem; color: var(--soft); margin: 1rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 45rem; }
a { color: var(--link); }
code, pre { font: .875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--box); border: 1px solid var(--line); border-radius: .25rem; padding: .5rem .75rem;
  margin: .25rem 0; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
.get, .post { font-weight: 700; } .get { color: var(--get); } .post { color: var(--post); }
.soft { color: var(--soft); }
summary { cursor: pointer; color: var(--link); font-size: .875rem; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
@media (max-width: 50rem) { .all { display: block; } nav { position: static; max-height: none; }
  .table { overflow-x: auto; } }
"""
