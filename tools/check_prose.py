"""Check of the prose in code: docstrings, comments, error texts and class names that a stranger understands.

    python -m tools.check_prose [PATH...]

Without a path it checks all modules but the tests. CONTRIBUTING.md has the rules; each finding names one and says how
to mend it. The check knows words, not meaning: prose that passes still has to be read.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CHECKED = ("aligned", "benchmarks", "client", "node", "pipeline", "router", "shared", "tools")
"""The folders whose modules are checked; tests are not."""

PACKAGES = frozenset(CHECKED) - {"benchmarks", "tools"}
"""The folders in which a class name has one meaning."""

QUESTIONS = _words("How Of That What When Where Which Who Whoever Whom Whose Why")
"""Openings of a clause that needs the name beside it to be understood."""

NOT_NOUNS = QUESTIONS | _words(
    """
    Accepts Admits Asks Assembles Checks Chooses Combines Compares Computes Decides Decodes Drives Encodes Finds
    Follows Gives Hands Has Holds It Judges Keeps Lets Loads Looks Makes Moves Parses Polls Puts Reads Refuses
    Remembers Says Seals Sends Serves Shows Starts Takes They Tries Turns Updates Waits Writes
    """
)
"""Words with which the docstring of a class or a constant does not begin."""

NOT_VERBS = QUESTIONS | _words(
    """
    A About After All An Another Any Anything As At Because Before Both By CPU Every Everybody Everything For From
    If In It Its Longest Many Memory Most No Nobody None Not Nothing On Once One Only Resident Since Size So Some
    Somebody Something The Their There These They This Those Three Time Two Under Until Whatever While With Without
    Each
    """
)
"""Words with which the docstring of a function does not begin."""

VERBS_IN_ED = _words("Embed Feed Need Proceed Seed Shed Speed Succeed")

RIDDLES = {
    re.compile(r"\bnobody\b", re.IGNORECASE): "say what does not happen: 'no client waits', not 'nobody waits'",
    re.compile(r"\bwhoever\b", re.IGNORECASE): "name who it is: the caller, the client, the operator",
    re.compile(r"\b(?:is|are|was|were) told\b"): "say who says what to whom",
    re.compile(r"(?<![`'\"\w=-])none\b(?! of\b)(?![`'\"])"): "say what is absent: 'no X', 'without X', '`None`'",
}
"""Wording that is forbidden everywhere, and what to do instead."""

FINITE_VERBS = _words(
    """
    accepts allows answered answers are asks be began begin begins belong belongs brings brought came can cannot
    changed comes committed contains could describes did differ differs do does ended ends exceeds exist exists
    expected expects fail failed fails follows gave get gives goes got had has have hold holds is keeps knows lacks
    left lies lost made makes may means mentions might misses must name named names need needs offers ran read reads
    received refused refuses repeats requires returned returns runs said says sent serves should shows signs speaks
    stands starts stays stopped stops takes timed took unpacks use uses wants was were will works would wrote
    """
)
IMPERATIVES = _words("add ask call choose delete do give install make name pass put remove run say set start try use")
AUXILIARIES = _words("do does did can could may might must not should will would")
RELATIVES = _words("that which who whose")
SHORT_WORDS = 4
"""Number of words from which on an error text must be a sentence: shorter ones are labels."""


@dataclass(frozen=True, order=True)
class Finding:
    """A text that breaks a rule, with its place and the way to mend it."""

    path: str
    line: int
    text: str
    mend: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.mend}"


def main(arguments: list[str]) -> int:
    """Print the findings in the files and folders that are named, else in CHECKED; return 1 if there are any."""
    named = [Path(each) for each in arguments] or [ROOT / each for each in CHECKED]
    files = [file for each in named for file in ([each] if each.is_file() else sorted(each.rglob("*.py")))]
    findings = [finding for file in files for finding in check(file)] + shared_names(files)
    for finding in findings:
        print(finding)  # noqa: T201  # a tool for people
    return 1 if findings else 0


def check(file: Path) -> list[Finding]:
    """Find what breaks a rule in a file."""
    return check_source(file.read_text(), str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file))


def shared_names(files: Sequence[Path]) -> list[Finding]:
    """Find the classes of the packages that have the name of a class in an earlier file."""
    places: dict[str, str] = {}
    findings = []
    for file in files:
        path = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        if path.parts[0] not in PACKAGES:
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and (other := places.setdefault(node.name, str(path))) != str(path):
                mend = f"{other} has a class of this name: a class name has one meaning in all packages"
                findings.append(Finding(str(path), node.lineno, node.name, mend))
    return findings


def check_source(source: str, path: str) -> list[Finding]:
    """Find what breaks a rule in the text of a module."""
    tree = ast.parse(source)
    texts: list[tuple[int, str]] = list(_comments(source))
    findings = []
    for line, kind, text in _docstrings(tree):
        texts.append((line, text))
        if mend := _opening(kind, text):
            findings.append(Finding(path, line, _shortened(text), mend))
    for line, text in _error_texts(tree):
        texts.append((line, text))
        if not is_sentence(text):
            findings.append(
                Finding(path, line, _shortened(text), "an error text is a sentence: who or what, and a verb")
            )
    for line, text in texts:
        findings += [
            Finding(path, line, _shortened(text), mend) for riddle, mend in RIDDLES.items() if riddle.search(text)
        ]
    return sorted(findings)


def is_sentence(text: str) -> bool:
    """Whether an error text has a verb of its own, not only in a relative clause, or is a short label."""
    words = re.findall(r"[A-Za-z']+", text.lower())
    if len(words) < SHORT_WORDS or words[0] in IMPERATIVES:
        return True
    pairs = zip(["", *words], words, strict=False)
    verbs = sum(word in FINITE_VERBS and before not in AUXILIARIES for before, word in pairs)
    followed = zip(words, [*words[1:], ""], strict=True)
    return bool(verbs > sum(word in RELATIVES and after != "of" for word, after in followed))


def begins_with_a_verb(text: str) -> bool:
    """Whether a docstring begins with an imperative, or with "Whether"."""
    word = _first_word(text)
    if word in NOT_VERBS or not re.fullmatch(r"[A-Z][a-z]+", word):
        return False
    ends_as_noun = word.endswith("s") and not word.endswith("ss")
    return not ends_as_noun and (not word.endswith("ed") or word in VERBS_IN_ED)


def _opening(kind: str, text: str) -> str | None:
    """Return how to mend the first word of a docstring of this kind, if it breaks the rule."""
    word = _first_word(text)
    if kind == "function" and not begins_with_a_verb(text):
        return f"a function's docstring begins with an imperative or 'Whether', not with {word!r}: 'Return the ...'"
    if kind == "module" and word in QUESTIONS:
        return f"a module's docstring begins with a noun or a verb, not with {word!r}"
    if kind in {"class", "constant", "property"} and word in NOT_NOUNS:
        return f"the docstring of a {kind} begins with a noun (The, A, a plural), not with {word!r}"
    return None


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of each docstring, those below assignments too."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for number, statement in enumerate(body):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            if isinstance(text := statement.value.value, str) and (kind := _kind(node, body, number)):
                yield statement.lineno, kind, text


def _kind(owner: ast.AST, body: list[ast.stmt], number: int) -> str | None:
    """Return what a string that stands alone is the docstring of."""
    if number:
        return "constant" if isinstance(body[number - 1], ast.Assign | ast.AnnAssign) else None
    if isinstance(owner, ast.Module | ast.ClassDef):
        return "module" if isinstance(owner, ast.Module) else "class"
    if not isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    is_property = any("property" in ast.unparse(each) for each in owner.decorator_list)
    return "property" if is_property else "function"


def _error_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the first argument of raised errors, with X for each value in it.

    Helpers that make errors are left out: they put the text into a sentence of their own.
    """
    for node in ast.walk(tree):
        raised = node.exc if isinstance(node, ast.Raise) else None
        if not isinstance(raised, ast.Call) or not raised.args or not _is_class(raised.func):
            continue
        text = _literal(raised.args[0])
        if text:
            yield raised.args[0].lineno, text


def _is_class(called: ast.expr) -> bool:
    return ast.unparse(called).rpartition(".")[2].lstrip("_")[:1].isupper()


def _literal(value: ast.expr) -> str:
    """Return the text of a string or f-string; empty for everything else."""
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else ""
    if isinstance(value, ast.JoinedStr):
        return "".join(_literal(part) or "X" for part in value.values)
    return ""


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _first_word(text: str) -> str:
    return re.split(r"[\s,:;.]", text.strip(), maxsplit=1)[0]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
