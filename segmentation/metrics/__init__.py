"""How good a label map is: overlap, surface, volume, statistics."""

from segmentation.metrics.definitions import METRICS, Metric
from segmentation.metrics.pair import Measurement, PairMeasurements, compare

__all__ = ["METRICS", "Measurement", "Metric", "PairMeasurements", "compare"]
