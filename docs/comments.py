"""An extension of griffe: what a comment or `setting(...)` says of a field is its docstring."""

import ast
import re
from typing import Any

import griffe

from simsgd.config import Config


class Comments(griffe.Extension):
    """Gives fields of classes, which have no docstring, the text that stands beside them."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Show the examples of a docstring as code."""
        if obj.docstring:
            parts = obj.docstring.value.split("\n\n")
            fenced = (f"```pycon\n{p}\n```" if p.lstrip().startswith(">>>") else p for p in parts)
            obj.docstring.value = "\n\n".join(fenced)

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **kwargs: Any
    ) -> None:
        """Take the help of a setting with its default, or the comment at a line's end."""
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "setting":
            attr.value = ast.unparse(value.args[0])
            text = Config.__dataclass_fields__[attr.name].metadata["help"]
            attr.docstring = griffe.Docstring(text, parent=attr)
        elif attr.docstring is None and attr.lines:
            comment = re.search(r"  # (?!type:|noqa)(.*)", attr.lines[-1])
            if comment:
                text = comment[1][0].upper() + comment[1][1:]
                attr.docstring = griffe.Docstring(f"{text}.", parent=attr)
