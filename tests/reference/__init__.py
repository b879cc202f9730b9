"""A readable DSpark draft: the reference that the C++ graph is held against."""

from .draft import MASK_KINDS, Context, Draft, Round, inject, load_draft, propose

__all__ = ["MASK_KINDS", "Context", "Draft", "Round", "inject", "load_draft", "propose"]
