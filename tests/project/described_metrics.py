"""A metric's labels, and a histogram's buckets."""

from prometheus_client.metrics import MetricWrapperBase

_MOST = 8


def labelled(metric: MetricWrapperBase) -> MetricWrapperBase:
    """Return the series with all labels "x"; the metric itself without labels."""
    for count in range(1, _MOST):
        try:
            made: MetricWrapperBase = metric.labels(*"x" * count)
        except ValueError:  # another number of labels, or none
            continue
        return made
    return metric


def labels_of(metric: MetricWrapperBase) -> tuple[str, ...]:
    """Return the labels in their order. Creates a series with "x" throughout."""
    labelled(metric)
    (family,) = metric.collect()
    return tuple(name for name in family.samples[0].labels if name != "le")


def buckets_of(metric: MetricWrapperBase) -> list[float]:
    """Return the upper bounds of a histogram's buckets."""
    labelled(metric)
    (family,) = metric.collect()
    return [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
