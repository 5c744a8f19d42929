"""Resolves the name of a device."""

import torch

from ..settings import SettingError


def device_of(name: str) -> str:
    """Return a device's name, "auto" resolved. Raises `SettingError` if it is not here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    rule = "must be auto, cpu, cuda or cuda:N"
    try:
        device = torch.device(name)
    except RuntimeError as wrong:
        raise SettingError("device", name, rule) from wrong
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise SettingError("device", name, rule)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError("device", name, "is not on this machine", "use cpu")
    return name
