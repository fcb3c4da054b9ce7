"""Deferred errors in the tools around a training loop; nothing here is imported by us.

Each module needs the library that it is named after, and loads it when it is used.
"""
