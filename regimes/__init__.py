"""Schedules by name: one file each, with a `regime`."""
