"""What there is to know of a metric beside its values: its labels, and a histogram's buckets."""

from prometheus_client.metrics import MetricWrapperBase

_MOST = 8


def labelled(metric: MetricWrapperBase) -> MetricWrapperBase:
    """Choose the series whose labels are all "x"; the metric itself where it has no labels."""
    for count in range(1, _MOST):
        try:
            made: MetricWrapperBase = metric.labels(*"x" * count)
        except ValueError:  # another number of labels, or none
            continue
        return made
    return metric


def labels_of(metric: MetricWrapperBase) -> tuple[str, ...]:
    """Name the labels in their order. A series of them is made for it, "x" throughout."""
    labelled(metric)
    (family,) = metric.collect()
    return tuple(name for name in family.samples[0].labels if name != "le")


def buckets_of(metric: MetricWrapperBase) -> list[float]:
    """Name the upper bounds of a histogram's buckets."""
    labelled(metric)
    (family,) = metric.collect()
    return [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
