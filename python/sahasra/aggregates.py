"""Aggregates of bursts. Generated from crds/src by `make generate`: do not edit."""

AGGREGATES = (
    "argmin",
    "argmax",
    "topK",
    "sum",
    "mean",
    "concat",
    "none",
)
