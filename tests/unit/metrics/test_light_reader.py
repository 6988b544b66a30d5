"""The reader of metrics pages comes without its package's servers, and leaves the package whole for others."""

import subprocess
import sys

WORDS = """
import sys
from tuner.metrics.exposition import families_of
names = [family.name for family in families_of('# TYPE a gauge\\na 1\\n# TYPE b gauge\\nb 2\\n')]
print(names, 'prometheus_client.exposition' in sys.modules, 'http.server' in sys.modules)
import prometheus_client
print(prometheus_client.generate_latest(prometheus_client.CollectorRegistry()), prometheus_client.Gauge.__name__)
print([family.name for family in families_of('a 1\\n')])
"""


def test_a_metrics_page_is_read_without_the_http_servers_of_the_library_and_the_library_still_works() -> None:
    told = subprocess.run([sys.executable, "-c", WORDS], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == ["['a', 'b'] False False", "b'' Gauge", "['a']"]
