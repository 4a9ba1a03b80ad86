"""Compares two builds from rounds of measurements: geometric means of ratios, with their intervals. These functions read no clock and start no
process."""
import math
import statistics

BAR = 0.97  # "no slower": the interval of base/current reaches at least this ratio

# Student's t for 95 %, two-sided, by degrees of freedom. For a number that is not in the table, the next smaller entry is used. Its interval is a
# little too wide.
STUDENT_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160,
              14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}


class Interval:
    """A geometric mean and its 95 % interval. With one round, the interval has no limits."""

    def __init__(self, mean, low, high, rounds):
        self.mean, self.low, self.high, self.rounds = mean, low, high, rounds

    def text(self):
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def student_95(degrees):
    return STUDENT_95[max(each for each in STUDENT_95 if each <= degrees)]


def interval(logs):
    """Returns the interval of ratios; `logs` has the logarithm of one ratio for each round."""
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), 0.0, math.inf, len(logs))
    half = student_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def mean_log_ratio(over, under):
    """Returns the mean logarithm of over/under for all keys that both have, or None if there is none. Values are times: a ratio above 1 says that
    `under` took less."""
    logs = [math.log(over[key] / under[key]) for key in over if key in under and over[key] > 0 and under[key] > 0]
    return statistics.fmean(logs) if logs else None


def round_logs(base, current, control):
    """Returns (base/current, base/control) of one round as logarithms, or None. The control is a second run of the base. So base/current is the
    mean of base/current and control/current."""
    against = mean_log_ratio(base, current)
    itself = mean_log_ratio(base, control)
    again = mean_log_ratio(control, current)
    if against is None or itself is None or again is None:
        return None
    return (against + again) / 2, itself


def compare(rounds):
    """rounds: [(base, current, control)], each {key: time}. Returns (interval of base/current, interval of base/control), or None without a
    round that has both."""
    logs = [pair for pair in (round_logs(*each) for each in rounds) if pair is not None]
    if not logs:
        return None
    return interval([ours for ours, _ in logs]), interval([control for _, control in logs])


def merge(groups):
    """Merges the rounds of several places into one list. Round n of all places becomes one round, and its keys name the place. groups: {place:
    [(base, current, control)]}."""
    count = max((len(rounds) for rounds in groups.values()), default=0)
    merged = []
    for number in range(count):
        parts = ({}, {}, {})
        for place, rounds in groups.items():
            if number < len(rounds):
                for part, times in zip(parts, rounds[number]):
                    part.update({(place, key): time for key, time in times.items()})
        merged.append(parts)
    return merged


def is_no_slower(ours):
    return ours.high >= BAR


def verdict(ours, control):
    """Returns the verdict in words. A wide interval reaches the bar easily, so the text also says when a run cannot tell."""
    words = "no slower" if is_no_slower(ours) else "SLOWER"
    if not control.low <= 1 <= control.high:
        words += ", but the base differs from itself: other work of the machine; repeat"
    elif is_no_slower(ours) and ours.low < BAR - 0.1:
        words += f", though as low as {ours.low:.2f} is possible: more rounds"
    return words
