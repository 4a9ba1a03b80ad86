"""Ratios of commd's figures to those of the best peer. These functions read no clock and start no process.

medians: {contestant: {(operation, size_bytes): us}}. A contestant whose name begins with "commd" is no peer."""
import math
import statistics

from contestants import AFTER_COMPUTING, COLLECTIVES

KIB, MIB = 1 << 10, 1 << 20
# title, smallest and largest size in bytes
SIZE_CLASSES = (("<= 2 KiB", 1, 2 * KIB), ("8 to 128 KiB", 8 * KIB, 128 * KIB), ("512 KiB to 2 MiB", 512 * KIB, 2 * MIB), (">= 8 MiB", 8 * MIB, math.inf))
SMALL_AFTER_COMPUTING = ("all_reduce" + AFTER_COMPUTING, 8)


def is_peer(name):
    return not name.startswith("commd")


def best_peer(medians, key):
    """Returns the name of the fastest peer, or None."""
    times = {name: times[key] for name, times in medians.items() if is_peer(name) and key in times}
    return min(times, key=times.get) if times else None


def ratio(medians, key, own="commd"):
    """Returns the best peer's time over commd's, or None if either is not known. Above 1, commd is faster."""
    peer = best_peer(medians, key)
    time_us = medians.get(own, {}).get(key)
    return medians[peer][key] / time_us if peer and time_us else None


def mean_ratio(medians, keys, own="commd"):
    """Returns the geometric mean of the ratios that are known, or None if none is."""
    ratios = [each for each in (ratio(medians, key, own) for key in keys) if each]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def class_ratio(medians, low_bytes, high_bytes, own="commd"):
    """Each collective has the same weight, however many sizes of it were measured."""
    means = []
    for collective in COLLECTIVES:
        keys = [key for key in medians.get(own, {}) if key[0] == collective and low_bytes <= key[1] <= high_bytes]
        mean = mean_ratio(medians, keys, own)
        means += [mean] if mean else []
    return math.exp(statistics.fmean(map(math.log, means))) if means else None


def size_ratio(medians, size_bytes, own="commd"):
    return mean_ratio(medians, [(collective, size_bytes) for collective in COLLECTIVES], own)


def worst_of_bars(medians, limits, own="commd"):
    """Returns the smallest ratio of a single collective and size, divided by the limit of its class, or None. limits: one for each of SIZE_CLASSES."""
    parts = [each / limit for (_, low, high), limit in zip(SIZE_CLASSES, limits)
             for each in (ratio(medians, key, own) for key in medians.get(own, {}) if key[0] in COLLECTIVES and low <= key[1] <= high) if each]
    return min(parts, default=None)


def processor_ratio(medians, cpu, low_bytes, own="commd"):
    """Returns the geometric mean of the best peer's processor time for one operation over commd's, from low_bytes on, or None. The best peer is the
    fastest."""
    ratios = [cpu[best_peer(medians, key)][key] / cpu[own][key] for key in medians.get(own, {})
              if key[0] in COLLECTIVES and key[1] >= low_bytes and best_peer(medians, key) and cpu[own].get(key)]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def traces_ratio(medians, own="commd"):
    return mean_ratio(medians, [key for key in medians.get(own, {}) if key[0].startswith("trace ")], own)
