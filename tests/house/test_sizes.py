"""Files and functions stay short: half the functions within 6 lines, 85 % within 20, none over 60.

The shares are those of codebases that read well (h11, trio); the test allows a few hundredths less,
because a table or a kernel is sometimes easiest to read in one piece.
"""

from tests.kit.source_tree import body_lines, functions, modules

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
SHARES = {6: 0.50, 20: 0.85}
TOLERANCE = 0.03


def lengths() -> list[int]:
    """Return the lines of every body that has one."""
    found = (body_lines(function) for module in modules() for function in functions(module.tree))
    return [lines for lines in found if lines]


def test_no_file_is_longer_than_400_lines() -> None:
    counts = {str(module.path): len(module.text.splitlines()) for module in modules()}
    assert {path: lines for path, lines in counts.items() if lines > LONGEST_FILE} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    found = ((module, function) for module in modules() for function in functions(module.tree))
    assert [
        f"{module.path}:{function.lineno}: {function.name}: {body_lines(function)} lines"
        for module, function in found
        if body_lines(function) > LONGEST_FUNCTION
    ] == []


def test_most_functions_are_short() -> None:
    all_lengths = lengths()
    shares = {limit: sum(lines <= limit for lines in all_lengths) / len(all_lengths) for limit in SHARES}
    assert {limit: share for limit, share in shares.items() if share < SHARES[limit] - TOLERANCE} == {}
