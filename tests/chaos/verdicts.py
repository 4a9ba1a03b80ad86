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


def goes_on(nodes, pairs):
    """Returns the nodes that go on when nothing passes between these pairs: the majority, or the half with the first node; an empty set if no group is
    large enough. nodes: of a communicator, in the order of its ranks."""
    cut = {frozenset(pair) for pair in pairs}
    order = list(dict.fromkeys(nodes))
    for first in order:
        group = {node for node in order if node == first or frozenset((first, node)) not in cut}
        if 2 * len(group) > len(order) or (2 * len(group) == len(order) and order[0] in group):
            return group
    return set()


def of_partition(comm, reports, node_of, pairs):
    """reports: as above. node_of: by first rank, its node. pairs: the nodes that cannot reach each other, on two sides."""
    group = goes_on([node_of[rank] for rank in sorted(node_of)], pairs)
    return [f"{comm}: rank {each['rank']} on {node_of[each['rank']]} {'may not go on' if node_of[each['rank']] in group else 'may go on'}, but the nodes that go on are "
            f"{''.join(sorted(group))}: {each.text}" for each in reports if bool(each.known == 0 and each.may_shrink) != (node_of[each["rank"]] in group)]
