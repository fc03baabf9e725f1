"""The mutations of a text of device code: another operator, another number, one statement less."""

import re
from collections import Counter
from collections.abc import Iterator

_SWAPPED = "< <=, > >=, == !=, && ||, + -, * /, & |, << >>, += -="
OPERATORS = {a: b for pair in _SWAPPED.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
OPERATORS |= {"%": "/", "^": "|", "?": "|| true ?", "*=": "/=", "^=": "|="}
# what is no code that runs here: comments, strings, lines of the preprocessor, checks of the compiler
_OTHER = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#[^\n]*|static_assert\(.*?\);', re.S | re.M)
_OPERATOR = re.compile(rf"(?<= )({'|'.join(re.escape(operator) for operator in OPERATORS)})(?= )")
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?![\w.'])")
_CALL = re.compile(r"(?<=[;{}\n])[ \t]+(?!return|using|const|static|template)[\w:.]+(?:<[^;\n]*>)?\([^;{}]*\);")
_ASSIGNMENT = re.compile(r"(?<=[;{}\n])[ \t]+[\w.\[\]()]+ = [^;{}]*(?:\{\})?;")
_WORD = re.compile(r"\b(?:true|false|if (?:constexpr )?\((?!!))")
WORDS = {"true": "false", "false": "true", "if (": "if (false && ", "if constexpr (": "if constexpr (false && "}
_DECLARATIONS = re.compile(r"^\s*(?:template|struct|enum|namespace|using|extern)\b.*$", re.M)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def changes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields a name, a text that occurs once, and the text that replaces it, in the order of their places."""
    code = _DECLARATIONS.sub(_blank, _OTHER.sub(_blank, text))
    places = [(match.span(1), OPERATORS[match[1]]) for match in _OPERATOR.finditer(code)]
    places += [(match.span(), WORDS[match[0]]) for match in _WORD.finditer(code)]
    places += [(match.span(), str(int(match[0]) + 1)) for match in _NUMBER.finditer(code)]
    statements = (*_CALL.finditer(code), *_ASSIGNMENT.finditer(code))
    places += [((match.end() - len(match[0].lstrip()), match.end()), ";") for match in statements]
    names: Counter[str] = Counter()
    for (start, end), new in sorted(places):
        line = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)]
        name = f"{' '.join(text[start:end].split())} -> {new.strip()} in {' '.join(line.split())}"
        names[name] += 1
        yield name if names[name] == 1 else f"{name} ({names[name]})", *_unique(text, start, end, new)


def _unique(text: str, start: int, end: int, new: str) -> tuple[str, str]:
    """The place with as many lines around it as make it occur once, and the same with the new text."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    while text.count(text[first:last]) > 1:
        first, last = text.rfind("\n", 0, first - 1) + 1, max(last, text.find("\n", last + 1))
    return text[first:last], text[first:start] + new + text[end:last]
