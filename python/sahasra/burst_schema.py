"""Limits of a BurstJob. Generated from crds/src by `make generate`: do not edit."""

#: Largest number of values that a parameter may list.
MAX_VALUES = 4096
#: Largest number of retries of a chunk.
MAX_RETRIES = 1000
#: Largest number of slices.
MAX_SLICES = 100000
#: Largest number of elements of an output.
MAX_ELEMENTS = 33554432
