"""Text from files and names that others chose, made safe to show: in a terminal and in a figure it is text only."""


def printable(text: str) -> str:
    """Replace every character that a terminal could act on, such as the start of an escape sequence, by its code.

    >>> printable("a\\x1b[31mred, \\u202e and\\nso on")
    'a\\\\x1b[31mred, \\\\u202e and\\\\nso on'
    """
    return "".join(each if each.isprintable() else _code(each) for each in text)


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()
