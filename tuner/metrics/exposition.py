"""The reader of Prometheus' text format, without the rest of its package.

``prometheus_client`` brings registries, collectors and HTTP servers along when it is imported: 1.2 MB that an app which
only reads pages would hold all day.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    Reader: TypeAlias = Callable[[str], Iterable[Metric]]

_PACKAGE = "prometheus_client"


def families_of(page: str) -> Iterable[Metric]:
    """The metric families of a page, as ``prometheus_client.parser.text_string_to_metric_families`` reads them."""
    return _reader()(page)


@functools.cache
def _reader() -> Reader:
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is not None:
        # A package that is there but was not run: its parser is imported from it as any other module.
        sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        from prometheus_client.parser import text_string_to_metric_families
    finally:
        if spec is not None:
            # Who wants the package itself gets all of it.
            sys.modules.pop(_PACKAGE, None)
    return text_string_to_metric_families
