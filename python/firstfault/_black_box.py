"""Where a program says where it is: straight into the black box, no Python between."""

from firstfault._native import breadcrumb, step

__all__ = ["breadcrumb", "step"]

for _public in (breadcrumb, step):
    _public.__module__ = "firstfault"
