"""Parses the /metrics of a Scree process strictly as OpenMetrics, and prints its
values as JSON: [{"name", "labels", "value"}, ...].

    curl -s http://127.0.0.1:9464/metrics | tools/run check metrics

It fails on everything that Prometheus would refuse, and on a family without help or
type, or without the prefix scree_.
(Debian: python3-prometheus-client. `tools/packages test` installs it.)
"""

import json
import sys

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError:
    sys.exit("python3-prometheus-client is not installed; run `tools/packages test`")

samples = []
seen = set()
for family in text_string_to_metric_families(sys.stdin.read()):
    if not family.documentation or family.type == "unknown":
        sys.exit(f"{family.name} has no help, or no type")
    if not family.name.startswith("scree_") and family.name != "process_start_time_seconds":
        sys.exit(f"{family.name} does not begin with scree_")
    for sample in family.samples:
        row = (sample.name, tuple(sorted(sample.labels.items())))
        if row in seen:
            sys.exit(f"{row} occurs twice")
        seen.add(row)
        samples.append({"name": sample.name, "labels": sample.labels, "value": sample.value})
json.dump(samples, sys.stdout)
