"""What the survivors of one communicator must agree on. Pure functions of the ranks' events; each returns the texts of what is wrong."""


def of_one(comm, reports):
    """reports: the FAILED events of the ranks of one communicator."""
    wrong = []
    told = [each for each in reports if each.result != "DAEMON_LOST"]
    going_on = [each for each in told if each.known == 0 and each.may_shrink]
    verdicts = {(each.result, each.text, each.lost, each.last) for each in going_on}
    if len(verdicts) > 1:
        wrong.append(f"{comm}: survivors that may go on were told different things: " + "; ".join(
            f"rank {each.local}: {each.result} lost {each.lost} last {each.last} {each.text}" for each in going_on))
    lost = set().union(*(each.lost for each in going_on))
    for each in told:
        if each in going_on or each.local in lost or "minority" in each.text or each.known != 0:
            continue
        wrong.append(f"{comm}: rank {each.local} may not go on, and nobody says why: {each.result} known {each.known} lost {each.lost} {each.text}")
    for each in going_on:
        if each.local in each.lost:
            wrong.append(f"{comm}: rank {each.local} may go on, and counts itself as lost")
    return wrong


def of_next(comm, before, after):
    """Of a communicator made by comm_shrink. before: the FAILED events of its predecessor; after: the SHRUNK events."""
    wrong = []
    sizes = {each.size for each in after}
    places = sorted(each.local for each in after)
    if len(sizes) != 1:
        wrong.append(f"{comm}: its ranks say that it has different sizes: {sorted(sizes)}")
    elif len(set(places)) != len(places) or places[-1] >= max(sizes):
        wrong.append(f"{comm}: its {max(sizes)} ranks have the places {places}")
    old = {each["rank"]: each.local for each in before}
    in_order = sorted((each for each in after if each["rank"] in old), key=lambda each: old[each["rank"]])
    if [each.local for each in in_order] != sorted(each.local for each in in_order):
        wrong.append(f"{comm}: the order of its ranks changed")
    return wrong
