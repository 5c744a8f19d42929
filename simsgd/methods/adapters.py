"""Compressors that were written for other libraries, as compressors of this one."""

from .compressors.grace import grace

__all__ = ["grace"]
